"""Which ids begin and end a sequence, and the error that says what a tokenizer has instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshfeed.pipeline.data.tokenizers.base import Frame
from meshfeed.pipeline.plan.config import TokenizerConfig
from meshfeed.pipeline.plan.errors import ConfigError

USUAL_BOS = ("<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>", "[BOS]")
USUAL_EOS = ("</s>", "<|end_of_text|>", "<|endoftext|>", "<eos>", "[EOS]")
_LISTED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """BOS and EOS of a tokenizer and which of them are put around a record."""

    bos: int | None
    eos: int | None
    frame: Frame

    def bound(self, vocab_size: int) -> int:
        """The smallest bound of the vocabulary's ids and these."""
        return max([vocab_size, *(i + 1 for i in (self.bos, self.eos) if i is not None)])


def special_ids(
    config: TokenizerConfig,
    *,
    tokens: Mapping[str, int],
    bos: int | None = None,
    eos: int | None = None,
) -> SpecialIds:
    """Settle BOS and EOS: the config's ids, else the file's, else the one with a usual name.

    Args:
        config: ``bos_id`` and ``eos_id`` overrule what the tokenizer says.
        tokens: the special tokens of the tokenizer with their ids.
        bos: what the tokenizer's files say, None where they say nothing.
        eos: likewise.

    Raises:
        ConfigError: ``bos`` or ``eos`` is asked for and none is known, or an id is negative.
    """
    ids: dict[str, int | None] = {}
    asked = {"bos": config.bos, "eos": config.eos}
    for which, own, found, usual in (
        ("bos", config.bos_id, bos, USUAL_BOS),
        ("eos", config.eos_id, eos, USUAL_EOS),
    ):
        if own is not None and not 0 <= own < 2**31:
            raise ConfigError(f"tokenizer.{which}_id", f"{own} is not a token id")
        known = [tokens[name] for name in usual if name in tokens]
        ids[which] = own if own is not None else found
        if ids[which] is None and len(known) == 1:
            ids[which] = known[0]
        if ids[which] is None and asked[which]:
            raise ConfigError(
                f"tokenizer.{which}_id",
                f"{config.path} does not say which id is {which.upper()}; {_listed(tokens)}",
                f"Set tokenizer.{which}_id to the id to use, or tokenizer.{which} to false",
            )
    frame = Frame(
        bos=ids["bos"] if config.bos else None,
        eos=ids["eos"] if config.eos else None,
    )
    return SpecialIds(bos=ids["bos"], eos=ids["eos"], frame=frame)


def _listed(tokens: Mapping[str, int]) -> str:
    if not tokens:
        return "it has no special tokens"
    by_id = sorted(tokens.items(), key=lambda item: item[1])
    text = ", ".join(f"{name} = {i}" for name, i in by_id[:_LISTED])
    more = f" and {len(by_id) - _LISTED} more" if len(by_id) > _LISTED else ""
    return f"its special tokens are {text}{more}"
