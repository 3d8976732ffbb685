"""What is in a source: lengths, bad records, padding and read amplification, from its windows.

Windows are run as readers run them, from an order that spreads a few of them over the whole source,
or all of them once. Bad records are counted whatever the source's policy is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from meshfeed.pipeline.data.formats.records import ChunkRecords, is_int_list
from meshfeed.pipeline.data.packing.blocks import BlockFormat
from meshfeed.pipeline.data.packing.rows import Skipped, WindowRunner
from meshfeed.pipeline.data.packing.tokens import RecordTokens
from meshfeed.pipeline.data.storage import Storage
from meshfeed.pipeline.data.tokenizers import Tokenizer
from meshfeed.pipeline.plan.config import BadRecords, Shuffle
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.manifest import SourceManifest, Unit
from meshfeed.pipeline.plan.windows import EpochWindows

Ints = npt.NDArray[np.int64]

SAMPLED_TOKENS = 2 << 20
"""A sample ends after so many tokens, or so many windows."""

SAMPLED_WINDOWS = 16


@dataclass(slots=True)
class Survey:
    """What some windows of a source have shown.

    Attributes:
        source: name.
        manifest: its shards.
        windows: of an epoch.
        windows_run: of them.
        units_run: bytes or records of shards in those windows.
        records: read, bad ones included.
        kept: records that were packed: after transforms, without the bad and the empty.
        tokens, padding, rows: in the rows made.
        overlong: records longer than a row.
        empty: records without a token.
        storage_bytes, used_bytes: read from storage, and those of them that used columns take up.
        record_bytes: of each good record, as read: text, or token ids at their stored width.
        record_tokens: of each record that was packed, after transforms.
        seconds: by stage.
        bad: (shard, place, reason) of records that are bad.
    """

    source: str
    manifest: SourceManifest
    windows: int
    windows_run: int = 0
    units_run: int = 0
    records: int = 0
    kept: int = 0
    tokens: int = 0
    padding: int = 0
    rows: int = 0
    overlong: int = 0
    empty: int = 0
    storage_bytes: int = 0
    used_bytes: int = 0
    record_bytes: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    record_tokens: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    seconds: dict[str, float] = field(default_factory=dict)
    bad: list[Skipped] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """All of the source was read."""
        return self.windows_run == self.windows

    @property
    def total_units(self) -> int:
        """Bytes or records of all shards."""
        return sum(shard.size for shard in self.manifest.shards)

    def estimate(self, count: float) -> float:
        """What a count comes to over the whole source."""
        if self.whole or not self.units_run:
            return count
        return count * self.total_units / self.units_run

    @property
    def total_records(self) -> tuple[float, bool]:
        """Records of the source, and whether that is exact."""
        if self.manifest.unit is Unit.RECORDS:
            return self.total_units, True
        return self.estimate(self.records), self.whole


def survey_source(
    spec: FeedSpec,
    source: int,
    *,
    storage: Storage,
    tokenizer: Tokenizer | None,
    whole: bool = False,
    windows: int = SAMPLED_WINDOWS,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    on_stage: Callable[[str, str], None] = lambda _stage, _shard: None,
) -> Survey:
    """Runs windows of a source in this process.

    Args:
        spec: of the feed.
        source: index in its sources.
        storage: the process's way to storage.
        tokenizer: of the feed.
        whole: all windows of an epoch, not a sample.
        windows: of a sample at most; fewer where they have many tokens.
        progress: told windows done and windows to do.
        on_stage: told (stage, shard) when a stage begins.

    Raises:
        DataError, ReadError, ConfigError: the source cannot be read at all.
    """
    manifest = spec.manifests[source]
    config = dataclasses.replace(spec.config, shuffle=_order(spec.config.shuffle, manifest))
    settings = dataclasses.replace(config.sources[source], bad_records=BadRecords.SKIP)
    epoch = EpochWindows(manifest, config.shuffle, config.seed, _EPOCH)
    lengths = _Lengths()
    runner = WindowRunner(
        feed=config,
        source=settings,
        manifest=manifest,
        block_format=BlockFormat.of(spec),
        tokenizer=tokenizer,
        storage=storage,
        on_stage=on_stage,
        look=lengths.add,
    )
    survey = Survey(source=manifest.name, manifest=manifest, windows=epoch.num_windows)
    chosen = list(range(epoch.num_windows)) if whole else _spread(epoch.num_windows, windows)
    for done, index in enumerate(chosen):
        progress(done, len(chosen))
        result = runner.run(_EPOCH, index)
        stats = result.stats
        survey.windows_run += 1
        survey.units_run += _units(epoch, index, manifest)
        survey.records += stats.records
        survey.tokens += stats.tokens
        survey.padding += stats.padding
        survey.rows += result.packed.block.rows
        survey.overlong += result.packed.overlong_records
        survey.empty += result.packed.empty_records
        survey.storage_bytes += stats.storage_bytes
        survey.used_bytes += stats.used_bytes
        survey.bad += stats.skipped
        for stage, seconds in stats.seconds.items():
            survey.seconds[stage] = survey.seconds.get(stage, 0.0) + seconds
        if not whole and survey.tokens >= SAMPLED_TOKENS:
            break
    survey.record_bytes, survey.record_tokens = lengths.joined()
    survey.kept = len(survey.record_tokens) - survey.empty
    return survey


_EPOCH = 1
"""Its windows are all of their usual size; the first of epoch 0 are small, to start soon."""


class _Lengths:
    """Lengths of records as they were read, and of their tokens."""

    def __init__(self) -> None:
        self._bytes: list[Ints] = []
        self._tokens: list[Ints] = []

    def add(self, records: ChunkRecords, tokens: RecordTokens) -> None:
        self._bytes.append(_record_bytes(records))
        self._tokens.append(np.diff(tokens.offsets))

    def joined(self) -> tuple[Ints, Ints]:
        nothing = np.zeros(0, np.int64)
        return np.concatenate([nothing, *self._bytes]), np.concatenate([nothing, *self._tokens])


def _record_bytes(records: ChunkRecords) -> Ints:
    """Bytes of the first column of each record: int64 [n]."""
    column = records.table.column(0)
    if is_int_list(column.type):
        lengths = pc.list_value_length(column)
        width = column.type.value_type.bit_width // 8
    else:
        lengths, width = pc.binary_length(column), 1
    sizes: Ints = lengths.to_numpy(zero_copy_only=False).astype(np.int64) * width
    return sizes


def _order(shuffle: Shuffle, manifest: SourceManifest) -> Shuffle:
    """The run's, but ``record`` would read a whole group of chunks for each window."""
    return Shuffle.CHUNK if shuffle is Shuffle.RECORD and not manifest.random_access else shuffle


def _units(epoch: EpochWindows, index: int, manifest: SourceManifest) -> int:
    """Units of the source that a window covers, its share of its group."""
    window = epoch.window(index)
    if window.records is not None:
        return window.records[1] - window.records[0]
    group = sum(
        min(chunk.end, manifest.shards[chunk.shard_index].size) - chunk.begin
        for chunk in window.chunks
    )
    return group * (window.hi - window.lo) // window.den


def _spread(count: int, most: int) -> list[int]:
    """At most ``most`` indices below ``count``, evenly spaced, first and last included.

    In an order in which the first few are spread over all of them too.
    """
    if count <= most:
        chosen = list(range(count))
    else:
        chosen = [i * (count - 1) // max(most - 1, 1) for i in range(most)]
    return [chosen[i] for i in _interleaved(len(chosen))]


def _interleaved(count: int) -> Iterator[int]:
    """0..count-1 so that any first few are far apart: by the reversed bits of their numbers."""
    bits = max(count - 1, 1).bit_length()
    for number in range(1 << bits):
        index = int(f"{number:0{bits}b}"[::-1], 2)
        if index < count:
            yield index
