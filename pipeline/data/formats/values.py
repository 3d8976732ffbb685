"""Records that come as Python values (ArrayRecord, Grain) made into an Arrow table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from meshfeed.pipeline.data.formats.records import BadRecord, Ints, RecordSpec

Value = str | bytes | np.ndarray[Any, Any] | list[int]


def table_of(
    values: Sequence[Any], spec: RecordSpec, *, shard_index: int, places: Ints
) -> tuple[pa.Table, Ints, list[BadRecord]]:
    """The used columns of some records; those that do not fit are bad.

    Args:
        values: n records: a mapping by column, or the first column's value itself (text, bytes,
            or a one-dimensional sequence of integers).
        spec: the used columns. What most formats know beforehand, text or integers, is here what
            the first value of a column is.
        shard_index: of their shard.
        places: int64 [n], record index of each in its shard.

    Returns:
        The good records' table, their places, and the bad ones.
    """
    rows: list[dict[str, Any]] = []
    kept, bad = [], []
    kinds: dict[str, type] = {}
    for value, place in zip(values, places.tolist(), strict=True):
        row = _columns(value, spec)
        reason = row if isinstance(row, str) else _check(row, kinds, spec)
        if isinstance(row, str) or reason:
            bad.append(BadRecord(shard_index, place, "record", str(reason)))
        else:
            rows.append(row)
            kept.append(place)
    columns = [_array([row[name] for row in rows], kinds.get(name, bytes)) for name in spec.used]
    columns += [pa.array([row[name] for row in rows]) for name in spec.extras]
    return pa.table(columns, names=list(spec.columns)), np.array(kept, np.int64), bad


def _columns(value: Any, spec: RecordSpec) -> dict[str, Any] | str:
    """The used columns of a record as bytes or integer arrays; or what is wrong with it.

    Those for transforms stay Python's own values.
    """
    if not isinstance(value, dict):
        if len(spec.columns) > 1:
            return f"a record with columns {', '.join(spec.columns)} must be a mapping"
        value = dict.fromkeys(spec.columns, value)
    row: dict[str, Any] = {}
    for name in spec.columns:
        if name in spec.extras:
            found = value.get(name)
            row[name] = found.tolist() if isinstance(found, np.ndarray | np.generic) else found
            continue
        if name not in value:
            return f"no column {name!r}; the columns there are: {', '.join(map(str, value))}"
        found = _plain(value[name])
        if isinstance(found, str):
            return f"column {name!r} {found}"
        row[name] = found
    return row


def _plain(value: Any) -> bytes | np.ndarray[Any, Any] | str:
    """Text as bytes, integers as an array; a string says why it is neither."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            return f"is not UTF-8: {error.reason}"
    if value is None:
        return "is null or missing"
    array = np.asarray(value)
    if array.ndim == 0 and isinstance(array[()], bytes | str):
        return _plain(array[()])
    if array.ndim == 1 and not array.size:
        return np.empty(0, np.int64)
    if array.dtype.kind == "b":
        array = array.astype(np.uint8)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        return f"is {array.dtype} of shape {array.shape}, not text or a list of integers"
    return array


def _check(row: dict[str, Any], kinds: dict[str, type], spec: RecordSpec) -> str:
    for name in spec.used:
        value = row[name]
        kind = kinds.setdefault(name, bytes if isinstance(value, bytes) else np.ndarray)
        if not isinstance(value, kind):
            return f"column {name!r} holds text in some records and integers in others"
    return ""


def _array(values: list[Any], kind: type) -> pa.Array:
    if kind is bytes:
        return pa.array(values, pa.large_binary())
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(v) for v in values])])
    dtypes = {v.dtype for v in values if len(v)}
    flat = np.concatenate(values).astype(dtypes.pop() if len(dtypes) == 1 else np.int64)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(flat))
