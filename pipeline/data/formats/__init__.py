"""The formats of shards: which there are, which a file is in, and how its records are read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from meshfeed.pipeline.data.formats import (
    arrayrecord,
    arrow,
    grain,
    jsonl,
    parquet,
    random_access,
    text,
)
from meshfeed.pipeline.data.formats.base import Sample
from meshfeed.pipeline.data.formats.compressed import SUFFIXES, compression_of
from meshfeed.pipeline.data.formats.records import ChunkRecords, Ints, RecordSpec
from meshfeed.pipeline.data.storage import ShardFile, Storage
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.manifest import ChunkRef, SourceManifest, Unit

_SHARD_NUMBER = re.compile(r"-\d+-of-\d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of shards. Either its shards are read by bytes, or record by record.

    Attributes:
        name: as ``SourceConfig.format`` names it.
        endings: ends of file names that mean it.
        compressible: also with .gz or .zst behind.
        read_chunk, sample: of a format read by bytes; see ``formats.base``.
        open_shard: of a format read record by record; see ``formats.random_access``.
    """

    name: str
    endings: tuple[str, ...] = ()
    compressible: bool = False
    read_chunk: Callable[[ShardFile, ChunkRef, RecordSpec], ChunkRecords] | None = None
    sample: Callable[[ShardFile, RecordSpec], Sample] | None = None
    open_shard: Callable[[Storage, str], random_access.RecordShard] | None = None

    @property
    def unit(self) -> Unit:
        """What sizes of its shards count."""
        return Unit.BYTES if self.open_shard is None else Unit.RECORDS


FORMATS = {
    f.name: f
    for f in (
        Format(
            name="parquet",
            endings=(".parquet", ".pq"),
            read_chunk=parquet.read_chunk,
            sample=parquet.sample,
        ),
        Format(
            name="arrow",
            endings=(".arrow", ".arrows", ".feather", ".ipc"),
            read_chunk=arrow.read_chunk,
            sample=arrow.sample,
        ),
        Format(
            name="jsonl",
            endings=(".jsonl", ".ndjson", ".json"),
            compressible=True,
            read_chunk=jsonl.read_chunk,
            sample=jsonl.sample,
        ),
        Format(
            name="text",
            endings=(".txt", ".text"),
            compressible=True,
            read_chunk=text.read_chunk,
            sample=text.sample,
        ),
        Format(
            name="arrayrecord",
            endings=(".arrayrecord", ".array_record"),
            open_shard=arrayrecord.open_shard,
        ),
        Format(name="grain", open_shard=grain.open_shard),
    )
}


def format_of(name: str) -> str | None:
    """The format that a file's name tells, None where it tells none.

    >>> format_of("a/part-3.jsonl.zst"), format_of("b.array_record-00000-of-00010")
    ('jsonl', 'arrayrecord')
    """
    base = _SHARD_NUMBER.sub("", name.rsplit("/", 1)[-1].lower())
    stem, ending = os.path.splitext(base)
    packed = ending in SUFFIXES
    if packed:
        ending = os.path.splitext(stem)[1]
    for known in FORMATS.values():
        if ending in known.endings and (known.compressible or not packed):
            return known.name
    return None


def resolve_format(setting: str, names: Sequence[str], source: str) -> Format:
    """The one format of a source.

    Args:
        setting: ``auto`` or a format's name.
        names: of all its shards.
        source: its name, for errors.

    Raises:
        ConfigError: the setting is unknown, a name tells no format, or two tell different ones.
    """
    key = f"sources.{source}.format"
    known = ", ".join(FORMATS)
    if setting != "auto":
        if setting not in FORMATS:
            raise ConfigError(key, f"{setting!r} is not a format", f"Use auto or one of {known}")
        chosen = FORMATS[setting]
    else:
        first: dict[str | None, str] = {}
        for name in names:
            first.setdefault("grain" if grain.is_function_name(name) else format_of(name), name)
        if None in first:
            raise ConfigError(
                key, f"{first[None]} does not say its format by its name", f"Set one of {known}"
            )
        if len(first) > 1:
            found = ", ".join(f"{name} is {kind}" for kind, name in list(first.items())[:3])
            raise ConfigError(key, found, "Give each format a source of its own")
        chosen = FORMATS[next(iter(first)) or "jsonl"]
    _refuse_half_packed(chosen, names, source)
    return chosen


