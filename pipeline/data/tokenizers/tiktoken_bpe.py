"""tiktoken files: base64 token and rank on each line.

Such a file holds neither the pattern that splits the text nor the special tokens. They come from

- a JSON file beside it, ``<file>.json``: ``{"pattern": "...", "special_tokens": {"<|endoftext|>":
  100257}, "bos": null, "eos": "<|endoftext|>"}`` (``bos`` and ``eos`` may be left out), or
- the file's name, where it contains one of ``r50k_base``, ``p50k_base``, ``cl100k_base``,
  ``o200k_base``: then they are those that the tiktoken library itself has for it.

Names of special tokens in the text are plain text, as in ``encode_ordinary``.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.data.tokenizers.base import TokenBatch
from meshfeed.pipeline.data.tokenizers.engine import EngineTokenizer, flat
from meshfeed.pipeline.data.tokenizers.files import SETTING, TokenizerFile
from meshfeed.pipeline.data.tokenizers.specials import SpecialIds, special_ids
from meshfeed.pipeline.plan.config import TokenizerConfig
from meshfeed.pipeline.plan.errors import ConfigError

KNOWN = ("r50k_base", "p50k_base", "cl100k_base", "o200k_base")


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A whole tiktoken encoding."""

    pattern: str
    ranks: dict[bytes, int]
    special_tokens: dict[str, int]
    bos: str | None = None
    eos: str | None = None

    @property
    def vocab_size(self) -> int:
        """Smallest bound of all ids."""
        return max([-1, *self.ranks.values(), *self.special_tokens.values()]) + 1


class TiktokenTokenizer(EngineTokenizer):
    """The ids that ``tiktoken`` gives: the reference for such files.

    One call for each record, since its batch calls start threads.
    """

    records_per_call = 256

    def __init__(self, config: TokenizerConfig, file: TokenizerFile) -> None:
        tiktoken = _library()
        definition = read_definition(file)
        try:
            self._encoding = tiktoken.Encoding(
                name=file.name,
                pat_str=definition.pattern,
                mergeable_ranks=definition.ranks,
                special_tokens=definition.special_tokens,
            )
        except (ValueError, KeyError, AssertionError) as error:
            raise ConfigError(SETTING, f"tiktoken cannot load {file.path}: {error}") from error
        super().__init__(
            engine="tiktoken",
            version=tiktoken.__version__,
            file=file,
            vocab_size=definition.vocab_size,
            ids=tiktoken_ids(config, file, definition),
        )

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        """Text of some ids, special tokens included, for a person to read."""
        text: str = self._encoding.decode(np.asarray(ids).tolist())
        return text

    def _encode_strings(self, strings: list[str]) -> TokenBatch:
        encode = self._encoding.encode_to_numpy
        return flat([encode(s, disallowed_special=()) for s in strings])


def tiktoken_ids(
    config: TokenizerConfig, file: TokenizerFile, definition: Definition
) -> SpecialIds:
    """BOS and EOS of a tiktoken file."""
    ids: dict[str, int | None] = {}
    for which, name in (("bos", definition.bos), ("eos", definition.eos)):
        if name is not None and name not in definition.special_tokens:
            raise ConfigError(
                SETTING,
                f"{file.name}.json names {name!r} as {which}, which is not in its special_tokens",
            )
        ids[which] = None if name is None else definition.special_tokens[name]
    return special_ids(config, tokens=definition.special_tokens, bos=ids["bos"], eos=ids["eos"])


def read_definition(file: TokenizerFile) -> Definition:
    """Ranks, pattern and special tokens.

    Raises:
        ConfigError: a line is not base64 and a rank, or nothing says what the pattern is.
    """
    ranks = _ranks(file)
    sidecar = file.sidecar(file.name + ".json")
    if sidecar:
        return _from_sidecar(file, ranks, sidecar)
    for known in KNOWN:
        if known in file.name:
            values = _as_published(known, ranks)
            return Definition(
                pattern=values["pat_str"], ranks=ranks, special_tokens=values["special_tokens"]
            )
    raise ConfigError(
        SETTING,
        f"a tiktoken file holds only ranks, and nothing says how {file.path} splits text",
        f'Put {{"pattern": "...", "special_tokens": {{"<|endoftext|>": 100257}}}} into '
        f"{file.name}.json beside it, or keep the published name ({', '.join(KNOWN)})",
    )


def _from_sidecar(
    file: TokenizerFile, ranks: dict[bytes, int], sidecar: dict[str, Any]
) -> Definition:
    pattern, special = sidecar.get("pattern"), sidecar.get("special_tokens") or {}
    names = isinstance(special, dict) and all(isinstance(i, int) for i in special.values())
    if not isinstance(pattern, str) or not names:
        raise ConfigError(
            SETTING,
            f"{file.name}.json must hold a string pattern and special_tokens with integer ids",
        )
    return Definition(
        pattern=pattern,
        ranks=ranks,
        special_tokens=special,
        bos=sidecar.get("bos"),
        eos=sidecar.get("eos"),
    )


def _as_published(known: str, ranks: dict[bytes, int]) -> dict[str, Any]:
    """The library's own definition, with our ranks in the place of its download."""
    _library()
    openai_public = importlib.import_module("tiktoken_ext.openai_public")
    scope = {**vars(openai_public), "load_tiktoken_bpe": lambda *_, **__: ranks}
    values: dict[str, Any] = types.FunctionType(getattr(openai_public, known).__code__, scope)()
    return values


def _ranks(file: TokenizerFile) -> dict[bytes, int]:
    ranks = {}
    for number, line in enumerate(file.data.splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise ConfigError(
                SETTING, f"line {number} of {file.path} is not base64 and a rank: {line[:40]!r}"
            ) from error
    return ranks


def _library() -> Any:
    try:
        import tiktoken
    except ImportError as error:
        raise ConfigError(
            SETTING,
            "a tiktoken file needs the tiktoken library, which is not installed",
            "pip install 'meshfeed[tiktoken]'",
        ) from error
    return tiktoken
