"""Packing: the records of one window into rows of ``seq_len`` tokens.

``concat``      all records one after another, cut every ``seq_len`` tokens
``first_fit``   no record is cut unless longer than a row; each goes to the first row with room
``best_fit``    the same, longest first, each to the row where it fits best
``none``        one record, or one piece of a longer one, in a row

Where a record is cut because the row is full, the row keeps the record's next token as the target
of its last one, so that each token but a record's first is a target exactly once; the rest of the
record is a segment of its own with positions from 0. ``max_segments`` holds for every packing:
``concat`` then ends a row early. Records without tokens are dropped and counted.

Everything here is a function of its arguments; see ``plan.manifest`` for why that matters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.data.packing.blocks import BlockFormat, RowBlock, set_bits
from meshfeed.pipeline.data.packing.fits import Ints
from meshfeed.pipeline.data.packing.pieces import Pieces, cut_stream, place_records
from meshfeed.pipeline.plan.config import Overlong, Packing
from meshfeed.pipeline.plan.errors import ConfigError, DataError

Allocate = Callable[[int], Any]
"""Gives writable bytes for a block of so many bytes, for example in shared memory."""


class Segments(NamedTuple):
    """Where the segments of a block come from, in order of row and start: [segments] each."""

    row: npt.NDArray[np.int32]
    start: npt.NDArray[np.int32]
    record: npt.NDArray[np.int32]
    """Index in the ``offsets`` given to ``pack``, empty records included."""
    offset: npt.NDArray[np.int32]
    """Token of the record with which the segment begins."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packed:
    """The rows of a window and what became of its records.

    Attributes:
        block: the rows.
        segments: where each segment comes from.
        tokens: unmasked tokens in the block.
        padding: tokens of padding in the block.
        empty_records: dropped, because they have no token.
        overlong_records: longer than a row: cut, or truncated where ``truncated_tokens`` is not 0.
        truncated_tokens: not in the block.
    """

    block: RowBlock
    segments: Segments
    tokens: int
    padding: int
    empty_records: int
    overlong_records: int
    truncated_tokens: int


def pack(
    ids: npt.NDArray[Any],
    offsets: npt.NDArray[Any],
    *,
    format: BlockFormat,
    packing: Packing,
    overlong: Overlong = Overlong.SPLIT,
    max_segments: int = 0,
    vocab_size: int = 0,
    loss: npt.NDArray[Any] | None = None,
    allocate: Allocate | None = None,
) -> Packed:
    """Pack the records of a window.

    Args:
        ids: int32, uint32 or uint16 [n], the tokens of all records one after another.
        offsets: integers [records + 1], ascending within 0..n: where records begin and end.
        format: of the block.
        packing: how records are laid into rows.
        overlong: what becomes of a record longer than a row, but with ``concat``, which cuts all.
        max_segments: pieces of records in a row at most; 0: no limit.
        vocab_size: ids must be below it; 0: what the format's dtype can hold.
        loss: bool or 0/1 [n], whether each token counts as a target; only for a format with a
            loss mask, where None means that all count.
        allocate: where the block is laid; None: new memory.

    Raises:
        DataError: an id outside of the vocabulary, or offsets that are not such.
        ConfigError: a loss mask for a format without one.
    """
    begins, ends = _checked(ids, offsets, format, loss)
    _check_ids(ids, begins, ends, format, vocab_size)
    lengths = ends - begins
    whole = np.minimum(lengths, format.seq_len)
    truncated = 0
    if overlong == Overlong.TRUNCATE and packing != Packing.CONCAT:
        truncated = int((lengths - whole).sum())
        lengths = whole
    if packing == Packing.CONCAT:
        pieces = cut_stream(lengths, format.seq_len, max_segments)
    else:
        pieces = place_records(lengths, format.seq_len, packing, max_segments)
    rows = int(pieces.row[-1]) + 1 if len(pieces.row) else 0
    nbytes = format.nbytes(rows)
    block = RowBlock.allocate(format, rows, None if allocate is None else allocate(nbytes))
    if rows:
        source = begins[pieces.record] + pieces.offset
        block.lengths[:] = np.add.reduceat(pieces.length, pieces.first_of_row())
        _write_starts(block, pieces)
        _write_rows(block.tokens, ids, block.lengths, source, pieces)
        if block.loss is not None:
            counts = np.ones(len(ids), np.bool_) if loss is None else np.asarray(loss) != 0
            bits = np.empty(block.tokens.shape, np.bool_)
            _write_rows(bits, counts, block.lengths, source, pieces)
            block.loss[:] = np.packbits(bits, axis=1, bitorder="little")
    tokens = int(lengths.sum())
    return Packed(
        block=block,
        segments=Segments(*(column.astype(np.int32) for column in pieces[:4])),
        tokens=tokens,
        padding=rows * format.seq_len - tokens,
        empty_records=int(np.count_nonzero(lengths == 0)),
        overlong_records=int(np.count_nonzero(ends - begins > format.seq_len)),
        truncated_tokens=truncated,
    )


