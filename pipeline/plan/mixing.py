"""How well an order mixes: from how many sources of records some consecutive rows draw."""

from __future__ import annotations

from meshfeed.pipeline.plan.config import Shuffle

MIXED_ROWS = 256
"""Rows over which mixing is told; about what a batch or two have."""


def distinct_sources(drawn: float, sources: float, records: float) -> float:
    """How many sources some records come from that were drawn from all at random, to expect.

    None of a source's ``k`` of the ``n`` records is among ``r`` drawn with a probability of about
    ``(1 - r / n) ** k``, or ``(1 - k / n) ** r``, which is nearer where r is smaller than k.

    Args:
        drawn: records drawn, none twice.
        sources: with about as many records each.
        records: of all sources.

    >>> distinct_sources(100, 50, 100), distinct_sources(0, 50, 100)
    (50.0, 0.0)
    >>> round(distinct_sources(1000, 4096, 1e6))
    887
    """
    if min(drawn, sources, records) <= 0:
        return 0.0
    drawn = min(drawn, records)
    fewer, more = sorted((drawn, max(records / sources, 1.0)))
    missed: float = max(1 - more / records, 0.0) ** fewer
    return min(sources * (1 - missed), drawn)


def expected_mixing(
    shuffle: Shuffle, *, drawn: float, chunks: int, groups: int, records: float
) -> tuple[float, float]:
    """Chunks that some consecutive rows draw from, and under a uniform shuffle of all records.

    Args:
        shuffle: of the feed.
        drawn: records in those rows.
        chunks: of the source.
        groups: of an epoch under ``record``; 1 where the whole source is mixed.
        records: of the source.
    """
    drawn = min(drawn, records)
    uniform = distinct_sources(drawn, chunks, records)
    if shuffle is not Shuffle.RECORD:
        one_after_another = drawn * chunks / max(records, 1.0) + 1
        return min(one_after_another, chunks, max(drawn, 1.0)), uniform
    here = min(drawn, records / groups)
    return distinct_sources(here, chunks / groups, records / groups), uniform
