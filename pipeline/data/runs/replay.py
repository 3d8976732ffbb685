"""``meshfeed.open``: any batch of a run again, bit for bit, without Ray and without a device.

::

    run = meshfeed.open("runs/demo")
    batch = run.batch(1000)                   # {"tokens": int32 [batch_size, seq_len], ...}
    for row in run.rows(1000)[:2]:            # which records they are made of
        print(row.source, [(s.shard, s.where, s.length) for s in row.segments])

Rows are a pure function of what the run directory holds, and the ledger says where they lie, so a
late step costs what an early one does: only the windows that hold its rows are run.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.data.batches.digest import combine, hex_digest, leaf_digest
from meshfeed.pipeline.data.batches.leaves import derive, name_leaves, named_dtypes
from meshfeed.pipeline.data.formats.records import describe_place
from meshfeed.pipeline.data.packing.rows import WindowRows
from meshfeed.pipeline.data.runs.feed_replay import FeedReplay, moved
from meshfeed.pipeline.data.runs.run_folder import RunFolder
from meshfeed.pipeline.data.sources.source_reader import storage_of
from meshfeed.pipeline.data.tokenizers import Tokenizer
from meshfeed.pipeline.plan.config import LEAVES
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.recorded_rows import RecordedRows
from meshfeed.pipeline.plan.run_config import TRAIN

Leaf = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOrigin:
    """A record, or a part of one, in a row.

    Attributes:
        start: column of its first token in the row.
        length: tokens.
        shard: address of the file that the record is in.
        place: of the record in the shard, in ``unit``.
        unit: ``record`` (index), ``byte`` (offset), ``line`` (from 1) or ``batch``.
        offset: token of the record with which the segment begins.
    """

    start: int
    length: int
    shard: str
    place: int
    unit: str
    offset: int

    @property
    def where(self) -> str:
        """The place for people: ``record 17``."""
        return describe_place(self.unit, self.place)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOrigin:
    """Where a row comes from.

    Attributes:
        row: in its batch.
        global_row: in its feed.
        source: name.
        epoch: pass over the source.
        window: in the epoch.
        window_row: in the window.
        segments: in order.
    """

    row: int
    global_row: int
    source: str
    epoch: int
    window: int
    window_row: int
    segments: tuple[SegmentOrigin, ...]


class Replay:
    """A run that is over, or still going on. For use from one thread at a time.

    Args:
        run_dir: the run directory, wherever it lies now.
        data: folders where the shards of sources lie now, by source name, if they have moved:
            what the manifest's paths are relative to. They must be the same files.
        progress: told a line for every window that must be run only to know how many rows it has.

    Raises:
        ConfigError: there is no run, or no source of such a name.
        ChangedError: it was made by a meshfeed that orders rows in another way.
    """

    def __init__(
        self,
        run_dir: str,
        *,
        data: Mapping[str, str] | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._folder = RunFolder(run_dir)
        self._config = self._folder.load_config()
        self._progress = progress
        specs = self._folder.load_specs()
        _check_names(specs, data or {})
        self._specs = {name: moved(spec, data or {}) for name, spec in specs.items()}
        self._storage = storage_of(self._config)
        self._feeds: dict[str, FeedReplay] = {}

    @property
    def feeds(self) -> tuple[str, ...]:
        """Names of the run's feeds."""
        return tuple(self._specs)

    def spec(self, feed: str = TRAIN) -> FeedSpec:
        """What is fixed for a feed.

        Raises:
            ConfigError: there is no such feed.
        """
        if feed not in self._specs:
            near = difflib.get_close_matches(feed, self._specs, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(self._specs)}"
            raise ConfigError("feed", f"the run has no feed {feed!r}", hint)
        return self._specs[feed]

    def num_steps(self, feed: str = TRAIN) -> int | None:
        """Steps that the feed's sources give, None where that is not known yet."""
        return self._feed(feed).num_steps

    def is_recorded(self, step: int, feed: str = TRAIN) -> bool:
        """Whether the run itself has come to a step: all its windows are in the ledger."""
        return self._feed(feed).is_recorded(step)

    def tokenizer(self, feed: str = TRAIN) -> Tokenizer | None:
        """The feed's tokenizer, None where its sources hold token ids."""
        return self._feed(feed).tokenizer

    def batch(
        self,
        step: int,
        feed: str = TRAIN,
        *,
        leaves: Iterable[str] = LEAVES,
        leaf_names: str | Mapping[str, str] | None = None,
    ) -> dict[str, Leaf]:
        """The global batch of a step, as all hosts together got it.

        A step behind the last one that was trained is what would have come next.

        Args:
            step: from 0, in any order.
            feed: name.
            leaves: which are wanted.
            leaf_names: preset or mapping; None: as the run says.

        Returns:
            [batch_size, seq_len] for each leaf, by the user's name of it. Rows that pad the last
            step are 0. (Where ``uneven_batch`` is ``pad``, hosts have further rows of 0 behind.)

        Raises:
            ConfigError: no such step, feed or leaf.
            ChangedError: data, transforms or tokenizer are no longer those of the run.
        """
        names = name_leaves(self._config.leaf_names if leaf_names is None else leaf_names)
        dtypes = named_dtypes(leaves, names)
        made = derive(self._feed(feed).region(step), dtypes, dtypes)
        return {names[leaf]: array for leaf, array in made.items()}

    def rows(self, step: int, feed: str = TRAIN) -> tuple[RowOrigin, ...]:
        """Which records each row of a step is made of; rows that pad the last step have none.

        Raises:
            As ``batch``.
        """
        replay = self._feed(feed)
        places = replay.places(step)
        windows, which = replay.windows(places)
        manifests = replay.spec.manifests
        first = step * replay.spec.config.batch_size
        origins = []
        for row, window in enumerate(which.tolist()):
            source, window_row = int(places.source[row]), int(places.row[row])
            address = manifests[source].address
            origins.append(
                RowOrigin(
                    row=row,
                    global_row=first + row,
                    source=manifests[source].name,
                    epoch=int(places.epoch[row]),
                    window=int(places.window[row]),
                    window_row=window_row,
                    segments=_segments(windows[window], window_row, address),
                )
            )
        return tuple(origins)

    def digest(self, step: int, feed: str = TRAIN) -> str:
        """The digest of a step as ``report.json`` has it: 16 hexadecimal digits.

        Raises:
            As ``batch``.
        """
        real = len(self._feed(feed).places(step).row)
        rows = step * self.spec(feed).config.batch_size + np.arange(real, dtype=np.int64)
        batch = self.batch(step, feed)
        return hex_digest(combine(leaf_digest(n, rows, 0, a[:real]) for n, a in batch.items()))

    def close(self) -> None:
        """Closes files and forgets all windows."""
        self._feeds.clear()
        self._storage.close()

    def __enter__(self) -> Replay:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _feed(self, feed: str) -> FeedReplay:
        if feed not in self._feeds:
            spec = self.spec(feed)
            recorded = RecordedRows(self._folder.ledger_path(spec), spec.fingerprint)
            self._feeds[feed] = FeedReplay(spec, recorded, self._storage, self._progress)
        return self._feeds[feed]


