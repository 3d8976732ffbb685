"""The records of a window: its group's chunks read, and the window's share of them picked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from meshfeed.pipeline.data.formats import read_chunk, read_records
from meshfeed.pipeline.data.formats.records import BadRecord, ChunkRecords, RecordSpec, empty_table
from meshfeed.pipeline.data.sources.chunk_cache import ChunkCache, Make
from meshfeed.pipeline.data.sources.gather import RecordPicker
from meshfeed.pipeline.data.sources.narrow import narrowed
from meshfeed.pipeline.data.storage import ReadLimits, Storage
from meshfeed.pipeline.plan.manifest import ChunkRef, SourceManifest, Unit
from meshfeed.pipeline.plan.run_config import RunConfig
from meshfeed.pipeline.plan.windows import Window

STRIPES_IN_GROUP = 16
"""Parts in which readers of a node share the reading of a group."""

_LOOK_AT_CHUNKS = 16
_LOOK_AT_RECORDS = 512
_LOOK_AT_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class _Group:
    """The records of a group, from which each of its windows picks."""

    picker: RecordPicker
    shards: npt.NDArray[np.int32]
    places: npt.NDArray[np.int64]
    place_unit: str
    bad: tuple[BadRecord, ...]


class SourceReader:
    """Reads one source.

    Args:
        manifest: of the source.
        spec: what is wanted of each record.
        storage: the process's way to storage.
        cache: what windows of a group share; None: only the last group is kept.
        on_stage: told ("read", shard) before a shard is read.
        id_dtype: what kept token ids are kept in, where it holds them; None: as they are stored.
    """

    def __init__(
        self,
        manifest: SourceManifest,
        spec: RecordSpec,
        storage: Storage,
        cache: ChunkCache | None,
        on_stage: Callable[[str, str], None],
        *,
        id_dtype: np.dtype[Any] | None = None,
    ) -> None:
        self._manifest = manifest
        self._spec = spec
        self._storage = storage
        self._cache = cache
        self._on_stage = on_stage
        self._id_dtype = id_dtype
        self._last: tuple[tuple[int, int], _Group] | None = None

    def records(self, window: Window) -> ChunkRecords:
        """The records that a window owns, in its order.

        Bad records of a group are told by the first of its windows alone.
        """
        if window.records is not None:
            return self._random_access(window)
        whole = (window.lo, window.hi) == (0, window.den)
        if whole and not window.record_key:
            return _joined([self._chunk(ref) for ref in window.chunks])
        group, storage_bytes, used_bytes = self._group(window)
        order = window.record_order(len(group.picker))
        if window.record_key:
            table = group.picker.take(order)
        else:
            table = group.picker.slice(*window.span(len(group.picker)))
        return ChunkRecords(
            table=table,
            shards=group.shards[order],
            places=group.places[order],
            place_unit=group.place_unit,
            bad=group.bad if window.lo == 0 else (),
            storage_bytes=storage_bytes,
            used_bytes=used_bytes,
        )

    def _random_access(self, window: Window) -> ChunkRecords:
        total = sum(shard.size for shard in self._manifest.shards)
        self._on_stage("read", self._manifest.root)
        return read_records(self._storage, self._manifest, window.record_order(total), self._spec)

    def _group(self, window: Window) -> tuple[_Group, int, int]:
        """The window's group, and the bytes that were read for it now."""
        name = (window.epoch, window.group)
        if self._last is not None and self._last[0] == name:
            return self._last[1], 0, 0
        self._last = None
        stripes = self._stripes(window)
        if self._cache is None:
            parts = [make() for _, make in stripes]
        else:
            parts = self._cache.get(stripes, first=window.index % len(stripes))
        filled = [part for part in parts if len(part)] or parts[:1]
        group = _Group(
            picker=RecordPicker([part.table for part in filled]),
            shards=np.concatenate([part.shards for part in filled]),
            places=np.concatenate([part.places for part in filled]),
            place_unit=filled[0].place_unit,
            bad=tuple(bad for part in parts for bad in part.bad),
        )
        self._last = (name, group)
        return group, sum(p.storage_bytes for p in parts), sum(p.used_bytes for p in parts)

    def _stripes(self, window: Window) -> list[tuple[str, Make]]:
        chunks = window.chunks
        count = min(STRIPES_IN_GROUP, len(chunks))
        bounds = [len(chunks) * i // count for i in range(count + 1)]
        stripes = []
        for begin, end in pairwise(bounds):
            name = f"{self._manifest.name}:{self._spec}:{self._id_dtype}:{chunks[begin:end]}"
            stripes.append((name, self._maker(chunks[begin:end])))
        return stripes

    def _maker(self, chunks: Sequence[ChunkRef]) -> Make:
        return lambda: self._narrowed(_joined([self._chunk(ref) for ref in chunks]))

    def _narrowed(self, records: ChunkRecords) -> ChunkRecords:
        if self._id_dtype is None or not len(records):
            return records
        table = narrowed(records.table, self._spec.columns[0], self._id_dtype)
        return replace(records, table=table)

    def _chunk(self, ref: ChunkRef) -> ChunkRecords:
        self._on_stage("read", self._manifest.address(ref.shard_index))
        return read_chunk(self._storage, self._manifest, ref, self._spec)


def storage_of(config: RunConfig) -> Storage:
    """A process's way to storage, with the limits of a run."""
    limits = ReadLimits(
        read_attempts=config.read_attempts, read_timeout_s=config.read_timeout_seconds
    )
    return Storage(limits)


def first_records(storage: Storage, manifest: SourceManifest, spec: RecordSpec) -> pa.Table:
    """The first records of a source: of the first chunk that has any, within a bounded number.

    Only a look at what is there: an empty source gives an empty table of text. The beginning of a
    chunk is read, and the rest where nothing begins there.
    """
    look = _LOOK_AT_RECORDS if manifest.unit is Unit.RECORDS else _LOOK_AT_BYTES
    for index in range(min(manifest.num_chunks, _LOOK_AT_CHUNKS)):
        chunk = manifest.chunk(index)
        middle = min(chunk.begin + look, chunk.end) if manifest.splittable else chunk.end
        for part in (chunk._replace(end=middle), chunk._replace(begin=middle)):
            if part.begin == part.end:
                continue
            records = read_chunk(storage, manifest, part, spec)
            if len(records):
                return records.table.slice(0, _LOOK_AT_RECORDS)
    return empty_table(spec)


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
