"""Records as dicts, and back: what transforms of single records work on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from meshfeed.pipeline.data.formats.records import is_int_list, is_text

Record = dict[str, Any]


def records_of(table: pa.Table) -> list[Record]:
    """The rows of a table [rows] as dicts.

    Lists of integers become numpy arrays: a list of 2,000 ids costs 1 µs instead of 40.
    """
    names = table.column_names
    columns = [_values_of(table.column(name)) for name in names]
    if not columns:
        return [{} for _ in range(len(table))]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def table_of(
    records: Sequence[Record],
    columns: Sequence[str],
    types: Mapping[str, pa.DataType],
    *,
    required: bool,
) -> tuple[pa.Table, dict[int, str]]:
    """A table of some columns of dicts, and what is wrong with some of its rows.

    Args:
        records: the rows.
        columns: which.
        types: of columns as they were, and as they stay, so that a vectorized transform sees the
            same types whatever comes before it (fixed-size lists become large ones); a column
            that was not there gets the type that Arrow infers.
        required: whether a text or integer list that is missing or None is a fault.

    Returns:
        The table, with nulls in the rows at fault, and a reason for each of these.
    """
    faults: dict[int, str] = {}
    arrays = []
    for name in columns:
        kind = types.get(name)
        if kind is not None and is_text(kind):
            array, wrong = _text_column(records, name, kind, required)
        elif kind is not None and is_int_list(kind):
            array, wrong = _list_column(records, name, kind, required)
        else:
            array, wrong = _any_column(records, name, kind)
        arrays.append(array)
        faults = wrong | faults
    return pa.table(arrays, names=list(columns)), faults


def _values_of(column: pa.ChunkedArray) -> list[Any]:
    if not is_int_list(column.type):
        values: list[Any] = column.to_pylist()
        return values
    kind = column.type
    out: list[Any] = []
    for part in column.cast(pa.large_list(kind.value_type)).chunks:
        ids = part.values.to_numpy(zero_copy_only=False)
        offsets = part.offsets.to_numpy().tolist()
        present = [True] * len(part) if not part.null_count else part.is_valid().to_pylist()
        out += [
            ids[begin:end] if there else None
            for begin, end, there in zip(offsets[:-1], offsets[1:], present, strict=True)
        ]
    return out


def _text_column(
    records: Sequence[Record], name: str, kind: pa.DataType, required: bool
) -> tuple[pa.Array, dict[int, str]]:
    values = [r.get(name) for r in records]
    try:
        array = pa.array(values, kind)
        if not (array.null_count and required):
            return array, {}
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError, TypeError):
        pass
    faults = {}
    for i, value in enumerate(values):
        if value is None:
            if required:
                faults[i] = _missing(records[i], name)
        elif not isinstance(value, str):
            faults[i] = f"column {name!r} is of type {type(value).__name__}, not str"
        elif not _encodes(value):
            faults[i] = f"column {name!r} holds a lone surrogate, which UTF-8 has no bytes for"
    good = [None if i in faults else value for i, value in enumerate(values)]
    return pa.array(good, kind), faults


def _missing(record: Record, name: str) -> str:
    return f"column {name!r} is " + ("None" if name in record else "missing in what it returned")


def _encodes(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _list_column(
    records: Sequence[Record], name: str, kind: pa.DataType, required: bool
) -> tuple[pa.Array, dict[int, str]]:
    inner = kind.value_type
    dtype = np.dtype(inner.to_pandas_dtype())
    limits = np.iinfo(dtype)
    faults: dict[int, str] = {}
    arrays = []
    missing = np.zeros(len(records), bool)
    for i, record in enumerate(records):
        value = record.get(name)
        if isinstance(value, np.ndarray) and value.dtype == dtype and value.ndim == 1:
            arrays.append(value)
            continue
        ids = None if value is None else _integers(value)
        if value is None:
            missing[i] = True
            faults |= {i: _missing(record, name)} if required else {}
        elif ids is None:
            faults[i] = f"column {name!r} is not a list of integers"
        elif len(ids) and not limits.min <= int(ids.min()) <= int(ids.max()) <= limits.max:
            faults[i] = f"column {name!r} holds an integer beyond {inner}"
            ids = None
        arrays.append(np.empty(0, dtype) if ids is None else ids.astype(dtype, copy=False))
    offsets = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum([len(ids) for ids in arrays], out=offsets[1:])
    flat = np.concatenate(arrays) if arrays else np.empty(0, dtype)
    array = pa.LargeListArray.from_arrays(
        pa.array(offsets), pa.array(flat, inner), mask=pa.array(missing) if missing.any() else None
    )
    return array.cast(kind) if pa.types.is_list(kind) else array, faults


def _integers(value: Any) -> Any:
    try:
        ids = np.asarray(value)
    except ValueError:
        return None
    if ids.ndim != 1:
        return None
    if ids.dtype == np.bool_ or (ids.size == 0 and ids.dtype != object):
        return ids.astype(np.uint8)
    return ids if np.issubdtype(ids.dtype, np.integer) else None


def _any_column(
    records: Sequence[Record], name: str, kind: pa.DataType | None
) -> tuple[pa.Array, dict[int, str]]:
    values = [r.get(name) for r in records]
    for wanted in (kind, None):
        try:
            return pa.array(values, wanted), {}
        except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError, TypeError):
            continue
    faults = {}
    for i, value in enumerate(values):
        try:
            pa.array([value], kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError, TypeError) as error:
            faults[i] = f"column {name!r}: {error}"
    good = [None if i in faults else value for i, value in enumerate(values)]
    return pa.array(good, kind), faults
