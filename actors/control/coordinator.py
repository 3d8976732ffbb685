"""The coordinator: one actor a run, which leases windows, keeps the ledgers and gives grants.

It decides nothing by itself: ``FeedState`` says which windows are needed and how far hosts may go,
``LeaseBook`` which node runs them. Calls that have nothing to say yet wait inside for a limited
time, so that neither hosts nor nodes poll in a loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import ray

from meshfeed.actors.control.bad_records import count_skipped
from meshfeed.actors.control.durable import Durable
from meshfeed.actors.control.feed_desk import FeedDesk
from meshfeed.actors.control.fleet import Fleet
from meshfeed.actors.control.granting import Granting
from meshfeed.actors.control.ledger_writer import LedgerWriter
from meshfeed.actors.control.memberships import Memberships
from meshfeed.actors.messages import FeedUpdate, NodeUpdate, Opening, WindowReport
from meshfeed.actors.slice_checks import SliceDigest
from meshfeed.pipeline.data.runs.run_folder import RunFolder
from meshfeed.pipeline.plan.errors import DisagreementError, MeshfeedError
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
        self._folder = RunFolder(config.run_dir)
        self._durable = Durable(self._folder)
        restarted = ray.get_runtime_context().was_current_actor_reconstructed
        self._to_start = dict(self._durable.placement) if restarted else {}
        self._recovery: asyncio.Task[None] | None = None
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
        self._error: BaseException | None = None
        self._stopped = False
        self._calls: dict[str, int] = defaultdict(int)
        self._leases = LeaseBook(
            block_bytes=lambda feed, source: self._desks[feed].block_bytes(source),
            group=lambda feed, key: self._desks[feed].group(key),
            needs=lambda: [desk.need for desk in self._desks.values()],
        )
        self._members = Memberships(
            self._desks,
            self._durable,
            config.timeout_seconds,
            self._release,
            self._memberships_changed,
        )
        self._fleet = Fleet(
            config,
            specs,
            self._leases,
            on_lost=self._windows_lost,
            on_failure=self._fail,
        )
        self._writer = LedgerWriter(self._desks, self._durable.check, self._written, self._fail)
        self._granting = Granting(
            self._desks,
            self._leases,
            self._limits.gather_seconds,
            on_lease=self._fleet.lease,
            on_failure=self._fail,
        )

    # -- life -----------------------------------------------------------------------------------

    async def start(self, placement: dict[str, int]) -> list[dict[str, Any]]:
        """Starts node servers; ``placement``: Ray node id -> readers there."""
        self._durable.begin(placement)
        return await self._fleet.start(placement, self._durable.restarts)

    async def stop(self) -> None:
        """Ends node servers and readers."""
        self._stopped = True
        self._members.attendance.stop(MeshfeedError("the run was stopped"))
        self._granting.wake_hosts()
        await self._fleet.stop()

    async def fail(self, node: int, error: BaseException) -> None:
        """A node server has failed for good: every host hears it."""
        if self._fleet.knows(node):
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
        self._desk(feed)
        self._recover()
        return await self._members.join(feed, process_index, process_count, start)

    async def rejoin(
        self,
        feed: str,
        generation: int,
        process_index: int,
        cursor: dict[str, Any],
        granted: int,
    ) -> int:
        """A host comes again after a restart; answers once all of its membership have.

        It has taken all before ``cursor``, and was granted the steps before ``granted``.

        Returns:
            The incarnation of the coordinator, carried by its polls from now on.

        Raises:
            StaleGenerationError: its membership has ended.
            FeedError: some process did not come again in time; names it.
        """
        self._calls["rejoin"] += 1
        self._desk(feed)
        self._recover()
        await self._members.rejoin(feed, generation, process_index, cursor, granted)
        return self._durable.incarnation

    async def poll(
        self,
        feed: str,
        generation: int,
        process_index: int,
        incarnation: int,
        *,
        acked: int,
        granted: int,
        since: int,
        waited: dict[str, Any],
        known_nodes: int,
        checks: Sequence[SliceDigest] = (),
    ) -> FeedUpdate | None:
        """A host acknowledges steps and asks for the next grant.

        Returns:
            The grant; None where it has to ``rejoin``: this coordinator is another one.

        Raises:
            StaleGenerationError: the host's membership has ended.
            MeshfeedError: whatever has ended the run.
        """
        self._calls["poll"] += 1
        desk = self._desk(feed)
        if incarnation != self._durable.incarnation:
            return None
        state = desk.check(generation)
        try:
            desk.hear(process_index, waited, checks)
        except DisagreementError as error:
            self._fail(error)
        self._release(feed, state.acknowledge(process_index, acked, time.monotonic()))
        self._granting.advance()
        until = time.monotonic() + min(LONGEST_WAIT_S, state.grants.patience(process_index, acked))
        while True:
            self._raise_if_failed()
            state = desk.check(generation)
            left = until - time.monotonic()
            more = state.grants.granted > granted or desk.moved_since(since)
            if more or granted == state.last_step or left <= 0:
                break
            await self._granting.news(left)
        return desk.update(process_index, since, granted, self._fleet.handles_from(known_nodes))

    async def present(
        self, feed: str, generation: int, process_index: int, incarnation: int
    ) -> MeshfeedError | None:
        """A host takes part: answered when it has left, or with what has ended its membership.

        At once, with None, where the host speaks to a coordinator that was there before this one.
        """
        self._calls["present"] += 1
        if incarnation != self._durable.incarnation:
            return None
        return await self._members.attendance.present(feed, generation, process_index)

    async def attend(
        self, feed: str, generation: int, process_index: int, presence: list[Any]
    ) -> None:
        """Watches over a host: ``presence`` holds the result of its call of ``present``."""
        self._members.attendance.watch(feed, generation, process_index, presence[0])

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
        await self._members.leave(feed, generation, process_index, step, error)

    async def barrier(self, feed: str, generation: int) -> int:
        """All hosts of a membership end at the step that this gives, and no window is run beyond.

        It is the step after the highest grant ever given. Asked again, it gives the same.

        Raises:
            StaleGenerationError: the membership has ended.
            MeshfeedError: what has ended it, or the run.
        """
        self._desk(feed)
        return await self._members.barrier(feed, generation)

    # -- nodes ----------------------------------------------------------------------------------

    async def node_turn(self, node: int) -> NodeUpdate | None:
        """A node waits for something to do; None: it was given up and should end."""
        self._calls["node_turn"] += 1
        return await self._fleet.turn(node)

    async def completed(self, node: int, reports: list[WindowReport]) -> NodeUpdate | None:
        """Windows have run on a node; answers at once with what to do next, as ``node_turn``."""
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
            return self._fleet.tell(node)
        self._writer.wake()
        self._granting.advance()
        return self._fleet.tell(node)

    # -- looking in -----------------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        """What every feed, node and reader is doing."""
        readers = await self._fleet.in_work()
        return {
            "run_dir": self._config.run_dir,
            "generation": self._durable.generation,
            "incarnation": self._durable.incarnation,
            "pid": os.getpid(),
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

    def _memberships_changed(self) -> None:
        self._granting.advance()
        self._granting.wake_hosts()

    def _recover(self) -> None:
        """Starts node servers again, where this process takes another's place."""
        placement, self._to_start = self._to_start, {}
        if placement:
            self._recovery = asyncio.create_task(self._start_again(placement))

    async def _start_again(self, placement: dict[str, int]) -> None:
        try:
            await self._fleet.start(placement, self._durable.restarts)
        except Exception as error:  # noqa: BLE001 - any failure here is the run's: all hosts hear it
            if not self._stopped:
                self._fail(error)
        self._granting.advance()

    def _written(self, unneeded: dict[str, list[WindowKey]]) -> None:
        for feed, keys in unneeded.items():
            self._release(feed, keys)
        self._granting.advance()

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
            log.error("the run fails: %s", error)
            told = error if isinstance(error, MeshfeedError) else MeshfeedError(repr(error))
            self._members.attendance.stop(told)
        self._granting.wake_hosts()

    def _release(self, feed: str, keys: list[WindowKey]) -> None:
        self._fleet.release(feed, keys)

    def _windows_lost(self, gone: dict[str, list[WindowKey]]) -> None:
        """A node is gone with these windows, or a new one has come."""
        for feed, keys in gone.items():
            state = self._desks[feed].state
            if state is not None:
                state.lost(keys)
        self._granting.advance()
