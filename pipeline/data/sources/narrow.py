"""Token ids in as few bytes as they need.

Ids are mostly stored in 4 or 8 bytes, and in a row block in 2 where the vocabulary allows. What is
kept for the windows of a group is kept in those 2: half the memory to write, to hold and to pick
from. Columns that transforms look at keep the type that they are stored in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from meshfeed.pipeline.data.formats.records import is_int_list
from meshfeed.pipeline.data.sources.gather import flat_list


def narrowed(table: pa.Table, column: str, dtype: npt.DTypeLike) -> pa.Table:
    """The table with the lists of one column in an integer type, in one piece.

    Unchanged where the column holds something else than lists of wider integers, or an integer that
    the type cannot hold: packing says which.

    Args:
        table: without nulls in the column.
        column: its name.
        dtype: unsigned.
    """
    lists = table.column(column)
    kind = lists.type
    target: np.dtype[Any] = np.dtype(dtype)
    if not is_int_list(kind) or kind.value_type.bit_width <= 8 * target.itemsize:
        return table
    pieces = [flat_list(chunk) for chunk in lists.chunks]
    sizes = [int(bounds[-1] - bounds[0]) for _, bounds in pieces]
    values = np.empty(sum(sizes), target)
    begin = 0
    for (wide, bounds), size in zip(pieces, sizes, strict=True):
        used = wide[bounds[0] : bounds[-1]]
        # As an unsigned integer a negative id is above every limit.
        if len(used) and int(used.view(f"u{used.itemsize}").max()) > np.iinfo(target).max:
            return table
        np.copyto(values[begin : begin + size], used, casting="unsafe")
        begin += size
    if pa.types.is_fixed_size_list(kind):
        made = pa.FixedSizeListArray.from_arrays(pa.array(values), kind.list_size)
    else:
        lengths = np.concatenate([np.zeros(1, np.int64), *(np.diff(b) for _, b in pieces)])
        made = pa.LargeListArray.from_arrays(pa.array(np.cumsum(lengths)), pa.array(values))
    return table.set_column(table.schema.get_field_index(column), column, made)
