"""The end of a file, where Parquet and Arrow keep their footers."""

from __future__ import annotations

import struct

import pyarrow as pa

from meshfeed.pipeline.data.storage import ShardFile
from meshfeed.pipeline.plan.errors import DataError

_SMALLEST_TAIL = 4096
_LARGEST_TAIL = 64 << 10


def read_footer(file: ShardFile, *, magic: bytes, name: str) -> tuple[pa.Buffer, int]:
    """The last bytes of a file, from its footer on or from before that.

    One read for nearly all files: a 512th of the file is read at first, 4 to 64 KiB, and the rest
    of a longer footer after it.

    Args:
        file: ends in ``footer, int32 footer length, magic``.
        magic: what the file must end in.
        name: of the format, for errors.

    Returns:
        The bytes [size - n, size), and the length of the footer without length and magic.

    Raises:
        DataError: the file does not end as it should.
    """
    end = len(magic) + 4
    tail = file.read(
        file.size - min(max(file.size // 512, _SMALLEST_TAIL), _LARGEST_TAIL), file.size
    )
    last = tail.slice(max(tail.size - end, 0)).to_pybytes()
    if len(last) < end or last[4:] != magic:
        raise DataError(
            file.address,
            f"not a whole {name} file: it ends in {last[-len(magic) :]!r}, not in {magic!r}",
            hint="It may be cut short or be of another format",
        )
    (length,) = struct.unpack("<i", last[:4])
    if not 0 < length <= file.size - end:
        raise DataError(
            file.address, f"the footer says that it has {length} bytes, of a file of {file.size}"
        )
    if length + end > tail.size:
        head = file.read(file.size - length - end, file.size - tail.size)
        tail = pa.py_buffer(head.to_pybytes() + tail.to_pybytes())
    return tail, length
