"""What a host knows of its feed: its rows' places, and how far it may go. Shared by its threads."""

from __future__ import annotations

import threading
from typing import NamedTuple

from meshfeed.actors.host.granted import Granted
from meshfeed.actors.messages import FeedUpdate, Opening, RowCounts
from meshfeed.pipeline.plan.cursor import Cursor
from meshfeed.pipeline.plan.schedule import RowPlaces, Schedule


class Steps(NamedTuple):
    """The steps [begin, end), and where their rows lie."""

    begin: int
    end: int
    places: RowPlaces


class FeedView:
    """One opening of a feed as one host sees it.

    Args:
        opening: what ``join`` answered.
        stretch_steps: fetched at once, at most.

    Attributes:
        changed: notified when there is news; whoever looks at several things holds it.
        granted: how far the host may go.
        since: events before this one are known.
        start_step: first of the opening.
    """

    def __init__(self, opening: Opening, stretch_steps: int) -> None:
        self.changed = threading.Condition()
        self._start = None if opening.start is None else Cursor.from_json(opening.start)
        self.start_step = 0 if self._start is None else self._start.step
        self.granted = Granted(self.start_step, opening.least_depth, stretch_steps)
        self.since = 0
        self._batch_size = opening.spec.config.batch_size
        plans = opening.spec.source_plans(opening.spec.epochs())
        self._schedule = Schedule(plans, start=self._start)

    def apply(self, update: FeedUpdate, taken: int) -> Cursor | None:
        """Takes in what the coordinator says, and forgets what comes before step ``taken``.

        Returns:
            The cursor before which nothing is asked for again, where there is a new one.
        """
        with self.changed:
            for counts in update.row_counts():
                self._append(counts)
            passed = None
            if taken * self._batch_size > self._schedule.first_row:
                passed = self.cursor(taken)
                self._schedule.forget(passed.global_row)
            self.since = update.next_event
            self.granted.learn(update)
            self.changed.notify_all()
            return passed

    def _append(self, counts: RowCounts) -> None:
        """Windows that are known already are passed over: a coordinator that is new tells anew."""
        place = self._schedule.next_window(counts.source)
        if place is None:
            return
        epoch, window = counts.windows.T
        known = (epoch < place[0]) | ((epoch == place[0]) & (window < place[1]))
        new = int(known.sum())
        if new < len(counts.windows):
            self._schedule.append(counts.source, counts.rows[new:], counts.records[new:])

    def notify(self) -> None:
        """Something has changed of which the threads that wait must know."""
        with self.changed:
            self.changed.notify_all()

    def next_stretch(self) -> Steps | None:
        """What is to be fetched next; None where no further step is granted."""
        with self.changed:
            steps = self.granted.next_stretch()
            return None if steps is None else self.steps(*steps)

    def steps(self, begin: int, end: int) -> Steps:
        """Where the rows of granted steps lie."""
        with self.changed:
            first, last = begin * self._batch_size, end * self._batch_size
            total = self._schedule.total_rows
            places = self._schedule.locate(first, last if total is None else min(last, total))
            return Steps(begin, end, places)

    def rows_of(self, step: int) -> int:
        """Rows of a step that exist: all but for the last step of the feed."""
        total = self._schedule.total_rows
        left = self._batch_size if total is None else total - step * self._batch_size
        return max(0, min(self._batch_size, left))

    def cursor(self, taken: int) -> Cursor:
        """Where the feed is before step ``taken``: the same on every host."""
        with self.changed:
            if self._start is not None and taken == self._start.step:
                return self._start
            row = taken * self._batch_size
            total = self._schedule.total_rows
            return self._schedule.cursor(row if total is None else min(row, total), taken)
