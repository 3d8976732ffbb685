"""sentencepiece models by the ``sentencepiece`` library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.data.tokenizers.base import TokenBatch
from meshfeed.pipeline.data.tokenizers.engine import EngineTokenizer, flat
from meshfeed.pipeline.data.tokenizers.files import SETTING, TokenizerFile
from meshfeed.pipeline.data.tokenizers.specials import special_ids
from meshfeed.pipeline.plan.config import TokenizerConfig
from meshfeed.pipeline.plan.errors import ConfigError


class SentencePieceTokenizer(EngineTokenizer):
    """The ids that ``sentencepiece`` gives, without sampling.

    One call for each record, since its batch call starts a thread even for one.
    """

    records_per_call = 256

    def __init__(self, config: TokenizerConfig, file: TokenizerFile) -> None:
        try:
            import sentencepiece
        except ImportError as error:
            raise ConfigError(
                SETTING,
                "a sentencepiece model needs the sentencepiece library, which is not installed",
                "pip install 'meshfeed[sentencepiece]'",
            ) from error
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(file.data)
        except RuntimeError as error:
            raise ConfigError(SETTING, f"sentencepiece cannot load {file.path}: {error}") from error
        size = self._processor.get_piece_size()
        named = [i for i in range(size) if self._processor.is_control(i)]
        bos, eos = self._processor.bos_id(), self._processor.eos_id()
        super().__init__(
            engine="sentencepiece",
            version=sentencepiece.__version__,
            file=file,
            vocab_size=size,
            ids=special_ids(
                config,
                tokens={self._processor.id_to_piece(i): i for i in named},
                bos=bos if bos >= 0 else None,
                eos=eos if eos >= 0 else None,
            ),
        )

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        """Text of some ids; control tokens (BOS, EOS) as their names, for a person to read."""
        text, plain = "", []
        for i in [*np.asarray(ids).tolist(), None]:
            if i is not None and not self._processor.is_control(i):
                plain.append(i)
                continue
            text += self._processor.decode(plain) if plain else ""
            plain = []
            text += "" if i is None else self._processor.id_to_piece(i)
        return text

    def _encode_strings(self, strings: list[str]) -> TokenBatch:
        encode = self._processor.encode
        return flat([encode(s, return_type="numpy") for s in strings])
