"""How large chunks, windows and shuffle groups are, in units of a source.

A window should give some 128 rows, since half a row of it is lost at its end: 0.4 %, and under 1 %
as long as it gives more than 50. How much of a source its transforms drop is not known before they
have run, so that ``SourceConfig.kept`` has to say it. A chunk should be large beside what a read
brings in for nothing (parts of neighbouring records, footers), and small beside a shuffle group, so
that many chunks are mixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from meshfeed.pipeline.data.formats.base import Sample
from meshfeed.pipeline.plan.config import Shuffle
from meshfeed.pipeline.plan.manifest import Unit

ROWS_IN_WINDOW = 128
TOKENS_IN_WINDOW = 1 << 20
"""At least; a window of a few short rows would cost more to hand over than to make."""

STORED_TOKENS_IN_WINDOW = 1 << 21
"""The same where token ids are stored, which are made into rows many times as fast as text."""

TOKENS_IN_GROUP = 1 << 25
"""Of a ``record`` group, which a node keeps in memory: about 128 MiB of text or of token ids."""

CHUNKS_IN_GROUP = 4096
MOST_CHUNKS_IN_GROUP = 8192
"""Where that does not make them too small; each costs a read."""

MIXED_ROWS = 256
"""Rows whose records should come from nearly as many chunks as under a uniform shuffle."""

CHUNKS_PER_MIXED_RECORD = 6
"""In a group, for each record of those rows: ``x`` records of 6 ``x`` chunks meet 0.92 ``x``."""

WINDOWS_IN_GROUP = 4
RECORDS_IN_CHUNK = 64
RECORDS_IN_SMALL_CHUNK = 8
SMALLEST_CHUNK_BYTES = 16 << 10
INDEX_SHARE = 0.02
_SMALLEST_DENSITY = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Units in a chunk, a window and a group of ``record``; each at least 1."""

    chunk: int
    window: int
    group: int


def window_tokens(seq_len: int, *, stored: bool) -> int:
    """Tokens that a window is meant to have.

    Args:
        seq_len: the largest of the run.
        stored: the source holds token ids, not text.
    """
    return max(ROWS_IN_WINDOW * seq_len, STORED_TOKENS_IN_WINDOW if stored else TOKENS_IN_WINDOW)


def choose_sizes(
    sample: Sample,
    *,
    unit: Unit,
    shuffle: Shuffle,
    seq_len: int,
    tokens_per_byte: float,
    kept: float = 1.0,
) -> Sizes:
    """Sizes for a source whose densities are those of ``sample``.

    Args:
        sample: of one shard.
        unit: of the source.
        shuffle: of the feed; ``record`` has smaller chunks, for its mixing.
        seq_len: the largest of the run, in tokens.
        tokens_per_byte: tokens in a byte of text, about.
        kept: share of them that transforms leave.
    """
    density = max(sample.tokens_per_unit(tokens_per_byte), _SMALLEST_DENSITY)
    window = window_tokens(seq_len, stored=sample.tokens > 0) / (density * kept)
    group = max(TOKENS_IN_GROUP / density, WINDOWS_IN_GROUP * window)
    finest = window
    if shuffle is Shuffle.RECORD:
        mixed = MIXED_ROWS * seq_len / (density * max(sample.record, 1.0))
        wanted = min(CHUNKS_PER_MIXED_RECORD * mixed, MOST_CHUNKS_IN_GROUP)
        finest = group / max(wanted, CHUNKS_IN_GROUP)
    if unit is Unit.BYTES:
        chunk = _chunk_bytes(sample, shuffle, window, finest)
    else:
        chunk = ceil(max(finest, 1) / max(sample.piece, 1)) * max(sample.piece, 1)
    return Sizes(chunk=ceil(chunk), window=ceil(window), group=max(ceil(group), ceil(chunk)))


def _chunk_bytes(sample: Sample, shuffle: Shuffle, window: float, finest: float) -> float:
    """Bytes in a chunk: ``finest``, or more where that would read too much for nothing."""
    if shuffle is Shuffle.RECORD:
        least = max(RECORDS_IN_SMALL_CHUNK * sample.record, SMALLEST_CHUNK_BYTES)
        return max(finest, least, sample.piece)
    # A footer may be read again for each chunk, where a process sees many shards in between.
    index = sample.index_bytes / INDEX_SHARE / max(sample.used_fraction, 0.01)
    return max(finest, RECORDS_IN_CHUNK * sample.record, sample.piece, min(index, 8 * window))
