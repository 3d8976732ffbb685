"""Permutations that anyone can evaluate at any index, the same on every machine for ever.

The order of a run rests on the three functions below, so they do their own integer arithmetic:
no generator of numpy or Python, whose streams may change between versions, is involved.

``permute`` is a Feistel network on ``Z_a x Z_b`` with ``a * b`` just above ``n``, and walks the
cycle of the few values that fall outside. (Black and Rogaway, "Ciphers with Arbitrary Finite
Domains", 2002; the rounds add modulo ``a`` and ``b`` instead of xor-ing bits, so that fewer than
``sqrt(n)`` values lie outside.) Grain's ``index_shuffle`` has the same idea, but takes one index
in a call, 4 microseconds each, where a window permutes thousands and an epoch a million chunks.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt

UInt64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]

MAX_PERMUTED = 1 << 62

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_HALF = np.uint64(32)
_ROUND_PAIRS = 4


def mix64(x: UInt64s) -> UInt64s:
    """Mixes the bits of each value; a bijection of 64 bits.

    Args:
        x: uint64 ``[n]``.

    Returns:
        uint64 ``[n]``. (The finalizer of SplitMix64: Steele, Lea, Flood, 2014.)
    """
    mixed = np.array(x, np.uint64, ndmin=1)
    _mix_in_place(mixed)
    return mixed


def derive_key(*parts: int | str) -> int:
    """A 64-bit key that names ``parts``: different parts, a key that has nothing to do with it.

    Args:
        *parts: integers and strings; ``1`` and ``"1"`` are different parts.

    Returns:
        In ``[1, 2**64)``, so that 0 may stand for "not permuted".
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        text = (f"i{part:d}" if isinstance(part, int) else f"s{part}").encode()
        digest.update(len(text).to_bytes(4, "little") + text)
    return int.from_bytes(digest.digest(), "little") or 1


def permute(index: npt.ArrayLike, n: int, key: int) -> Int64s:
    """Where a random permutation of ``range(n)`` sends each index.

    Args:
        index: integers in ``[0, n)``, ``[k]``.
        n: size of what is permuted.
        key: names the permutation, any 64-bit integer.

    Returns:
        int64 ``[k]``; over all of ``range(n)`` every value comes once.

    Raises:
        ValueError: an index outside ``[0, n)``, or ``n`` above 2**62.
    """
    places = np.array(index, np.int64, ndmin=1)
    if not 0 <= n <= MAX_PERMUTED:
        raise ValueError(f"cannot permute {n} things: the limit is {MAX_PERMUTED}")
    if places.size == 0:
        return places
    if places.min() < 0 or places.max() >= n:
        raise ValueError(f"an index of {places.min()}..{places.max()} is outside [0, {n})")
    high = math.isqrt(n - 1) + 1
    low = -(-n // high)
    moved = _feistel(places.view(np.uint64), high, low, key)
    while (outside := np.flatnonzero(moved >= n)).size:
        moved[outside] = _feistel(moved[outside], high, low, key)
    return moved.view(np.int64)


def _feistel(x: UInt64s, high: int, low: int, key: int) -> UInt64s:
    """Bijection of ``range(high * low)``: [k] -> [k]."""
    left = x // np.uint64(low)
    right = x - left * np.uint64(low)
    for pair in range(_ROUND_PAIRS):
        _add_hash(left, right, _round_key(key, 2 * pair), high)
        _add_hash(right, left, _round_key(key, 2 * pair + 1), low)
    left *= np.uint64(low)
    left += right
    return left


def _add_hash(target: UInt64s, source: UInt64s, round_key: int, modulus: int) -> None:
    """``target += hash(source)`` modulo ``modulus``, in place; both hold values below 2**32."""
    hashed = source + np.uint64(round_key)
    _mix_in_place(hashed)
    hashed >>= _HALF
    hashed *= np.uint64(modulus)
    hashed >>= _HALF
    target += hashed
    # Below the modulus the difference wraps to a huge number, so the minimum is the residue.
    np.minimum(target, target - np.uint64(modulus), out=target)


def _mix_in_place(x: UInt64s) -> None:
    x ^= x >> _SHIFTS[0]
    x *= _MIX_1
    x ^= x >> _SHIFTS[1]
    x *= _MIX_2
    x ^= x >> _SHIFTS[2]


def _round_key(key: int, number: int) -> int:
    x = (key + (number + 1) * _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * int(_MIX_1)) & _MASK
    x = ((x ^ (x >> 27)) * int(_MIX_2)) & _MASK
    return x ^ (x >> 31)
