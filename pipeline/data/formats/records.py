"""Records as readers get them: one Arrow table of the used columns, and where each record lies.

Whatever the format, a used column comes out as one of two kinds, in the type it is stored in:
text (``string`` or ``large_string``, valid UTF-8) or token ids (``list``, ``large_list`` or
``fixed_size_list`` of integers). A record whose content is wrong is taken out and reported as a
``BadRecord``; whether that ends the run is the caller's to decide. Columns that only transforms
look at are of any kind and stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from meshfeed.pipeline.plan.config import SourceConfig
from meshfeed.pipeline.plan.errors import ConfigError, DataError

Ints = npt.NDArray[np.int64]
_LARGEST_RECORD = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSpec:
    """What a reader wants of each record.

    Attributes:
        columns: the used columns; the first is the text or the token ids. Formats without columns
            (text, ArrayRecord of plain text) give their records the first name.
        extras: those of them that only transforms look at: of any type, and maybe null.
        max_record_bytes: a larger record is a bad record, at most 1 GiB. Counted as stored for
            JSONL and text (the line), else on the used column's value.
    """

    columns: tuple[str, ...]
    extras: tuple[str, ...] = ()
    max_record_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if not self.columns:
            raise ConfigError("sources.column", "no column is named", "Name the text column")
        if not 1 <= self.max_record_bytes <= _LARGEST_RECORD:
            raise ConfigError(
                "sources.max_record_bytes",
                f"{self.max_record_bytes} is not within 1..{_LARGEST_RECORD}",
            )

    @property
    def used(self) -> tuple[str, ...]:
        """The columns of text or token ids."""
        return self.columns[: len(self.columns) - len(self.extras)]

    @classmethod
    def of(cls, source: SourceConfig) -> RecordSpec:
        """What a source's settings ask for."""
        mask = (source.loss_mask_column,) if source.loss_mask_column else ()
        return cls(columns=(source.column, *mask), max_record_bytes=source.max_record_bytes)

    def with_extras(self, names: Iterable[str]) -> RecordSpec:
        """The same, with further columns that transforms look at."""
        extras = tuple(name for name in dict.fromkeys(names) if name not in self.columns)
        return replace(self, columns=(*self.columns, *extras), extras=extras)


