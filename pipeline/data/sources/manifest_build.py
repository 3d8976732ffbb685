"""A source's manifest, from one listing and a look at one of its shards.

Nothing is read that grows with the data: sizes come from the listing, densities from one footer or
the first lines of one shard, fingerprints from a few shards. (ArrayRecord keeps its record counts
in its files alone, so there each file is opened once.)
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable

import numpy as np

from meshfeed.pipeline.data.formats import FORMATS, Format, format_of, grain, resolve_format
from meshfeed.pipeline.data.formats.base import Sample
from meshfeed.pipeline.data.formats.compressed import compression_of
from meshfeed.pipeline.data.formats.random_access import RecordShard, sample
from meshfeed.pipeline.data.formats.records import RecordSpec
from meshfeed.pipeline.data.sources.sizes import choose_sizes
from meshfeed.pipeline.data.storage import ShardFile, Storage
from meshfeed.pipeline.data.storage.backends import Entry
from meshfeed.pipeline.data.storage.listing import Listing, list_shards
from meshfeed.pipeline.plan.config import Shuffle, SourceConfig
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.manifest import Shard, SourceManifest, Unit

__all__ = ["build_source_manifest", "full_digest", "sampled_digest"]

LARGEST_WHOLE_SHARD = 256 << 20
"""Bytes of a compressed shard at most, where chunks are shuffled: it is one chunk."""

_FINGERPRINTED = 8
_DIGEST_BYTES = 4096
_RANDOM_ACCESS_GROUP = 16

logger = logging.getLogger(__name__)


def build_source_manifest(
    source: SourceConfig,
    storage: Storage,
    *,
    seq_len: int,
    shuffle: Shuffle,
    tokens_per_byte: float = 0.25,
    digest_all: bool = False,
) -> SourceManifest:
    """List a source and fix its chunks and windows.

    Args:
        source: its settings.
        storage: the process's way to storage.
        seq_len: the largest of the run.
        shuffle: of the feed.
        tokens_per_byte: tokens that the tokenizer makes of a byte of text, about; 1 for bytes.
        digest_all: fingerprint all of every shard, which reads all data once.

    Raises:
        ConfigError: no file, several formats, or a compressed shard that is too large to shuffle.
        DataError: the sampled shard is not of its format or lacks the column.
        ReadError: storage failed.
    """
    spec = RecordSpec.of(source)
    setting = source.format
    if setting == "grain" or (setting == "auto" and all(map(grain.is_function_name, source.data))):
        listing = Listing(root="", entries=tuple(Entry(name, 0) for name in sorted(source.data)))
    else:
        listing = list_shards(
            storage, source.data, source=source.name, in_folder=_folder_filter(setting)
        )
    chosen = resolve_format(setting, [e.path for e in listing.entries], source.name)
    look = _by_record if chosen.unit is Unit.RECORDS else _by_bytes
    shards, found, group = look(storage, chosen, listing, spec, digest_all)
    splittable = not any(compression_of(e.path) for e in listing.entries)
    if not splittable:
        _refuse_large(source, listing, shuffle)
    random_access = chosen.unit is Unit.RECORDS and group <= _RANDOM_ACCESS_GROUP
    sizes = choose_sizes(
        found or Sample(text_bytes=1.0, tokens=0.0, record=1.0),  # no record, any size will do
        unit=chosen.unit,
        shuffle=shuffle,
        seq_len=seq_len,
        tokens_per_byte=tokens_per_byte,
        kept=source.kept,
    )
    return SourceManifest(
        name=source.name,
        root=listing.root,
        format=chosen.name,
        unit=chosen.unit,
        shards=shards,
        splittable=splittable,
        random_access=random_access,
        chunk_size=sizes.chunk,
        window_size=sizes.window,
        group_size=sizes.group,
    )


def full_digest(file: ShardFile) -> str:
    """Digest of all bytes of a shard."""
    digest = hashlib.blake2b(digest_size=16)
    for begin in range(0, file.size, 8 << 20):
        digest.update(memoryview(file.read(begin, begin + (8 << 20))))
    return f"all:{digest.hexdigest()}"


def sampled_digest(file: ShardFile) -> str:
    """The store's ETag or version of a shard, else a digest of its first and last 4 KiB."""
    if etag := file.etag():
        return f"etag:{etag}"
    digest = hashlib.blake2b(digest_size=16)
    digest.update(memoryview(file.read(0, _DIGEST_BYTES)))
    digest.update(memoryview(file.read(file.size - _DIGEST_BYTES, file.size)))
    return f"ends:{digest.hexdigest()}"