def _checked(
    ids: npt.NDArray[Any],
    offsets: npt.NDArray[Any],
    format: BlockFormat,
    loss: npt.NDArray[Any] | None,
) -> tuple[Ints, Ints]:
    """Where records begin and end, int64 [records] each."""
    if loss is not None and not format.loss_mask:
        raise ConfigError("loss_mask_column", "the feed's blocks carry no loss mask")
    if loss is not None and len(loss) != len(ids):
        raise DataError("loss mask", f"{len(loss)} values for {len(ids)} tokens")
    edges = np.asarray(offsets).astype(np.int64)
    begins, ends = edges[:-1], edges[1:]
    if not len(edges) or edges[0] < 0 or edges[-1] > len(ids) or bool((begins > ends).any()):
        raise DataError("offsets", f"they do not ascend from 0 to the {len(ids)} tokens")
    return begins, ends


def _check_ids(
    ids: npt.NDArray[Any], begins: Ints, ends: Ints, format: BlockFormat, vocab_size: int
) -> None:
    holds = int(np.iinfo(format.dtype).max)
    limit = min(vocab_size - 1, holds) if vocab_size else holds
    if not len(begins) or (limit == holds and np.can_cast(ids.dtype, format.dtype, "safe")):
        return
    used = ids[begins[0] : ends[-1]]
    # As an unsigned integer a negative id is above every limit.
    if not len(used) or int(used.view(f"u{used.itemsize}").max()) <= limit:
        return
    wrong = int(np.argmax((used > limit) | (used < 0)))
    record = int(np.searchsorted(begins, begins[0] + wrong, side="right")) - 1
    why = "the vocabulary" if limit < holds else f"which {format.token_dtype} can hold"
    raise DataError(
        "token ids",
        f"id {used[wrong]} is outside 0..{limit}, {why}",
        place=f"record {record} of the window",
        hint="Is it the tokenizer that the data was made with?",
    )


def _write_starts(block: RowBlock, pieces: Pieces) -> None:
    """Set the bits of segments, of the end of each row that nothing continues, and of seq_len."""
    ended = np.ones(block.rows, np.bool_)
    ended[pieces.row[pieces.goes_on]] = False
    row = np.flatnonzero(ended)
    rows = np.concatenate([pieces.row, row, row])
    ends = (block.lengths[row], np.full(len(row), block.format.seq_len))
    set_bits(block.starts, rows, np.concatenate([pieces.start, *ends]))


def _write_rows(
    target: npt.NDArray[Any],
    values: npt.NDArray[Any],
    lengths: npt.NDArray[np.int32],
    source: Ints,
    pieces: Pieces,
) -> None:
    """Write values [n] into every column of ``target`` [rows, seq_len + 1], 0 at padding.

    Pieces that follow one another in the row as in ``values`` are one run and one copy; full rows
    that do are one copy together, which is nearly all that ``concat`` has.
    """
    width = target.shape[1]
    seq_len = width - 1
    stops = source + pieces.length
    joined = (pieces.row[1:] == pieces.row[:-1]) & (source[1:] == stops[:-1])
    head = np.append(0, np.flatnonzero(~joined) + 1)
    count = np.add.reduceat(pieces.length, head)
    begin = source[head]
    straight = (count == seq_len) & (begin == begin[0] + np.arange(len(head)) * seq_len)
    full = len(head) if straight.all() else int(np.argmin(straight))
    whole = values[begin[0] : begin[0] + full * seq_len]
    target[:full, :seq_len] = whole.reshape(full, seq_len)

    flat = target.reshape(-1)
    place = pieces.row[head] * width + pieces.start[head]
    rest = (place[full:].tolist(), begin[full:].tolist(), count[full:].tolist())
    for to, at, n in zip(*rest, strict=True):
        flat[to : to + n] = values[at : at + n]
    padded = np.flatnonzero(lengths < seq_len)
    for row, length in zip(padded.tolist(), lengths[padded].tolist(), strict=True):
        target[row, length:] = 0
    target[:, seq_len] = 0
    on = pieces.goes_on
    target[pieces.row[on], seq_len] = values[stops[on]]
