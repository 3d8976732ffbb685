"""A source's transforms around its tokenizer: on records before it, on token ids after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from meshfeed.pipeline.data.formats.records import BadRecord, is_int_list, is_text
from meshfeed.pipeline.data.tokenizers.base import TokenBatch
from meshfeed.pipeline.data.transforms import Stage, TransformChain
from meshfeed.pipeline.data.transforms.origins import Ints, Origins
from meshfeed.pipeline.data.transforms.running import Transformed, TransformRun
from meshfeed.pipeline.plan.config import BadRecords
from meshfeed.pipeline.plan.errors import ConfigError

TOKENS = "tokens"
LOSS_MASK = "loss_mask"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformedTokens:
    """m records' tokens made out of those of n.

    Attributes:
        batch: tokens of the m records.
        loss: uint8 [tokens], 1 where a token counts as a target; None where the feed has no mask.
        source: int64 [m], which of the n records each was made out of.
        bad: records that a transform failed on; none of their results is kept.
    """

    batch: TokenBatch
    loss: npt.NDArray[np.uint8] | None
    source: Ints
    bad: tuple[BadRecord, ...] = ()


def apply_to_records(
    chain: TransformChain,
    table: pa.Table,
    origins: Origins,
    *,
    columns: Sequence[str],
    on_bad: BadRecords,
) -> Transformed:
    """Run the transforms that come before the tokenizer.

    Args:
        chain: of the source.
        table: n records: the source's columns and those that the chain needs.
        origins: of the n records.
        columns: the source's columns (text or ids, and the loss mask): those kept.
        on_bad: whether a record that a transform fails on ends the run or is left out.

    Raises:
        DataError: a transform fails on a record and ``on_bad`` is ``FAIL``.
        ConfigError: a transform returns what none may, whatever the record.
    """
    kinds = {name: table.schema.field(name).type for name in columns}

    def check(result: pa.Table) -> dict[int, str]:
        return _faults(chain, result, kinds)

    transforms = chain.of_stage(Stage.RECORDS)
    return TransformRun(chain, origins, on_bad).run(transforms, table, columns, check)


def apply_to_tokens(
    chain: TransformChain,
    batch: TokenBatch,
    loss: npt.NDArray[np.uint8] | None,
    origins: Origins,
    *,
    has_loss: bool,
    vocab_size: int,
    on_bad: BadRecords,
) -> TransformedTokens:
    """Run the transforms that come after the tokenizer.

    Args:
        chain: of the source.
        batch: tokens of n records, BOS and EOS in place.
        loss: uint8 [tokens]; None: every token counts.
        origins: of the n records.
        has_loss: whether the feed has a loss mask, so that transforms may make one.
        vocab_size: bound that all ids obey.
        on_bad: whether a record that a transform fails on ends the run or is left out.

    Raises:
        DataError: a transform fails on a record and ``on_bad`` is ``FAIL``.
        ConfigError: a transform returns what none may, whatever the record.
    """
    if loss is None and has_loss:
        loss = np.ones(len(batch.ids), np.uint8)
    transforms = chain.of_stage(Stage.TOKENS)
    if not transforms:
        source = np.arange(len(batch), dtype=np.int64)
        return TransformedTokens(batch=batch, loss=loss, source=source)
    arrays = {TOKENS: batch.ids} if loss is None else {TOKENS: batch.ids, LOSS_MASK: loss}
    offsets = pa.array(batch.offsets)
    lists = [pa.LargeListArray.from_arrays(offsets, pa.array(values)) for values in arrays.values()]
    table = pa.table(lists, names=list(arrays))
    kinds = {field.name: field.type for field in table.schema}

    def check(result: pa.Table) -> dict[int, str]:
        faults = _faults(chain, result, kinds)
        return _token_faults(result, vocab_size) | faults

    refused = {} if has_loss else {LOSS_MASK: "Set loss_mask_column, so that the feed has a mask"}
    run = TransformRun(chain, origins, on_bad)
    made = run.run(transforms, table, list(arrays), check, refused=refused)
    ids, ends = _flat(made.table, TOKENS)
    mask = None if loss is None else (_flat(made.table, LOSS_MASK)[0] != 0)
    return TransformedTokens(
        batch=TokenBatch(ids=ids.astype(np.int32, copy=False), offsets=ends),
        loss=None if mask is None else mask.view(np.uint8),
        source=made.source,
        bad=made.bad,
    )


def _faults(
    chain: TransformChain, table: pa.Table, kinds: Mapping[str, pa.DataType]
) -> dict[int, str]:
    """Nulls; and the error for a column that is no longer what the tokenizer or packing takes."""
    faults: dict[int, str] = {}
    for name, before in kinds.items():
        column = table.column(name)
        if is_text(column.type) != is_text(before) or is_int_list(column.type) != is_int_list(
            before
        ):
            raise ConfigError(
                chain.setting,
                f"column {name!r} comes out of the transforms as {column.type}; it was {before}",
                "Return text as string, token ids as lists of integers",
            )
        if column.null_count:
            nulls = np.flatnonzero(column.is_null().to_numpy())
            faults = {int(i): f"column {name!r} is null" for i in nulls} | faults
    return faults


def _token_faults(table: pa.Table, vocab_size: int) -> dict[int, str]:
    ids, offsets = _flat(table, TOKENS)
    outside = np.empty(0, np.int64)
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        outside = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    rows = np.searchsorted(offsets, outside, side="right") - 1
    faults = {
        int(row): f"token {ids[at]} is not within 0..{vocab_size - 1}"
        for row, at in zip(rows[::-1], outside[::-1], strict=True)
    }
    if LOSS_MASK in table.column_names:
        masks = np.diff(_flat(table, LOSS_MASK)[1])
        lengths = np.diff(offsets)
        for row in np.flatnonzero(masks != lengths).tolist():
            faults[row] = f"{masks[row]} entries of {LOSS_MASK} for {lengths[row]} tokens"
    return faults


def _flat(table: pa.Table, name: str) -> tuple[npt.NDArray[Any], Ints]:
    """Values and offsets of an integer list column; nulls are empty lists."""
    column = table.column(name)
    column = column.cast(pa.large_list(column.type.value_type)).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    lengths = column.value_lengths().fill_null(0).to_numpy()
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return column.flatten().to_numpy(zero_copy_only=False), offsets
