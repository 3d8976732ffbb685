"""The state of one opened feed: windows from leased to released. No I/O: events in, decisions out.

A window goes through::

    leased -> completed -> published -> released
        ^        |
        +--------+  its node is lost: leased again, with the same rows

*Leased*: some node runs it. *Completed*: its rows lie on that node. *Published*: all windows of its
source before it are completed too, its row count is in the ledger, so its global rows are fixed.
*Released*: every host has taken all its rows; the node may forget it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from meshfeed.pipeline.plan.config import Remainder
from meshfeed.pipeline.plan.errors import DisagreementError
from meshfeed.pipeline.plan.grants import GrantBook
from meshfeed.pipeline.plan.schedule import Schedule


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
    node: int


@dataclass(slots=True)
class _Held:
    """A window that is leased or completed; ``rows`` stays known when its node is lost."""

    node: int
    rows: int | None = None
    records: int = 0
    present: bool = False


@dataclass(slots=True)
class _Stream:
    """One source's windows in order."""

    leasing: WindowKey | None
    order: deque[WindowKey] = field(default_factory=deque)
    unreleased: deque[tuple[WindowKey, int]] = field(default_factory=deque)
    published_rows: int = 0
    published_windows: int = 0
    leased_ahead: int = 0


class FeedState:
    """One opening of a feed.

    Args:
        schedule: at the opening's cursor; this state appends to it.
        batch_size: rows of a step.
        remainder: what becomes of the rows that do not fill the last step.
        max_steps: the feed ends there; None: when its sources do.
        grants: acknowledgements of the membership.
        weights: of the sources, for the order in which windows will be needed.
        rows_estimate: rows that a window of each source will give, before any has run.
    """

    def __init__(
        self,
        schedule: Schedule,
        *,
        batch_size: int,
        remainder: Remainder,
        max_steps: int | None,
        grants: GrantBook,
        weights: Sequence[float],
        rows_estimate: Sequence[int],
    ) -> None:
        self.schedule = schedule
        self.grants = grants
        self._batch_size = batch_size
        self._remainder = remainder
        self._max_steps = max_steps
        self._weights = tuple(weights)
        self._rows_estimate = tuple(rows_estimate)
        self._held: dict[WindowKey, _Held] = {}
        self._lost: deque[WindowKey] = deque()
        self._streams = [_Stream(_key(i, schedule.next_window(i))) for i in range(len(weights))]

    # -- what is known --------------------------------------------------------------------------

    @property
    def total_steps(self) -> int | None:
        """Steps of the feed, None until its end is known."""
        total = self.schedule.total_rows
        if total is None:
            known = self.schedule.known_rows // self._batch_size
            return (
                self._max_steps
                if self._max_steps is not None and known >= self._max_steps
                else None
            )
        whole, rest = divmod(total, self._batch_size)
        steps = whole + (1 if rest and self._remainder is Remainder.PAD else 0)
        return steps if self._max_steps is None else min(steps, self._max_steps)

    @property
    def ready_steps(self) -> int:
        """Steps whose rows are all fixed."""
        total = self.total_steps
        return self.schedule.known_rows // self._batch_size if total is None else total

    def holder(self, key: WindowKey) -> int | None:
        """The node that runs or holds a window."""
        held = self._held.get(key)
        return None if held is None else held.node

    def limiting_window(self) -> WindowKey | None:
        """The window without which no further row can be fixed, None at the end."""
        source = self.schedule.limiting_source
        if source is None:
            return None
        return _key(source, self.schedule.next_window(source))

    def mean_rows(self, source: int) -> float:
        """Rows that a window of a source gives, from those that have run."""
        stream = self._streams[source]
        seen = stream.published_windows
        if seen < 8:
            return float(max(self._rows_estimate[source], 1))
        return stream.published_rows / seen

    # -- leasing --------------------------------------------------------------------------------

    def urgent_leases(self) -> list[WindowKey]:
        """Windows that run before all others, budget or not, so that no source can starve another.

        The lost ones, then the next window of the source that limits progress and of every source
        that has nothing to give: without these, no budget would ever be freed.
        """
        urgent = list(self._lost)
        if self._finished_leasing():
            return urgent
        limiting = self.schedule.limiting_source
        for source, stream in enumerate(self._streams):
            if stream.leasing is None or stream.leased_ahead:
                continue
            if source == limiting or not stream.unreleased:
                urgent.append(stream.leasing)
        return urgent

    def next_lease(self) -> WindowKey | None:
        """The window that will be needed first among those not leased yet."""
        if self._lost:
            return self._lost[0]
        if self._finished_leasing():
            return None
        best: tuple[float, WindowKey] | None = None
        for source, stream in enumerate(self._streams):
            if stream.leasing is None:
                continue
            ahead = stream.published_rows + stream.leased_ahead * self.mean_rows(source)
            need = ahead / self._weights[source]
            if best is None or need < best[0]:
                best = (need, stream.leasing)
        return None if best is None else best[1]

    def leased(self, key: WindowKey, node: int) -> None:
        """The window, one that ``next_lease`` or ``urgent_leases`` gave, now runs on a node."""
        if key in self._lost:
            self._lost.remove(key)
        else:
            stream = self._streams[key.source]
            stream.order.append(key)
            stream.leased_ahead += 1
            stream.leasing = _key(key.source, self.schedule.window_after(*key))
        rows = self._held[key].rows if key in self._held else None
        self._held[key] = _Held(node, rows)

    def completed(self, key: WindowKey, rows: int, records: int, node: int) -> list[Publication]:
        """A node has run a window; gives what may now enter the ledger, in order.

        The caller makes the publications durable, then calls ``publish`` with them.

        Raises:
            DisagreementError: two runs of the window gave different numbers of rows.
        """
        held = self._held.get(key)
        if held is None or held.node != node:
            return []
        if held.rows is not None and held.rows != rows:
            raise DisagreementError(
                f"window {key} gave {held.rows} rows once and {rows} now: its source or a "
                "transform is not deterministic"
            )
        held.rows, held.records, held.present = rows, records, True
        order = self._streams[key.source].order
        ready: list[Publication] = []
        while order and self._held[order[0]].present:
            first = self._held[order[0]]
            ready.append(Publication(order.popleft(), first.rows or 0, first.records, first.node))
        return ready

    def publish(self, publications: Sequence[Publication]) -> list[WindowKey]:
        """The publications are in the ledger: their global rows are fixed.

        Returns:
            Windows without rows, which nobody will ask for.
        """
        empty = []
        for key, rows, records, _ in publications:
            stream = self._streams[key.source]
            stream.leased_ahead -= 1
            stream.published_rows += rows
            stream.published_windows += 1
            self.schedule.append(key.source, [rows], [records])
            if rows:
                stream.unreleased.append((key, self.schedule.drawn_limit(key.source)))
            else:
                empty.append(key)
                self._drop(key)
        return empty

    # -- taking ---------------------------------------------------------------------------------

    def acknowledge(self, process: int, step: int, now: float) -> list[WindowKey]:
        """A host has taken all steps before ``step``; gives windows that nobody needs now."""
        if not self.grants.acknowledge(process, step, now):
            return []
        floor_row = min(self.grants.floor * self._batch_size, self.schedule.known_rows)
        drawn = self.schedule.drawn(floor_row)
        released = []
        for source, stream in enumerate(self._streams):
            while stream.unreleased and stream.unreleased[0][1] <= drawn[source]:
                key, _ = stream.unreleased.popleft()
                released.append(key)
                self._drop(key)
        return released

    def lost(self, keys: Sequence[WindowKey]) -> None:
        """The nodes of these windows are gone: they are to be run again."""
        for key in keys:
            held = self._held.get(key)
            if held is not None and held.node >= 0:
                self._held[key] = _Held(-1, held.rows)
                self._lost.append(key)

    def held(self) -> list[WindowKey]:
        """Windows that some node runs or holds."""
        return list(self._held)

    def held_by(self, node: int) -> list[WindowKey]:
        """Windows that a node runs or holds."""
        return [key for key, held in self._held.items() if held.node == node]

    # -- inside ---------------------------------------------------------------------------------

    def _finished_leasing(self) -> bool:
        return self._max_steps is not None and (
            self.schedule.known_rows >= self._max_steps * self._batch_size
        )

    def _drop(self, key: WindowKey) -> None:
        self._held.pop(key, None)
        if key in self._lost:
            self._lost.remove(key)


def _key(source: int, window: tuple[int, int] | None) -> WindowKey | None:
    return None if window is None else WindowKey(source, *window)
