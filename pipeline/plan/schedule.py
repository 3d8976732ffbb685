"""The order of a feed: which row of which window each global row is.

Two things fix it: the mixture's pattern, and the row counts of the windows, which the ledger gives
as they become known. A schedule is told these and answers for every global row determined so far.
Coordinator and hosts each keep one; nothing else about order travels between them.

A run is a sequence of *segments*, each with a fixed set of active sources and the pattern of their
weights from its beginning. A source leaves at the row that would be its next and that it does not
have: there the next segment begins (or the feed ends, where the source says ``stop``). Which row
that is depends on row counts alone, not on when they became known.

==============  =======================================================================
index           runs over
==============  =======================================================================
global row      the rows of the feed, from the first of the run
number          the rows of one source, from the first of the run
==============  =======================================================================
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.plan.config import OnEnd
from meshfeed.pipeline.plan.cursor import Cursor, SourceCursor, cursor_key
from meshfeed.pipeline.plan.errors import ChangedError, ConfigError
from meshfeed.pipeline.plan.mixture import Mixture, mixture_of
from meshfeed.pipeline.plan.source_rows import SourcePlan, SourceRows

__all__ = ["RowPlaces", "Schedule", "SourcePlan"]

Int64s = npt.NDArray[np.int64]

_NEVER = sys.maxsize


class RowPlaces(NamedTuple):
    """Where rows lie.

    Attributes:
        source: int16 ``[n]``, index in the feed's sources.
        epoch: int32 ``[n]``.
        window: int64 ``[n]``, in its epoch.
        row: int32 ``[n]``, in its window.
    """

    source: npt.NDArray[np.int16]
    epoch: npt.NDArray[np.int32]
    window: Int64s
    row: npt.NDArray[np.int32]


class _Segment(NamedTuple):
    """Rows with the same active sources.

    Attributes:
        start: its first global row.
        active: the sources, ascending.
        drawn: rows that each source of the feed gave before ``start``: int64 ``[sources]``.
        weights: of the active sources.
    """

    start: int
    active: tuple[int, ...]
    drawn: Int64s
    weights: tuple[float, ...]

    @property
    def mixture(self) -> Mixture:
        return mixture_of(self.weights)

    def drawn_at(self, global_row: int) -> Int64s:
        """Rows that each source gave before a row of the segment: int64 ``[sources]``."""
        drawn = self.drawn.copy()
        drawn[list(self.active)] += self.mixture.counts(global_row - self.start)
        return drawn


class Schedule:
    """A feed's map from global rows to rows of windows, as far as it is determined.

    Args:
        plans: the sources, in the order of the feed's settings.
        start: where the feed is; None: at its beginning. Then the first window to be appended of
            each source is the one that ``next_window`` names: that of its last row.

    Attributes:
        first_row: global row at which the schedule begins.
        known_rows: global rows below this are determined.
        total_rows: rows of the feed, None until its end is determined.

    Raises:
        ConfigError: no source, or the same name twice.
        ChangedError: ``start`` belongs to other sources or weights.
        DataError: an endless source is empty.
    """

    def __init__(self, plans: Sequence[SourcePlan], *, start: Cursor | None = None) -> None:
        self.plans = tuple(plans)
        keys = [cursor_key(plan.name) for plan in self.plans]
        if not keys or len(set(keys)) < len(keys):
            raise ConfigError("sources", f"{keys} are not at least one source, each named once")
        if start is None:
            sources = tuple(SourceCursor(key=key) for key in keys)
            start = Cursor(step=0, global_row=0, segment_row=0, sources=sources)
        elif [s.key for s in start.sources] != keys:
            raise ChangedError(
                f"the cursor is of the sources {[s.key for s in start.sources]}, the feed has "
                f"{keys}. A feed goes on with the sources that it began with, in their order"
            )
        self.first_row = self.known_rows = start.global_row
        self.total_rows: int | None = None
        self._rows = [SourceRows(p, s) for p, s in zip(self.plans, start.sources, strict=True)]
        self._segments: list[_Segment] = []
        self._limits: list[int] = []
        self._enter(self._first_segment(start))
        self._advance()

    @property
    def limiting_source(self) -> int | None:
        """The source whose next window determines further rows, None at the end of the feed."""
        return None if self.total_rows is not None else self._limits.index(min(self._limits))

    def next_window(self, source: int) -> tuple[int, int] | None:
        """(epoch, window) that ``append`` takes next from a source, None when it has ended."""
        return self._rows[source].next_window()

    def window_after(self, source: int, epoch: int, window: int) -> tuple[int, int] | None:
        """(epoch, window) of the window that follows another, None at the source's end."""
        return self._rows[source].window_after(epoch, window)

    def append(
        self,
        source: int,
        rows: Sequence[int] | Int64s,
        records: Sequence[int] | Int64s | None = None,
    ) -> None:
        """Row counts of a source's next windows, in order; epochs follow one another.

        Args:
            source: index in the feed's sources.
            rows: of each window; 0 is a row count like any other.
            records: that each window was made from. A source that is read to its end may be
                without records, and is skipped; that its records give no row is an error. None:
                there were some.

        Raises:
            DataError: the source gave no row in a whole epoch.
            ChangedError: more windows than the source has.
        """
        self._rows[source].append(rows, records)
        if self._limits[source] != _NEVER:
            self._limits[source] = self._limit(self._segments[-1], source)
            self._advance()

    def locate(self, begin: int, end: int) -> RowPlaces:
        """Where the global rows ``[begin, end)`` lie.

        Raises:
            ValueError: they are not all determined, or lie before ``first_row``.
        """
        self._check_known(begin, end)
        source, number = self._draws(begin, end)
        if len(self._rows) == 1:
            epoch, window, row = self._rows[0].locate(number)
            return RowPlaces(source, epoch.astype(np.int32), window, row.astype(np.int32))
        # Source by source, then back into the order of the rows.
        by_source = np.argsort(source, kind="stable")
        grouped = number[by_source]
        epoch, window, row = (np.empty(len(source), np.int64) for _ in range(3))
        ends = np.cumsum(np.bincount(source, minlength=len(self._rows))).tolist()
        for rows, first, last in zip(self._rows, [0, *ends[:-1]], ends, strict=True):
            if last > first:
                at = slice(first, last)
                epoch[at], window[at], row[at] = rows.locate(grouped[at])
        back = np.empty_like(by_source)
        back[by_source] = np.arange(len(source))
        return RowPlaces(
            source, epoch[back].astype(np.int32), window[back], row[back].astype(np.int32)
        )

    def cursor(self, global_row: int, step: int) -> Cursor:
        """Where the feed is when the rows before ``global_row`` have been given.

        Raises:
            ValueError: they are not all determined, or ``global_row`` is before ``first_row``.
        """
        self._check_known(global_row, global_row)
        segment = self._segment_before(global_row)
        rows = global_row - segment.start
        drawn = segment.drawn_at(global_row)
        deficits = _deficits(segment, rows)
        sources = []
        for index, plan in enumerate(self.plans):
            epoch, window, row = self._rows[index].place_after(int(drawn[index]))
            sources.append(
                SourceCursor(
                    key=cursor_key(plan.name),
                    epoch=epoch,
                    window=window,
                    row=row,
                    drawn=int(drawn[index]),
                    deficit=deficits.get(index, 0),
                    active=index in deficits,
                )
            )
        return Cursor(step=step, global_row=global_row, segment_row=rows, sources=tuple(sources))

    def drawn(self, global_row: int) -> Int64s:
        """Rows that each source gives among the first ``global_row``: int64 ``[sources]``."""
        self._check_known(global_row, global_row)
        return self._segment_before(global_row).drawn_at(global_row)

    def drawn_limit(self, source: int) -> int:
        """Rows of a source up to the end of its last window appended, from the run's first."""
        return self._rows[source].known

    @property
    def active(self) -> tuple[int, ...]:
        """The sources that give rows behind ``known_rows``, ascending; they only become fewer."""
        return self._segments[-1].active

    def row_of(self, source: int, number: int) -> int:
        """Global row that is row ``number`` of a source.

        Raises:
            ValueError: it lies before ``first_row``, or is not determined.
        """
        for segment in reversed(self._segments):
            if source in segment.active and number >= segment.drawn[source]:
                drawn = number - int(segment.drawn[source])
                row = segment.start + segment.mixture.position(segment.active.index(source), drawn)
                self._check_known(row, row + 1)
                return row
        raise ValueError(f"row {number} of source {source} lies before row {self.first_row}")

    def needed_at(self, source: int, extra_rows: int = 0) -> int | None:
        """Global row that needs the first row (or the one ``extra_rows`` on) not known of a source.

        As the active sources are now; None for one that is not active.
        """
        if self._limits[source] == _NEVER:
            return None
        return self._limit(self._segments[-1], source, extra_rows)

    def forget(self, global_row: int) -> None:
        """Frees what is only needed for rows before ``global_row``, now and then.

        Afterwards nothing before it can be asked for.
        """
        drawn = self.drawn(global_row)
        for rows, count in zip(self._rows, drawn.tolist(), strict=True):
            rows.forget(count)
        del self._segments[: self._index_before(global_row)]
        self.first_row = global_row

    def _first_segment(self, start: Cursor) -> _Segment:
        active = tuple(i for i, s in enumerate(start.sources) if s.active)
        if not active:
            raise ChangedError("the cursor has no active source")
        weights = tuple(float(self.plans[i].weight) for i in active)
        counts = mixture_of(weights).counts(start.segment_row)
        drawn = np.array([s.drawn for s in start.sources], np.int64)
        drawn[list(active)] -= counts
        segment = _Segment(start.global_row - start.segment_row, active, drawn, weights)
        deficits = _deficits(segment, start.segment_row)
        for index, deficit in deficits.items():
            if start.sources[index].deficit != deficit or drawn[index] < 0:
                raise ChangedError(
                    f"source {self.plans[index].name!r} has a deficit of "
                    f"{start.sources[index].deficit} in the cursor, and {deficit} by its weight: "
                    "the weights of the run were others"
                )
        return segment

    def _enter(self, segment: _Segment) -> None:
        self._segments.append(segment)
        self._limits = [_NEVER] * len(self._rows)
        for source in segment.active:
            self._limits[source] = self._limit(segment, source)

    def _advance(self) -> None:
        """Moves ``known_rows`` on, through the ends of sources."""
        while self.total_rows is None:
            self.known_rows = min(self._limits)
            source = self._limits.index(self.known_rows)
            if not self._rows[source].ended:
                return
            old = self._segments[-1]
            active = tuple(s for s in old.active if s != source)
            if not active or self.plans[source].on_end is OnEnd.STOP:
                self.total_rows = self.known_rows
                return
            weights = tuple(float(self.plans[s].weight) for s in active)
            drawn = old.drawn_at(self.known_rows)
            self._enter(_Segment(self.known_rows, active, drawn, weights))

    def _limit(self, segment: _Segment, source: int, extra_rows: int = 0) -> int:
        """Global row at which a source's first unknown row would be due."""
        number = self._rows[source].known + extra_rows - int(segment.drawn[source])
        return segment.start + segment.mixture.position(segment.active.index(source), number)

    def _index_before(self, global_row: int) -> int:
        if global_row == self.first_row:
            return 0
        return bisect_right(self._segments, global_row - 1, key=lambda s: s.start) - 1

    def _segment_before(self, global_row: int) -> _Segment:
        """The segment of the last row before ``global_row``; the first, if there is none."""
        return self._segments[self._index_before(global_row)]

    def _draws(self, begin: int, end: int) -> tuple[npt.NDArray[np.int16], Int64s]:
        """Source and number of each row: int16 [end - begin], int64 [end - begin]."""
        source = np.empty(end - begin, np.int16)
        number = np.empty(end - begin, np.int64)
        stops = [segment.start for segment in self._segments[1:]] + [end]
        for segment, stop in zip(self._segments, stops, strict=True):
            first, last = max(begin, segment.start), min(end, stop)
            if first < last:
                here = slice(first - begin, last - begin)
                slot, count = segment.mixture.draws(first - segment.start, last - segment.start)
                source[here] = np.array(segment.active, np.int16)[slot]
                number[here] = count + segment.drawn[source[here]]
        return source, number

    def _check_known(self, begin: int, end: int) -> None:
        if not self.first_row <= begin <= end <= self.known_rows:
            known = f"[{self.first_row}, {self.known_rows})"
            raise ValueError(f"rows [{begin}, {end}) were asked for; determined are {known}")


def _deficits(segment: _Segment, rows: int) -> dict[int, int]:
    """Deficits of the active sources after so many rows of the segment."""
    mixture = segment.mixture
    counts = mixture.counts(rows).tolist()
    return {
        source: weight * rows - mixture.period * count
        for source, weight, count in zip(segment.active, mixture.weights, counts, strict=True)
    }
