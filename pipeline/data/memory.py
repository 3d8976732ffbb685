"""Aligned memory, and memory for batches that is used again once nothing can see it.

A new megabyte costs a page fault for every 4 KiB, more than writing the leaves into it. But memory
that a live array shares must never be written to, and on a CPU ``jax.device_put`` shares any
64-byte aligned array. What tells the two apart is the reference count of the memory's owner: each
view of it holds one reference, and so does, through the view, each ``jax.Array`` that shares it, to
the end of the last computation that reads it.
"""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""Bytes. JAX takes 64-byte aligned memory over without a copy, and it is a cache line."""

Bytes = npt.NDArray[np.uint8]


def round_up(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """The next multiple of ``alignment``."""
    return -(-nbytes // alignment) * alignment


def aligned_empty(nbytes: int) -> Bytes:
    """A new uninitialized buffer [nbytes] uint8 at a multiple of 64 bytes (numpy gives 16)."""
    return aligned_view(np.empty(nbytes + ALIGNMENT, np.uint8), nbytes)


def aligned_view(owner: Bytes, nbytes: int) -> Bytes:
    """The first ``nbytes`` at a multiple of 64 bytes in memory of at least 64 bytes more."""
    skip = -owner.__array_interface__["data"][0] % ALIGNMENT
    return owner[skip : skip + nbytes]


class RecycledMemory:
    """Gives 64-byte aligned memory, the same again when no array shares it any more.

    For one thread. Keeps at most ``keep`` pieces; where more are in use the others are new memory
    that is freed as usual.

    Args:
        keep: pieces kept, at least the batches that are alive at a time and one more.
    """

    def __init__(self, keep: int = 8) -> None:
        self._keep = keep
        self._owners: list[Bytes] = []

    def __call__(self, nbytes: int) -> Bytes:
        """Uninitialized memory, uint8 [nbytes], shared with no live array."""
        idle = None
        for place in range(len(self._owners)):
            if _references(self._owners, place) == _IDLE:
                if nbytes + ALIGNMENT <= len(self._owners[place]):
                    return aligned_view(self._owners[place], nbytes)
                idle = place
        owner = np.empty(round_up(nbytes) + ALIGNMENT, np.uint8)
        if len(self._owners) < self._keep:
            self._owners.append(owner)
        elif idle is not None:
            self._owners[idle] = owner
        return aligned_view(owner, nbytes)


def _references(owners: list[Bytes], place: int) -> int:
    return sys.getrefcount(owners[place])


_IDLE = _references([np.empty(1, np.uint8)], 0)
"""What an array counts that is in a list and nowhere else; depends on the interpreter."""
