"""The bytes of a ledger: a header with the feed's fingerprint, then entries of a fixed size.

All integers are little-endian. ``check`` mixes an entry's bytes with its index and the feed's
fingerprint; ``place`` is its index in the batch that was made durable at once, which is how a torn
tail and damage are told apart.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.plan.errors import ChangedError, DataError
from meshfeed.pipeline.plan.shuffle import UInt64s, mix64

ENTRY = np.dtype(
    [
        ("source", "<u2"),
        ("place", "<u2"),
        ("epoch", "<u4"),
        ("window", "<u8"),
        ("rows", "<u4"),
        ("records", "<u4"),
        ("tokens", "<u8"),
        ("digest", "<u8"),
        ("check", "<u8"),
    ]
)
Entries = npt.NDArray[np.void]
"""Entries as they lie in the file: ``ENTRY[n]``."""

LEDGER_VERSION = 1

_HEADER = struct.Struct("<16sII64s8s")
HEADER_BYTES = _HEADER.size

_MAGIC = b"meshfeed ledger\n"
_WORDS = ENTRY.itemsize // 8


def entries_from_bytes(data: bytes) -> Entries:
    """What ``Ledger.increments`` gave, as ``ENTRY[n]``, without a copy."""
    return np.frombuffer(data, ENTRY)


def header(fingerprint: str) -> bytes:
    """The header of a feed's ledger.

    Args:
        fingerprint: of all that fixes the feed's rows, 1 to 64 bytes.
    """
    name = fingerprint.encode()
    if not 0 < len(name) <= 64:
        raise ValueError(f"a fingerprint of {len(name)} bytes; 1 to 64 can be kept")
    fields = (_MAGIC, LEDGER_VERSION, ENTRY.itemsize, name.ljust(64, b"\0"))
    return _HEADER.pack(*fields, _digest_of(fields))


def _digest_of(fields: tuple[Any, ...]) -> bytes:
    return hashlib.blake2b(repr(fields).encode(), digest_size=8).digest()


def check_header(path: Path, data: bytes, fingerprint: str) -> None:
    """Refuses the ledger of another feed.

    Args:
        path: of the file, for the message.
        data: its first ``HEADER_BYTES`` bytes.
        fingerprint: of the feed that it should belong to.

    Raises:
        ChangedError: it belongs to another feed, or to another version of meshfeed.
        DataError: it is damaged, or no ledger.
    """
    if len(data) < HEADER_BYTES or not data.startswith(_MAGIC):
        raise DataError(str(path), "is no ledger", hint="Move it away")
    *fields, check = _HEADER.unpack(data)
    if check != _digest_of(tuple(fields)):
        raise DataError(str(path), "is damaged", place="header", hint="Restore it from a copy")
    _, version, entry_size, name = fields
    if (version, entry_size) != (LEDGER_VERSION, ENTRY.itemsize):
        raise ChangedError(
            f"{path} is of version {version}, this meshfeed keeps version {LEDGER_VERSION}. "
            "Go on with the meshfeed that began the run"
        )
    found = name.rstrip(b"\0").decode()
    if found != fingerprint:
        raise ChangedError(
            f"{path} belongs to a feed with fingerprint {found}, this one has {fingerprint}: its "
            "data set, order settings or tokenizer are others. Use another run directory"
        )


def offset(entry: int) -> int:
    """Where in the file an entry begins."""
    return HEADER_BYTES + entry * ENTRY.itemsize


def entry_checks(entries: Entries, first: int, key: int) -> UInt64s:
    """The check of each entry: ENTRY[n] whose first has index ``first`` -> uint64 [n]."""
    words = entries.view("<u8").reshape(len(entries), _WORDS)
    checks = np.arange(first, first + len(entries), dtype=np.uint64) ^ np.uint64(key)
    for word in range(_WORDS - 1):
        checks = mix64(checks) ^ words[:, word].astype(np.uint64)
    return mix64(checks)
