"""Where the record batches of an Arrow IPC file or stream lie, and the columns within them.

pyarrow reads batches but does not say where they lie, and its stream reader reads all columns. The
few fields needed for that are read here from the flatbuffers of the format
(https://arrow.apache.org/docs/format/Columnar.html, Message.fbs and File.fbs).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

SCHEMA, DICTIONARY, RECORD_BATCH = 1, 2, 3
_CONTINUATION = 0xFFFFFFFF


class Block(NamedTuple):
    """A message in a file: ``offset`` of its first byte, lengths of its head and its body."""

    offset: int
    head: int
    body: int


class Table(NamedTuple):
    """A flatbuffer table at ``at`` in ``data``."""

    data: bytes
    at: int

    def field(self, number: int) -> int:
        """Where a field lies; 0 where it is not there."""
        (back,) = struct.unpack_from("<i", self.data, self.at)
        vtable = self.at - back
        (size,) = struct.unpack_from("<H", self.data, vtable)
        slot = 4 + 2 * number
        if slot >= size:
            return 0
        (offset,) = struct.unpack_from("<H", self.data, vtable + slot)
        return self.at + int(offset) if offset else 0

    def number(self, number: int, code: str) -> int:
        """A scalar field; 0 where it is not there."""
        at = self.field(number)
        return int(struct.unpack_from("<" + code, self.data, at)[0]) if at else 0

    def table(self, number: int) -> Table | None:
        """A table field."""
        at = self.field(number)
        return Table(self.data, at + struct.unpack_from("<I", self.data, at)[0]) if at else None

    def structs(self, number: int, code: str) -> list[tuple[int, ...]]:
        """A vector of structs, each laid out as ``code``."""
        at = self.field(number)
        if not at:
            return []
        start = at + struct.unpack_from("<I", self.data, at)[0]
        (count,) = struct.unpack_from("<I", self.data, start)
        size = struct.calcsize("<" + code)
        body = self.data[start + 4 : start + 4 + count * size]
        return list(struct.iter_unpack("<" + code, body))


def root(data: bytes) -> Table:
    """The table that a flatbuffer begins with."""
    return Table(data, struct.unpack_from("<I", data, 0)[0])


def footer_blocks(footer: bytes) -> tuple[list[Block], list[Block]]:
    """The dictionaries and the record batches that a file's footer lists."""
    table = root(footer)
    dictionaries, batches = (table.structs(field, "qi4xq") for field in (2, 3))
    return [Block(*b) for b in dictionaries], [Block(*b) for b in batches]


@dataclass(frozen=True, slots=True)
class Message:
    """The head of a message.

    Attributes:
        kind: SCHEMA, DICTIONARY or RECORD_BATCH.
        head: bytes before the body, prefix and padding included.
        body: bytes of the body.
        rows: of a record batch.
        buffers: (offset in the body, length) of each buffer of a record batch, in column order.
    """

    kind: int
    head: int
    body: int
    rows: int
    buffers: tuple[tuple[int, int], ...]


def head_length(prefix: bytes) -> tuple[int, int]:
    """Lengths of a message's prefix and flatbuffer, from its first 8 bytes; (0, 0): the end."""
    if len(prefix) < 4:
        return 0, 0
    (first,) = struct.unpack_from("<I", prefix)
    if first != _CONTINUATION:  # before format version 0.15 there was no continuation mark
        return (4, int(first)) if first else (0, 0)
    if len(prefix) < 8:
        return 0, 0
    (length,) = struct.unpack_from("<I", prefix, 4)
    return (8, int(length)) if length else (0, 0)


def parse_message(head: bytes) -> Message:
    """The head of a message, prefix included.

    Raises:
        ValueError: it is not one.
    """
    prefix, length = head_length(head)
    if not prefix or prefix + length > len(head):
        raise ValueError("no message begins here")
    try:
        table = root(head[prefix : prefix + length])
        kind, body = table.number(1, "B"), table.number(3, "q")
        batch = table.table(2) if kind == RECORD_BATCH else None
        rows = batch.number(0, "q") if batch else 0
        buffers = tuple((a, b) for a, b in batch.structs(2, "qq")) if batch else ()
    except struct.error as error:
        raise ValueError(f"a message cannot be read: {error}") from error
    if body < 0 or rows < 0:
        raise ValueError("a message has a negative length")
    return Message(kind, prefix + length, body, rows, buffers)


def buffer_range(schema: pa.Schema, column: int) -> tuple[int, int] | None:
    """Which buffers [first, last) of a record batch are those of a column.

    None where a type before it has no fixed number of buffers, or is not known here.
    """
    first = 0
    for i, field in enumerate(schema):
        count = _buffers(field.type)
        if count is None:
            return None
        if i == column:
            return first, first + count
        first += count
    return None


def _buffers(kind: pa.DataType) -> int | None:
    """Buffers that a column of this type has in a message; None: not known."""
    types = pa.types
    if types.is_null(kind):
        return 0
    if isinstance(kind, pa.BaseExtensionType):
        return _buffers(kind.storage_type)
    if types.is_dictionary(kind) or types.is_primitive(kind) or types.is_boolean(kind):
        return 2
    if types.is_string(kind) or types.is_large_string(kind):
        return 3
    if types.is_binary(kind) or types.is_large_binary(kind):
        return 3
    if types.is_fixed_size_binary(kind) or types.is_decimal(kind):
        return 2
    if types.is_struct(kind) or types.is_fixed_size_list(kind):
        own = 1
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        own = 2
    else:
        return None
    for i in range(kind.num_fields):
        inner = _buffers(kind.field(i).type)
        if inner is None:
            return None
        own += inner
    return own
