"""The coordinator: one actor a run, which leases windows, keeps the ledgers and gives grants.

It decides nothing by itself: ``FeedState`` says which windows are needed and how far hosts may go,
``LeaseBook`` which node runs them. Calls that have nothing to say yet wait inside for a limited
time, so that neither hosts nor nodes poll in a loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import defaultdict
from typing import Any

from ray.actor import ActorHandle

import ray
from meshfeed.actors.feed_desk import FeedDesk
from meshfeed.actors.membership import Joining
from meshfeed.actors.messages import FeedUpdate, NodeUpdate, Opening, WindowLease, WindowReport
from meshfeed.actors.node import NodeServer
from meshfeed.pipeline.data.run_folder import RunFolder
from meshfeed.pipeline.plan.errors import DataError, MeshfeedError
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.feed_state import FeedState, WindowKey
from meshfeed.pipeline.plan.grants import GrantLimits
from meshfeed.pipeline.plan.leasing import LeaseBook
from meshfeed.pipeline.plan.run_config import RunConfig

log = logging.getLogger(__name__)

LONGEST_WAIT_S = 5.0
"""A host or node that has nothing to do hears so after this long at the latest."""


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
        self._joining: dict[str, Joining] = {}
        self._generation = 0
        self._error: BaseException | None = None
        self._stopped = False
        self._nodes: dict[int, ActorHandle] = {}
        self._pending: dict[int, tuple[list[WindowLease], list[tuple[str, WindowKey]]]] = {}
        self._untaught: set[int] = set()
        self._node_wakes: dict[int, asyncio.Event] = {}
        self._changed = asyncio.Condition()
        self._calls: dict[str, int] = defaultdict(int)
        self._watchers: list[asyncio.Task[None]] = []
        self._numbers = itertools.count(1)
        self._current: dict[tuple[str, WindowKey], int] = {}
        self._leases = LeaseBook(
            block_bytes=lambda feed, source: self._desks[feed].block_bytes(source),
            group=lambda feed, key: self._desks[feed].group(key),
        )

    # -- life -----------------------------------------------------------------------------------

    async def start(self, placement: dict[str, int]) -> list[dict[str, Any]]:
        """Starts node servers; ``placement``: Ray node id -> readers there."""
        me = ray.get_runtime_context().current_actor
        for number, (ray_node, readers) in enumerate(placement.items()):
            here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                ray_node, soft=False
            )
            self._pending[number] = ([], [])
            self._untaught.add(number)
            self._node_wakes[number] = asyncio.Event()
            self._nodes[number] = (
                ray.remote(NodeServer)
                .options(
                    num_cpus=0,
                    scheduling_strategy=here,
                    max_concurrency=16,
                )
                .remote(number, self._config, me, readers)
            )
            self._leases.add_node(number, readers, self._config.memory_budget)
        facts = await asyncio.gather(*(node.ready.remote() for node in self._nodes.values()))
        self._watchers = [asyncio.create_task(self._watch(n)) for n in self._nodes]
        return list(facts)

    async def stop(self) -> None:
        """Ends node servers and readers."""
        self._stopped = True
        for watcher in self._watchers:
            watcher.cancel()
        await self._notify(range(len(self._nodes)))
        for node in self._nodes.values():
            with contextlib.suppress(ray.exceptions.RayError, asyncio.TimeoutError):
                await asyncio.wait_for(node.stop.remote(), 10)
            ray.kill(node)

    async def fail(self, error: BaseException) -> None:
        """Some part of the run has failed for good: every host hears it."""
        if self._error is None:
            self._error = error
            log.error("the run fails: %s", error)
        await self._notify()

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
        joining = self._joining.get(feed)
        if joining is None or joining.opening.done() or joining.processes != process_count:
            joining = self._joining[feed] = Joining(feed, process_count)
        if joining.add(process_index, start):
            self._generation += 1
            before = self._held(feed)
            joining.opening.set_result(desk.open(self._generation, process_count, joining.start))
            await self._release(feed, before)
            await self._advance()
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
    ) -> FeedUpdate:
        """A host acknowledges steps and asks for the next grant.

        Raises:
            StaleGenerationError: the host's membership has ended.
            MeshfeedError: whatever has ended the run.
        """
        self._calls["poll"] += 1
        desk = self._desk(feed)
        state = desk.check(generation)
        desk.waiting[process_index] = waited
        await self._release(feed, state.acknowledge(process_index, acked, time.monotonic()))
        await self._advance()
        until = time.monotonic() + LONGEST_WAIT_S
        while True:
            self._raise_if_failed()
            state = desk.check(generation)
            now = time.monotonic()
            total = state.total_steps
            if self._grant(state, now) > granted or granted == total or now >= until:
                break
            gathering = state.ready_steps > granted
            await self._wait(self._limits.gather_seconds if gathering else until - now)
        nodes = {n: handle for n, handle in self._nodes.items() if n >= known_nodes}
        return desk.update(since, granted, nodes)

    # -- nodes ----------------------------------------------------------------------------------

    async def node_turn(self, node: int) -> NodeUpdate:
        """A node asks what to do next."""
        self._calls["node_turn"] += 1
        leases, releases = self._pending[node]
        wake = self._node_wakes[node]
        if not (leases or releases or node in self._untaught or self._stopped):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(wake.wait(), LONGEST_WAIT_S)
        wake.clear()
        leases, releases = self._pending[node]
        self._pending[node] = ([], [])
        specs = self._specs if node in self._untaught else {}
        self._untaught.discard(node)
        return NodeUpdate(
            leases=tuple(leases), releases=tuple(releases), specs=specs, stop=self._stopped
        )

    async def completed(self, node: int, reports: list[WindowReport]) -> None:
        """Windows have run on a node."""
        self._calls["completed"] += 1
        by_feed: dict[str, list[WindowReport]] = defaultdict(list)
        try:
            for report in reports:
                if self._current.get((report.feed, report.key)) != report.lease:
                    continue  # of an opening that has ended; the node has forgotten its block
                if report.error is not None:
                    raise report.error
                self._leases.completed(report.feed, report.key, report.nbytes)
                by_feed[report.feed].append(report)
            for feed, some in by_feed.items():
                self._count_skipped(feed, some)
                empty = self._desks[feed].completed(node, some)
                await self._release(feed, empty)
        except Exception as error:  # noqa: BLE001 - any failure here is the run's: all hosts hear it
            await self.fail(error)
            return
        await self._advance()

    # -- looking in -----------------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        """What every feed, node and reader is doing."""
        work = await asyncio.gather(
            *(asyncio.wait_for(n.in_work.remote(), 5) for n in self._nodes.values()),
            return_exceptions=True,
        )
        readers = [entry for part in work if isinstance(part, list) for entry in part]
        return {
            "run_dir": self._config.run_dir,
            "generation": self._generation,
            "error": None if self._error is None else str(self._error),
            "feeds": {name: desk.status() for name, desk in self._desks.items()},
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

    async def _advance(self) -> None:
        """Grants what is ready, leases what is needed, and wakes who waits for it."""
        opened = [(n, d.state) for n, d in self._desks.items() if d.state is not None]
        now = time.monotonic()
        for _, state in opened:
            self._grant(state, now)
        woken = set()
        for node, feed, key in self._leases.assign(opened):
            number = self._current[feed, key] = next(self._numbers)
            self._pending[node][0].append(WindowLease(feed=feed, key=key, number=number))
            woken.add(node)
        await self._notify(woken)

    @staticmethod
    def _grant(state: FeedState, now: float) -> int:
        ready = state.ready_steps
        return state.grants.advance(ready, now, ended=ready == state.total_steps)

    async def _release(self, feed: str, keys: list[WindowKey]) -> None:
        for node, key in self._leases.released(feed, keys):
            self._current.pop((feed, key), None)
            leases, releases = self._pending[node]
            leases[:] = [lease for lease in leases if (lease.feed, lease.key) != (feed, key)]
            releases.append((feed, key))
            self._node_wakes[node].set()

    async def _notify(self, nodes: Any = ()) -> None:
        for node in nodes:
            self._node_wakes[node].set()
        async with self._changed:
            self._changed.notify_all()

    async def _wait(self, seconds: float) -> None:
        async def changed() -> None:
            async with self._changed:
                await self._changed.wait()

        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(changed(), seconds)

    async def _watch(self, node: int) -> None:
        """A node server that dies is the end of its blocks: its windows are run elsewhere."""
        try:
            await self._nodes[node].watch.remote()
        except ray.exceptions.RayActorError as error:
            if not self._stopped:
                await self.fail(MeshfeedError(f"node server {node} died: {error}"))

    def _count_skipped(self, feed: str, reports: list[WindowReport]) -> None:
        """Lists what was left out, and fails when it is more than the source's limit."""
        desk = self._desks[feed]
        for report in reports:
            if not report.skipped:
                continue
            source = desk.spec.config.sources[report.key.source]
            tally = desk.tallies[report.key.source]
            fresh = self._folder.add_skipped(feed, source.name, report.key, report.skipped)
            tally.skipped += fresh
            if tally.skipped > source.max_bad_records:
                shard, place, reason = report.skipped[-1]
                raise DataError(
                    shard,
                    f"{reason}; with it more than max_bad_records={source.max_bad_records} records "
                    f"of source {source.name} are bad",
                    place=place,
                    hint="Raise max_bad_records or mend the data; the run directory lists them all",
                )
