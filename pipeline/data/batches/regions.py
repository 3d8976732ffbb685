"""Regions: the part of some rows that one slice group needs, as it travels.

A region is ``rows`` rows times the columns [c0, c1) of the global batch, ``cols = c1 - c0``, in one
flat buffer::

    header   [rows, 3] int32        what columns before c0 say about those from c0 on, see below
    tokens   [rows, cols + 1]       columns [c0, c1], the last one only as a target
    starts   [rows, bytes of cols + 1 bits]   the bits of columns [c0, c1]
    loss     the same shape, with a loss mask

with the meaning that ``blocks`` gives to them, rounded up to 4 bytes. The header of a row:
segments that start before c0; the position that column c0 has if it starts no segment; and the
row's unmasked tokens in [c0, c1). So each leaf of the region is computed from the region alone, and
is exactly the columns [c0, c1) of the leaf of the whole row.

A row that belongs to no block (block -1) is one of the rows of weight 0 that fill the last step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.data.memory import Bytes, aligned_empty, round_up
from meshfeed.pipeline.data.packing.blocks import BlockFormat, RowBlock, bitmap_bytes
from meshfeed.pipeline.plan.errors import ConfigError

NO_BLOCK = -1
"""In ``block_of_row``: a row of padding."""

_HEADER_BYTES = 3 * 4

_Index = slice | npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Region:
    """Rows times columns of a global batch; the arrays are views of one flat buffer.

    Attributes:
        format: of the feed.
        header: int32 [rows, 3]: segments before, position of the first column, unmasked tokens.
        tokens: token_dtype [rows, cols + 1].
        starts: uint8 [rows, bytes of cols + 1 bits].
        loss: the same for the loss mask, None without one.
    """

    format: BlockFormat
    header: npt.NDArray[np.int32]
    tokens: npt.NDArray[Any]
    starts: Bytes
    loss: Bytes | None

    @property
    def rows(self) -> int:
        """Rows of the region."""
        return len(self.header)

    @property
    def cols(self) -> int:
        """Columns of the region, without the one more that is only a target."""
        return int(self.tokens.shape[1]) - 1


def _sections(format: BlockFormat, rows: int, cols: int) -> tuple[int, int, int, int]:
    """Byte offsets of tokens, starts and loss, and the end of what is used."""
    tokens = rows * _HEADER_BYTES
    starts = tokens + rows * (cols + 1) * format.dtype.itemsize
    bits = rows * bitmap_bytes(cols + 1)
    return tokens, starts, starts + bits, starts + bits * (1 + format.loss_mask)


def wire_nbytes(format: BlockFormat, rows: int, cols: int) -> int:
    """Bytes of what a region says, without the rounding up at its end."""
    return _sections(format, rows, cols)[-1]


def region_nbytes(format: BlockFormat, rows: int, cols: int) -> int:
    """Bytes of a region of ``rows`` rows and ``cols`` columns, a multiple of 4."""
    return round_up(_sections(format, rows, cols)[-1], 4)


def view_region(buffer: Any, format: BlockFormat, rows: int, cols: int) -> Region:
    """The region that lies in ``buffer``, without a copy.

    Raises:
        ConfigError: the buffer has not the bytes of such a region.
    """
    flat: Bytes = np.frombuffer(buffer, np.uint8)
    if len(flat) != region_nbytes(format, rows, cols):
        raise ConfigError(
            "region",
            f"{len(flat)} bytes are not the {region_nbytes(format, rows, cols)} of {rows} rows"
            f" and {cols} columns of {format.token_dtype}",
            "Sender and receiver must use the same format",
        )
    tokens, starts, loss, end = _sections(format, rows, cols)
    bitmap = (rows, bitmap_bytes(cols + 1))
    return Region(
        format=format,
        header=flat[:tokens].view(np.int32).reshape(rows, 3),
        tokens=flat[tokens:starts].view(format.dtype).reshape(rows, cols + 1),
        starts=flat[starts:loss].reshape(bitmap),
        loss=flat[loss:end].reshape(bitmap) if format.loss_mask else None,
    )


def cut_region(
    blocks: Sequence[RowBlock],
    block_of_row: npt.ArrayLike,
    row_of_row: npt.ArrayLike,
    c0: int,
    c1: int,
    *,
    format: BlockFormat,
    out: Any | None = None,
) -> Bytes:
    """Cut columns [c0, c1) of some rows out of their blocks.

    Consecutive rows of a block are plain copies, others one gather for each block.

    Args:
        blocks: the blocks that hold the rows.
        block_of_row: int [rows], index in ``blocks``, or ``NO_BLOCK`` for a row of padding.
        row_of_row: int [rows], the row within its block.
        c0: first column.
        c1: column after the last one, at most ``seq_len``.
        format: of the feed; every block must have it.
        out: writable bytes of ``region_nbytes``; None: a new buffer.

    Returns:
        The region's bytes, uint8 [region_nbytes]; equal rows and columns give equal bytes.

    Raises:
        ConfigError: columns outside the row, rows outside their block, a block of another format,
            a buffer of another size.
    """
    which = np.asarray(block_of_row, np.intp)
    places = np.asarray(row_of_row, np.intp)
    rows, cols = len(which), c1 - c0
    if not 0 <= c0 < c1 <= format.seq_len:
        raise ConfigError("columns", f"[{c0}, {c1}) is not within [0, {format.seq_len})")
    for given in blocks:
        if given.format is not format and given.format != format:
            raise ConfigError("format", f"a block has {given.format}, the feed {format}")
    flat = aligned_empty(region_nbytes(format, rows, cols)) if out is None else out
    region = view_region(flat, format, rows, cols)
    flat = np.frombuffer(flat, np.uint8)
    flat[_sections(format, rows, cols)[-1] :] = 0
    for block, target, source in _groups(blocks, which, places):
        if block is None:
            region.header[target] = region.tokens[target] = region.starts[target] = 0
            if region.loss is not None:
                region.loss[target] = 0
            continue
        region.tokens[target] = block.tokens[source, c0 : c1 + 1]
        starts = block.starts[source]
        region.starts[target] = _cut_bits(starts, c0, cols + 1)
        if region.loss is not None and block.loss is not None:
            region.loss[target] = _cut_bits(block.loss[source], c0, cols + 1)
        region.header[target] = _header(starts, block.lengths[source], c0, cols)
    if c1 < format.seq_len:
        _clear_after(region.starts, cols + 1)
        if region.loss is not None:
            _clear_after(region.loss, cols + 1)
    return flat


def _groups(
    blocks: Sequence[RowBlock], which: npt.NDArray[np.intp], places: npt.NDArray[np.intp]
) -> list[tuple[RowBlock | None, _Index, _Index]]:
    """For each block with rows in the region: the rows' places there and in the block."""
    if not len(which):
        return []
    if which[0] == which[-1] and (which == which[0]).all():
        parts = [np.arange(len(which))]
    else:
        order = np.argsort(which, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(which[order])) + 1)
    groups: list[tuple[RowBlock | None, _Index, _Index]] = []
    for part in parts:
        number, target = int(which[part[0]]), _as_slice(part)
        if number == NO_BLOCK:
            groups.append((None, target, target))
            continue
        if not 0 <= number < len(blocks):
            raise ConfigError("rows", f"block {number} is not one of the {len(blocks)}")
        source = places[target]
        limit = blocks[number].rows
        if source.min() < 0 or source.max() >= limit:
            raise ConfigError("rows", f"{source.min()}..{source.max()} of a block of {limit}")
        groups.append((blocks[number], target, _as_slice(source)))
    return groups


