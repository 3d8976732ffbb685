"""A file for Arrow's readers that consists of the pieces which were already read.

Arrow's own file readers read ahead, coalesce ranges and report I/O errors as parser errors. Here a
format reads exactly the ranges that it wants, and gives the parser a file in which only those are
there; what it asks beyond them comes from the shard on demand.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

Span = tuple[int, int]


class PieceFile:
    """A read-only file of ``size`` bytes made of pieces, for ``pa.PythonFile``.

    Args:
        size: bytes of the whole file.
        pieces: (offset, buffer), in order and apart from each other.
        missing: called with [begin, end) for bytes that no piece holds.
    """

    closed = False

    def __init__(
        self,
        size: int,
        pieces: Iterable[tuple[int, pa.Buffer]],
        missing: Callable[[int, int], pa.Buffer],
    ) -> None:
        self._size = size
        self._pieces = list(pieces)
        self._begins = [begin for begin, _ in self._pieces]
        self._missing = missing
        self._at = 0

    def read_buffer(self, nbytes: int = -1) -> pa.Buffer:
        """The next bytes, without a copy where one piece holds them."""
        end = self._size if nbytes < 0 else min(self._at + nbytes, self._size)
        begin, self._at = self._at, end
        which = bisect_right(self._begins, begin) - 1
        if which >= 0:
            start, piece = self._pieces[which]
            if end <= start + piece.size:
                return piece.slice(begin - start, end - begin)
        return self._missing(begin, end)

    def read(self, nbytes: int = -1) -> bytes:
        """The next bytes."""
        return bytes(self.read_buffer(nbytes).to_pybytes())

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to an offset; see ``io.IOBase.seek``."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def size(self) -> int:
        """Bytes of the whole file."""
        return self._size

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def writable(self) -> bool:
        """No."""
        return False

    def flush(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


def merge_spans(spans: Sequence[Span], gap: int = 0) -> list[Span]:
    """Join spans [begin, end) that overlap or lie at most ``gap`` bytes apart.

    >>> merge_spans([(10, 20), (0, 5), (20, 30)])
    [(0, 5), (10, 30)]
    """
    merged: list[Span] = []
    for begin, end in sorted(s for s in spans if s[1] > s[0]):
        if merged and begin <= merged[-1][1] + gap:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def total(spans: Sequence[Span]) -> int:
    """Bytes in spans that do not overlap."""
    return sum(end - begin for begin, end in spans)
