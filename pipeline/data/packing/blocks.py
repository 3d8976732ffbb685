"""Row blocks: what a window becomes, in one flat buffer that can lie in shared memory.

A block holds ``rows`` packed rows of one window::

    header   64 bytes     magic, version, rows, seq_len, token dtype, loss flag
    tokens   [rows, seq_len + 1]   column ``seq_len`` is the target of the row's last token
    lengths  [rows] int32          unmasked tokens
    starts   [rows, bitmap_bytes]  bit j: token j does not continue the segment of token j - 1
    loss     [rows, bitmap_bytes]  bit j: token j counts as a target (only with a loss mask)

each section at a multiple of 64 bytes, gaps zero, so that equal rows are equal bytes. Segment ids,
positions and weights follow from the starts and are derived where the batch is assembled: they
need not travel. Bits are little-endian within a byte (``np.packbits(..., bitorder="little")``).

The starts of a row with ``length`` unmasked tokens: bit 0 if it has any, the bit of each further
segment, bit ``length`` (there the padding begins, or the row is full and its last segment ends),
and bit ``seq_len``; but a full row whose last record goes on elsewhere has bit ``seq_len`` clear
and that record's next token in column ``seq_len``, which is 0 otherwise.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.data.memory import ALIGNMENT, Bytes, aligned_empty, round_up
from meshfeed.pipeline.plan.errors import ConfigError, DataError
from meshfeed.pipeline.plan.feed_spec import FeedSpec

_MAGIC = b"meshrows"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQHH")
_DTYPES: dict[str, int] = {"uint16": 1, "int32": 2}

_BIT = np.left_shift(1, np.arange(8)).astype(np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFormat:
    """What is the same for all blocks of a feed.

    Attributes:
        seq_len: tokens in a row.
        token_dtype: ``uint16`` or ``int32``, as tokens are stored and sent.
        loss_mask: blocks carry a bitmap of the tokens that count as targets.
    """

    seq_len: int
    token_dtype: str = "int32"
    loss_mask: bool = False

    def __post_init__(self) -> None:
        if self.seq_len < 1:
            raise ConfigError("seq_len", f"{self.seq_len} is below 1")
        if self.token_dtype not in _DTYPES:
            raise ConfigError(
                "token_dtype", f"{self.token_dtype!r} is unknown", "Use uint16 or int32"
            )

    @classmethod
    def for_vocab(cls, seq_len: int, vocab_size: int, *, loss_mask: bool = False) -> BlockFormat:
        """The format with the smallest dtype that holds all ids below ``vocab_size``."""
        if not 0 < vocab_size <= 1 << 31:
            raise ConfigError("vocab_size", f"{vocab_size} is not within 1..{1 << 31}")
        dtype = "uint16" if vocab_size <= 1 << 16 else "int32"
        return cls(seq_len=seq_len, token_dtype=dtype, loss_mask=loss_mask)

    @classmethod
    def of(cls, spec: FeedSpec) -> BlockFormat:
        """The format of a feed."""
        return cls(
            seq_len=spec.config.seq_len, token_dtype=spec.token_dtype, loss_mask=spec.loss_mask
        )

    @property
    def dtype(self) -> np.dtype[Any]:
        """``token_dtype`` for numpy."""
        return np.dtype(self.token_dtype)

    @property
    def bitmap_bytes(self) -> int:
        """Bytes of a row's bitmap of ``seq_len + 1`` bits."""
        return bitmap_bytes(self.seq_len + 1)

    def sections(self, rows: int) -> tuple[int, int, int, int, int]:
        """Byte offsets of tokens, lengths, starts and loss in a block, and the block's size."""
        tokens = ALIGNMENT
        lengths = tokens + round_up(rows * (self.seq_len + 1) * self.dtype.itemsize)
        starts = lengths + round_up(rows * 4)
        loss = starts + round_up(rows * self.bitmap_bytes)
        return tokens, lengths, starts, loss, loss + (loss - starts) * self.loss_mask

    def nbytes(self, rows: int) -> int:
        """Bytes of a block of ``rows`` rows."""
        return self.sections(rows)[-1]


def bitmap_bytes(bits: int) -> int:
    """Bytes that hold so many bits."""
    return (bits + 7) // 8