def _as_slice(index: npt.NDArray[np.intp]) -> _Index:
    """A slice where the index has no gap, for which numpy copies without looking at each row."""
    first, last = int(index[0]), int(index[-1])
    if last - first + 1 == len(index) and bool((index[1:] > index[:-1]).all()):
        return slice(first, last + 1)
    return index


def _cut_bits(bitmap: Bytes, c0: int, bits: int) -> Bytes:
    """Bits [c0, c0 + bits) of each row [rows, bytes], from bit 0 on; more bits may follow them."""
    first, shift = divmod(c0, 8)
    nbytes = bitmap_bytes(bits)
    cut = bitmap[:, first : first + nbytes]
    if shift:
        following = bitmap[:, first + 1 : first + 1 + nbytes]
        cut = cut >> np.uint8(shift)
        cut[:, : following.shape[1]] |= following << np.uint8(8 - shift)
    return cut


def _clear_after(bitmap: Bytes, bits: int) -> None:
    """Clear what lies behind the first ``bits`` bits of each row, in place."""
    if bits % 8:
        bitmap[:, -1] &= np.uint8((1 << bits % 8) - 1)


def _header(
    starts: Bytes, lengths: npt.NDArray[np.int32], c0: int, cols: int
) -> npt.NDArray[np.int32]:
    """The header [rows, 3] of columns from c0 on."""
    header = np.zeros((len(lengths), 3), np.int32)
    np.clip(lengths - c0, 0, cols, out=header[:, 2])
    if not c0:
        return header
    before = starts[:, : bitmap_bytes(c0)]
    if c0 % 8:
        before = before.copy()
        _clear_after(before, c0)
    np.sum(np.bitwise_count(before), axis=1, dtype=np.int32, out=header[:, 0])
    last_byte = before.shape[1] - 1 - np.argmax(before[:, ::-1] != 0, axis=1)
    value = before[np.arange(len(before)), last_byte]
    last_start = last_byte * 8 + np.frexp(value.astype(np.float32))[1] - 1
    header[:, 1] = c0 - last_start
    header[header[:, 2] == 0, :2] = 0
    return header
