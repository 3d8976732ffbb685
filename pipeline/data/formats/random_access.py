"""Formats that give single records cheaply and know how many they have.

Their unit is the record: a chunk is a range of record indices, and ``record`` shuffling takes
single records from the whole source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from meshfeed.pipeline.data.formats.base import Sample
from meshfeed.pipeline.data.formats.records import (
    ChunkRecords,
    Ints,
    RecordSpec,
    empty_table,
    is_text,
    make_records,
    missing_column,
)
from meshfeed.pipeline.data.formats.values import table_of

_SAMPLE_RECORDS = 64


class RecordShard(Protocol):
    """A shard of records by index.

    Attributes:
        address: as errors name it.
        group: records that are stored, and so read, together.
    """

    address: str
    group: int

    def __len__(self) -> int: ...

    def values(self, indices: Sequence[int]) -> tuple[list[Any], Ints, int]:
        """Records in the order asked for, without those that the source itself filters out.

        Returns:
            Their values, their indices int64 [n], and their bytes as stored (an estimate).
        """
        ...

    def close(self) -> None:
        """Close what is open."""


def read_records(
    shard: RecordShard, shard_index: int, indices: Ints, spec: RecordSpec
) -> ChunkRecords:
    """The records with some indices int64 [n], in that order.

    ``storage_bytes`` is an estimate: what these records take up, and what is read with them where
    a shard stores its records in groups.

    Raises:
        DataError: the shard cannot be decoded.
        ReadError: storage failed.
    """
    values, places, stored = shard.values(indices.tolist())
    table, places, bad = table_of(values, spec, shard_index=shard_index, places=places)
    groups = len(np.unique(indices // shard.group)) * shard.group
    return make_records(
        table,
        shard=shard.address,
        shard_index=shard_index,
        places=places,
        place_unit="record",
        spec=spec,
        bad=bad,
        storage_bytes=int(stored * max(groups / max(len(indices), 1), 1)),
        used_bytes=stored,
    )


def no_records(spec: RecordSpec) -> ChunkRecords:
    """None at all."""
    return ChunkRecords(
        table=empty_table(spec),
        shards=np.empty(0, np.int32),
        places=np.empty(0, np.int64),
        place_unit="record",
    )


def sample(shard: RecordShard, spec: RecordSpec) -> Sample:
    """Densities for each record, from the first ones.

    Raises:
        DataError: none of them has the used columns.
    """
    indices = np.arange(min(len(shard), _SAMPLE_RECORDS))
    values, places, _ = shard.values(indices.tolist())
    names = sorted({str(key) for value in values if isinstance(value, dict) for key in value})
    for name in spec.columns:
        if names and name not in names:
            raise missing_column(shard.address, name, names)
    table, _, _ = table_of(values, spec, shard_index=0, places=places)
    count = max(len(indices), 1)
    column = table.column(0)
    if is_text(column.type):
        return Sample(
            text_bytes=max(column.nbytes - 8 * len(column), 1) / count,
            tokens=0.0,
            record=1.0,
            piece=float(shard.group),
        )
    tokens = sum(len(part.flatten()) for part in column.chunks)
    return Sample(text_bytes=0.0, tokens=tokens / count, record=1.0, piece=float(shard.group))
