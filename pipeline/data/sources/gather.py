"""Picking records out of many tables, in any order.

``pyarrow.Table.take`` first joins all the pieces of a column, which for a shuffle group copies a
hundred megabytes to pick one; here each record is copied once, from where it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from meshfeed.pipeline.data.memory import RecycledMemory

Ints = npt.NDArray[np.int64]


class RecordPicker:
    """Picks records out of the rows of several tables of one schema, counted one after another.

    Args:
        tables: with text, or lists of integers, in every column; other columns are picked the
            slow way.
    """

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        self._whole = pa.concat_tables(tables, promote_options="permissive")
        self._columns = [_pieces(column) for column in self._whole.columns]

    def __len__(self) -> int:
        return int(self._whole.num_rows)

    def take(self, order: Ints) -> pa.Table:
        """The records with the indices ``order``, int64 [k], in that order."""
        columns = []
        for column, pieces in zip(self._whole.columns, self._columns, strict=True):
            columns.append(column.take(pa.array(order)) if pieces is None else pieces.take(order))
        return pa.table(columns, names=self._whole.column_names)

    def slice(self, begin: int, end: int) -> pa.Table:
        """The records [begin, end), without a copy."""
        return self._whole.slice(begin, end - begin)


class _Pieces:
    """A column of values of any length, piece by piece.

    Attributes are parallel lists over the pieces: first record, flat values, offsets of records.
    """

    def __init__(self, kind: pa.DataType, pieces: Sequence[tuple[Any, Ints]]) -> None:
        self._kind = kind
        self._memory = RecycledMemory(keep=4)
        self._values = [values for values, _ in pieces]
        sizes = [len(offsets) - 1 for _, offsets in pieces]
        self._firsts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        self._begins = np.concatenate([offsets[:-1] for _, offsets in pieces])
        self._lengths = np.concatenate([np.diff(offsets) for _, offsets in pieces])

    def take(self, order: Ints) -> pa.Array:
        piece = np.searchsorted(self._firsts, order, side="right") - 1
        begins, lengths = self._begins[order], self._lengths[order]
        bounds = np.zeros(len(order) + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
        values = self._values
        dtype = values[0].dtype
        out = self._memory(int(bounds[-1]) * dtype.itemsize).view(dtype)
        spots = zip(
            piece.tolist(),
            begins.tolist(),
            (begins + lengths).tolist(),
            bounds[:-1].tolist(),
            bounds[1:].tolist(),
            strict=True,
        )
        for which, begin, end, to, upto in spots:
            out[to:upto] = values[which][begin:end]
        return self._array(out, bounds)

    def _array(self, values: npt.NDArray[Any], bounds: Ints) -> pa.Array:
        if _is_text(self._kind):
            buffers = [None, pa.py_buffer(bounds), pa.py_buffer(values)]
            return pa.Array.from_buffers(pa.large_string(), len(bounds) - 1, buffers)
        return pa.LargeListArray.from_arrays(pa.array(bounds), pa.array(values))


def _pieces(column: pa.ChunkedArray) -> _Pieces | None:
    kind = column.type
    if column.null_count or not column.num_chunks:
        return None
    if _is_text(kind):
        return _Pieces(kind, [_text(chunk) for chunk in column.chunks])
    if _is_list(kind) and pa.types.is_integer(kind.value_type):
        return _Pieces(kind, [flat_list(chunk) for chunk in column.chunks])
    return None


def _text(chunk: pa.Array) -> tuple[npt.NDArray[np.uint8], Ints]:
    wide = pa.types.is_large_string(chunk.type)
    _, offsets, data = chunk.buffers()
    all_bounds = np.frombuffer(offsets, np.int64 if wide else np.int32)
    bounds: Ints = all_bounds[chunk.offset : chunk.offset + len(chunk) + 1].astype(np.int64)
    values = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return values, bounds


def flat_list(chunk: pa.Array) -> tuple[npt.NDArray[Any], Ints]:
    """The values that lists without nulls lie in, and where in these each list begins and ends."""
    if pa.types.is_fixed_size_list(chunk.type):
        width = chunk.type.list_size
        first = chunk.offset * width
        bounds = first + np.arange(len(chunk) + 1, dtype=np.int64) * width
    else:
        bounds = chunk.offsets.to_numpy().astype(np.int64)
    return chunk.values.to_numpy(zero_copy_only=True), bounds


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
