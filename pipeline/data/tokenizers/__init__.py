"""Tokenizers behind one interface: an Arrow string column in, flat ids and offsets out."""

from meshfeed.pipeline.data.tokenizers.base import TextError, TokenBatch, Tokenizer, use_one_thread
from meshfeed.pipeline.data.tokenizers.choose import (
    EngineChoice,
    choose_engine,
    keep_tokenizer,
    load_tokenizer,
)

__all__ = [
    "EngineChoice",
    "TextError",
    "TokenBatch",
    "Tokenizer",
    "choose_engine",
    "keep_tokenizer",
    "load_tokenizer",
    "use_one_thread",
]
