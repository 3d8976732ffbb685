"""The tokens of some records: encoded text, or the ids that a column holds already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from meshfeed.pipeline.data.formats.records import BadRecord, ChunkRecords, is_int_list
from meshfeed.pipeline.data.tokenizers import TextError, Tokenizer
from meshfeed.pipeline.plan.config import SourceConfig
from meshfeed.pipeline.plan.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordTokens:
    """The tokens of n records, one after another.

    Attributes:
        ids: any integer dtype [tokens].
        offsets: int64 [n + 1].
        shards: int32 [n], shard_index of each record.
        places: int64 [n], place of each in its shard.
        loss: uint8 [tokens], whether a token counts as a target; None: all do.
    """

    ids: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]
    shards: npt.NDArray[np.int32]
    places: npt.NDArray[np.int64]
    loss: npt.NDArray[Any] | None = None


def record_tokens(
    records: ChunkRecords, source: SourceConfig, tokenizer: Tokenizer | None
) -> tuple[RecordTokens, list[BadRecord]]:
    """The tokens of the records' first column.

    Returns:
        The tokens of the good records, and the records that have none for a fault of theirs.

    Raises:
        ConfigError: text without a tokenizer.
    """
    column = records.table.column(0)
    if is_int_list(column.type):
        return _stored(records, source)
    if not len(records):  # a chunk without records does not know the type of its column
        nothing = RecordTokens(
            ids=np.empty(0, np.int32),
            offsets=np.zeros(1, np.int64),
            shards=records.shards,
            places=records.places,
        )
        return nothing, []
    if tokenizer is None:
        raise ConfigError(
            f"sources.{source.name}.column",
            f"{source.column!r} holds text in some shards and token ids in others",
            "All shards of a source must hold the same kind",
        )
    bad: list[BadRecord] = []
    try:
        batch = tokenizer.encode(column)
    except TextError as error:
        records, bad = without(records, error.bad)
        batch = tokenizer.encode(records.table.column(0))
    tokens = RecordTokens(
        ids=batch.ids, offsets=batch.offsets, shards=records.shards, places=records.places
    )
    return tokens, bad


def without(
    records: ChunkRecords, faults: Sequence[tuple[int, str]]
) -> tuple[ChunkRecords, list[BadRecord]]:
    """The records without those that ``faults`` (index, reason) names, and these as bad records."""
    bad = [
        BadRecord(int(records.shards[i]), int(records.places[i]), records.place_unit, reason)
        for i, reason in faults
    ]
    keep = np.ones(len(records), bool)
    keep[[i for i, _ in faults]] = False
    kept = ChunkRecords(
        table=records.table.filter(pa.array(keep)),
        shards=records.shards[keep],
        places=records.places[keep],
        place_unit=records.place_unit,
    )
    return kept, bad


def _stored(records: ChunkRecords, source: SourceConfig) -> tuple[RecordTokens, list[BadRecord]]:
    ids, offsets = flat_lists(records.table.column(0))
    loss = None
    if source.loss_mask_column is not None:
        loss, mask_offsets = flat_lists(records.table.column(source.loss_mask_column))
        unequal = np.flatnonzero(np.diff(mask_offsets) != np.diff(offsets))
        if len(unequal):
            why = f"column {source.loss_mask_column!r} is not as long as {source.column!r}"
            kept, bad = without(records, [(int(i), why) for i in unequal])
            return _stored(kept, source)[0], bad
    tokens = RecordTokens(
        ids=ids, offsets=offsets, shards=records.shards, places=records.places, loss=loss
    )
    return tokens, []


def flat_lists(column: pa.ChunkedArray) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """A column of lists of integers as flat values [tokens] and offsets int64 [n + 1].

    Without a copy where the column is one piece; its lists hold no null.
    """
    if column.num_chunks == 0:
        return np.zeros(0, np.int32), np.zeros(1, np.int64)
    values, offsets, total = [], [np.zeros(1, np.int64)], 0
    for chunk in column.chunks:
        flat, bounds = _flat(chunk)
        values.append(flat)
        offsets.append(bounds[1:] - bounds[0] + total)
        total += len(flat)
    flat = values[0] if len(values) == 1 else np.concatenate(values)
    return flat, np.concatenate(offsets)


def _flat(chunk: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    values = chunk.flatten().to_numpy(zero_copy_only=False)
    if pa.types.is_fixed_size_list(chunk.type):
        width = chunk.type.list_size
        return values, np.arange(len(chunk) + 1, dtype=np.int64) * width
    bounds = chunk.offsets.to_numpy().astype(np.int64)
    return values, bounds
