"""Reads whole sources chunk by chunk, as the tests of all formats need it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshfeed.pipeline.data.formats import read_chunk
from meshfeed.pipeline.data.formats.records import BadRecord, ChunkRecords, RecordSpec
from meshfeed.pipeline.data.sources.manifest_build import build_source_manifest
from meshfeed.pipeline.data.storage import ReadLimits, Storage
from meshfeed.pipeline.plan.config import Shuffle, SourceConfig
from meshfeed.pipeline.plan.manifest import ChunkRef, SourceManifest

QUICK = ReadLimits(backoff_s=0.0)


def source_of(*data: str | Path, **settings: Any) -> SourceConfig:
    return SourceConfig(name="s", data=tuple(str(d) for d in data), **settings)


def manifest_of(
    source: SourceConfig, storage: Storage | None = None, *, chunk_size: int | None = None
) -> SourceManifest:
    manifest = build_source_manifest(
        source, storage or Storage(QUICK), seq_len=128, shuffle=Shuffle.CHUNK
    )
    return dataclasses.replace(manifest, chunk_size=chunk_size) if chunk_size else manifest


def chunks_of(
    source: SourceConfig, *, chunk_size: int | None = None, storage: Storage | None = None
) -> list[tuple[ChunkRef, ChunkRecords]]:
    storage = storage or Storage(QUICK)
    manifest = manifest_of(source, storage, chunk_size=chunk_size)
    refs = [manifest.chunk(i) for i in range(manifest.num_chunks)]
    spec = RecordSpec.of(source)
    return [(ref, read_chunk(storage, manifest, ref, spec)) for ref in refs]


def values_of(chunks: Sequence[tuple[ChunkRef, ChunkRecords]], column: int = 0) -> list[Any]:
    return [v for _, chunk in chunks for v in chunk.table.column(column).to_pylist()]


def places_of(chunks: Sequence[tuple[ChunkRef, ChunkRecords]]) -> list[tuple[int, int]]:
    return [
        (int(shard), int(place))
        for _, chunk in chunks
        for shard, place in zip(chunk.shards, chunk.places, strict=True)
    ]


def bad_of(chunks: Sequence[tuple[ChunkRef, ChunkRecords]]) -> list[BadRecord]:
    return [bad for _, chunk in chunks for bad in chunk.bad]
