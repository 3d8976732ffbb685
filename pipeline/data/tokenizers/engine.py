"""What all engines share: calls of a good size, errors that name the records, the fingerprint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from meshfeed.pipeline.data.tokenizers.base import (
    Frame,
    TextError,
    TokenBatch,
    as_strings,
    as_text,
    calls,
    text_pieces,
)
from meshfeed.pipeline.data.tokenizers.files import TokenizerFile
from meshfeed.pipeline.data.tokenizers.specials import SpecialIds
from meshfeed.pipeline.plan.errors import MeshfeedError


class EngineTokenizer(ABC):
    """A tokenizer whose engine takes a list of strings at a time.

    Args:
        engine: its name.
        version: of the library that encodes.
        file: what it was loaded from.
        vocab_size: bound of the file's own ids.
        ids: BOS and EOS.
    """

    records_per_call = 64

    def __init__(
        self, *, engine: str, version: str, file: TokenizerFile, vocab_size: int, ids: SpecialIds
    ) -> None:
        self.engine = engine
        self.vocab_size = ids.bound(vocab_size)
        self.bos_id = ids.bos
        self.eos_id = ids.eos
        self.frame: Frame = ids.frame
        self.fingerprint = (
            f"{engine} {version} {file.digest} bos={ids.frame.bos} eos={ids.frame.eos}"
        )

    def encode(self, texts: pa.Array | pa.ChunkedArray) -> TokenBatch:
        """Ids of each text, with BOS and EOS as configured.

        Raises:
            TextError: some texts are null or not UTF-8, or the engine refuses them.
        """
        parts = []
        for piece in text_pieces(texts):
            for begin, end in calls(piece, self.records_per_call):
                try:
                    parts.append(self._encode_call(piece.slice(begin, end - begin)))
                except MemoryError:
                    raise
                except Exception as error:
                    raise self._culprits(as_text(texts), error) from error
        return self.frame.around(parts)

    @abstractmethod
    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        """Text of some ids, special tokens included, for a person to read."""

    @abstractmethod
    def _encode_strings(self, strings: list[str]) -> TokenBatch:
        """Ids of each string, without BOS and EOS."""

    def _encode_call(self, texts: pa.Array) -> TokenBatch:
        return self._encode_strings(as_strings(texts))

    def _culprits(self, texts: pa.Array, error: Exception) -> Exception:
        """All records that cannot be encoded, found one by one; ``error`` itself if there is none.

        An engine's error names no record, and a caller that skips bad records wants all of them.
        """
        if isinstance(error, MeshfeedError) and not isinstance(error, TextError):
            return error
        bad = []
        for index in range(len(texts)):
            try:
                self._encode_call(texts.slice(index, 1))
            except TextError as own:
                bad.append((index, own.bad[0][1]))
            except MemoryError:
                raise
            except Exception as own:  # noqa: BLE001 - engines raise bare Exception; reported below
                bad.append((index, f"{self.engine} cannot encode it: {own}"))
        return TextError(bad) if bad else error


def flat(arrays: Sequence[npt.NDArray[Any]]) -> TokenBatch:
    """The ids of each record, one array of four-byte integers each, one after the other."""
    offsets = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum([len(ids) for ids in arrays], out=offsets[1:])
    ids = np.concatenate(arrays) if arrays else np.empty(0, np.int32)
    return TokenBatch(ids=ids.view(np.int32), offsets=offsets)
