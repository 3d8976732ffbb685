"""What every tokenizer offers, and the Arrow and numpy work that they share.

Text comes as an Arrow string column and leaves as one flat array of ids with offsets; between the
two there is one Python string per record, which is what all engines take, and no object per token.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from meshfeed.pipeline.plan.errors import DataError

IdArray = npt.NDArray[np.int32]
OffsetArray = npt.NDArray[np.int64]

_LARGE_PIECE = 1 << 18
"""Bytes; smaller ones are joined, for an engine's call should have a megabyte."""

_ONE_THREAD = {
    "TOKENIZERS_PARALLELISM": "false",  # tokenizers: stay in the calling thread
    "RAYON_NUM_THREADS": "1",  # both: their regex splitting
    "FASTOKENS_BPE_THREADS": "1",  # fastokens: its own pool, which ignores rayon's setting
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """The tokens of some records, one after the other.

    Attributes:
        ids: int32 [tokens]; may be read-only.
        offsets: int64 [records + 1]; record i has ``ids[offsets[i]:offsets[i + 1]]``.
    """

    ids: IdArray
    offsets: OffsetArray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def record(self, index: int) -> IdArray:
        """Tokens of one record, BOS and EOS included."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]


class Tokenizer(Protocol):
    """Turns text into ids. One per process: engines keep caches and run in the calling thread.

    Attributes:
        vocab_size: smallest bound that all ids obey, added tokens, BOS and EOS included.
        bos_id, eos_id: None where the tokenizer has none.
        fingerprint: engine, its version, digest of the file, and what is put around a record.
    """

    @property
    def vocab_size(self) -> int: ...  # noqa: D102 - documented above

    @property
    def bos_id(self) -> int | None: ...  # noqa: D102

    @property
    def eos_id(self) -> int | None: ...  # noqa: D102

    @property
    def fingerprint(self) -> str: ...  # noqa: D102

    def encode(self, texts: pa.Array | pa.ChunkedArray) -> TokenBatch:
        """Ids of each text, with BOS and EOS as configured.

        Raises:
            TextError: some texts are null or not UTF-8, or the engine refuses them.
        """
        ...

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        """Text of some ids, special tokens included, for a person to read."""
        ...


class TextError(DataError):
    """Some records of a batch cannot be tokenized; their content is wrong, wherever it is read.

    Attributes:
        bad: (index in the batch, reason) of each such record, so that a caller that skips bad
            records can leave them out and encode the others.
    """

    def __init__(self, bad: Sequence[tuple[int, str]]) -> None:
        self.bad = tuple(bad)
        index, reason = self.bad[0]
        more = f" ({len(self.bad) - 1} more in this batch)" if len(self.bad) > 1 else ""
        super().__init__(
            "text",
            reason + more,
            place=f"record {index} of the batch",
            hint="Filter such records in a transform, or set bad_records: skip",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What is put around every record: ids, or None for nothing."""

    bos: int | None = None
    eos: int | None = None

    @property
    def extra(self) -> int:
        """Tokens added to a record."""
        return (self.bos is not None) + (self.eos is not None)

    def around(self, parts: Sequence[TokenBatch]) -> TokenBatch:
        """The records of all parts, in order, with BOS and EOS around each.

        All are written to one array, each token once: 0.6 ms per million tokens, with 25 tokens a
        record 1.5. Arrow's join of binary values takes a half more and has to be joined again,
        a slice for each record as long with 1,500 tokens in it and 18 ms with 25.
        """
        lengths = [np.diff(part.offsets) for part in parts]
        offsets = np.zeros(sum(map(len, lengths)) + 1, np.int64)
        if lengths:
            np.cumsum(np.concatenate(lengths) + self.extra, out=offsets[1:])
        if self.extra == 0 and len(parts) == 1:
            return TokenBatch(ids=_used(parts[0]), offsets=offsets)
        out = np.empty(int(offsets[-1]), np.int32)
        begin = 0
        for part in parts:
            end = begin + len(part)
            edges = offsets[begin : end + 1] - offsets[begin]
            self._write(out[offsets[begin] : offsets[end]], _used(part), edges)
            begin = end
        return TokenBatch(ids=out, offsets=offsets)

    def _write(self, out: IdArray, ids: IdArray, edges: OffsetArray) -> None:
        if self.extra == 0:
            out[:] = ids
            return
        is_own = np.ones(len(out), np.bool_)
        for i, places in ((self.bos, edges[:-1]), (self.eos, edges[1:] - 1)):
            if i is not None:
                out[places] = i
                is_own[places] = False
        out[is_own] = ids


def _used(part: TokenBatch) -> IdArray:
    return part.ids[part.offsets[0] : part.offsets[-1]]


def use_one_thread() -> None:
    """Keep the engines in the calling thread, from now on in this process and its children.

    Readers are one process per core. The variables are read when an engine first encodes (the
    engines offer no other way), so this runs before any is loaded, and what the user's shell
    says about them does not count.
    """
    os.environ.update(_ONE_THREAD)


def as_text(texts: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One contiguous string array: chunks joined, dictionaries and binary columns as strings."""
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks() if texts.num_chunks != 1 else texts.chunk(0)
    if isinstance(texts, pa.ChunkedArray):  # more than one string array can hold
        texts = texts.cast(pa.large_string()).combine_chunks()
    kind = texts.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return texts
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        large = pa.types.is_large_binary(kind)
        return texts.view(pa.large_string() if large else pa.string())
    return texts.cast(pa.large_string())


def text_pieces(texts: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    """A column as string arrays: its chunks as they are, or joined where they are small."""
    if isinstance(texts, pa.ChunkedArray) and texts.nbytes >= _LARGE_PIECE * texts.num_chunks > 0:
        return [as_text(chunk) for chunk in texts.chunks]
    return [as_text(texts)]


def text_offsets(texts: pa.Array) -> npt.NDArray[Any]:
    """Byte offsets [records + 1] of a string array, relative to its whole data buffer."""
    width = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    buffer = texts.buffers()[1]
    if buffer is None or len(texts) == 0:
        return np.zeros(len(texts) + 1, width)
    return np.frombuffer(buffer, width)[texts.offset : texts.offset + len(texts) + 1]


def calls(texts: pa.Array, records: int, max_bytes: int = 1 << 20) -> Iterator[tuple[int, int]]:
    """Ranges of records for one call each: so many records, or fewer where they are long."""
    offsets = text_offsets(texts)
    begin = 0
    while begin < len(texts):
        fits = int(np.searchsorted(offsets, offsets[begin] + max_bytes, side="right")) - 1
        end = max(begin + 1, min(begin + records, fits, len(texts)))
        yield begin, end
        begin = end


def as_strings(texts: pa.Array) -> list[str]:
    """One Python string per record.

    Raises:
        TextError: some are null or not UTF-8.
    """
    if texts.null_count:
        nulls = np.flatnonzero(texts.is_null().to_numpy(zero_copy_only=False))
        raise TextError([(int(i), "the text is null") for i in nulls])
    try:
        strings: list[str] = texts.to_pylist()
    except UnicodeDecodeError:
        raise TextError(_not_utf8(texts)) from None
    return strings


def _not_utf8(texts: pa.Array) -> list[tuple[int, str]]:
    binary = pa.large_binary() if pa.types.is_large_string(texts.type) else pa.binary()
    bad = []
    for i, value in enumerate(texts.view(binary)):
        try:
            value.as_py().decode()
        except UnicodeDecodeError as error:
            bad.append((i, f"byte {error.start} of the text is not UTF-8 ({error.reason})"))
    return bad
