"""One feed of a run, read again: where its rows lie, and the windows that hold them.

Row counts come from the ledger, so that any step is found without running the windows before it;
where the ledger ends, windows are run for their counts. A window that is run again must give the
rows that its ledger entry was made from, or the data set is not the one of the run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import xxhash

from meshfeed.pipeline.data.batches.regions import NO_BLOCK, Region, cut_region, view_region
from meshfeed.pipeline.data.packing.blocks import BlockFormat
from meshfeed.pipeline.data.packing.rows import WindowRows, WindowRunner
from meshfeed.pipeline.data.sources.manifest_build import sampled_digest
from meshfeed.pipeline.data.storage import Storage
from meshfeed.pipeline.data.storage.cache import BoundedCache
from meshfeed.pipeline.data.tokenizers import Tokenizer, load_tokenizer
from meshfeed.pipeline.plan.config import Engine, Remainder
from meshfeed.pipeline.plan.errors import ChangedError, ConfigError
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.feed_state import WindowKey
from meshfeed.pipeline.plan.manifest import SourceManifest, Unit
from meshfeed.pipeline.plan.recorded_rows import RecordedRows
from meshfeed.pipeline.plan.schedule import RowPlaces, Schedule

KEPT_WINDOWS = 64
KEPT_BYTES = 256 << 20


class FeedReplay:
    """The rows of a feed, by step, in any order.

    Args:
        spec: of the feed, its manifests where the shards lie now.
        recorded: what its ledger says.
        storage: the process's way to storage.
        progress: told a line for every window that is run only for its row count.
    """

    def __init__(
        self,
        spec: FeedSpec,
        recorded: RecordedRows,
        storage: Storage,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.spec = spec
        self.format = BlockFormat.of(spec)
        self._recorded = recorded
        self._storage = storage
        self._progress = progress
        self._epochs = spec.epochs()
        self._schedule = Schedule(spec.source_plans(self._epochs))
        self._runners: dict[int, WindowRunner] = {}
        self._tokenizer: Tokenizer | None = None
        self._checked: set[tuple[int, int]] = set()
        self._windows: BoundedCache[WindowKey, WindowRows] = BoundedCache(
            max_items=KEPT_WINDOWS, max_cost=KEPT_BYTES
        )
        for source in range(len(spec.manifests)):
            self._recorded.tell(self._schedule, source)

    @property
    def num_steps(self) -> int | None:
        """Steps of the feed, None until its end is known."""
        total = self._schedule.total_rows
        if total is None:
            return None
        whole, rest = divmod(total, self.spec.config.batch_size)
        return whole + (1 if rest and self.spec.config.remainder is Remainder.PAD else 0)

    def is_recorded(self, step: int) -> bool:
        """Whether all windows of a step are in the ledger."""
        keys = _windows_of(self.places(step))[0]
        return all(self._recorded.rows_and_digest(*key) is not None for key in keys)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The run's tokenizer, None where all sources hold token ids.

        Raises:
            ChangedError: this machine's is another one.
        """
        spec = self.spec
        if self._tokenizer is None and spec.tokenizer_fingerprint:
            tokenizer = load_tokenizer(spec.config.tokenizer, Engine(spec.engine))
            if tokenizer.fingerprint != spec.tokenizer_fingerprint:
                raise ChangedError(
                    f"feed {spec.config.name!r} was made with tokenizer "
                    f"{spec.tokenizer_fingerprint}, here it is {tokenizer.fingerprint}. Install "
                    "the run's version of that engine to see its rows again"
                )
            self._tokenizer = tokenizer
        return self._tokenizer

    def places(self, step: int) -> RowPlaces:
        """Where the rows of a step lie; fewer than ``batch_size`` in the last step.

        Raises:
            ConfigError: the feed has no such step.
        """
        size = self.spec.config.batch_size
        if step < 0:
            raise ConfigError("step", f"{step} is negative", "Steps count from 0")
        self._determine((step + 1) * size)
        steps = self.num_steps
        if steps is not None and step >= steps:
            last = f"Its last step is {steps - 1}" if steps else "It has no row at all"
            raise ConfigError(
                "step", f"{step} lies beyond the end of feed {self.spec.config.name!r}", last
            )
        total = self._schedule.total_rows
        end = (step + 1) * size
        return self._schedule.locate(step * size, end if total is None else min(end, total))

    def windows(self, places: RowPlaces) -> tuple[list[WindowRows], np.ndarray]:
        """The windows of some rows, and which of them each row lies in: intp [rows]."""
        keys, which = _windows_of(places)
        return [self.window(key) for key in keys], which

    def region(self, step: int) -> Region:
        """A step's rows, all columns, filled up to ``batch_size`` with rows of weight zero.

        Raises:
            ConfigError: the feed has no such step.
        """
        size, seq_len = self.spec.config.batch_size, self.spec.config.seq_len
        places = self.places(step)
        windows, which = self.windows(places)
        real = len(which)
        block_of_row = np.full(size, NO_BLOCK)
        row_of_row = np.zeros(size, np.int64)
        block_of_row[:real], row_of_row[:real] = which, places.row
        blocks = [window.packed.block for window in windows]
        flat = cut_region(blocks, block_of_row, row_of_row, 0, seq_len, format=self.format)
        return view_region(flat, self.format, size, seq_len)

    def window(self, key: WindowKey) -> WindowRows:
        """The rows of a window, run now or a little while ago.

        Raises:
            ChangedError: they are not those of the run.
        """
        return self._windows.get(
            key, lambda: self._run(key), lambda w: w.packed.block.buffer.nbytes
        )

    def _determine(self, row: int) -> None:
        """Makes the schedule know the rows before ``row``, or the end of the feed."""
        schedule = self._schedule
        while schedule.total_rows is None and schedule.known_rows < row:
            source = schedule.limiting_source
            place = None if source is None else schedule.next_window(source)
            if source is None or place is None:
                return
            if self._recorded.tell(schedule, source):
                continue
            if self._recorded.refresh():
                continue
            key = WindowKey(source, *place)
            name = self.spec.config.sources[source].name
            size = self.spec.config.batch_size
            self._progress(
                f"the ledger ends before step {row // size - 1}: running window {key.window} of "
                f"{name}, steps up to {schedule.known_rows // size} are known"
            )
            window = self.window(key)
            schedule.append(source, [window.packed.block.rows], [window.stats.records])

    def _run(self, key: WindowKey) -> WindowRows:
        recorded = self._recorded.rows_and_digest(*key)
        if recorded is None:
            self._check_shards(key)
        try:
            result = self._runner(key.source).run(key.epoch, key.window)
        except Exception:
            self._check_shards(key)
            raise
        if recorded is not None:
            self._compare(key, result, *recorded)
        return result

    def _compare(self, key: WindowKey, result: WindowRows, rows: int, digest: int) -> None:
        block = result.packed.block
        same = not digest or xxhash.xxh3_64_intdigest(block.buffer.data) == digest
        if block.rows == rows and (same or not rows):
            return
        self._check_shards(key)
        name = self.spec.config.sources[key.source].name
        how = "other rows than it gave the run"
        if block.rows != rows:
            how = f"{block.rows} rows, where it gave the run {rows}"
        raise ChangedError(
            f"window {key.window} of epoch {key.epoch} of source {name} gives {how}: "
            "its shards or a transform have changed, or a transform is not deterministic"
        )

    def _check_shards(self, key: WindowKey) -> None:
        """Refuses shards that are not as they were listed, naming the first.

        Raises:
            ConfigError: a shard is not there.
            ChangedError: it has another size or content.
        """
        manifest = self.spec.manifests[key.source]
        window = self._epochs.windows(key.source, key.epoch).window(key.window)
        if manifest.unit is not Unit.BYTES:
            return
        for shard in sorted({chunk.shard_index for chunk in window.chunks}):
            if (key.source, shard) not in self._checked:
                _check_shard(self._storage, manifest, shard)
                self._checked.add((key.source, shard))

    def _runner(self, source: int) -> WindowRunner:
        if source not in self._runners:
            config = self.spec.config
            self._runners[source] = WindowRunner(
                feed=config,
                source=config.sources[source],
                manifest=self.spec.manifests[source],
                block_format=self.format,
                tokenizer=self.tokenizer,
                storage=self._storage,
            )
        return self._runners[source]


