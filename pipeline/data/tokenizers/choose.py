"""Which engine encodes a run. Decided once, by the coordinator; every reader then loads that one.

The fast engine is taken where it gives the reference's ids on a sample of the run's own data and
on a few texts that are hard to tokenize. There is no partial trust: one record that differs and
the reference it is.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from meshfeed.pipeline.data.tokenizers.base import (
    IdArray,
    TextError,
    TokenBatch,
    Tokenizer,
    as_text,
    text_offsets,
    use_one_thread,
)
from meshfeed.pipeline.data.tokenizers.fast import FastTokenizer
from meshfeed.pipeline.data.tokenizers.files import (
    SETTING,
    Kind,
    TokenizerFile,
    read_tokenizer_file,
)
from meshfeed.pipeline.data.tokenizers.huggingface import HuggingFaceTokenizer
from meshfeed.pipeline.data.tokenizers.raw_bytes import ByteTokenizer
from meshfeed.pipeline.data.tokenizers.sentencepiece_model import SentencePieceTokenizer
from meshfeed.pipeline.data.tokenizers.tiktoken_bpe import TiktokenTokenizer
from meshfeed.pipeline.plan.config import Engine, TokenizerConfig
from meshfeed.pipeline.plan.errors import ConfigError

SAMPLE_BYTES = 2 << 20
"""Text compared, at most: about a second of the reference's time."""