class BadRecord(NamedTuple):
    """A record whose content is wrong, the same wherever and whenever it is read.

    Attributes:
        shard_index: of its shard.
        place: where it is in the shard, in ``unit``.
        unit: ``record`` (index), ``byte`` (offset of its first byte), ``line`` (from 1) or
            ``batch`` (``batch << 32 | record in the batch``).
        reason: what is wrong with it.
    """

    shard_index: int
    place: int
    unit: str
    reason: str

    def error(self, shard: str) -> DataError:
        """The error that it is where bad records end the run; ``shard`` is the file's address."""
        return DataError(
            shard,
            self.reason,
            place=describe_place(self.unit, self.place),
            hint="Correct it, or set bad_records: skip to leave such records out and list them",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRecords:
    """The good records of a chunk, or of any set of records, in order.

    Attributes:
        table: the used columns, in the order of the spec; n rows.
        shards: int32 [n], shard_index of each record.
        places: int64 [n], place of each record in its shard, in ``place_unit``.
        place_unit: see ``BadRecord.unit``.
        bad: records that were taken out.
        storage_bytes: bytes read from storage for this.
        used_bytes: bytes of it that the used columns take up as stored. For JSONL and text, where
            a column cannot be read without its record, the records' own bytes (a compressed
            file's all).
    """

    table: pa.Table
    shards: npt.NDArray[np.int32]
    places: Ints
    place_unit: str
    bad: tuple[BadRecord, ...] = ()
    storage_bytes: int = 0
    used_bytes: int = 0

    def __len__(self) -> int:
        return len(self.places)


def describe_place(unit: str, place: int) -> str:
    """A place for people.

    >>> describe_place("line", 7), describe_place("batch", (2 << 32) + 5)
    ('line 7', 'batch 2, record 5')
    """
    if unit == "batch":
        return f"batch {place >> 32}, record {place & 0xFFFFFFFF}"
    return f"{unit} {place}"


def make_records(
    table: pa.Table,
    *,
    shard: str,
    shard_index: int,
    places: Ints,
    place_unit: str,
    spec: RecordSpec,
    bad: Sequence[BadRecord] = (),
    storage_bytes: int = 0,
    used_bytes: int = 0,
) -> ChunkRecords:
    """Bring the columns of ``table`` to their two kinds and take bad records out.

    Args:
        table: n records with at least the columns of ``spec``.
        shard: address, for errors.
        shard_index: of all of them.
        places: int64 [n].
        place_unit: see ``BadRecord``.
        spec: what is wanted.
        bad: records that were found to be bad before.
        storage_bytes: see ``ChunkRecords``.
        used_bytes: see ``ChunkRecords``.

    Raises:
        DataError: a column holds something else than text or integers.
    """
    columns, reasons = [], dict[int, str]()
    for name in spec.columns:
        if name in spec.extras:
            columns.append(_plain(table.column(name)))
            continue
        column, faults = _check_column(table.column(name), name, shard, spec.max_record_bytes)
        columns.append(column)
        reasons = faults | reasons
    table = pa.table(columns, names=list(spec.columns))
    if reasons:
        found = [BadRecord(shard_index, int(places[i]), place_unit, reasons[i]) for i in reasons]
        bad = sorted([*bad, *found])
        keep = np.ones(len(places), bool)
        keep[list(reasons)] = False
        places = places[keep]
        table = table.filter(pa.array(keep))
    table = _valid_text(table, spec.used)
    return ChunkRecords(
        table=table,
        shards=np.full(len(places), shard_index, np.int32),
        places=places,
        place_unit=place_unit,
        bad=tuple(bad),
        storage_bytes=storage_bytes,
        used_bytes=used_bytes,
    )


def missing_column(shard: str, name: str, there: Sequence[str]) -> DataError:
    """The error for a shard that has no such column."""
    shown = ", ".join(there[:40]) + (", ..." if len(there) > 40 else "")
    return DataError(
        shard,
        f"no column {name!r}; the columns there are: {shown}",
        hint="Set column to one of them",
    )


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type is text (or bytes that should be)."""
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )


def is_int_list(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists of integers."""
    types = pa.types
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(lists and types.is_integer(kind.value_type))


def _check_column(
    column: pa.ChunkedArray, name: str, shard: str, max_record_bytes: int
) -> tuple[pa.ChunkedArray, dict[int, str]]:
    """The column in one of the two kinds, and a reason for each of its bad records [n]."""
    column = _plain(column)
    if pa.types.is_null(column.type):
        column = column.cast(pa.string())
    faults: dict[int, str] = {}
    if not (is_text(column.type) or is_int_list(column.type)):
        raise DataError(
            shard,
            f"column {name!r} has type {column.type}",
            hint="It must hold text, or lists of integers (token ids)",
        )
    start = 0
    for part in column.chunks:
        find = _text_faults if is_text(column.type) else _list_faults
        for index, reason in find(part, name, max_record_bytes):
            faults.setdefault(start + index, reason)
        start += len(part)
    return column, faults


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Without dictionaries, views and booleans."""
    kind, types = column.type, pa.types
    if types.is_dictionary(kind):
        return _plain(column.cast(kind.value_type))
    if types.is_string_view(kind):
        return column.cast(pa.large_string())
    if types.is_binary_view(kind):
        return column.cast(pa.large_binary())
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    views = (types.is_list_view, types.is_large_list_view)
    if any(test(kind) for test in lists + views):
        inner = kind.value_type
        if types.is_boolean(inner) or types.is_null(inner):
            return column.cast(pa.large_list(pa.uint8() if types.is_boolean(inner) else pa.int64()))
        if any(test(kind) for test in views):
            return column.cast(pa.large_list(inner))
    return column


def _text_faults(part: pa.Array, name: str, max_record_bytes: int) -> list[tuple[int, str]]:
    faults = _null_faults(part, name)
    lengths = pc.binary_length(part)
    longest = pc.max(lengths).as_py() or 0
    if longest > max_record_bytes:
        faults += _too_long(lengths, name, max_record_bytes)
    as_text = (
        part.view(pa.large_string() if part.type.id == pa.large_binary().id else pa.string())
        if pa.types.is_binary(part.type) or pa.types.is_large_binary(part.type)
        else part
    )
    try:
        as_text.validate(full=True)
    except pa.ArrowInvalid:
        faults += _utf8_faults(part, name)
    return faults


def _list_faults(part: pa.Array, name: str, max_record_bytes: int) -> list[tuple[int, str]]:
    faults = _null_faults(part, name)
    width = part.type.value_type.bit_width // 8
    lengths = pc.list_value_length(part)
    longest = pc.max(lengths).as_py() or 0
    if longest * width > max_record_bytes:
        faults += _too_long(pc.multiply(lengths.cast(pa.int64()), width), name, max_record_bytes)
    inner = part.flatten()
    if inner.null_count:
        owner = pc.list_parent_indices(part).to_numpy()
        holes = np.unique(owner[inner.is_null().to_numpy(zero_copy_only=False)])
        faults += [(int(i), f"null among the integers of column {name!r}") for i in holes]
    return faults


def _null_faults(part: pa.Array, name: str) -> list[tuple[int, str]]:
    if not part.null_count:
        return []
    nulls = np.flatnonzero(part.is_null().to_numpy(zero_copy_only=False))
    return [(int(i), f"column {name!r} is null or missing") for i in nulls]


def _too_long(lengths: pa.Array, name: str, limit: int) -> list[tuple[int, str]]:
    sizes = lengths.fill_null(0).to_numpy(zero_copy_only=False)
    return [
        (int(i), f"column {name!r} has {sizes[i]} bytes, above max_record_bytes {limit}")
        for i in np.flatnonzero(sizes > limit)
    ]


def _utf8_faults(part: pa.Array, name: str) -> list[tuple[int, str]]:
    faults = []
    raw = part.cast(pa.large_binary()) if len(part) else part
    for index, value in enumerate(raw):
        if value.is_valid:
            try:
                value.as_py().decode()
            except UnicodeDecodeError as error:
                reason = f"column {name!r} is not UTF-8: {error.reason} at its byte {error.start}"
                faults.append((index, reason))
    return faults


def _valid_text(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Give columns of checked bytes their text type."""
    for i, field in enumerate(table.schema):
        if field.name not in names:
            continue
        if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            kind: Any = pa.string() if pa.types.is_binary(field.type) else pa.large_string()
            parts = [part.view(kind) for part in table.column(i).chunks]
            table = table.set_column(i, field.name, pa.chunked_array(parts, type=kind))
    return table


def empty_table(spec: RecordSpec) -> pa.Table:
    """No records."""
    return pa.table([pa.array([], pa.string()) for _ in spec.columns], names=list(spec.columns))
