"""The columns of a serialized ``tf.train.Example``, without TensorFlow.

ArrayRecord files for JAX trainers often hold such messages. The few fields needed are read from
the protobuf wire format (https://protobuf.dev/programming-guides/encoding/):
``Example{1: Features{1: map<1: key, 2: Feature{1: BytesList | 2: FloatList | 3: Int64List}>}}``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MOST_SHIFT = 63


def parse_example(data: bytes) -> dict[str, Any] | None:
    """Features by name: bytes where there is one, else a list of bytes, floats or integers.

    Returns:
        None where ``data`` is no Example (it may be plain text).
    """
    if data[:1] != b"\n":  # field 1, length-delimited
        return None
    try:
        return dict(
            _entry(entry) for features in _messages(data, 1) for entry in _messages(features, 1)
        )
    except (ValueError, IndexError, struct.error):
        return None


def _messages(data: bytes, number: int) -> Iterator[bytes]:
    for field, value in _fields(data):
        if field != number or not isinstance(value, bytes):
            raise ValueError("not this message")
        yield value


def _entry(data: bytes) -> tuple[str, Any]:
    fields = dict(_fields(data))
    key, feature = fields.get(1, b""), fields.get(2, b"")
    if not isinstance(key, bytes) or not isinstance(feature, bytes) or set(fields) - {1, 2}:
        raise ValueError("not a map entry")
    return key.decode(), _feature(feature)


def _feature(data: bytes) -> Any:
    fields = list(_fields(data))
    if not fields:
        return []
    kind, value = fields[0]
    if len(fields) != 1 or not isinstance(value, bytes):
        raise ValueError("not a feature")
    if kind == 1:
        values = list(_messages(value, 1))
        return values[0] if len(values) == 1 else values
    if kind == 2:
        return [f for _, v in _fields(value) for f in _floats(v)]
    if kind == 3:
        return [i for _, v in _fields(value) for i in _ints(v)]
    raise ValueError("not a feature")


def _floats(value: bytes | int) -> list[float]:
    if not isinstance(value, bytes):
        value = value.to_bytes(4, "little")
    return [v for (v,) in struct.iter_unpack("<f", value)]


def _ints(value: bytes | int) -> list[int]:
    if isinstance(value, int):
        return [_signed(value)]
    ints, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        ints.append(_signed(number))
    return ints


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Number and value of each field of a message."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            length, at = _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {kind}")
        if at + length > len(data):
            raise ValueError("cut short")
        raw = data[at : at + length]
        at += length
        yield tag >> 3, raw if kind == _BYTES else int.from_bytes(raw, "little")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > _MOST_SHIFT:
            raise ValueError("a number is too long")
