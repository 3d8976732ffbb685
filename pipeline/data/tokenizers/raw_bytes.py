"""The tokenizer that every machine has: UTF-8 bytes, with BOS and EOS above them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from meshfeed.pipeline.data.tokenizers.base import (
    TextError,
    TokenBatch,
    as_strings,
    as_text,
    text_offsets,
)
from meshfeed.pipeline.data.tokenizers.files import Kind, TokenizerFile
from meshfeed.pipeline.data.tokenizers.specials import special_ids
from meshfeed.pipeline.plan.config import TokenizerConfig

BOS = 256
EOS = 257


class ByteTokenizer:
    """Ids 0..255 are the bytes of the text; BOS is 256 and EOS 257. No object per record."""

    def __init__(self, config: TokenizerConfig) -> None:
        ids = special_ids(config, tokens={"BOS": BOS, "EOS": EOS}, bos=BOS, eos=EOS)
        self.engine = "bytes"
        self.bos_id, self.eos_id, self.frame = ids.bos, ids.eos, ids.frame
        self.vocab_size = ids.bound(EOS + 1)
        digest = TokenizerFile(path="bytes", kind=Kind.BYTES).digest
        self.fingerprint = f"bytes 1 {digest} bos={ids.frame.bos} eos={ids.frame.eos}"

    def encode(self, texts: pa.Array | pa.ChunkedArray) -> TokenBatch:
        """Bytes of each text, with BOS and EOS as configured.

        Raises:
            TextError: some texts are null or not UTF-8.
        """
        texts = as_text(texts)
        _check(texts)
        offsets = text_offsets(texts).astype(np.int64)
        data = texts.buffers()[2]
        octets = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        ids = octets[offsets[0] : offsets[-1]].astype(np.int32)
        return self.frame.around([TokenBatch(ids=ids, offsets=offsets - offsets[0])])

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        """Text of some ids, for a person to read: BOS and EOS by name, broken bytes as U+FFFD."""
        names = {self.bos_id: b"<bos>", self.eos_id: b"<eos>"}
        parts = []
        for i in np.asarray(ids).tolist():
            parts.append(bytes([i]) if i < BOS else names.get(i, b"<%d>" % i))
        return b"".join(parts).decode("utf-8", errors="replace")


def _check(texts: pa.Array) -> None:
    bad: list[tuple[int, str]] = []
    try:
        if not texts.null_count:
            texts.validate(full=True)
            return
    except pa.ArrowInvalid:
        pass
    for index in range(len(texts)):
        try:
            as_strings(texts.slice(index, 1))
        except TextError as error:
            bad.append((index, error.bad[0][1]))
    if bad:
        raise TextError(bad)
