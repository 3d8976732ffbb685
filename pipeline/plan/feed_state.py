"""The state of one opened feed: windows from leased to released. No I/O: events in, decisions out.

A window goes through::

    leased -> completed -> published -> released
        ^        |             |
        +--------+-------------+  its node is lost: leased again, with the same rows

*Leased*: some node runs it. *Completed*: its rows lie on that node. *Published*: all windows of its
source before it are completed too, its row count is in the ledger, so its global rows are fixed.
*Released*: every host has taken all its rows; the node may forget it.

Which window is run next. A row is *near* when it belongs to the steps that hosts may be ahead of
the slowest at least. A window is *urgent* when it is certain to hold a near row, whatever the
windows before it will give: a part of the byte budget is kept for these (see ``budget``). All
others are leased in the order in which they will be needed, as far as the budget goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from meshfeed.pipeline.plan.config import Remainder
from meshfeed.pipeline.plan.errors import DisagreementError
from meshfeed.pipeline.plan.grants import GrantBook
from meshfeed.pipeline.plan.schedule import Schedule
from meshfeed.pipeline.plan.source_stream import (
    NEVER,
    Completed,
    HeldWindow,
    Publication,
    SourceStream,
    WindowKey,
)

__all__ = ["Completed", "FeedState", "Publication", "WindowKey"]

_FORGET_STEPS = 64


class FeedState:
    """One opening of a feed.

    Args:
        schedule: at the opening's cursor; this state appends to it.
        batch_size: rows of a step.
        remainder: what becomes of the rows that do not fill the last step.
        max_steps: the feed ends there; None: when its sources do.
        grants: acknowledgements of the membership.
        rows_estimate: rows that a window of each source will give, before any has run.
        most_rows: that a window of each source may give, before one has given more.
    """

    def __init__(
        self,
        schedule: Schedule,
        *,
        batch_size: int,
        remainder: Remainder,
        max_steps: int | None,
        grants: GrantBook,
        rows_estimate: Sequence[int],
        most_rows: Sequence[int],
    ) -> None:
        self.schedule = schedule
        self.grants = grants
        self._batch_size = batch_size
        self._remainder = remainder
        self._max_steps = max_steps
        self._held: dict[WindowKey, HeldWindow] = {}
        self._finished = self.total_steps is not None
        self._passed: list[int] = schedule.drawn(schedule.first_row).tolist()
        self._active = schedule.active
        self._streams = [
            SourceStream(i, _key(i, schedule.next_window(i)), float(max(mean, 1)), max(most, 1))
            for i, (mean, most) in enumerate(zip(rows_estimate, most_rows, strict=True))
        ]
        for stream in self._streams:
            stream.measure(schedule)

    # -- what is known --------------------------------------------------------------------------

    @property
    def end_row(self) -> int | None:
        """Rows of the feed: of its sources as far as they fill steps, and of ``max_steps``."""
        total = self.schedule.total_rows
        if total is not None and self._remainder is Remainder.DROP:
            total -= total % self._batch_size
        if self._max_steps is None:
            return total
        most = self._max_steps * self._batch_size
        return most if total is None else min(most, total)

    @property
    def total_steps(self) -> int | None:
        """Steps of the feed, None until its end is known."""
        end = self.end_row
        if end is None or self.schedule.known_rows < end:
            return None
        return -(-end // self._batch_size)

    @property
    def last_step(self) -> int | None:
        """Steps before this one are all that hosts take: up to a barrier, or of the feed."""
        return self.grants.granted if self.grants.closed else self.total_steps

    @property
    def ready_steps(self) -> int:
        """Steps whose rows are all fixed, and none of them lost."""
        total = self.total_steps
        known = self.schedule.known_rows
        absent = [next(iter(stream.absent)) for stream in self._streams if stream.absent]
        if absent:
            drawn = self.schedule.drawn(known).tolist()
            begins = [(k.source, max(self._held[k].begin, self._passed[k.source])) for k in absent]
            rows = [self.schedule.row_of(s, begin) for s, begin in begins if begin < drawn[s]]
            if rows:
                return min(rows) // self._batch_size
        return known // self._batch_size if total is None else total

    def is_held(self, key: WindowKey) -> bool:
        """Some node runs or holds a window, or it is lost."""
        return key in self._held

    def holder(self, key: WindowKey) -> int:
        """The node that runs or holds a window; -1 where none does."""
        held = self._held.get(key)
        return -1 if held is None else held.node

    def limiting_window(self) -> WindowKey | None:
        """The window without which no further row can be fixed, None at the end."""
        source = self.schedule.limiting_source
        if source is None:
            return None
        return _key(source, self.schedule.next_window(source))

    def most_rows(self, source: int) -> int:
        """Rows that a window of a source gives at most, as far as is known."""
        return self._streams[source].most_rows

    # -- leasing --------------------------------------------------------------------------------

    def next_urgent(self) -> WindowKey | None:
        """The first window that must run whatever the budget, since rows before all others need it.

        None while the rows of all steps that hosts may be ahead are fixed or on their way.
        """
        near = (self.grants.floor + self.grants.least_depth) * self._batch_size
        if self.grants.closed:
            near = self.grants.granted * self._batch_size
        for stream in self._streams:
            key = next(iter(stream.lost), None)
            if key is not None and self._is_near(key, near):
                return key
        if self._finished or self.grants.closed or self.schedule.known_rows >= near:
            return None
        first = min(self._streams, key=lambda s: s.certain)
        return first.leasing if first.certain < self._until(near) else None

    def next_lease(self) -> WindowKey | None:
        """The window that will be needed first among those not leased yet."""
        if self.grants.closed:
            return None
        for stream in self._streams:
            if stream.lost:
                return next(iter(stream.lost))
        if self._finished:
            return None
        first = min(self._streams, key=lambda s: s.expected)
        return first.leasing if first.expected < self._until(NEVER) else None

    def leased(self, key: WindowKey, node: int) -> None:
        """The window, which ``next_urgent`` or ``next_lease`` gave, now runs on a node."""
        stream = self._streams[key.source]
        if key in stream.lost:
            del stream.lost[key]
            self._held[key].node = node
            return
        if key != stream.leasing:
            raise ValueError(f"{key} was leased, but {stream.leasing} comes next")
        self._held[key] = HeldWindow(node)
        stream.order.append(key)
        stream.leasing = _key(key.source, self.schedule.window_after(*key))
        stream.measure(self.schedule)

    def completed(self, key: WindowKey, rows: int, records: int, node: int) -> Completed:
        """A node has run a window.

        The caller makes the publications durable, then calls ``publish`` with them. A completion
        that comes late, from a node that lost the window, counts for nothing; so does a second.

        Raises:
            DisagreementError: two runs of the window gave different numbers of rows.
        """
        held = self._held.get(key)
        if held is None or held.node != node:
            return Completed([])
        if held.rows is not None and held.rows != rows:
            raise DisagreementError(
                f"window {key} gave {held.rows} rows once and {rows} now: its source or a "
                "transform is not deterministic"
            )
        moved = held.published and not held.present
        held.rows, held.records, held.present = rows, records, True
        stream = self._streams[key.source]
        stream.absent.pop(key, None)
        ready: list[Publication] = []
        while stream.order and (first := self._held[stream.order[0]]).present:
            stream.writing.append(stream.order[0])
            ready.append(Publication(stream.order.popleft(), first.rows or 0, first.records))
        return Completed(ready, moved)

    def publish(self, publications: Sequence[Publication]) -> list[WindowKey]:
        """The publications, in the order in which they came, are in the ledger.

        Returns:
            Windows that nobody will ask for: those without rows, those taken already, and, once
            the end is known, those behind it.
        """
        unneeded = []
        for source, group in groupby(publications, key=lambda p: p.key.source):
            unneeded += self._publish(self._streams[source], list(group))
        if self._active != self.schedule.active:
            self._active = self.schedule.active
            for stream in self._streams:
                stream.measure(self.schedule)
        if not self._finished and self.total_steps is not None:
            self._finished = True
            unneeded += self._release_behind()
        if self._finished and self.grants.floor >= (self.total_steps or 0):
            unneeded += self._release_passed()
        return unneeded

    # -- taking ---------------------------------------------------------------------------------

    def acknowledge(self, process: int, step: int, now: float) -> list[WindowKey]:
        """A host has taken all steps before ``step``; gives windows that nobody needs now.

        Raises:
            DisagreementError: it cannot have taken them.
        """
        if not self.grants.acknowledge(process, step, now):
            return []
        return self._release_passed()

    def lost(self, keys: Sequence[WindowKey]) -> None:
        """These windows are gone with their nodes: they are to be run again."""
        touched = set()
        for key in keys:
            held = self._held.get(key)
            if held is None or held.node < 0:
                continue
            stream = self._streams[key.source]
            held.node, held.present = -1, False
            stream.lost[key] = None
            touched.add(key.source)
            if held.published:
                stream.absent[key] = None
        for source in touched:
            self._streams[source].sort()

    def held(self) -> list[WindowKey]:
        """Windows for which ``is_held``."""
        return list(self._held)

    # -- inside ---------------------------------------------------------------------------------

    def _until(self, row: int) -> int:
        end = self.end_row
        return row if end is None else min(row, end)

    def _is_near(self, key: WindowKey, near: int) -> bool:
        """A lost window has a near row, or one that is granted already."""
        held = self._held[key]
        if not held.published:
            stream = self._streams[key.source]
            return stream.certain_of(key, self.schedule) < self._until(near)
        row = max(near, self.grants.granted * self._batch_size)
        drawn = self.schedule.drawn(min(row, self.schedule.known_rows))
        return held.begin < int(drawn[key.source])

    def _publish(self, stream: SourceStream, group: list[Publication]) -> list[WindowKey]:
        source = stream.source
        rows = [p.rows for p in group]
        self.schedule.append(source, rows, [p.records for p in group])
        end = self.schedule.drawn_limit(source) - sum(rows)
        unneeded = []
        for key, count, _ in group:
            stream.writing.popleft()
            stream.note_rows(count)
            begin, end = end, end + count
            if end <= self._passed[source] or not count:
                unneeded.append(key)
                self._drop(key)
                continue
            held = self._held[key]
            held.published, held.begin, held.end = True, begin, end
            stream.unreleased.append(key)
            if not held.present:
                stream.absent[key] = None
        stream.measure(self.schedule)
        return unneeded

    def _release_passed(self) -> list[WindowKey]:
        """What all hosts have taken all rows of."""
        if self._finished and self.grants.floor >= (self.total_steps or 0):
            return self._release([key for s in self._streams for key in s.unreleased])
        row = min(self.grants.floor * self._batch_size, self.schedule.known_rows)
        self._passed = self.schedule.drawn(row).tolist()
        released = []
        for stream, passed in zip(self._streams, self._passed, strict=True):
            while stream.unreleased and self._held[stream.unreleased[0]].end <= passed:
                released.append(stream.unreleased.popleft())
                self._drop(released[-1])
        if row - self.schedule.first_row >= _FORGET_STEPS * self._batch_size:
            self.schedule.forget(row)
        return released

    def _release_behind(self) -> list[WindowKey]:
        """What lies behind the end: all that is not published, and some that is."""
        end_row = max(self.end_row or 0, self.schedule.first_row)
        ends = self.schedule.drawn(end_row).tolist()
        behind = []
        for stream, end in zip(self._streams, ends, strict=True):
            behind += [key for key in stream.unreleased if self._held[key].begin >= end]
            behind += [*stream.writing, *stream.order]
            stream.leasing = None
        return self._release(behind)

    def _release(self, keys: list[WindowKey]) -> list[WindowKey]:
        for stream in self._streams:
            stream.drop(set(keys))
        for key in keys:
            self._drop(key)
        return keys

    def _drop(self, key: WindowKey) -> None:
        self._held.pop(key, None)
        self._streams[key.source].lost.pop(key, None)
        self._streams[key.source].absent.pop(key, None)


def _key(source: int, window: tuple[int, int] | None) -> WindowKey | None:
    return None if window is None else WindowKey(source, *window)
