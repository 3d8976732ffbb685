"""Which source gives each row of a mixture: a periodic pattern with exact counts.

Weights become integers ``w`` with sum ``P``; in each period of ``P`` rows a source gives exactly
``w`` of them, and at every row it has given within one row of its share. Its *deficit* after ``n``
rows, ``w * n - P * count``, counts in rows of ``1/P``; it lies strictly between ``-P`` and ``P``.

Largest deficit first alone does not keep that bound: with many light sources a heavy one falls
behind by more than a row. So among the sources that may give a row without running ahead by a
whole one, the one goes first that would be first to fall behind by one. That this never fails is
the theorem of Tijdeman, "The chairman assignment problem", 1980; in the form of unit jobs with
release times and deadlines: Steiner and Yeomans, 1993.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.plan.errors import ConfigError

Int64s = npt.NDArray[np.int64]

MAX_PERIOD = 1 << 20
MAX_SOURCES = 1 << 15


def integer_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """The smallest integers in the proportion of ``weights``.

    Where their sum would exceed ``MAX_PERIOD`` (weights without a small common denominator), they
    are rounded to shares of 1 / MAX_PERIOD, none below one such share.

    Raises:
        ConfigError: no weight, too many, or one that is not a positive number.
    """
    if not 0 < len(weights) <= MAX_SOURCES:
        raise ConfigError("sources", f"{len(weights)} sources; 1 to {MAX_SOURCES} can be mixed")
    if not all(w > 0 and math.isfinite(w) for w in weights):
        raise ConfigError("weight", f"{list(weights)} are not all positive numbers")
    exact = [_fraction(w) for w in weights]
    common = math.lcm(*(f.denominator for f in exact))
    whole = [int(f * common) for f in exact]
    divisor = math.gcd(*whole)
    whole = [w // divisor for w in whole]
    return tuple(whole) if sum(whole) <= MAX_PERIOD else _fixed_point(whole)


def _fraction(weight: float) -> Fraction:
    """The simple fraction that a float was written as, else its exact value."""
    simple = Fraction(weight).limit_denominator(MAX_PERIOD)
    return simple if float(simple) == weight else Fraction(weight)


def _fixed_point(whole: list[int]) -> tuple[int, ...]:
    total = sum(whole)
    shares = [max(1, w * MAX_PERIOD // total) for w in whole]
    by_rest = sorted(range(len(whole)), key=lambda i: (-(whole[i] * MAX_PERIOD % total), i))
    for i in range(MAX_PERIOD - sum(shares)):
        shares[by_rest[i]] += 1
    # Shares that were raised to one are taken back from the largest.
    shares[shares.index(max(shares))] -= max(0, sum(shares) - MAX_PERIOD)
    return tuple(shares)


class _Tables(NamedTuple):
    """One period.

    Attributes:
        source: int16 ``[P]``: gives each row.
        rank: int32 ``[P]``: how many rows that source gave before, in the period.
        places: int32 ``[P]``: the rows of source 0 in order, then of source 1, ...
        first: where each source begins in ``places``, ``[sources]``.
    """

    source: npt.NDArray[np.int16]
    rank: npt.NDArray[np.int32]
    places: npt.NDArray[np.int32]
    first: tuple[int, ...]


class Mixture:
    """The pattern of a set of sources that are all active, without end.

    Args:
        weights: of the sources, any positive numbers.

    Attributes:
        weights: as integers: rows that each source gives in a period.
        period: their sum.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = integer_weights(weights)
        self.period = sum(self.weights)
        self._tables = _tables(self.weights)

    def count(self, source: int, rows: int) -> int:
        """Rows among the first ``rows`` that ``source`` gives."""
        periods, rest = divmod(rows, self.period)
        first = self._tables.first[source]
        places = self._tables.places[first : first + self.weights[source]]
        return periods * self.weights[source] + int(np.searchsorted(places, rest))

    def counts(self, rows: int) -> Int64s:
        """Rows among the first ``rows`` that each source gives: int64 ``[sources]``."""
        return np.array([self.count(s, rows) for s in range(len(self.weights))], np.int64)

    def position(self, source: int, k: int) -> int:
        """The row at which ``source`` gives its row number ``k``, from 0."""
        periods, rest = divmod(k, self.weights[source])
        return periods * self.period + int(self._tables.places[self._tables.first[source] + rest])

    def pattern(self, begin: int, end: int) -> npt.NDArray[np.int16]:
        """The source of each row in ``[begin, end)``: int16 ``[end - begin]``."""
        return self._tables.source[np.arange(begin, end) % self.period]

    def draws(self, begin: int, end: int) -> tuple[npt.NDArray[np.int16], Int64s]:
        """The source of each row in ``[begin, end)`` and the number of that row in its source.

        Returns:
            int16 ``[end - begin]``, int64 ``[end - begin]``.
        """
        rows = np.arange(begin, end, dtype=np.int64)
        if len(self.weights) == 1:
            return np.zeros(end - begin, np.int16), rows
        periods, rest = np.divmod(rows, self.period)
        source = self._tables.source[rest]
        number = periods * np.array(self.weights, np.int64)[source]
        number += self._tables.rank[rest]
        return source, number


@lru_cache(maxsize=8)
def mixture_of(weights: tuple[float, ...]) -> Mixture:
    """The mixture of these weights; the last few are kept, at most 10 MB each."""
    return Mixture(weights)


@lru_cache(maxsize=8)
def _tables(weights: tuple[int, ...]) -> _Tables:
    period, sources = sum(weights), len(weights)
    whole = np.array(weights, np.int64)
    source = np.repeat(np.arange(sources), whole)
    first = np.cumsum(whole) - whole
    k = np.arange(period) - first[source]
    # Row number k of a source may come at row t from floor(k P / w), else its count would be a
    # whole row above its share, and must come before ceil((k + 1) P / w).
    release = k * period // whole[source]
    deadline = -(-(k + 1) * period // whole[source])
    given = _earliest_deadline_first(release, deadline * sources + source) % sources
    places = np.argsort(given, kind="stable")
    rank = np.empty(period, np.int32)
    rank[places] = k
    return _Tables(
        given.astype(np.int16), rank, places.astype(np.int32), tuple(int(f) for f in first)
    )


def _earliest_deadline_first(release: Int64s, urgency: Int64s) -> Int64s:
    """One job a row: of those released, the one with the least ``urgency``: [P], [P] -> [P]."""
    by_release = np.argsort(release, kind="stable")
    jobs: list[int] = urgency[by_release].tolist()
    rows = np.arange(len(jobs))
    released: list[int] = np.searchsorted(release[by_release], rows, side="right").tolist()
    waiting: list[int] = []
    done = [0] * len(jobs)
    begin = 0
    for row, end in enumerate(released):
        for job in jobs[begin:end]:
            heapq.heappush(waiting, job)
        begin = end
        done[row] = heapq.heappop(waiting)
    return np.array(done, np.int64)