HARD_TEXTS = (
    "",
    " ",
    "\x00",
    "\r\n\r\n \t\n  x",
    "I'll we'Ve SHE'D don't",
    "1234567890.5e-10",
    "e\u0301 \ufb01 \u00bd \u2126 \uff21",
    "\u200b\ufeff\u00a0\u3000",
    "\u4e2d\u6587\u5b57 \u0e44\u0e17\u0e22 \u0627\u0644 \u05e2\u05d1",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "<|endoftext|> </s> <s> <|im_start|>user",
    "a" * 3000,
    " " * 3000 + "x" + "\n" * 3000,
    "=-" * 9000 + "word " * 3000,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """The engine of a run, in words fit for its log.

    Attributes:
        engine: ``REFERENCE`` or ``FAST``, never ``AUTO``.
        reason: one line.
        fingerprint: of the tokenizer so loaded; a reader's must be the same.
        vocab_size: bound of all its ids.
        bos_id, eos_id: None where it has none.
    """

    engine: Engine
    reason: str
    fingerprint: str
    vocab_size: int
    bos_id: int | None
    eos_id: int | None


def load_tokenizer(config: TokenizerConfig, engine: Engine | None = None) -> Tokenizer:
    """The tokenizer of ``config`` by one engine, single-threaded.

    Args:
        config: file and frame.
        engine: what ``choose_engine`` gave; None: the config's. ``AUTO`` is the reference here,
            since there is no sample to compare on.

    Raises:
        ConfigError: file or engine is not there, or the file does not suit it.
    """
    use_one_thread()
    return _load(config, read_tokenizer_file(config.path), engine or config.engine)


def choose_engine(config: TokenizerConfig, sample: pa.Array | pa.ChunkedArray) -> EngineChoice:
    """Compare the engines on ``sample`` (text of the run; at most 2 MiB of it are used).

    Raises:
        ConfigError: the file does not load, or ``engine: fast`` is asked for and it does not load
            or gives other ids.
    """
    use_one_thread()
    file = read_tokenizer_file(config.path)
    reference = _load(config, file, Engine.REFERENCE)
    if config.engine is Engine.REFERENCE:
        return _choice(Engine.REFERENCE, "the reference was asked for", reference)
    if file.kind not in (Kind.HUGGINGFACE, Kind.TIKTOKEN):
        if config.engine is Engine.FAST:
            raise ConfigError(
                "tokenizer.engine",
                f"there is no fast engine for {file.kind} tokenizers",
                "Set tokenizer.engine to auto",
            )
        return _choice(Engine.REFERENCE, f"{file.kind} tokenizers have one engine", reference)
    try:
        fast = _load(config, file, Engine.FAST)
        problem, compared = difference(reference, fast, sample)
    except ConfigError as error:
        problem, compared, fast = str(error), "", reference
    if not problem:
        return _choice(Engine.FAST, f"fastokens gave the reference's ids on {compared}", fast)
    if config.engine is Engine.FAST:
        raise ConfigError("tokenizer.engine", problem, "Set tokenizer.engine to auto or reference")
    return _choice(Engine.REFERENCE, problem, reference)


def keep_tokenizer(config: TokenizerConfig, folder: Path) -> TokenizerConfig:
    """Copy the tokenizer's files into ``folder`` and point the config there.

    So a run can be read again long after, and by readers that do not see the original path.
    """
    return dataclasses.replace(config, path=read_tokenizer_file(config.path).written_to(folder))


def _load(config: TokenizerConfig, file: TokenizerFile, engine: Engine) -> Tokenizer:
    if engine is Engine.FAST:
        return FastTokenizer(config, file)
    match file.kind:
        case Kind.HUGGINGFACE:
            return HuggingFaceTokenizer(config, file)
        case Kind.TIKTOKEN:
            return TiktokenTokenizer(config, file)
        case Kind.SENTENCEPIECE:
            return SentencePieceTokenizer(config, file)
        case Kind.BYTES:
            return ByteTokenizer(config)
    raise ConfigError(SETTING, f"{file.path} is of no known kind")


def _choice(engine: Engine, reason: str, tokenizer: Tokenizer) -> EngineChoice:
    return EngineChoice(
        engine=engine,
        reason=reason,
        fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
    )


def difference(
    reference: Tokenizer, fast: Tokenizer, sample: pa.Array | pa.ChunkedArray
) -> tuple[str, str]:
    """Whether two engines give the same ids: (what differs, or "") and what was compared."""
    for what in ("vocab_size", "bos_id", "eos_id"):
        if getattr(reference, what) != getattr(fast, what):
            return (
                f"fastokens has {what} {getattr(fast, what)}, "
                f"the reference {getattr(reference, what)}"
            ), ""
    texts, want = _readable(reference, _first_bytes(as_text(sample)))
    hard = pa.array(HARD_TEXTS)
    for name, batch, ours in (
        ("hard text", hard, reference.encode(hard)),
        ("record of the sample", texts, want),
    ):
        try:
            theirs = fast.encode(batch)
        except TextError as error:
            return f"fastokens fails on {name} {error.bad[0][0]}: {error.bad[0][1]}", ""
        for index in range(len(ours)):
            place = _first_difference(ours.record(index), theirs.record(index))
            if place is not None:
                return f"fastokens gives other ids on {name} {index}, from token {place}", ""
    return "", f"{len(texts)} records and {len(hard)} hard texts"


def _first_difference(ours: IdArray, theirs: IdArray) -> int | None:
    if np.array_equal(ours, theirs):
        return None
    size = min(len(ours), len(theirs))
    apart = np.flatnonzero(ours[:size] != theirs[:size])
    return int(apart[0]) if len(apart) else size


def _first_bytes(texts: pa.Array) -> pa.Array:
    offsets = text_offsets(texts)
    fits = int(np.searchsorted(offsets, offsets[0] + SAMPLE_BYTES, side="right")) - 1
    return texts.slice(0, max(1, fits))


def _readable(reference: Tokenizer, texts: pa.Array) -> tuple[pa.Array, TokenBatch]:
    """Texts without those that are bad for every engine, and the reference's ids of them."""
    try:
        return texts, reference.encode(texts)
    except TextError as error:
        bad = {index for index, _ in error.bad}
        good = [i for i in range(len(texts)) if i not in bad]
        texts = texts.take(pa.array(good, pa.int64()))
        return texts, reference.encode(texts)