def _refuse_half_packed(chosen: Format, names: Sequence[str], source: str) -> None:
    """Compressed files are read whole, plain ones in chunks: a source has one kind."""
    packed = next((n for n in names if compression_of(n)), None)
    plain = next((n for n in names if not compression_of(n)), None)
    if packed is not None and not chosen.compressible:
        raise ConfigError(
            f"sources.{source}.data", f"{packed}: {chosen.name} is not read compressed", "Unpack it"
        )
    if packed is not None and plain is not None:
        raise ConfigError(
            f"sources.{source}.data",
            f"{packed} is compressed and {plain} is not",
            "Give each kind a source of its own",
        )


def read_chunk(
    storage: Storage, manifest: SourceManifest, ref: ChunkRef, spec: RecordSpec
) -> ChunkRecords:
    """The records of one chunk, in order.

    Raises:
        DataError: the shard's content is wrong as a whole (format, column, type).
        ReadError: storage failed in every try.
        ChangedError: the shard is not as it was listed.
    """
    chosen = FORMATS[manifest.format]
    address = manifest.address(ref.shard_index)
    if chosen.read_chunk is not None:
        size = manifest.shards[ref.shard_index].size
        return chosen.read_chunk(storage.file(address, size), ref, spec)
    shard = _open_shard(chosen, storage, address)
    indices = np.arange(ref.begin, ref.end)
    return random_access.read_records(shard, ref.shard_index, indices, spec)


def read_records(
    storage: Storage, manifest: SourceManifest, positions: Ints, spec: RecordSpec
) -> ChunkRecords:
    """Single records of a source with random access, in the order asked for.

    Args:
        storage: the process's way to storage.
        manifest: of a source whose unit is the record.
        positions: int64 [n], indices over all records of the source, shard by shard.
        spec: what is wanted of each.

    Raises:
        As ``read_chunk``.
    """
    sizes = np.array([shard.size for shard in manifest.shards], np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    shard_of = np.searchsorted(starts, positions, side="right") - 1
    chosen = FORMATS[manifest.format]
    parts = []
    for shard_index in np.unique(shard_of).tolist():
        shard = _open_shard(chosen, storage, manifest.address(shard_index))
        wanted = np.unique(positions[shard_of == shard_index]) - starts[shard_index]
        parts.append(random_access.read_records(shard, shard_index, wanted, spec))
    if not parts:
        return random_access.no_records(spec)
    return _in_order(parts, starts, positions)


def _in_order(parts: list[ChunkRecords], starts: Ints, positions: Ints) -> ChunkRecords:
    """Parts with ascending positions, brought to the order of ``positions`` [n]."""
    table = pa.concat_tables(
        [p.table for p in parts if len(p)] or [parts[0].table], promote_options="permissive"
    )
    shards = np.concatenate([p.shards for p in parts])
    places = np.concatenate([p.places for p in parts])
    there = starts[shards] + places
    index = np.searchsorted(there, positions)
    found = index < len(there)
    found[found] = there[index[found]] == positions[found]
    order = index[found]
    return ChunkRecords(
        table=table.take(pa.array(order)),
        shards=shards[order],
        places=places[order],
        place_unit=parts[0].place_unit,
        bad=tuple(bad for p in parts for bad in p.bad),
        storage_bytes=sum(p.storage_bytes for p in parts),
        used_bytes=sum(p.used_bytes for p in parts),
    )


def _open_shard(chosen: Format, storage: Storage, address: str) -> random_access.RecordShard:
    if chosen.open_shard is None:
        raise ConfigError("sources.format", f"{chosen.name} has no random access")
    return chosen.open_shard(storage, address)
