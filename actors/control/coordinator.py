"""The coordinator: one actor a run, which leases windows, keeps the ledgers and gives grants.

It decides nothing by itself: ``FeedState`` says which windows are needed and how far hosts may go,
``LeaseBook`` which node runs them. Calls that have nothing to say yet wait inside for a limited
time, so that neither hosts nor nodes poll in a loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from meshfeed.actors.control.attendance import Attendance
from meshfeed.actors.control.bad_records import count_skipped
from meshfeed.actors.control.feed_desk import FeedDesk
from meshfeed.actors.control.fleet import Fleet
from meshfeed.actors.control.joining import Joinings
from meshfeed.actors.control.ledger_writer import LedgerWriter
from meshfeed.actors.messages import FeedUpdate, NodeUpdate, Opening, WindowReport
from meshfeed.actors.slice_checks import SliceDigest
from meshfeed.pipeline.data.runs.run_folder import RunFolder
from meshfeed.pipeline.plan.errors import (
    DisagreementError,
    MeshfeedError,
    StaleGenerationError,
)
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.feed_state import WindowKey
from meshfeed.pipeline.plan.grants import GrantLimits
from meshfeed.pipeline.plan.leasing import LeaseBook
from meshfeed.pipeline.plan.run_config import RunConfig

log = logging.getLogger(__name__)

LONGEST_WAIT_S = 5.0
"""A host that has nothing to hear is told so after this long at the latest."""


class Coordinator:
    """Wrapped as a Ray actor with a name that follows from the run directory.

    Args:
        config: of the run.
        specs: of its feeds, by name, ``train`` first.
    """

    def __init__(self, config: RunConfig, specs: dict[str, FeedSpec]) -> None:
        self._config = config
        self._specs = specs
        self._folder = RunFolder(config.run_dir)
        self._limits = GrantLimits(prefetch=config.prefetch, seconds=config.grant_seconds)
        self._desks = {
            name: FeedDesk(
                spec,
                self._folder.ledger(spec),
                config.steps if name == config.feeds[0].name else None,
                self._limits,
            )
            for name, spec in specs.items()
        }
        self._joining = Joinings()
        self._generation = 0
        self._error: BaseException | None = None
        self._stopped = False
        self._changed = asyncio.Event()
        self._calls: dict[str, int] = defaultdict(int)
        self._leases = LeaseBook(
            block_bytes=lambda feed, source: self._desks[feed].block_bytes(source),
            group=lambda feed, key: self._desks[feed].group(key),
            needs=lambda: [desk.need for desk in self._desks.values()],
        )
        self._attendance = Attendance(self._host_lost)
        self._fleet = Fleet(config, specs, self._leases, self._windows_lost, self._fail)
        self._writer = LedgerWriter(self._desks, self._written, self._fail)
        self._news: dict[str, tuple[Any, ...]] = {}
        self._gathering = False

    # -- life -----------------------------------------------------------------------------------

    async def start(self, placement: dict[str, int]) -> list[dict[str, Any]]:
        """Starts node servers; ``placement``: Ray node id -> readers there."""
        return await self._fleet.start(placement)

    async def stop(self) -> None:
        """Ends node servers and readers."""
        self._stopped = True
        self._attendance.stop(MeshfeedError("the run was stopped"))
        self._wake_hosts()
        await self._fleet.stop()

    async def fail(self, error: BaseException) -> None:
        """Some part of the run has failed for good: every host hears it."""
        self._fail(error)

    # -- hosts ----------------------------------------------------------------------------------

    async def join(
        self, feed: str, process_index: int, process_count: int, start: dict[str, Any] | None
    ) -> Opening:
        """A host takes part in opening a feed; answers once all of its membership have joined.

        Raises:
            StallError: some process did not join in time; names it.
            DisagreementError: processes want to start at different places.
        """
        self._calls["join"] += 1
        desk = self._desk(feed)
        joining = self._joining.of(feed, process_count)
        if joining.add(process_index, start):
            before = self._held(feed)
            try:
                opening = desk.open(self._generation + 1, process_count, joining.start)
            except MeshfeedError as error:
                joining.opening.set_exception(error)
            else:
                self._generation += 1
                self._attendance.open(feed, self._generation)
                joining.opening.set_result(opening)
                self._release(feed, before)
                self._advance()
        return await joining.wait(self._config.timeout_seconds)

    async def poll(
        self,
        feed: str,
        generation: int,
        process_index: int,
        *,
        acked: int,
        granted: int,
        since: int,
        waited: dict[str, Any],
        known_nodes: int,
        checks: Sequence[SliceDigest] = (),
    ) -> FeedUpdate:
        """A host acknowledges steps and asks for the next grant.

        Raises:
            StaleGenerationError: the host's membership has ended.
            MeshfeedError: whatever has ended the run.
        """
        self._calls["poll"] += 1
        desk = self._desk(feed)
        state = desk.check(generation)
        try:
            desk.hear(process_index, waited, checks)
        except DisagreementError as error:
            self._fail(error)
        self._release(feed, state.acknowledge(process_index, acked, time.monotonic()))
        self._advance()
        until = time.monotonic() + min(LONGEST_WAIT_S, state.grants.patience(process_index, acked))
        while True:
            self._raise_if_failed()
            state = desk.check(generation)
            left = until - time.monotonic()
            more = state.grants.granted > granted or desk.moved_since(since)
            if more or granted == state.last_step or left <= 0:
                break
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
        return desk.update(process_index, since, granted, self._fleet.handles_from(known_nodes))

    async def present(self, feed: str, generation: int, process_index: int) -> MeshfeedError | None:
        """A host takes part: answered when it has left, or with what has ended its membership.

        Raises:
            StaleGenerationError: the host's membership has ended.
        """
        self._calls["present"] += 1
        return await self._attendance.present(feed, generation, process_index)

    async def attend(
        self, feed: str, generation: int, process_index: int, presence: list[Any]
    ) -> None:
        """Watches over a host: ``presence`` holds the result of its call of ``present``."""
        self._attendance.watch(feed, generation, process_index, presence[0])

    async def leave(
        self,
        feed: str,
        generation: int,
        process_index: int,
        step: int,
        error: MeshfeedError | None,
    ) -> None:
        """A host takes no step from ``step`` on; with an error, which all others hear, or without.

        Raises:
            StaleGenerationError: its membership has ended before.
        """
        self._calls["leave"] += 1
        desk = self._desks[feed]
        if generation != desk.generation:
            raise StaleGenerationError(generation, desk.generation)
        desk.leave(process_index, step, error)
        self._attendance.left(feed, process_index)
        self._end_if_over(feed)

    async def barrier(self, feed: str, generation: int) -> int:
        """All hosts of a membership end at the step that this gives, and no window is run beyond.

        It is the step after the highest grant ever given. Asked again, it gives the same.

        Raises:
            StaleGenerationError: the membership has ended.
            MeshfeedError: what has ended it, or the run.
        """
        step = self._desk(feed).barrier(generation)
        self._advance()
        return step

    # -- nodes ----------------------------------------------------------------------------------

    async def node_turn(self, node: int) -> NodeUpdate:
        """A node asks what to do next."""
        self._calls["node_turn"] += 1
        return await self._fleet.turn(node)

    async def completed(self, node: int, reports: list[WindowReport]) -> None:
        """Windows have run on a node."""
        self._calls["completed"] += 1
        by_feed: dict[str, list[WindowReport]] = defaultdict(list)
        try:
            for report in reports:
                if not self._fleet.is_current(report):
                    continue  # of an opening that has ended; the node has forgotten its block
                if report.error is not None:
                    raise report.error
                self._leases.completed(report.feed, report.key, node, report.nbytes)
                by_feed[report.feed].append(report)
            for feed, some in by_feed.items():
                count_skipped(self._folder, self._desks[feed], some)
                self._desks[feed].completed(node, some)
        except Exception as error:  # noqa: BLE001 - any failure here is the run's: all hosts hear it
            self._fail(error)
            return
        self._writer.wake()
        self._advance()

    # -- looking in -----------------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        """What every feed, node and reader is doing."""
        readers = await self._fleet.in_work()
        return {
            "run_dir": self._config.run_dir,
            "generation": self._generation,
            "error": None if self._error is None else str(self._error),
            "feeds": {name: desk.status() for name, desk in self._desks.items()},
            "nodes": self._fleet.status(),
            "readers": readers,
            "block_bytes": self._leases.used_bytes,
            "calls": dict(self._calls),
        }

    # -- inside ---------------------------------------------------------------------------------

    def _desk(self, feed: str) -> FeedDesk:
        self._raise_if_failed()
        self._config.feed(feed)
        return self._desks[feed]

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise self._error
        if self._stopped:
            raise MeshfeedError("the run was stopped")

    def _held(self, feed: str) -> list[WindowKey]:
        state = self._desks[feed].state
        return [] if state is None else state.held()

    def _written(self, unneeded: dict[str, list[WindowKey]]) -> None:
        for feed, keys in unneeded.items():
            self._release(feed, keys)
        self._advance()

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
            log.error("the run fails: %s", error)
            told = error if isinstance(error, MeshfeedError) else MeshfeedError(repr(error))
            self._attendance.stop(told)
        self._wake_hosts()

    def _advance(self) -> None:
        """Grants what is ready, leases what is needed, and wakes who waits for it."""
        try:
            self._grant_and_lease()
        except Exception as error:  # noqa: BLE001 - any failure here is the run's: all hosts hear it
            self._fail(error)

    def _grant_and_lease(self) -> None:
        opened = [(n, d.state) for n, d in self._desks.items() if d.state is not None]
        now = time.monotonic()
        for _, state in opened:
            ready = state.ready_steps
            state.grants.advance(ready, now, ended=ready == state.total_steps)
            if not self._gathering and state.grants.could_raise(ready):
                self._gathering = True
                asyncio.get_running_loop().call_later(self._limits.gather_seconds, self._gathered)
        for lease in self._leases.assign(opened):
            self._fleet.lease(lease)
        news = {name: desk.news for name, desk in self._desks.items()}
        if news != self._news:
            self._news = news
            self._wake_hosts()

    def _gathered(self) -> None:
        self._gathering = False
        self._advance()

    def _release(self, feed: str, keys: list[WindowKey]) -> None:
        self._fleet.release(feed, keys)

    def _wake_hosts(self) -> None:
        # A new event each time: who looked before this and waits only now is woken as well.
        self._changed.set()
        self._changed = asyncio.Event()

    def _windows_lost(self, gone: dict[str, list[WindowKey]]) -> None:
        """A node is gone with these windows, or a new one has come."""
        for feed, keys in gone.items():
            state = self._desks[feed].state
            if state is not None:
                state.lost(keys)
        self._advance()

    def _host_lost(self, feed: str, generation: int, process: int, why: str) -> None:
        desk = self._desks[feed]
        if generation == desk.generation:
            desk.lose(process, why)
            self._end_if_over(feed)

    def _end_if_over(self, feed: str) -> None:
        """A membership that nobody is left in, or that has failed, needs no windows."""
        desk = self._desks[feed]
        if desk.members.is_over:
            held = self._held(feed)
            desk.close()
            self._release(feed, held)
            self._attendance.end(feed, desk.members.error)
        self._advance()
        self._wake_hosts()
