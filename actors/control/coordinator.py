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

import ray
from ray.actor import ActorHandle

from meshfeed.actors.control.feed_desk import FeedDesk
from meshfeed.actors.control.membership import Joining
from meshfeed.actors.control.node_desk import NodeDesk
from meshfeed.actors.messages import FeedUpdate, NodeUpdate, Opening, WindowReport
from meshfeed.actors.reading.node import NodeServer
from meshfeed.actors.slice_checks import SliceDigest
from meshfeed.pipeline.data.runs.run_folder import RunFolder
from meshfeed.pipeline.plan.errors import DataError, DisagreementError, MeshfeedError
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.feed_state import WindowKey
from meshfeed.pipeline.plan.grants import GrantLimits
from meshfeed.pipeline.plan.leasing import LeaseBook
from meshfeed.pipeline.plan.run_config import RunConfig

log = logging.getLogger(__name__)

LONGEST_WAIT_S = 5.0
"""A host or node that has nothing to do hears so after this long at the latest."""

GATHER_WRITES_S = 0.005
"""Windows that run within so short a time become durable at once."""


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
        self._tell = NodeDesk(specs)
        self._node_wakes: dict[int, asyncio.Event] = {}
        self._changed = asyncio.Event()
        self._calls: dict[str, int] = defaultdict(int)
        self._watchers: list[asyncio.Task[None]] = []
        self._leases = LeaseBook(
            block_bytes=lambda feed, source: self._desks[feed].block_bytes(source),
            group=lambda feed, key: self._desks[feed].group(key),
            needs=lambda: [desk.need for desk in self._desks.values()],
        )
        self._writing: asyncio.Task[None] | None = None
        self._news: dict[str, tuple[Any, ...]] = {}
        self._gathering = False

    # -- life -----------------------------------------------------------------------------------

    async def start(self, placement: dict[str, int]) -> list[dict[str, Any]]:
        """Starts node servers; ``placement``: Ray node id -> readers there."""
        me = ray.get_runtime_context().current_actor
        for number, (ray_node, readers) in enumerate(placement.items()):
            here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                ray_node, soft=False
            )
            self._tell.add(number)
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
        self._wake_hosts()
        for wake in self._node_wakes.values():
            wake.set()
        for node in self._nodes.values():
            with contextlib.suppress(ray.exceptions.RayError, asyncio.TimeoutError):
                await asyncio.wait_for(node.stop.remote(), 10)
            ray.kill(node)

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
        joining = self._joining.get(feed)
        if joining is None or joining.opening.done() or joining.processes != process_count:
            joining = self._joining[feed] = Joining(feed, process_count)
        if joining.add(process_index, start):
            before = self._held(feed)
            try:
                opening = desk.open(self._generation + 1, process_count, joining.start)
            except MeshfeedError as error:
                joining.opening.set_exception(error)
            else:
                self._generation += 1
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
            if more or granted == state.total_steps or left <= 0:
                break
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
        nodes = {n: self._nodes[n] for n in range(known_nodes, len(self._nodes))}
        return desk.update(process_index, since, granted, nodes)

    # -- nodes ----------------------------------------------------------------------------------

    async def node_turn(self, node: int) -> NodeUpdate:
        """A node asks what to do next."""
        self._calls["node_turn"] += 1
        wake = self._node_wakes[node]
        if not (self._tell.has_news(node) or self._stopped):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(wake.wait(), LONGEST_WAIT_S)
        wake.clear()
        return self._tell.take(node, stop=self._stopped)

    async def completed(self, node: int, reports: list[WindowReport]) -> None:
        """Windows have run on a node."""
        self._calls["completed"] += 1
        by_feed: dict[str, list[WindowReport]] = defaultdict(list)
        try:
            for report in reports:
                if not self._tell.is_current(report):
                    continue  # of an opening that has ended; the node has forgotten its block
                if report.error is not None:
                    raise report.error
                self._leases.completed(report.feed, report.key, node, report.nbytes)
                by_feed[report.feed].append(report)
            for feed, some in by_feed.items():
                self._count_skipped(feed, some)
                self._desks[feed].completed(node, some)
        except Exception as error:  # noqa: BLE001 - any failure here is the run's: all hosts hear it
            self._fail(error)
            return
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        self._advance()

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

    async def _write(self) -> None:
        """Windows that have run become durable, then known, while others come in."""
        try:
            await asyncio.sleep(GATHER_WRITES_S)
            while taken := [(n, d, w) for n, d in self._desks.items() if (w := d.take())]:
                for name, desk, writing in taken:
                    await asyncio.to_thread(desk.write, writing)
                    self._release(name, desk.publish(writing))
                self._advance()
                await asyncio.sleep(GATHER_WRITES_S)
        except Exception as error:  # noqa: BLE001 - any failure here is the run's: all hosts hear it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
            log.error("the run fails: %s", error)
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
            self._tell.lease(lease)
            self._node_wakes[lease.node].set()
        news = {name: desk.news for name, desk in self._desks.items()}
        if news != self._news:
            self._news = news
            self._wake_hosts()

    def _gathered(self) -> None:
        self._gathering = False
        self._advance()

    def _release(self, feed: str, keys: list[WindowKey]) -> None:
        for node, key in self._leases.released(feed, keys):
            self._tell.release(node, feed, key)
            self._node_wakes[node].set()

    def _wake_hosts(self) -> None:
        # A new event each time: who looked before this and waits only now is woken as well.
        self._changed.set()
        self._changed = asyncio.Event()

    async def _watch(self, node: int) -> None:
        """A node server that dies is the end of its blocks: its windows are run elsewhere."""
        try:
            await self._nodes[node].watch.remote()
        except ray.exceptions.RayActorError as error:
            if not self._stopped:
                self._fail(MeshfeedError(f"node server {node} died: {error}"))

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
