"""Rows are a pure function: what a window's rows are, whoever runs it.

``rows(manifest, order settings, exceptions, seed, source, epoch, window)``: nothing else enters.
A ``WindowRunner`` holds what is the same for all windows of a source; ``run`` is that function.
Readers run it in the cluster, ``meshfeed.open`` runs the same code without one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.data.formats.records import BadRecord, ChunkRecords, RecordSpec
from meshfeed.pipeline.data.packing.blocks import BlockFormat
from meshfeed.pipeline.data.packing.pack import Allocate, Packed, pack
from meshfeed.pipeline.data.packing.tokens import RecordTokens, record_tokens
from meshfeed.pipeline.data.sources.chunk_cache import ChunkCache
from meshfeed.pipeline.data.sources.source_reader import SourceReader
from meshfeed.pipeline.data.storage import Storage
from meshfeed.pipeline.data.tokenizers import TokenBatch, Tokenizer
from meshfeed.pipeline.data.transforms import Stage, load_transforms
from meshfeed.pipeline.data.transforms.applying import apply_to_records, apply_to_tokens
from meshfeed.pipeline.data.transforms.origins import Origins
from meshfeed.pipeline.plan.config import BadRecords, FeedConfig, SourceConfig
from meshfeed.pipeline.plan.manifest import SourceManifest
from meshfeed.pipeline.plan.windows import EpochWindows, Window

Shards = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]

Skipped = tuple[str, str, str]
"""(shard, place, reason) of a record that was left out."""


@dataclass(slots=True)
class WindowStats:
    """What a window took and gave; ``seconds`` by stage."""

    records: int = 0
    tokens: int = 0
    padding: int = 0
    storage_bytes: int = 0
    used_bytes: int = 0
    skipped: tuple[Skipped, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRows:
    """The rows of a window, and where each segment came from.

    Attributes:
        packed: block, segments and counts.
        shards: int32 [records], shard_index of each record that was packed.
        places: int64 [records], place of each in its shard.
        place_unit: what places count.
        stats: what it took.
    """

    packed: Packed
    shards: Shards
    places: Places
    place_unit: str
    stats: WindowStats


class WindowRunner:
    """Runs windows of one source of one feed.

    Args:
        feed: order settings.
        source: the source's settings.
        manifest: its shards.
        block_format: of the feed.
        tokenizer: None where the column holds token ids.
        storage: the process's way to storage.
        cache: chunks that windows share; None: this process alone keeps the last group.
        on_stage: told (stage, shards of the window) when a stage begins.
        look: shown the records of each window as they were read, and the tokens made of them.
    """

    def __init__(
        self,
        *,
        feed: FeedConfig,
        source: SourceConfig,
        manifest: SourceManifest,
        block_format: BlockFormat,
        tokenizer: Tokenizer | None,
        storage: Storage,
        cache: ChunkCache | None = None,
        on_stage: Callable[[str, str], None] = lambda _stage, _shard: None,
        look: Callable[[ChunkRecords, RecordTokens], None] = lambda _records, _tokens: None,
    ) -> None:
        self._feed = feed
        self._source = source
        self._manifest = manifest
        self._format = block_format
        self._tokenizer = tokenizer
        self._on_stage = on_stage
        self._what = ""
        self._look = look
        self._transforms = load_transforms(
            source.transforms, setting=f"sources.{source.name}.transforms"
        )
        spec = RecordSpec.of(source).with_extras(self._transforms.needs)
        # transforms look at records as they are stored
        narrow = block_format.token_dtype == "uint16" and not self._transforms.of_stage(
            Stage.RECORDS
        )
        self._reader = SourceReader(
            manifest,
            spec,
            storage,
            cache,
            on_stage,
            id_dtype=block_format.dtype if narrow else None,
        )
        self._epochs: dict[int, EpochWindows] = {}

    def run(self, epoch: int, index: int, allocate: Allocate | None = None) -> WindowRows:
        """The rows of one window.

        Args:
            epoch: pass over the source.
            index: window within the epoch.
            allocate: where the block is laid; None: new memory.

        Raises:
            DataError: a record is bad and the source's policy is ``fail``.
            ReadError: storage failed.
        """
        stats = WindowStats()
        window = self._windows(epoch).window(index)
        self._what = self._describe(window)
        with self._timed(stats, "read"):
            records = read = self._reader.records(window)
        stats.storage_bytes, stats.used_bytes = records.storage_bytes, records.used_bytes
        bad = list(records.bad)
        stats.records = len(records) + len(bad)
        if self._transforms.of_stage(Stage.RECORDS):
            with self._timed(stats, "transform"):
                records, faults = self._transform_records(records, epoch)
            bad += faults
        with self._timed(stats, "tokenize"):
            tokens, faults = record_tokens(records, self._source, self._tokenizer)
        bad += faults
        if self._transforms.of_stage(Stage.TOKENS):
            with self._timed(stats, "transform"):
                tokens, faults = self._transform_tokens(tokens, records.place_unit, epoch)
            bad += faults
        stats.skipped = self._policy(bad)
        self._look(read, tokens)
        with self._timed(stats, "pack"):
            packed = self._pack(tokens, allocate)
        stats.tokens, stats.padding = packed.tokens, packed.padding
        stats.counts = {
            name: getattr(packed, name)
            for name in ("empty_records", "overlong_records", "truncated_tokens")
        }
        return WindowRows(
            packed=packed,
            shards=tokens.shards,
            places=tokens.places,
            place_unit=records.place_unit,
            stats=stats,
        )

    def window(self, epoch: int, index: int) -> Window:
        """Which records a window owns."""
        return self._windows(epoch).window(index)

    def _pack(self, tokens: RecordTokens, allocate: Allocate | None) -> Packed:
        feed = self._feed
        return pack(
            tokens.ids,
            tokens.offsets,
            format=self._format,
            packing=feed.packing,
            overlong=feed.overlong,
            max_segments=feed.max_segments,
            vocab_size=feed.vocab_size,
            loss=tokens.loss if self._format.loss_mask else None,
            allocate=allocate,
        )

    def _policy(self, bad: list[BadRecord]) -> tuple[Skipped, ...]:
        """Bad records as they are listed, or the first as the error that it is."""
        if bad and self._source.bad_records is BadRecords.FAIL:
            first = min(bad)
            raise first.error(self._manifest.address(first.shard_index))
        return tuple(
            (self._manifest.address(b.shard_index), f"{b.unit} {b.place}", b.reason) for b in bad
        )

    def _describe(self, window: Window) -> str:
        """The window's first shard and how many more it has, for people."""
        shards = {chunk.shard_index: None for chunk in window.chunks}
        if not shards:
            return f"window {window.index} of {window.source}"
        more = f" and {len(shards) - 1} more" if len(shards) > 1 else ""
        return self._manifest.address(next(iter(shards))) + more

    def _windows(self, epoch: int) -> EpochWindows:
        if epoch not in self._epochs:
            while len(self._epochs) >= 2:
                self._epochs.pop(next(iter(self._epochs)))
            self._epochs[epoch] = EpochWindows(
                self._manifest, self._feed.shuffle, self._feed.seed, epoch
            )
        return self._epochs[epoch]

    def _transform_records(
        self, records: ChunkRecords, epoch: int
    ) -> tuple[ChunkRecords, Sequence[BadRecord]]:
        made = apply_to_records(
            self._transforms,
            records.table,
            self._origins(records.shards, records.places, records.place_unit, epoch),
            columns=RecordSpec.of(self._source).columns,
            on_bad=self._source.bad_records,
        )
        kept = ChunkRecords(
            table=made.table,
            shards=records.shards[made.source],
            places=records.places[made.source],
            place_unit=records.place_unit,
        )
        return kept, made.bad

    def _transform_tokens(
        self, tokens: RecordTokens, place_unit: str, epoch: int
    ) -> tuple[RecordTokens, Sequence[BadRecord]]:
        largest = int(np.iinfo(self._format.dtype).max) + 1
        made = apply_to_tokens(
            self._transforms,
            TokenBatch(ids=tokens.ids.astype(np.int32, copy=False), offsets=tokens.offsets),
            tokens.loss,
            self._origins(tokens.shards, tokens.places, place_unit, epoch),
            has_loss=self._format.loss_mask,
            vocab_size=self._tokenizer.vocab_size if self._tokenizer else largest,
            on_bad=self._source.bad_records,
        )
        result = RecordTokens(
            ids=made.batch.ids,
            offsets=made.batch.offsets,
            shards=tokens.shards[made.source],
            places=tokens.places[made.source],
            loss=made.loss,
        )
        return result, made.bad

    def _origins(self, shards: Shards, places: Places, unit: str, epoch: int) -> Origins:
        return Origins(
            seed=self._feed.seed,
            source=self._source.name,
            epoch=epoch,
            shards=shards,
            places=places,
            unit=unit,
            address=self._manifest.address,
        )

    @contextmanager
    def _timed(self, stats: WindowStats, stage: str) -> Iterator[None]:
        self._on_stage(stage, self._what)
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            stats.seconds[stage] = stats.seconds.get(stage, 0.0) + seconds
