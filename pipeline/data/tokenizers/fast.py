"""``tokenizer.json`` and tiktoken files by ``fastokens``: the fast engine.

It takes Python strings alone (not bytes, memoryviews or Arrow scalars), so each record costs one;
that is 4 to 6 % of its own time, more only for records under 200 bytes. It gives back two buffers.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.data.tokenizers.base import TokenBatch, use_one_thread
from meshfeed.pipeline.data.tokenizers.engine import EngineTokenizer
from meshfeed.pipeline.data.tokenizers.files import SETTING, Kind, TokenizerFile
from meshfeed.pipeline.data.tokenizers.huggingface import huggingface_ids
from meshfeed.pipeline.data.tokenizers.specials import SpecialIds
from meshfeed.pipeline.data.tokenizers.tiktoken_bpe import read_definition, tiktoken_ids
from meshfeed.pipeline.plan.config import TokenizerConfig
from meshfeed.pipeline.plan.errors import ConfigError


class FastTokenizer(EngineTokenizer):
    """The ids that ``fastokens`` gives; chosen where they are those of the reference.

    Raises:
        ConfigError: fastokens is not installed, or does not support what the file asks for.
    """

    records_per_call = 1024  # 0.1 ms a call is little then; 100,000 short records cost 1.4 times

    def __init__(self, config: TokenizerConfig, file: TokenizerFile) -> None:
        use_one_thread()
        try:
            import fastokens
        except ImportError as error:
            raise ConfigError(
                "tokenizer.engine", "fastokens is not installed", "pip install 'meshfeed[fast]'"
            ) from error
        installed = version("fastokens")
        self._as_plain_text = file.kind is Kind.TIKTOKEN
        try:
            self._tokenizer, vocab_size, ids = _load(fastokens.Tokenizer, config, file)
        except ValueError as error:
            raise ConfigError(
                SETTING, f"fastokens {installed} cannot load {file.path}: {error}"
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        super().__init__(
            engine="fastokens", version=installed, file=file, vocab_size=vocab_size, ids=ids
        )

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        """Text of some ids, special tokens included, for a person to read."""
        text: str = self._tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=False)
        return text

    def _encode_strings(self, strings: list[str]) -> TokenBatch:
        ids, offsets = self._tokenizer.encode_batch_flat(
            strings, add_special_tokens=False, split_special_tokens=self._as_plain_text
        )
        return TokenBatch(
            ids=np.frombuffer(ids, np.int32), offsets=np.frombuffer(offsets, np.int64)
        )


def _load(loader: Any, config: TokenizerConfig, file: TokenizerFile) -> tuple[Any, int, SpecialIds]:
    if file.kind is Kind.HUGGINGFACE:
        text = file.data.decode()
        vocabulary = _vocabulary(json.loads(text))
        ids = huggingface_ids(config, file, vocabulary)
        return loader.from_json_str(text), max(vocabulary.values(), default=-1) + 1, ids
    if file.kind is Kind.TIKTOKEN:
        definition = read_definition(file)
        with tempfile.TemporaryDirectory() as folder:  # it reads from a path alone
            path = Path(folder) / "ranks.tiktoken"
            path.write_bytes(file.data)
            tokenizer = loader.from_tiktoken(
                str(path), pattern=definition.pattern, special_tokens=definition.special_tokens
            )
        return tokenizer, definition.vocab_size, tiktoken_ids(config, file, definition)
    raise ConfigError("tokenizer.engine", f"there is no fast engine for {file.kind} tokenizers")


def _vocabulary(tokenizer: dict[str, Any]) -> dict[str, int]:
    model = tokenizer.get("model") or {}
    vocabulary = model.get("vocab") or {}
    ids = dict(vocabulary) if isinstance(vocabulary, dict) else {}
    if isinstance(vocabulary, list):  # Unigram: [piece, score] in the order of ids
        ids = {piece[0]: i for i, piece in enumerate(vocabulary)}
    ids.update({token["content"]: token["id"] for token in tokenizer.get("added_tokens") or []})
    return ids
