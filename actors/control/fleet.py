"""The node servers of a run: started, told what to do, watched, and replaced when they die."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import ray
from ray.actor import ActorHandle

from meshfeed.actors.control.node_desk import NodeDesk
from meshfeed.actors.messages import NodeUpdate, WindowReport
from meshfeed.actors.reading.node import NodeServer
from meshfeed.actors.reading.shared_memory import remove_leftovers
from meshfeed.pipeline.plan.errors import MeshfeedError
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.feed_state import WindowKey
from meshfeed.pipeline.plan.leasing import Lease, LeaseBook
from meshfeed.pipeline.plan.restarts import Restarts
from meshfeed.pipeline.plan.run_config import RunConfig

log = logging.getLogger(__name__)

LONGEST_WAIT_S = 5.0
"""A node that has nothing to do hears so after this long at the latest."""

START_LIMIT_S = 120.0
"""A node server that is not up after so long is given up."""

STOP_LIMIT_S = 10.0

LOOK_LIMIT_S = 5.0

NUMBERS = 10_000
"""Node servers of one coordinator at most."""


class Fleet:
    """All node servers. A number is given once: a server that replaces another has a new one.

    Args:
        config: of the run.
        specs: of its feeds.
        leases: which windows run and lie where.
        on_lost: told the windows of each feed that are gone with a node.
        on_failure: told when no node is left that could read.

    Attributes:
        deaths: node servers that have died.
        replaced: of those, how many were started again.
    """

    def __init__(
        self,
        config: RunConfig,
        specs: Mapping[str, FeedSpec],
        leases: LeaseBook,
        *,
        on_lost: Callable[[dict[str, list[WindowKey]]], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.deaths = 0
        self.replaced = 0
        self._config = config
        self._leases = leases
        self._on_lost = on_lost
        self._on_failure = on_failure
        self._tell = NodeDesk(specs)
        self._handles: dict[int, ActorHandle] = {}
        self._next = 0
        self._alive: dict[int, dict[str, Any]] = {}
        self._wakes: dict[int, asyncio.Event] = {}
        self._watchers: set[asyncio.Task[None]] = set()
        self._starting = 0
        self._restarts = Restarts()
        self._stopped = False

    # -- life -----------------------------------------------------------------------------------

    async def start(self, placement: Mapping[str, int], restarts: int) -> list[dict[str, Any]]:
        """Starts node servers.

        Args:
            placement: Ray node id -> readers there.
            restarts: of the coordinator; no server of another one has a number of these.
        """
        self._next = restarts * NUMBERS
        starts = (self._start(ray_node, readers) for ray_node, readers in placement.items())
        return list(await asyncio.gather(*starts))

    async def stop(self) -> None:
        """Ends node servers and readers."""
        self._stopped = True
        for watcher in self._watchers:
            watcher.cancel()
        for wake in self._wakes.values():
            wake.set()
        # Those that are only starting as well: what they have made already must go.
        up = (self._stop(self._handles[node]) for node in self._wakes)
        await asyncio.gather(*up)
        await asyncio.to_thread(remove_leftovers)  # of servers here that have died

    async def _stop(self, node: ActorHandle) -> None:
        with contextlib.suppress(ray.exceptions.RayError, asyncio.TimeoutError):
            await asyncio.wait_for(node.stop.remote(), STOP_LIMIT_S)
        ray.kill(node)

    async def _start(self, ray_node: str, readers: int) -> dict[str, Any]:
        """One node server, with readers of its own, on a node of the Ray cluster."""
        number = self._next
        self._next += 1
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(ray_node, soft=False)
        me = ray.get_runtime_context().current_actor
        handle = (
            ray.remote(NodeServer)
            .options(num_cpus=0, scheduling_strategy=here, max_concurrency=16)
            .remote(number, self._config, me, readers)
        )
        self._handles[number] = handle
        self._tell.add(number)
        self._wakes[number] = asyncio.Event()
        try:
            ready = handle.ready.remote()
            facts: dict[str, Any] = await asyncio.wait_for(ready, START_LIMIT_S)
        except BaseException:
            if not self._stopped:
                self._tell.remove(number)
                self._wakes.pop(number)
            raise
        self._alive[number] = facts
        self._leases.add_node(number, readers, self._config.memory_budget)
        self._spawn(self._watch(number, ray_node, readers))
        return facts

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._watchers.add(task)
        task.add_done_callback(self._watchers.discard)

    async def _watch(self, number: int, ray_node: str, readers: int) -> None:
        """A node server that dies is the end of its blocks: its windows are run elsewhere."""
        try:
            await self._handles[number].watch.remote()
        except ray.exceptions.RayActorError as error:
            if not self._stopped:
                await self._died(number, ray_node, readers, error)

    async def _died(self, number: int, ray_node: str, readers: int, error: Exception) -> None:
        self.deaths += 1
        self._alive.pop(number, None)
        gone = self._leases.remove_node(number)
        self._tell.remove(number)
        self._wakes.pop(number).set()
        windows = sum(map(len, gone.values()))
        log.warning("node server %d died, %d windows run again: %s", number, windows, error)
        self._on_lost(gone)
        if self._restarts.allow(ray_node, time.monotonic()):
            self._starting += 1
            try:
                await self._start(ray_node, readers)
                self.replaced += 1
                self._on_lost({})
            except (TimeoutError, ray.exceptions.RayError) as failed:
                log.warning("node server %d could not be replaced: %s", number, failed)
            finally:
                self._starting -= 1
        if not self._alive and not self._starting and not self._stopped:
            self._on_failure(MeshfeedError(f"no node is left that reads: {error}"))

    # -- what nodes are told --------------------------------------------------------------------

    async def turn(self, node: int) -> NodeUpdate | None:
        """A node waits for something to do; None: it was given up."""
        until = time.monotonic() + LONGEST_WAIT_S
        while (wake := self._wakes.get(node)) is not None:
            left = until - time.monotonic()
            if self._tell.has_work(node) or self._stopped or left <= 0:
                break
            wake.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(wake.wait(), left)
        return self.tell(node)

    def tell(self, node: int) -> NodeUpdate | None:
        """What a node is to do next; None: it was given up."""
        return self._tell.take(node, stop=self._stopped) if node in self._wakes else None

    def lease(self, lease: Lease) -> None:
        """A node is to run a window."""
        self._tell.lease(lease)
        self._wakes[lease.node].set()

    def release(self, feed: str, keys: list[WindowKey]) -> None:
        """Nobody needs these windows: their nodes are to forget them."""
        for node, key in self._leases.released(feed, keys):
            self._tell.release(node, feed, key)

    def is_current(self, report: WindowReport) -> bool:
        """A report answers the window's last lease."""
        return self._tell.is_current(report)

    # -- what others see ------------------------------------------------------------------------

    def handles_from(self, known: int) -> dict[int, ActorHandle]:
        """Node servers, living or dead, but for the first so many."""
        return dict(islice(self._handles.items(), known, None))

    def knows(self, node: int) -> bool:
        """A node server is one of these, and was not given up."""
        return node in self._wakes

    def status(self) -> dict[str, Any]:
        """Node servers that are up, and how many have died and were started again."""
        up = list(self._alive.values())
        return {"up": up, "died": self.deaths, "replaced": self.replaced}

    async def in_work(self) -> list[dict[str, Any]]:
        """What each reader does right now."""
        looks = (self._handles[n].in_work.remote() for n in sorted(self._alive))
        work = await asyncio.gather(
            *(asyncio.wait_for(look, LOOK_LIMIT_S) for look in looks), return_exceptions=True
        )
        return [entry for part in work if isinstance(part, list) for entry in part]
