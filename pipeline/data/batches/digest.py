"""Digests of global batches that do not depend on who holds which part.

The digest of a leaf is the sum, modulo 2**64, over its elements of a hash of the leaf's name, the
global row, the column and the value. So the digest of a batch is the sum of the digests of the
tiles of any tiling of it (replicas counted once), whatever hosts, mesh and partition are.

Within a row, ``sum over columns of mix(value + key[column])``; rows are weighted by odd keys of
(leaf, row). The mixing between the two sums keeps moved, swapped and changed values from
cancelling out as they would in a plain linear sum. Not meant against an adversary.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.shuffle import UInt64s, derive_key, mix64

_MASK = (1 << 64) - 1
_TOKENS_AT_ONCE = 1 << 14
"""Elements hashed at a time: 128 KiB for each of the two work arrays, which the cache holds."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ODD = np.uint64(0xD6E8FEB86659FD93)
_SHIFT = np.uint64(29)


def leaf_digest(name: str, rows: npt.ArrayLike, first_column: int, array: npt.NDArray[Any]) -> int:
    """The digest of one tile of a leaf.

    Args:
        name: of the leaf.
        rows: integers [n], the global row of each row of the tile.
        first_column: the global column of the tile's first one.
        array: [n, cols] integers or bools, which count by value, or floats, which count by their
            bits. A tile of any dtype of the same values has the same digest only if both are
            integers: check dtypes apart.

    Returns:
        0..2**64 - 1; add digests of tiles with ``combine``.

    Raises:
        ConfigError: the array is not [n, cols] of numbers.
    """
    places = np.asarray(rows).astype(np.uint64)
    if array.ndim != 2 or len(array) != len(places):
        raise ConfigError("digest", f"{list(array.shape)} is not [{len(places)}, columns]")
    values = _as_integers(array)
    seed = np.uint64(derive_key("digest", name))
    weights = mix64(places * _GOLDEN + seed) | np.uint64(1)
    columns = array.shape[1]
    step = max(1, _TOKENS_AT_ONCE // max(1, columns))
    keys = _column_keys(first_column, columns)
    hashes = np.empty((min(step, len(array)), columns), np.uint64)
    shifted = np.empty_like(hashes)
    total = 0
    for begin in range(0, len(array), step):
        part = values[begin : begin + step]
        x, y = hashes[: len(part)], shifted[: len(part)]
        np.copyto(x, part, casting="unsafe")
        x += keys
        x *= _ODD
        np.right_shift(x, _SHIFT, out=y)
        x ^= y
        sums = x.sum(axis=1, dtype=np.uint64)
        total += int((sums * weights[begin : begin + step]).sum(dtype=np.uint64))
    return total & _MASK


def combine(digests: Iterable[int]) -> int:
    """The digest of what several digests cover together, each part once."""
    return sum(digests) & _MASK


def hex_digest(digest: int) -> str:
    """A digest as 16 hexadecimal digits."""
    return f"{digest & _MASK:016x}"


def _as_integers(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same array where it holds integers or bools, else its bits as unsigned integers."""
    if array.dtype.kind in "iub":
        return array
    if array.dtype.itemsize not in (1, 2, 4, 8) or array.dtype.hasobject:
        raise ConfigError("digest", f"{array.dtype} is not a number of 1, 2, 4 or 8 bytes")
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


@functools.lru_cache(maxsize=16)
def _column_keys(first: int, count: int) -> UInt64s:
    keys = mix64(np.arange(first + 1, first + count + 1, dtype=np.uint64) * _GOLDEN)
    keys.flags.writeable = False
    return keys
