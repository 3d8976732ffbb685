"""One source's windows in stream order, from the next to be leased to the last not yet released.

::

    released | unreleased          | writing | order              | leasing
             | published, in need  | on their| leased, some       | next to be
             |                     | way to  | completed out of   | leased
             |                     | ledger  | order, some lost   |
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from meshfeed.pipeline.plan.schedule import Schedule

NEVER = sys.maxsize
"""In place of a global row: not needed."""

_MEAN_OVER = 64


class WindowKey(NamedTuple):
    """Names a window within its feed."""

    source: int
    epoch: int
    window: int


class Publication(NamedTuple):
    """A row count that may enter the ledger: all windows of its source before it are there."""

    key: WindowKey
    rows: int
    records: int


class Completed(NamedTuple):
    """What follows from a window that has run.

    Attributes:
        publications: what may now enter the ledger, in order.
        moved: the window was published before, and lay elsewhere.
    """

    publications: list[Publication]
    moved: bool = False


@dataclass(slots=True)
class HeldWindow:
    """A window that some node runs or holds, or that must be run again.

    Attributes:
        node: that runs or holds it, -1 while it is lost.
        present: its rows lie there.
        rows, records: that it gave; ``rows`` stays known when its node is lost.
        published: its rows are in the ledger and the schedule.
        begin, end: its rows among those of its source, once published.
    """

    node: int
    present: bool = False
    rows: int | None = None
    records: int = 0
    published: bool = False
    begin: int = 0
    end: int = 0


@dataclass(slots=True)
class SourceStream:
    """The windows of one source.

    Attributes:
        source: index in the feed's sources.
        leasing: the next window, None when the source has no more.
        mean_rows: that its windows gave lately.
        most_rows: that a window may give, as far as is known.
        order: leased, not handed on to the ledger.
        writing: handed on, not published.
        unreleased: published, not released.
        lost: to be run again, in stream order.
        absent: published, lost or running again, in stream order.
        certain: global row by which ``leasing`` is needed at the latest; NEVER: not at all.
        expected: the same, if the windows before it give what such windows gave lately.
    """

    source: int
    leasing: WindowKey | None
    mean_rows: float
    most_rows: int
    order: deque[WindowKey] = field(default_factory=deque)
    writing: deque[WindowKey] = field(default_factory=deque)
    unreleased: deque[WindowKey] = field(default_factory=deque)
    lost: dict[WindowKey, None] = field(default_factory=dict)
    absent: dict[WindowKey, None] = field(default_factory=dict)
    published: int = 0
    certain: int = NEVER
    expected: int = NEVER

    @property
    def unpublished(self) -> int:
        """Windows leased whose rows are not fixed yet."""
        return len(self.order) + len(self.writing)

    def note_rows(self, rows: int) -> None:
        """A window gave so many."""
        self.published += 1
        self.most_rows = max(self.most_rows, rows)
        # Of the first windows the estimate, which counts as one of them, is soon forgotten.
        self.mean_rows += (rows - self.mean_rows) / min(self.published + 1, _MEAN_OVER)

    def measure(self, schedule: Schedule) -> None:
        """Finds out when ``leasing`` will be needed."""
        self.certain = self.expected = NEVER
        if self.leasing is None:
            return
        ahead = self.unpublished
        self.certain = _row(schedule.needed_at(self.source, ahead * self.most_rows))
        self.expected = _row(schedule.needed_at(self.source, int(ahead * self.mean_rows)))

    def certain_of(self, key: WindowKey, schedule: Schedule) -> int:
        """Global row by which an unpublished window of this source is needed at the latest."""
        windows = [*self.writing, *self.order]
        before = windows.index(key)
        return _row(schedule.needed_at(self.source, before * self.most_rows))

    def sort(self) -> None:
        """Brings what was lost into stream order."""
        self.lost = dict.fromkeys(sorted(self.lost))
        self.absent = dict.fromkeys(sorted(self.absent))

    def drop(self, keys: set[WindowKey]) -> None:
        """Windows that nobody needs, wherever they are."""
        for windows in (self.order, self.writing, self.unreleased):
            left = [key for key in windows if key not in keys]
            windows.clear()
            windows.extend(left)


def _row(needed: int | None) -> int:
    return NEVER if needed is None else needed
