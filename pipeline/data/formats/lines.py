"""Records that are lines: of a byte range of a plain file, or of a whole compressed one.

A chunk of a plain file owns the lines that start in its range. It is read with a little more than
its end, then further in growing steps until its last line ends. Lines end in ``\\n`` or ``\\r\\n``;
the last one may lack it; blank lines are no records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from meshfeed.pipeline.data.formats.compressed import Decompressor, compression_of
from meshfeed.pipeline.data.formats.records import BadRecord, Ints
from meshfeed.pipeline.data.storage import ShardFile
from meshfeed.pipeline.plan.manifest import ChunkRef

_BOM = b"\xef\xbb\xbf"
_SMALLEST_STEP = 1024
_LARGEST_FIRST_STEP = 64 << 10
_SAMPLE = 256 << 10
_NEWLINE = 10


@dataclass(frozen=True, slots=True)
class Lines:
    """Some lines that are not blank, in order.

    Attributes:
        data: the bytes that hold them.
        begins: int64 [n], first byte of each in ``data``.
        ends: int64 [n], one past its last byte, without its line end.
        places: int64 [n], byte offset in the file, or line number from 1 where it is compressed.
        bad: lines that are too long, or the part of a file that cannot be decompressed.
    """

    data: pa.Buffer
    begins: Ints
    ends: Ints
    places: Ints
    bad: tuple[BadRecord, ...] = ()

    def __len__(self) -> int:
        return len(self.begins)

    def line(self, index: int) -> bytes:
        """One line, without its line end."""
        begin, end = int(self.begins[index]), int(self.ends[index])
        return bytes(self.data.slice(begin, end - begin).to_pybytes())


def place_unit(file: ShardFile) -> str:
    """``line`` for a compressed file, ``byte`` for a plain one."""
    return "line" if compression_of(file.address) else "byte"


def read_lines(file: ShardFile, ref: ChunkRef, max_bytes: int) -> Iterator[Lines]:
    """The lines that a chunk owns, in one or more blocks of moderate size.

    Args:
        file: the shard.
        ref: a byte range, or the whole file where it is compressed.
        max_bytes: a longer line is bad.
    """
    if compression_of(file.address):
        yield from _whole_lines(file, ref.shard_index, max_bytes)
    elif (lines := _range_lines(file, ref, max_bytes)) is not None:
        yield lines


def sample_lines(file: ShardFile) -> tuple[Lines, float]:
    """The first whole lines of a file, and how many of its bytes they take up.

    Reads at most 256 KiB; no lines where the first one is longer.
    """
    if compression_of(file.address):
        data = b"".join(Decompressor(file, _SAMPLE).blocks())
    else:
        data = file.read(0, _SAMPLE).to_pybytes()
    read = min(file.size, _SAMPLE)
    whole = data if file.size <= _SAMPLE else data[: data.rfind(b"\n") + 1]
    lines = _numbered(whole, 1, 0, len(data), at_start=True, cut=False)[0]
    return lines, read * len(whole) / max(len(data), 1)


def _range_lines(file: ShardFile, ref: ChunkRef, max_bytes: int) -> Lines | None:
    lead = min(ref.begin, 1)
    step = min(max((ref.end - ref.begin) // 64, _SMALLEST_STEP), _LARGEST_FIRST_STEP)
    start, end = ref.begin - lead, min(ref.end + step, file.size)
    data = file.read(start, end)
    newlines = _newlines(data) + start
    if ref.begin == 0:
        first = 0
    elif len(newlines) and newlines[0] < ref.end - 1:
        first = int(newlines[0]) + 1
    else:
        return None
    after = newlines[newlines >= ref.end - 1]
    if len(after) or end == file.size:
        stop = int(after[0]) + 1 if len(after) else end
        data = data.slice(first - start, stop - first)
    else:
        last = int(newlines[-1]) + 1 if len(newlines) else first
        rest = _read_to_newline(file, end, step, last + max_bytes + 2)
        data = _join([data.slice(first - start), *rest])
    return _split(data, ref.shard_index, max_bytes, first, at_start=ref.begin == 0)


def _read_to_newline(file: ShardFile, at: int, step: int, limit: int) -> list[pa.Buffer]:
    """The bytes from ``at`` through the next newline, or up to ``limit`` where it comes later."""
    parts = []
    while at < min(file.size, limit):
        step *= 2
        part = file.read(at, min(at + step, limit))
        newlines = _newlines(part)
        if len(newlines):
            parts.append(part.slice(0, int(newlines[0]) + 1))
            break
        parts.append(part)
        at += part.size
    return parts


def _split(
    data: pa.Buffer, shard_index: int, max_bytes: int, offset: int, *, at_start: bool
) -> Lines:
    """The lines of ``data``, which begins at byte ``offset`` of the file."""
    begins, ends = _line_bounds(data, at_start=at_start)
    places = begins + offset
    keep = np.flatnonzero(~_blank(data, begins, ends))
    begins, ends, places = begins[keep], ends[keep], places[keep]
    return _without_long(Lines(data, begins, ends, places), shard_index, "byte", max_bytes)


def _whole_lines(file: ShardFile, shard_index: int, max_bytes: int) -> Iterator[Lines]:
    """The lines of a compressed file; what cannot be decompressed is one bad record."""
    reader = Decompressor(file)
    carry: list[bytes] = []
    carried, number, too_long, at_start = 0, 1, False, True
    for block in reader.blocks():
        cut = block.rfind(b"\n") + 1
        if cut:
            carry.append(block[:cut])
            lines, number = _numbered(
                b"".join(carry), number, shard_index, max_bytes, at_start=at_start, cut=too_long
            )
            yield lines
            carry, carried, too_long, at_start = [], 0, False, False
        carry.append(block[cut:])
        carried += len(block) - cut
        if carried > max_bytes + len(_BOM) + 2:
            too_long, carry = True, []
    if reader.damage:
        reason = f"{reader.damage}; the lines from here on are lost"
        bad = BadRecord(shard_index, number, "line", reason)
        none = np.empty(0, np.int64)
        yield Lines(pa.py_buffer(b""), none, none, none, (bad,))
        return
    data = b"".join(carry)
    if data or too_long:
        yield _numbered(data, number, shard_index, max_bytes, at_start=at_start, cut=too_long)[0]


def _numbered(
    data: bytes, number: int, shard_index: int, max_bytes: int, *, at_start: bool, cut: bool
) -> tuple[Lines, int]:
    """The lines of ``data``, the first being line ``number``, and the number of the next line.

    ``cut``: of the first line only the end is there, since it is too long.
    """
    buffer = pa.py_buffer(data)
    begins, ends = _line_bounds(buffer, at_start=at_start)
    kept = ~_blank(buffer, begins, ends)
    bad = (_long_line(shard_index, number, "line", max_bytes),) if cut else ()
    if cut:
        kept[:1] = False
    keep = np.flatnonzero(kept)
    lines = Lines(buffer, begins[keep], ends[keep], keep + number, bad)
    return _without_long(lines, shard_index, "line", max_bytes), number + max(len(begins), 1)


def _newlines(data: pa.Buffer) -> Ints:
    return np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)


def _line_bounds(data: pa.Buffer, *, at_start: bool) -> tuple[Ints, Ints]:
    """First byte and end of each line [n], without byte order mark and line end."""
    newlines = _newlines(data)
    begins = np.concatenate([np.zeros(1, np.int64), newlines + 1])
    ends = np.append(newlines, data.size)
    if begins[-1] == data.size:
        begins, ends = begins[:-1], ends[:-1]
    if not len(begins):
        return begins, ends
    bytes_ = np.frombuffer(data, np.uint8)
    returns = (ends > begins) & (bytes_[np.maximum(ends - 1, 0)] == ord("\r"))
    ends = ends - returns
    if at_start and bytes_[:3].tobytes() == _BOM:
        begins[0] = 3
    return begins, ends


def _blank(data: pa.Buffer, begins: Ints, ends: Ints) -> npt.NDArray[np.bool_]:
    """Which lines [n] hold nothing but white space."""
    bytes_ = np.frombuffer(data, np.uint8)
    blank = ends <= begins
    if len(bytes_):
        suspects = ~blank & (bytes_[np.minimum(begins, len(bytes_) - 1)] <= ord(" "))
        for i in np.flatnonzero(suspects):
            blank[i] = not bytes_[begins[i] : ends[i]].tobytes().strip()
    return blank


def _without_long(lines: Lines, shard_index: int, unit: str, max_bytes: int) -> Lines:
    keep = lines.ends - lines.begins <= max_bytes
    if keep.all():
        return lines
    long = [_long_line(shard_index, int(p), unit, max_bytes) for p in lines.places[~keep]]
    return Lines(
        lines.data, lines.begins[keep], lines.ends[keep], lines.places[keep], (*lines.bad, *long)
    )


def _long_line(shard_index: int, place: int, unit: str, max_bytes: int) -> BadRecord:
    return BadRecord(shard_index, place, unit, f"longer than max_record_bytes {max_bytes}")


def _join(parts: list[pa.Buffer]) -> pa.Buffer:
    return parts[0] if len(parts) == 1 else pa.py_buffer(b"".join(memoryview(p) for p in parts))