def set_bits(bitmap: Bytes, rows: npt.NDArray[np.int64], bits: npt.NDArray[np.int64]) -> None:
    """Set bit ``bits[i]`` of row ``rows[i]`` in ``bitmap`` [rows, bitmap_bytes], in place."""
    flat = bitmap.reshape(-1)
    np.bitwise_or.at(flat, rows * bitmap.shape[1] + (bits >> 3), _BIT[bits & 7])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowBlock:
    """Packed rows of one window; the arrays are views of ``buffer``, laid out as the module says.

    Attributes:
        format: of the feed.
        buffer: the whole block, uint8 [format.nbytes(rows)], header and gaps included.
        tokens: token_dtype [rows, seq_len + 1].
        lengths: int32 [rows], unmasked tokens of each row.
        starts: uint8 [rows, bitmap_bytes].
        loss: uint8 [rows, bitmap_bytes], or None without a loss mask.
    """

    format: BlockFormat
    buffer: Bytes
    tokens: npt.NDArray[Any]
    lengths: npt.NDArray[np.int32]
    starts: Bytes
    loss: Bytes | None

    @property
    def rows(self) -> int:
        """Rows of the block."""
        return len(self.lengths)

    @classmethod
    def allocate(cls, format: BlockFormat, rows: int, buffer: Any | None = None) -> RowBlock:
        """A block with header, zero gaps and zero bitmaps, whose tokens and lengths are not set.

        Args:
            format: of the feed.
            rows: rows of the block.
            buffer: writable bytes to lay it in, at least ``format.nbytes(rows)``; None: new ones.

        Raises:
            ConfigError: the buffer is too small.
        """
        nbytes = format.nbytes(rows)
        flat = aligned_empty(nbytes) if buffer is None else np.frombuffer(buffer, np.uint8)
        if len(flat) < nbytes:
            raise ConfigError("buffer", f"{len(flat)} bytes cannot hold a block of {nbytes}")
        flat = flat[:nbytes]
        tokens, lengths = format.sections(rows)[:2]
        flat[:tokens] = 0
        used = tokens + rows * (format.seq_len + 1) * format.dtype.itemsize
        flat[used:lengths] = 0
        flat[lengths + rows * 4 :] = 0
        code = _DTYPES[format.token_dtype]
        _HEADER.pack_into(
            flat.data, 0, _MAGIC, _VERSION, format.seq_len, rows, code, format.loss_mask
        )
        return cls._over(format, rows, flat)

    @classmethod
    def from_buffer(cls, buffer: Any) -> RowBlock:
        """The block that lies in ``buffer``, without a copy; read-only where the buffer is.

        Raises:
            DataError: it holds no block of this version, or only part of one.
        """
        flat: Bytes = np.frombuffer(buffer, np.uint8)
        if len(flat) < ALIGNMENT:
            raise DataError(
                "row block", f"{len(flat)} bytes are less than the header's {ALIGNMENT}"
            )
        magic, version, seq_len, rows, code, loss = _HEADER.unpack_from(flat.data, 0)
        names = {number: name for name, number in _DTYPES.items()}
        if magic != _MAGIC or version != _VERSION or code not in names:
            raise DataError(
                "row block", f"magic {magic!r}, version {version}, dtype {code} unknown"
            )
        format = BlockFormat(seq_len=seq_len, token_dtype=names[code], loss_mask=bool(loss))
        nbytes = format.nbytes(rows)
        if len(flat) < nbytes:
            raise DataError("row block", f"{len(flat)} bytes are left of {nbytes}")
        return cls._over(format, rows, flat[:nbytes])

    @classmethod
    def _over(cls, format: BlockFormat, rows: int, flat: Bytes) -> RowBlock:
        tokens, lengths, starts, loss, _ = format.sections(rows)
        width, bits = format.seq_len + 1, rows * format.bitmap_bytes
        token_bytes = flat[tokens : tokens + rows * width * format.dtype.itemsize]
        bitmap = (rows, format.bitmap_bytes)
        return cls(
            format=format,
            buffer=flat,
            tokens=token_bytes.view(format.dtype).reshape(rows, width),
            lengths=flat[lengths : lengths + rows * 4].view(np.int32),
            starts=flat[starts : starts + bits].reshape(bitmap),
            loss=flat[loss : loss + bits].reshape(bitmap) if format.loss_mask else None,
        )

    def to_buffer(self, buffer: Any) -> int:
        """Copy the block into writable bytes; the number of bytes that it takes there.

        Raises:
            ConfigError: the buffer is too small.
        """
        flat: Bytes = np.frombuffer(buffer, np.uint8)
        if len(flat) < len(self.buffer):
            raise ConfigError("buffer", f"{len(flat)} bytes cannot hold {len(self.buffer)}")
        flat[: len(self.buffer)] = self.buffer
        return len(self.buffer)