def _windows_of(places: RowPlaces) -> tuple[list[WindowKey], np.ndarray]:
    """The windows of some rows, and which of them each row lies in: intp [rows]."""
    names = np.stack([places.source, places.epoch, places.window], axis=1).astype(np.int64)
    distinct, which = np.unique(names, axis=0, return_inverse=True)
    return [WindowKey(*name) for name in distinct.tolist()], which.reshape(-1)


def _check_shard(storage: Storage, manifest: SourceManifest, index: int) -> None:
    shard, address = manifest.shards[index], manifest.address(index)
    found = storage.stat(address)
    if found is None:
        raise ConfigError(
            f"sources.{manifest.name}.data",
            f"there is no {address}",
            "Where the shards have moved, say where they lie now: "
            f"meshfeed.open(run_dir, data={{{manifest.name!r}: FOLDER}})",
        )
    if found.size != shard.size:
        raise ChangedError(
            f"{address} has {found.size} bytes, {shard.size} when the run listed it. Restore it to "
            "see the run's rows again"
        )
    if shard.etag.startswith("ends:") and sampled_digest(storage.file(address, shard.size)) != (
        shard.etag
    ):
        raise ChangedError(
            f"{address} has other content than when the run listed it. Restore it to see the run's "
            "rows again"
        )


def moved(spec: FeedSpec, data: Mapping[str, str]) -> FeedSpec:
    """The spec with the shards of some sources below other folders, by source name."""
    manifests = tuple(
        dataclasses.replace(m, root=data[m.name]) if m.name in data else m for m in spec.manifests
    )
    return dataclasses.replace(spec, manifests=manifests)
