"""The records of a window: its group's chunks read, and the window's share of them picked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from meshfeed.pipeline.data.chunk_cache import ChunkCache
from meshfeed.pipeline.data.formats import read_chunk, read_records
from meshfeed.pipeline.data.records import ChunkRecords, RecordSpec
from meshfeed.pipeline.data.storage import ReadLimits, Storage
from meshfeed.pipeline.plan.manifest import ChunkRef, SourceManifest
from meshfeed.pipeline.plan.run_config import RunConfig
from meshfeed.pipeline.plan.windows import Window


class SourceReader:
    """Reads one source.

    Args:
        manifest: of the source.
        spec: what is wanted of each record.
        storage: the process's way to storage.
        cache: chunks that windows share; None: only the last group is kept.
        on_stage: told ("read", shard) before a shard is read.
    """

    def __init__(
        self,
        manifest: SourceManifest,
        spec: RecordSpec,
        storage: Storage,
        cache: ChunkCache | None,
        on_stage: Callable[[str, str], None],
    ) -> None:
        self._manifest = manifest
        self._spec = spec
        self._storage = storage
        self._cache = cache
        self._on_stage = on_stage
        self._last: tuple[tuple[int, int], ChunkRecords] | None = None

    def records(self, window: Window) -> ChunkRecords:
        """The records that a window owns, in its order.

        Bad records of a group are told by the first of its windows alone.
        """
        if window.records is not None:
            return self._random_access(window)
        group, fresh = self._group(window)
        if (window.lo, window.hi) == (0, window.den) and not window.record_key:
            return group
        order = window.record_order(len(group))
        picked = self._pick(group, order, bool(window.record_key))
        return ChunkRecords(
            table=picked,
            shards=group.shards[order],
            places=group.places[order],
            place_unit=group.place_unit,
            bad=group.bad if window.lo == 0 else (),
            storage_bytes=group.storage_bytes if fresh else 0,
            used_bytes=group.used_bytes if fresh else 0,
        )

    @staticmethod
    def _pick(group: ChunkRecords, order: np.ndarray, permuted: bool) -> pa.Table:
        if permuted:
            return group.table.take(pa.array(order))
        return group.table.slice(int(order[0]) if len(order) else 0, len(order))

    def _random_access(self, window: Window) -> ChunkRecords:
        total = sum(shard.size for shard in self._manifest.shards)
        self._on_stage("read", self._manifest.root)
        return read_records(self._storage, self._manifest, window.record_order(total), self._spec)

    def _group(self, window: Window) -> tuple[ChunkRecords, bool]:
        name = (window.epoch, window.group)
        if self._last is not None and self._last[0] == name:
            return self._last[1], False
        shared = (window.lo, window.hi) != (0, window.den)
        parts = [self._chunk(ref, shared) for ref in window.chunks]
        group = _joined(parts)
        self._last = (name, group) if shared else None
        return group, True

    def _chunk(self, ref: ChunkRef, shared: bool) -> ChunkRecords:
        address = self._manifest.address(ref.shard_index)
        self._on_stage("read", address)

        def read() -> ChunkRecords:
            return read_chunk(self._storage, self._manifest, ref, self._spec)

        if not shared or self._cache is None:
            return read()
        name = f"{self._manifest.name}:{ref}:{self._spec}"
        return self._cache.get(name, read)


def _joined(parts: Sequence[ChunkRecords]) -> ChunkRecords:
    """Chunks one after another; a shard's integers or text are promoted to what holds them all."""
    if len(parts) == 1:
        return parts[0]
    filled = [part for part in parts if len(part)] or list(parts[:1])
    tables = [part.table for part in filled]
    return ChunkRecords(
        table=pa.concat_tables(tables, promote_options="permissive"),
        shards=np.concatenate([part.shards for part in filled]),
        places=np.concatenate([part.places for part in filled]),
        place_unit=filled[0].place_unit,
        bad=tuple(bad for part in parts for bad in part.bad),
        storage_bytes=sum(part.storage_bytes for part in parts),
        used_bytes=sum(part.used_bytes for part in parts),
    )


def storage_of(config: RunConfig) -> Storage:
    """A process's way to storage, with the limits of a run."""
    limits = ReadLimits(
        read_attempts=config.read_attempts, read_timeout_s=config.read_timeout_seconds
    )
    return Storage(limits)


def first_records(storage: Storage, manifest: SourceManifest, spec: RecordSpec) -> pa.Table:
    """The first records of a source: of the first chunk that has any, within a bounded number.

    Only a look at what is there: an empty source gives an empty table of text.
    """
    for index in range(min(manifest.num_chunks, _LOOK_AT_CHUNKS)):
        records = read_chunk(storage, manifest, manifest.chunk(index), spec)
        if len(records):
            return records.table.slice(0, _LOOK_AT_RECORDS)
    return pa.table([pa.array([], pa.string()) for _ in spec.columns], names=list(spec.columns))


_LOOK_AT_CHUNKS = 16
_LOOK_AT_RECORDS = 512
