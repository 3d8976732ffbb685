"""The readers of one node: who has which window, and what happens when one dies."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle

from meshfeed.actors.messages import WindowLease, WindowReport
from meshfeed.actors.reading.reader import Reader
from meshfeed.actors.reading.shared_memory import StageFile, block_path
from meshfeed.pipeline.plan.errors import ReadError
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.feed_state import WindowKey
from meshfeed.pipeline.plan.node_slots import SLOTS_PER_READER
from meshfeed.pipeline.plan.run_config import RunConfig

log = logging.getLogger(__name__)

POISON_DEATHS = 3
"""A window that ends so many readers is reported as failed instead of being tried again."""


@dataclass(slots=True)
class _Slot:
    """A reader, the windows that it has been given, in order, and since when it has the first.

    ``guilty`` is the one that it was at when it died, or the first if it never came up.
    """

    name: str
    handle: ActorHandle
    life: int
    given: list[WindowLease] = field(default_factory=list)
    since: float = 0.0
    guilty: WindowLease | None = None


class ReaderPool:
    """Starts the readers of a node, hands them windows and collects what they report.

    Used by one thread; ``in_work`` may be called from any.

    Args:
        node: number of the node, for names.
        config: of the run.
        folder: the node's folder in shared memory.
        size: number of readers.
    """

    def __init__(self, node: int, config: RunConfig, folder: Path, size: int) -> None:
        self._node = node
        self._config = config
        self._folder = folder
        self._specs: dict[str, FeedSpec] = {}
        self._waiting: deque[WindowLease] = deque()
        self._running: dict[Any, tuple[_Slot, WindowLease]] = {}
        self._numbers: dict[tuple[str, WindowKey], int] = {}
        self._unwanted: set[tuple[str, WindowKey]] = set()
        self._preparing: list[Any] = []
        self._deaths: dict[tuple[str, WindowKey], int] = {}
        self._slots = [self._start(i, 0) for i in range(size)]

    def __len__(self) -> int:
        return len(self._slots)

    def prepare(self, specs: dict[str, FeedSpec]) -> None:
        """Tells every reader of the feeds, before their first window."""
        self._specs.update(specs)
        self._preparing += [slot.handle.prepare.remote(specs) for slot in self._slots]

    def lease(self, leases: Sequence[WindowLease]) -> None:
        """Windows to run, in order.

        One that was released while it runs is taken up again: whoever wants its rows, they are
        the same.
        """
        for lease in leases:
            name = (lease.feed, lease.key)
            if name in self._unwanted:
                self._unwanted.remove(name)
            elif name not in self._numbers:
                self._waiting.append(lease)
            self._numbers[name] = lease.number

    def release(self, feed: str, key: WindowKey) -> bool:
        """Nobody wants a window; True if it had not been run yet, so that nothing is left of it."""
        if self._numbers.pop((feed, key), None) is None:
            return False
        waiting = [lease for lease in self._waiting if (lease.feed, lease.key) != (feed, key)]
        if len(waiting) < len(self._waiting):
            self._waiting = deque(waiting)
        else:
            self._unwanted.add((feed, key))
        return True

    def turn(self, others: Sequence[Any], timeout_s: float) -> tuple[list[WindowReport], list[Any]]:
        """Hands out windows and waits for some to finish, or for something else.

        Args:
            others: results of other calls, for which it waits as well.
            timeout_s: at most.

        Returns:
            What was run, and those of ``others`` that are there.

        Raises:
            MeshfeedError: a reader refused to serve the feeds, e.g. its tokenizer differs.
        """
        self._hand_out()
        awaited = [*self._running, *self._preparing, *others]
        ready, rest = ray.wait(awaited, num_returns=1, timeout=timeout_s)
        if ready and rest:
            ready += ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        reports = [self._collect(result) for result in ready if result in self._running]
        for result in ready:
            if result in self._preparing:
                self._prepared(result)
        self._hand_out()
        told = [result for result in ready if result in others]
        return [report for report in reports if report is not None], told

    def in_work(self) -> list[dict[str, Any]]:
        """What each reader does right now: reader, stage, feed, what, pid, seconds.

        One that has been given a window and does not begin it is in the stage ``start``.
        """
        entries = []
        now = time.time()
        for slot in self._slots:
            stage = self._stage(slot)
            given = list(slot.given)
            if "stage" not in stage and given:
                lease = given[0]
                what = "source {}, epoch {}, window {}".format(*lease.key)
                stage |= {"stage": "start", "feed": lease.feed, "what": what, "since": slot.since}
            since = stage.pop("since", now)
            entries.append({"reader": slot.name, "seconds": now - since} | stage)
        return entries

    def kill(self) -> None:
        """Ends all readers."""
        for slot in self._slots:
            ray.kill(slot.handle)

    def _start(self, index: int, life: int) -> _Slot:
        name = f"node{self._node}-reader{index}" + (f".{life}" if life else "")
        node_id = ray.get_runtime_context().get_node_id()
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
        handle = (
            ray.remote(Reader)
            .options(num_cpus=1, scheduling_strategy=here)
            .remote(name, str(self._folder), self._config)
        )
        return _Slot(name, handle, life)

    def _prepared(self, result: Any) -> None:
        self._preparing.remove(result)
        try:
            ray.get(result)
        except ray.exceptions.RayActorError:
            log.warning("a reader of node %d died while it prepared", self._node)

    def _hand_out(self) -> None:
        while self._waiting:
            slot = min(self._slots, key=lambda s: len(s.given))
            if len(slot.given) >= SLOTS_PER_READER:
                return
            lease = self._waiting.popleft()
            if not slot.given:
                slot.since = time.time()
            slot.given.append(lease)
            self._running[slot.handle.run.remote(lease)] = (slot, lease)

    def _collect(self, result: Any) -> WindowReport | None:
        """What became of a window; None when it is to be run again."""
        slot, lease = self._running.pop(result)
        slot.since = time.time()
        name = (lease.feed, lease.key)
        try:
            report: WindowReport | None = ray.get(result)
            self._deaths.pop(name, None)
        except ray.exceptions.RayActorError as error:
            report = self._reader_died(slot, lease, error)
        except ray.exceptions.RayTaskError as error:
            report = WindowReport(feed=lease.feed, key=lease.key, reader=slot.name, error=error)
        slot.given.remove(lease)
        if name in self._unwanted:
            self._unwanted.remove(name)
            block_path(self._folder, *name).unlink(missing_ok=True)
            return None
        return None if report is None else replace(report, lease=self._numbers.pop(name))

    def _reader_died(
        self, slot: _Slot, lease: WindowLease, error: Exception
    ) -> WindowReport | None:
        stage = self._stage(slot)
        if slot in self._slots:
            was_idle = "pid" in stage and "stage" not in stage
            slot.guilty = None if was_idle else slot.given[0]
            index = self._slots.index(slot)
            self._slots[index] = self._start(index, slot.life + 1)
            self._preparing.append(self._slots[index].handle.prepare.remote(self._specs))
            log.warning("reader %s died in %s and was replaced", slot.name, stage or "no window")
        name = (lease.feed, lease.key)
        if name in self._unwanted:
            return None
        if slot.guilty is lease:
            self._deaths[name] = self._deaths.get(name, 0) + 1
        if self._deaths.get(name, 0) < POISON_DEATHS:
            self._waiting.appendleft(lease)
            return None
        shard = str(stage.get("what", lease.key))
        failure = ReadError(shard, POISON_DEATHS, f"the reader died each time: {error}")
        return WindowReport(feed=lease.feed, key=lease.key, reader=slot.name, error=failure)

    def _stage(self, slot: _Slot) -> dict[str, Any]:
        try:
            return StageFile.open(self._folder / f"{slot.name}.stage").get()
        except FileNotFoundError:
            return {}