def open(
    run_dir: str,
    *,
    data: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Replay:
    """Opens a run directory to see its batches again; see ``Replay``."""
    return Replay(run_dir, data=data, progress=progress)


def _segments(
    window: WindowRows, row: int, address: Callable[[int], str]
) -> tuple[SegmentOrigin, ...]:
    """The segments of a row of a window."""
    all_of_window = window.packed.segments
    begin, end = np.searchsorted(all_of_window.row, [row, row + 1]).tolist()
    starts = all_of_window.start[begin:end].tolist()
    ends = [*starts[1:], int(window.packed.block.lengths[row])]
    records = all_of_window.record[begin:end]
    columns = (
        starts,
        ends,
        window.shards[records].tolist(),
        window.places[records].tolist(),
        all_of_window.offset[begin:end].tolist(),
    )
    return tuple(
        SegmentOrigin(
            start=start,
            length=stop - start,
            shard=address(shard),
            place=place,
            unit=window.place_unit,
            offset=offset,
        )
        for start, stop, shard, place, offset in zip(*columns, strict=True)
    )


def _check_names(specs: Mapping[str, FeedSpec], data: Mapping[str, str]) -> None:
    known = {manifest.name for spec in specs.values() for manifest in spec.manifests}
    for name in data:
        if name not in known:
            raise ConfigError(
                "data", f"the run has no source {name!r}", f"There are {', '.join(sorted(known))}"
            )
