"""The settings of a source, a tokenizer and a feed, checked when they are made.

``SourceConfig`` -> where records come from; ``TokenizerConfig`` -> what turns them into tokens;
``FeedConfig`` -> the order and shape of a stream of global batches. Everything here changes the
rows or their order; what does not (hosts, readers, budgets) is in ``run_config``.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from meshfeed.pipeline.plan.errors import ConfigError

LEAVES = ("tokens", "targets", "segment_ids", "positions", "loss_weights")

LEAF_PRESETS: dict[str, dict[str, str]] = {
    "meshfeed": {name: name for name in LEAVES},
    "maxtext": {
        "tokens": "inputs",
        "targets": "targets",
        "segment_ids": "inputs_segmentation",
        "positions": "inputs_position",
        "loss_weights": "targets_segmentation",
    },
    "axlearn": {
        "tokens": "input_ids",
        "targets": "target_labels",
        "segment_ids": "input_segment_ids",
        "positions": "input_positions",
        "loss_weights": "target_weights",
    },
    "levanter": {
        "tokens": "tokens",
        "targets": "targets",
        "segment_ids": "segment_ids",
        "positions": "pos_ids",
        "loss_weights": "loss_weight",
    },
}


LEAST_KEPT = 1e-3
"""Of ``SourceConfig.kept``: windows are at most so many times as large."""


class Shuffle(StrEnum):
    """How records are mixed within an epoch."""

    NONE = "none"
    CHUNK = "chunk"
    RECORD = "record"


class Packing(StrEnum):
    """How records are laid into rows of ``seq_len`` tokens."""

    CONCAT = "concat"
    FIRST_FIT = "first_fit"
    BEST_FIT = "best_fit"
    NONE = "none"


class Overlong(StrEnum):
    """What happens to a record longer than a row, where packing does not split records."""

    SPLIT = "split"
    TRUNCATE = "truncate"


class Remainder(StrEnum):
    """What happens to the rows that do not fill the last step."""

    PAD = "pad"
    DROP = "drop"


class OnEnd(StrEnum):
    """What a mixture does when a finite source has given all its epochs."""

    CONTINUE = "continue"
    STOP = "stop"
    REPEAT = "repeat"


class BadRecords(StrEnum):
    """What a record whose content is wrong does to the run."""

    FAIL = "fail"
    SKIP = "skip"


class Engine(StrEnum):
    """Which implementation encodes with a tokenizer file."""

    AUTO = "auto"
    REFERENCE = "reference"
    FAST = "fast"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """A source: a sorted set of shards, how to read them, and how much of the mixture they get.

    Attributes:
        name: letters, digits, ``_``, ``-``, ``.`` and ``/``; unique in its feed.
        data: globs, folders or addresses (``s3://``, ``gs://``), or one ``module:function``
            that returns a Grain ``MapDataset`` or ``RandomAccessDataSource``.
        column: the text column, or a column of lists of token ids, which skips the tokenizer.
        loss_mask_column: a column of lists of 0/1 as long as the token ids; None: all count.
        format: ``auto`` or one of ``parquet``, ``arrow``, ``jsonl``, ``text``, ``arrayrecord``,
            ``grain``.
        weight: share of the rows in a mixture, any positive number.
        epochs: how often the source is read; None: as the feed says. 0: endless.
        on_end: what the mixture does when its epochs are over.
        transforms: ``module:function`` names of record transforms, applied in order; see
            ``meshfeed.pipeline.data.transforms``.
        kept: share of the tokens that the transforms leave, about; windows are made larger by it,
            so that a filter costs no padding.
        bad_records: ``fail``, or ``skip`` up to ``max_bad_records`` and list them.
        max_record_bytes: a longer record is a bad record.
    """

    name: str
    data: tuple[str, ...]
    column: str = "text"
    loss_mask_column: str | None = None
    format: str = "auto"
    weight: float = 1.0
    epochs: int | None = None
    on_end: OnEnd = OnEnd.CONTINUE
    transforms: tuple[str, ...] = ()
    kept: float = 1.0
    bad_records: BadRecords = BadRecords.FAIL
    max_bad_records: int = 1000
    max_record_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if not self.name or not all(c.isalnum() or c in "_-./" for c in self.name):
            raise ConfigError(
                "sources.name", f"{self.name!r} is not a name", "Use letters and digits"
            )
        if not self.data:
            raise ConfigError(
                f"sources.{self.name}.data", "no shard is named", "Give a glob or folder"
            )
        if not (self.weight > 0 and math.isfinite(self.weight)):
            raise ConfigError(
                f"sources.{self.name}.weight",
                f"{self.weight} is not a positive number",
                "Leave a source out instead of giving it weight 0",
            )
        if self.epochs is not None and self.epochs < 0:
            raise ConfigError(
                f"sources.{self.name}.epochs", f"{self.epochs} is negative", "0: endless"
            )
        if not LEAST_KEPT <= self.kept <= 1:
            raise ConfigError(
                f"sources.{self.name}.kept", f"{self.kept:g} is not within {LEAST_KEPT:g}..1"
            )
        if self.max_record_bytes < 1:
            raise ConfigError(
                f"sources.{self.name}.max_record_bytes", f"{self.max_record_bytes} is below 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerConfig:
    """A tokenizer file and what is put around a record.

    Attributes:
        path: ``bytes``, or a ``tokenizer.json``, tiktoken or sentencepiece file.
        engine: ``auto`` takes the fast engine where it gives the reference's ids.
        bos: put the beginning-of-sequence id before every record.
        eos: put the end-of-sequence id behind every record.
        bos_id, eos_id: ids that overrule those of the tokenizer file.
    """

    path: str = "bytes"
    engine: Engine = Engine.AUTO
    bos: bool = False
    eos: bool = True
    bos_id: int | None = None
    eos_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedConfig:
    """A feed: its sources and everything that fixes its rows and their order.

    Attributes:
        name: ``train`` or ``eval/<name>``.
        seq_len: tokens in a row.
        batch_size: rows in a step (the global batch), for any number of hosts.
        epochs: passes over each source that does not say itself; 0: endless.
        max_segments: records in a row at most; 0: no limit.
        vocab_size: token ids are below it, and stored ones travel in 2 bytes where it is 65,536 or
            less; 0: not known.
    """

    name: str
    sources: tuple[SourceConfig, ...]
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    seq_len: int = 2048
    batch_size: int = 8
    shuffle: Shuffle = Shuffle.CHUNK
    packing: Packing = Packing.CONCAT
    overlong: Overlong = Overlong.SPLIT
    max_segments: int = 0
    vocab_size: int = 0
    epochs: int = 1
    remainder: Remainder = Remainder.PAD
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigError("sources", f"feed {self.name!r} has none", "Give --data or sources:")
        names = [s.name for s in self.sources]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ConfigError("sources.name", f"{twice[0]!r} is used twice", "Names must be unique")
        for setting, least in (
            ("seq_len", 2),
            ("batch_size", 1),
            ("max_segments", 0),
            ("vocab_size", 0),
            ("epochs", 0),
        ):
            value = getattr(self, setting)
            if value < least:
                raise ConfigError(setting, f"{value} is below {least}")

    def epochs_of(self, source: SourceConfig) -> int | None:
        """Epochs that ``source`` gives, None when it never ends."""
        if source.on_end is OnEnd.REPEAT:
            return None
        epochs = self.epochs if source.epochs is None else source.epochs
        return epochs or None

    def order_settings(self) -> dict[str, Any]:
        """Everything that changes rows or their order, as plain JSON values.

        Weights and ``on_end`` are among them; where shards and tokenizer lie is not (fingerprints
        of their content say what they hold), nor what is done about bad records: rows that were
        given under ``fail`` are the same under ``skip``.
        """
        plain = dataclasses.asdict(self)
        for source in plain["sources"]:
            del source["data"], source["bad_records"], source["max_bad_records"]
        del plain["tokenizer"]["path"], plain["tokenizer"]["engine"]
        return plain