Look = tuple[tuple[Shard, ...], Sample | None, int]


def _by_bytes(
    storage: Storage, chosen: Format, listing: Listing, spec: RecordSpec, digest_all: bool
) -> Look:
    """Shards by bytes: fingerprints, and densities from the largest one."""
    entries = listing.entries
    filled = [i for i, e in enumerate(entries) if e.size]
    files = {i: storage.file(_address(listing, entries[i]), entries[i].size) for i in filled}
    tags = {i: f"etag:{entries[i].etag}" for i in filled if entries[i].etag}
    if digest_all:
        tags = {i: full_digest(files[i]) for i in filled}
    elif not tags:
        tags = {i: sampled_digest(files[i]) for i in _spread(filled, _FINGERPRINTED)}
    shards = tuple(Shard(e.path, e.size, tags.get(i, "")) for i, e in enumerate(entries))
    if not filled or chosen.sample is None:
        return shards, None, 0
    largest = max(filled, key=lambda i: (entries[i].size, -i))
    return shards, chosen.sample(files[largest], spec), 0


def _by_record(
    storage: Storage, chosen: Format, listing: Listing, spec: RecordSpec, digest_all: bool
) -> Look:
    """Shards by record: their counts, fingerprints of some records, densities of one shard."""
    if chosen.open_shard is None:
        return (), None, 0
    shards, groups, best = [], [1], ("", 0)
    few = set(_spread(range(len(listing.entries)), _FINGERPRINTED))
    for i, entry in enumerate(listing.entries):
        address = _address(listing, entry)
        shard = chosen.open_shard(storage, address)
        groups.append(shard.group)
        tag = ""
        if digest_all or i in few:
            tag = _record_digest(shard, digest_all)
        shards.append(Shard(entry.path, len(shard), tag))
        if len(shard) > best[1]:
            best = (address, len(shard))
    found = sample(chosen.open_shard(storage, best[0]), spec) if best[1] else None
    return tuple(shards), found, max(groups)


def _record_digest(shard: RecordShard, all_records: bool) -> str:
    """Digest of a shard's first, middle and last records, or of all."""
    count = len(shard)
    indices: Iterable[int] = range(count) if all_records else {0, count // 2, max(count - 1, 0)}
    digest = hashlib.blake2b(digest_size=16)
    for index in sorted(indices) if count else ():
        for value in shard.values([index])[0]:
            digest.update(_canonical(value))
    return ("all:" if all_records else "records:") + digest.hexdigest()


def _canonical(value: object) -> bytes:
    """The same bytes for the same record."""
    if isinstance(value, dict):
        return b"".join(str(k).encode() + b"=" + _canonical(v) for k, v in sorted(value.items()))
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    return np.asarray(value).tobytes() if hasattr(value, "dtype") else repr(value).encode()


def _refuse_large(source: SourceConfig, listing: Listing, shuffle: Shuffle) -> None:
    large = [e for e in listing.entries if e.size > LARGEST_WHOLE_SHARD]
    if large and shuffle is not Shuffle.NONE:
        raise ConfigError(
            f"sources.{source.name}.data",
            f"{large[0].path} has {large[0].size} compressed bytes; such a file is read whole, and "
            f"for shuffling it may have {LARGEST_WHOLE_SHARD} at most",
            "Cut it into smaller files, use Parquet, or set shuffle: none",
        )


def _folder_filter(setting: str) -> Callable[[str], bool] | None:
    if setting == "auto":
        return lambda path: format_of(path) is not None
    if setting in FORMATS and setting != "text":
        return lambda path: format_of(path) == setting
    return None


def _address(listing: Listing, entry: Entry) -> str:
    return f"{listing.root.rstrip('/')}/{entry.path}" if listing.root else entry.path


def _spread(items: Iterable[int], count: int) -> list[int]:
    """At most ``count`` of the items, evenly spaced, first and last included."""
    pool = list(items)
    if len(pool) <= count:
        return pool
    return [pool[i * (len(pool) - 1) // (count - 1)] for i in range(count)]
