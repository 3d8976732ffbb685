"""Decompression of gzip and Zstandard files, in steps, up to the place where one is damaged."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import zstandard

from meshfeed.pipeline.data.storage import ShardFile

SUFFIXES = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_READ = 4 << 20
_STEP = 256 << 10
_MOST_AT_ONCE = 8 << 20
_LARGEST_WINDOW = 1 << 31
_GZIP = 16 + zlib.MAX_WBITS


def compression_of(name: str) -> str:
    """``gzip``, ``zstd``, or "" for a plain file, by the end of its name."""
    return next((kind for end, kind in SUFFIXES.items() if name.lower().endswith(end)), "")


class Decompressor:
    """The bytes of a compressed file.

    Args:
        file: to be read from its beginning.
        limit: compressed bytes to read at most; None: all.

    Attributes:
        damage: after ``blocks``: what is wrong and where, "" for a whole file.
    """

    def __init__(self, file: ShardFile, limit: int | None = None) -> None:
        self.damage = ""
        self._file = file
        self._size = file.size if limit is None else min(limit, file.size)
        self._at = 0

    def blocks(self) -> Iterator[bytes]:
        """The decompressed bytes, as far as they can be had, in blocks that are not empty.

        Several gzip members or Zstandard frames one after another are read as one, and zeros
        after the last one are padding.
        """
        decode = self._gzip if compression_of(self._file.address) == "gzip" else self._zstd
        try:
            yield from decode()
        except (zlib.error, zstandard.ZstdError) as error:
            self.damage = (
                f"compressed data is damaged at or before byte {self._at} of {self._size} ({error})"
            )

    def _steps(self) -> Iterator[bytes]:
        for begin in range(0, self._size, _READ):
            data = self._file.read(begin, min(begin + _READ, self._size))
            for at in range(0, data.size, _STEP):
                step = data.slice(at, min(_STEP, data.size - at)).to_pybytes()
                self._at = begin + at + len(step)
                yield step

    def _gzip(self) -> Iterator[bytes]:
        member, begun, members = zlib.decompressobj(_GZIP), False, 0
        for step in self._steps():
            data = step if begun or not members else step.lstrip(b"\0")
            while data:
                begun, saved = True, member.copy()
                try:
                    out = member.decompress(data, _MOST_AT_ONCE)
                except zlib.error:
                    self._at -= len(data)
                    yield from self._up_to_the_damage(saved, data)
                    raise
                if out:
                    yield out
                data = member.unconsumed_tail
                if member.eof:
                    data = member.unused_data.lstrip(b"\0")
                    member, begun, members = zlib.decompressobj(_GZIP), False, members + 1
        if begun:
            if rest := member.flush():
                yield rest
            self._cut_short()

    def _zstd(self) -> Iterator[bytes]:
        decoder = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
        frame = decoder.decompressobj()
        begun = False
        for step in self._steps():
            data = step
            while data:
                begun = True
                out = frame.decompress(data)
                if out:
                    yield out
                data = b""
                if frame.eof:
                    data, begun = frame.unused_data, False
                    frame = decoder.decompressobj()
        if begun:
            self._cut_short()

    def _cut_short(self) -> None:
        self.damage = f"compressed data is cut short at byte {self._size}"

    def _up_to_the_damage(self, member: zlib._Decompress, data: bytes) -> Iterator[bytes]:
        """What can be had of ``data`` before the byte that is damaged."""
        for at in range(len(data)):
            try:
                out = member.decompress(data[at : at + 1])
            except zlib.error:
                self._at += at
                return
            if out:
                yield out
