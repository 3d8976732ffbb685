"""Memberships from the first host that joins to the last that leaves, across restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from meshfeed.actors.control.attendance import Attendance
from meshfeed.actors.control.durable import Durable, Opened
from meshfeed.actors.control.feed_desk import FeedDesk
from meshfeed.actors.control.joining import Joinings
from meshfeed.actors.control.rejoining import REJOIN_LIMIT_S, Rejoining
from meshfeed.actors.messages import Opening
from meshfeed.pipeline.plan.errors import FeedError, MeshfeedError, StaleGenerationError
from meshfeed.pipeline.plan.feed_state import WindowKey


class Memberships:
    """Who has which feed open.

    Args:
        desks: of the run's feeds.
        durable: what outlives this process.
        timeout_s: for all to join.
        release: forgets windows of a feed that nobody needs.
        changed: told when hosts or nodes may have something to hear.
    """

    def __init__(
        self,
        desks: Mapping[str, FeedDesk],
        durable: Durable,
        timeout_s: float,
        release: Callable[[str, list[WindowKey]], None],
        changed: Callable[[], None],
    ) -> None:
        self.attendance = Attendance(self._lost)
        self._desks = desks
        self._durable = durable
        self._timeout_s = timeout_s
        self._release = release
        self._changed = changed
        self._joining = Joinings()
        self._rejoining: dict[str, Rejoining] = {}

    async def join(
        self, feed: str, process: int, processes: int, start: dict[str, Any] | None
    ) -> Opening:
        """See ``Coordinator.join``."""
        joining = self._joining.of(feed, processes)
        if joining.add(process, start):
            held = self._held(feed)
            generation = self._durable.generation + 1
            try:
                opening = self._desks[feed].open(generation, processes, joining.start)
                self._durable.generation = generation
                self._durable.opened[feed] = Opened(generation, processes)
                self.attendance.open(feed, generation)
                self._release(feed, held)
                await self._durable.save()
            except Exception as error:  # noqa: BLE001 - all that wait for the opening hear it
                joining.opening.set_exception(error)
            else:
                incarnation = self._durable.incarnation
                joining.opening.set_result(replace(opening, incarnation=incarnation))
            self._changed()
        return await joining.wait(self._timeout_s)

    async def rejoin(
        self, feed: str, generation: int, process: int, cursor: dict[str, Any], granted: int
    ) -> None:
        """See ``Coordinator.rejoin``."""
        desk, opened = self._desks[feed], self._durable.opened.get(feed)
        if opened is None or opened.generation != generation:
            raise StaleGenerationError(generation, self._durable.generation)
        if opened.error is not None:
            raise FeedError(opened.error)
        if desk.generation == generation:
            return  # all have come, and the answer was lost on its way to this one
        if feed not in self._rejoining:
            self._rejoining[feed] = Rejoining(feed, opened)
        rejoining = self._rejoining[feed]
        rejoining.add(process, cursor, granted)
        self._reopen_if_complete(feed)
        try:
            await asyncio.wait_for(asyncio.shield(rejoining.done), REJOIN_LIMIT_S)
        except TimeoutError:
            if not rejoining.done.done():
                rejoining.done.set_exception(rejoining.missing())
            await rejoining.done

    async def leave(
        self, feed: str, generation: int, process: int, step: int, error: MeshfeedError | None
    ) -> None:
        """See ``Coordinator.leave``."""
        desk, opened = self._desks[feed], self._durable.opened.get(feed)
        if opened is None or opened.generation != generation:
            raise StaleGenerationError(generation, self._durable.generation)
        if process not in opened.left:
            opened.left.append(process)
        if desk.generation == generation:
            desk.leave(process, step, error)
            self.attendance.left(feed, process)
            opened.early = list(desk.members.left_early or ()) or None
            self._end_if_over(feed)
        elif (rejoining := self._rejoining.get(feed)) is not None:
            if error is not None:
                opened.error = str(error)
                if not rejoining.done.done():
                    rejoining.done.set_exception(error)
            self._reopen_if_complete(feed)
        await self._durable.save()

    async def barrier(self, feed: str, generation: int) -> int:
        """See ``Coordinator.barrier``."""
        step = self._desks[feed].barrier(generation)
        opened = self._durable.opened[feed]
        if opened.barrier is None:
            opened.barrier = step
            await self._durable.save()
        self._changed()
        return step

    def _reopen_if_complete(self, feed: str) -> None:
        """Goes on where the host is that is least far, with the grants that were given."""
        rejoining, opened = self._rejoining[feed], self._durable.opened[feed]
        if rejoining.done.done() or not rejoining.is_complete or rejoining.start is None:
            return
        desk = self._desks[feed]
        desk.open(opened.generation, opened.processes, rejoining.start)
        closed = opened.barrier is not None or opened.early is not None
        desk.resume(rejoining.granted, opened.left, closed=closed)
        if opened.early is not None:
            desk.members.left_early = (opened.early[0], opened.early[1])
        self.attendance.open(feed, opened.generation)
        rejoining.done.set_result(None)
        self._changed()

    def _lost(self, feed: str, generation: int, process: int, why: str) -> None:
        desk = self._desks[feed]
        if generation == desk.generation:
            desk.lose(process, why)
            self._end_if_over(feed)

    def _end_if_over(self, feed: str) -> None:
        """A membership that nobody is left in, or that has failed, needs no windows."""
        desk = self._desks[feed]
        if desk.members.is_over:
            held = self._held(feed)
            if desk.members.error is not None:
                self._durable.opened[feed].error = str(desk.members.error)
            desk.close()
            self._release(feed, held)
            self.attendance.end(feed, desk.members.error)
        self._changed()

    def _held(self, feed: str) -> list[WindowKey]:
        state = self._desks[feed].state
        return [] if state is None else state.held()
