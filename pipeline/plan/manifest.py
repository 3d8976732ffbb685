"""What a source is made of: its sorted shards, and how they are cut into chunks and windows.

Units. A source is measured in *units*: bytes of its files, or records where the format has random
access and counts its records (ArrayRecord, Grain). Chunks, windows and shuffle groups are sizes
in units, so that nothing but the listing is needed to number them; a chunk owns the records (the
row groups, the record batches) that *start* in its range; their number is known once it is read.

==================  ==========================================================================
index               runs over
==================  ==========================================================================
``shard_index``     the sorted shards of a source
``chunk``           the chunks of a source, shard by shard
==================  ==========================================================================
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

ORDER_VERSION = 2
"""Names the order that this code gives to rows. Rises when the same settings give another order."""


class Unit(StrEnum):
    """What the sizes of a source count."""

    BYTES = "bytes"
    RECORDS = "records"


@dataclass(frozen=True, slots=True)
class Shard:
    """One input file.

    Attributes:
        path: relative to the source's root, so that a moved folder is no change.
        size: in units of its source.
        etag: version or ETag where the store gives one, else a digest of sampled content or "".
    """

    path: str
    size: int
    etag: str = ""


class ChunkRef(NamedTuple):
    """A chunk as readers see it: the records of ``shard_index`` that start in [begin, end)."""

    shard_index: int
    begin: int
    end: int


@dataclass(frozen=True)
class SourceManifest:
    """The shards of one source and the sizes that fix its chunks and windows.

    Attributes:
        name: of the source.
        root: address that the shards' paths are relative to.
        format: one of the formats of ``SourceConfig``, never ``auto``.
        unit: what sizes count.
        shards: sorted by path.
        splittable: False where a shard can only be read whole (compressed JSONL): one chunk each.
        random_access: single records can be read cheaply, so ``record`` shuffles the whole source.
        chunk_size: units in a chunk.
        window_size: units in a window, about; fixed from the largest ``seq_len`` of the run.
        group_size: units in a shuffle group of ``record``, about.
    """

    name: str
    root: str
    format: str
    unit: Unit
    shards: tuple[Shard, ...]
    splittable: bool
    random_access: bool
    chunk_size: int
    window_size: int
    group_size: int

    @cached_property
    def chunk_starts(self) -> npt.NDArray[np.int64]:
        """First chunk of each shard, and the number of chunks at the end: [shards + 1]."""
        sizes = np.array([s.size for s in self.shards], np.int64)
        counts = -(-sizes // self.chunk_size) if self.splittable else (sizes > 0).astype(np.int64)
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    @property
    def num_chunks(self) -> int:
        """Chunks of the source; a shard of size 0 has none."""
        return int(self.chunk_starts[-1])

    @cached_property
    def chunk_sizes(self) -> npt.NDArray[np.int64]:
        """Units of each chunk: [num_chunks]."""
        sizes = np.array([s.size for s in self.shards], np.int64)
        shard = np.repeat(np.arange(len(sizes)), np.diff(self.chunk_starts))
        if not self.splittable:
            return sizes[shard]
        begin = (np.arange(self.num_chunks) - self.chunk_starts[shard]) * self.chunk_size
        return np.minimum(self.chunk_size, sizes[shard] - begin)

    def chunk(self, index: int) -> ChunkRef:
        """The chunk with this index."""
        shard = int(np.searchsorted(self.chunk_starts, index, side="right")) - 1
        size = self.shards[shard].size
        if not self.splittable:
            return ChunkRef(shard, 0, size)
        begin = (index - int(self.chunk_starts[shard])) * self.chunk_size
        return ChunkRef(shard, begin, min(begin + self.chunk_size, size))

    def address(self, shard_index: int) -> str:
        """Where a shard lies: path or URI."""
        path = self.shards[shard_index].path
        return f"{self.root.rstrip('/')}/{path}" if self.root else path

    def fingerprint(self) -> str:
        """Digest of what the shards hold and how they are cut, not of where they lie."""
        manifest = asdict(self)
        del manifest["root"]
        return hashlib.blake2b(_canonical(manifest), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Manifest:
    """All sources of a run by ``feed:source`` name, made once and kept in the run directory."""

    sources: dict[str, SourceManifest]
    order_version: int = ORDER_VERSION
    made_by: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Plain JSON, for the run directory."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """What ``to_json`` wrote."""
        raw = json.loads(text)
        sources = {}
        for name, source in raw["sources"].items():
            source["shards"] = tuple(Shard(**s) for s in source["shards"])
            source["unit"] = Unit(source["unit"])
            sources[name] = SourceManifest(**source)
        return cls(sources, raw["order_version"], raw["made_by"])


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
