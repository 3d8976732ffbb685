"""``tokenizer.json`` by the ``tokenizers`` library: the reference for such files."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from importlib.metadata import version
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.data.tokenizers.base import TokenBatch, use_one_thread
from meshfeed.pipeline.data.tokenizers.engine import EngineTokenizer
from meshfeed.pipeline.data.tokenizers.files import SETTING, TokenizerFile
from meshfeed.pipeline.data.tokenizers.specials import SpecialIds, special_ids
from meshfeed.pipeline.plan.config import TokenizerConfig
from meshfeed.pipeline.plan.errors import ConfigError


class HuggingFaceTokenizer(EngineTokenizer):
    """The ids that ``tokenizers`` gives; names of special tokens in the text become their ids.

    Of a million tokens' 1.6 s, all but 0.03 s is the encoder's: ids leave it as a list of Python
    integers (0.022 s), which ``struct`` writes in place, with gaps for BOS and EOS (0.007 s).
    ``np.array`` for each record takes twice that, ``Encoding.merge`` ten times. Calls of 32 to 128
    records are cheaper than longer ones: their encodings stay in the cache.
    """

    def __init__(self, config: TokenizerConfig, file: TokenizerFile) -> None:
        use_one_thread()
        import tokenizers

        installed = version("tokenizers")
        loader: Any = tokenizers.Tokenizer  # its stubs leave out half of it
        try:
            self._tokenizer: Any = loader.from_buffer(file.data)
        except Exception as error:
            raise ConfigError(
                SETTING,
                f"tokenizers {installed} cannot load {file.path}: {error}",
                "Is it a tokenizer.json, and of a newer tokenizers?",
            ) from error
        _check_deterministic(self._tokenizer, file)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        super().__init__(
            engine="tokenizers",
            version=installed,
            file=file,
            vocab_size=max(ids.values(), default=-1) + 1,
            ids=huggingface_ids(config, file, ids),
        )

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        """Text of some ids, special tokens included, for a person to read."""
        text: str = self._tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=False)
        return text

    def _encode_strings(self, strings: list[str]) -> TokenBatch:
        encodings = self._tokenizer.encode_batch_fast(strings, add_special_tokens=False)
        ends = list(accumulate((len(e) for e in encodings), initial=0))
        out = np.empty(ends[-1], np.int32)
        target = out.data
        for begin, encoding in zip(ends, encodings, strict=False):
            ids = encoding.ids
            struct.pack_into(f"{len(ids)}i", target, 4 * begin, *ids)
        return TokenBatch(ids=out, offsets=np.array(ends, np.int64))


def huggingface_ids(
    config: TokenizerConfig, file: TokenizerFile, vocabulary: dict[str, int]
) -> SpecialIds:
    """BOS and EOS of a ``tokenizer.json``, which itself does not say which they are.

    The files that usually lie beside it do; else a special token with a usual name.
    """
    return special_ids(
        config,
        tokens=_special_tokens(file, vocabulary),
        bos=_named_beside("bos_token", file, vocabulary),
        eos=_named_beside("eos_token", file, vocabulary),
    )


def _named_beside(which: str, file: TokenizerFile, vocabulary: dict[str, int]) -> int | None:
    for name in file.sidecars:
        token = file.sidecar(name).get(which)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str) and token in vocabulary:
            return vocabulary[token]
    return None


def _special_tokens(file: TokenizerFile, vocabulary: dict[str, int]) -> dict[str, int]:
    import orjson

    added = orjson.loads(file.data).get("added_tokens") or []
    names = [token["content"] for token in added if token.get("special")]
    return {name: vocabulary[name] for name in names if name in vocabulary}


def _check_deterministic(tokenizer: Any, file: TokenizerFile) -> None:
    dropout = getattr(tokenizer.model, "dropout", None)
    if dropout:
        raise ConfigError(
            SETTING,
            f"{file.path} has a BPE dropout of {dropout}, so that the same text gives other ids "
            "each time and no batch could be had again",
            "Set model.dropout to null in it",
        )
