"""Nodes and hosts in simulated time around the coordinator's own desks, with its CPU time counted.

Messages are packed and unpacked as they would be on their way; Ray itself has no part in it.
"""

from __future__ import annotations

import heapq
import pickle
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshfeed.actors.control.feed_desk import FeedDesk
from meshfeed.actors.control.node_desk import NodeDesk
from meshfeed.actors.messages import NodeUpdate, WindowReport
from meshfeed.actors.slice_checks import CHECK_EVERY, SliceDigest
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.feed_state import FeedState, WindowKey
from meshfeed.pipeline.plan.grants import GrantLimits
from meshfeed.pipeline.plan.leasing import LeaseBook
from meshfeed.pipeline.plan.ledger import Ledger

FEED = "train"
TRAVEL_S = 0.002
GATHER_WRITES_S = 0.005
LONGEST_WAIT_S = 5.0
SECONDS_FOR_A_WINDOW = (40.0, 78.0)


@dataclass(slots=True)
class Host:
    """A process that takes a step a second."""

    process: int
    taken: int = 0
    granted: int = 0
    since: int = 0
    depth: int = 6
    polling: bool = False
    checks: list[SliceDigest] = field(default_factory=list)


@dataclass(slots=True)
class Node:
    """Readers, and the windows that wait for one."""

    idle: int
    waiting: deque[tuple[WindowKey, int]] = field(default_factory=deque)
    waking: bool = False


class Coordinator:
    """The coordinator's decisions, as its actor makes them, and the CPU time that they take."""

    def __init__(self, folder: Path, spec: FeedSpec, nodes: int, readers: int, hosts: int) -> None:
        self.limits = GrantLimits()
        self.ledger = Ledger(folder / "train.ledger", "scale")
        self.desk = FeedDesk(spec, self.ledger, None, self.limits)
        self.tell = NodeDesk({FEED: spec})
        self.book = LeaseBook(
            block_bytes=lambda _, source: self.desk.block_bytes(source),
            group=lambda _, key: self.desk.group(key),
            needs=lambda: [self.desk.need],
        )
        for node in range(nodes):
            self.tell.add(node)
            self.book.add_node(node, readers, 1 << 30)
        self.desk.open(1, hosts, None)
        self.cpu_s = 0.0
        self.calls = {"poll": 0, "node_turn": 0, "completed": 0, "write": 0}
        self.bytes_sent = 0
        self._woken: set[int] = set()
        self._news: tuple[Any, ...] = ()

    @property
    def state(self) -> FeedState:
        return self.desk.check(1)

    def timed(self, work: Callable[..., Any], *args: Any) -> Any:
        began = time.process_time()
        result = work(*args)
        self.cpu_s += time.process_time() - began
        return result

    def completed(self, message: bytes, now: float) -> bytes:
        """A node reports windows, and is told what to do next."""
        self.calls["completed"] += 1
        node, reports = pickle.loads(message)
        for report in reports:
            if self.tell.is_current(report):
                self.book.completed(FEED, report.key, node, report.nbytes)
        self.desk.completed(node, reports)
        self.advance(now)
        self._woken.discard(node)
        return pickle.dumps(self.tell.take(node), protocol=5)

    def write(self, now: float) -> None:
        """What has run becomes durable and known."""
        writing = self.desk.take()
        if writing is not None:
            self.calls["write"] += 1
            self.desk.write(writing)
            self._release(self.desk.publish(writing))
            self.advance(now)

    def acknowledge(self, message: bytes, now: float) -> None:
        """A host says how far it is, and asks."""
        self.calls["poll"] += 1
        asked = pickle.loads(message)
        self.desk.hear(asked["process"], asked["waited"], asked["checks"])
        self._release(self.state.acknowledge(asked["process"], asked["acked"], now))
        self.advance(now)

    def answer(self, host: Host) -> bytes:
        """What a host is told."""
        update = self.desk.update(host.process, host.since, host.granted, {})
        message = pickle.dumps(update, protocol=5)
        self.bytes_sent += len(message)
        return message

    def node_turn(self, node: int) -> bytes:
        """What a node is told."""
        self.calls["node_turn"] += 1
        return pickle.dumps(self.tell.take(node), protocol=5)

    def advance(self, now: float) -> None:
        ready = self.state.ready_steps
        self.state.grants.advance(ready, now, ended=ready == self.state.total_steps)
        for lease in self.book.assign([(FEED, self.state)]):
            self.tell.lease(lease)
            self._woken.add(lease.node)

    def woken(self) -> set[int]:
        """Nodes for which there is something new."""
        woken, self._woken = self._woken, set()
        return woken

    def news(self) -> bool:
        """Hosts that wait have something to hear."""
        news, self._news = self._news, self.desk.news
        return news != self._news

    def _release(self, keys: list[WindowKey]) -> None:
        for node, key in self.book.released(FEED, keys):
            self.tell.release(node, FEED, key)


class Cluster:
    """Nodes and hosts in simulated time around a coordinator."""

    def __init__(self, coordinator: Coordinator, nodes: int, readers: int, hosts: int) -> None:
        self.coordinator = coordinator
        self.now = 0.0
        self.nodes = [Node(readers) for _ in range(nodes)]
        self.hosts = [Host(process) for process in range(hosts)]
        self._random = random.Random(0)
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._writing = False
        self.late_steps = 0
        for host in self.hosts:
            self.after(self._random.random(), self._poll, host)
            self.after(self._random.random() * 0.01 + 1.0, self._step, host)
        coordinator.timed(coordinator.advance, 0.0)
        self._wake_nodes()

    def after(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, action, args))

    def run_until(self, until: Callable[[], bool]) -> None:
        """Lets time pass."""
        while not until():
            self.now, _, action, args = heapq.heappop(self._events)
            action(*args)

    def _wake_nodes(self) -> None:
        for number in self.coordinator.woken():
            if not self.nodes[number].waking:
                self.nodes[number].waking = True
                self.after(TRAVEL_S, self._node_turn, number)

    def _node_turn(self, number: int) -> None:
        node = self.nodes[number]
        node.waking = False
        self._obey(number, self.coordinator.timed(self.coordinator.node_turn, number))

    def _obey(self, number: int, message: bytes) -> None:
        update: NodeUpdate = pickle.loads(message)
        leases = [(lease.key, lease.number) for lease in update.leases]
        self.nodes[number].waiting.extend(leases)
        self._start(number)

    def _start(self, number: int) -> None:
        node = self.nodes[number]
        while node.idle and node.waiting:
            node.idle -= 1
            seconds = self._random.uniform(*SECONDS_FOR_A_WINDOW)
            self.after(seconds, self._ran, number, *node.waiting.popleft())

    def _ran(self, number: int, key: WindowKey, lease: int) -> None:
        rows = 112 + (key.window * 7 + key.epoch) % 33
        report = WindowReport(
            feed=FEED,
            key=key,
            rows=rows,
            nbytes=rows * 17_000,
            digest=hash(key) & ((1 << 63) - 1),
            tokens=rows * 8192,
            records=1500,
            storage_bytes=4 << 20,
            used_bytes=4 << 20,
            seconds={"read": 1.0, "tokenize": 40.0, "pack": 0.5, "total": 42.0},
            counts={"empty_records": 1},
            reader=f"node{number}-reader{self._random.randrange(64)}",
            lease=lease,
        )
        self.nodes[number].idle += 1
        self._start(number)
        message = pickle.dumps((number, [report]), protocol=5)
        answer = self.coordinator.timed(self.coordinator.completed, message, self.now)
        self.after(TRAVEL_S, self._obey, number, answer)
        if not self._writing:
            self._writing = True
            self.after(GATHER_WRITES_S, self._write)
        self._spread()

    def _write(self) -> None:
        self._writing = False
        self.coordinator.timed(self.coordinator.write, self.now)
        self._spread()

    def _spread(self) -> None:
        self._wake_nodes()
        if self.coordinator.news():
            for host in self.hosts:
                if host.polling and self.coordinator.state.grants.granted > host.granted:
                    self._answer(host)

    def _step(self, host: Host) -> None:
        if host.taken < host.granted:
            host.taken += 1
            if host.taken % CHECK_EVERY == 0:
                digest = SliceDigest(host.process // 2, host.taken - 1, host.taken, host.taken)
                host.checks.append(digest)
            self.after(1.0, self._step, host)
        else:
            self.late_steps += host.taken > 0
            self.after(0.05, self._step, host)
        if not host.polling and host.granted - host.taken <= max(host.depth // 2, 1):
            self._poll(host)

    def _poll(self, host: Host) -> None:
        if host.polling:
            return
        host.polling = True
        checks, host.checks = host.checks, []
        by_stage = {"grant": 0.1, "fetch": 0.2, "assemble": 0.3}
        waited = {"seconds": 0.6, "of_seconds": self.now, "by_stage": by_stage}
        asked = {"process": host.process, "acked": host.taken, "waited": waited, "checks": checks}
        message = pickle.dumps(asked, protocol=5)
        self.coordinator.timed(self.coordinator.acknowledge, message, self.now)
        self._spread()
        if host.polling:
            grants = self.coordinator.state.grants
            if grants.granted > host.granted:
                self._answer(host)
            else:
                wait = min(LONGEST_WAIT_S, grants.patience(host.process, host.taken))
                self.after(wait, self._out_of_patience, host, host.since, host.granted)

    def _out_of_patience(self, host: Host, since: int, granted: int) -> None:
        if host.polling and (host.since, host.granted) == (since, granted):
            self._answer(host)

    def _answer(self, host: Host) -> None:
        message = self.coordinator.timed(self.coordinator.answer, host)
        update = pickle.loads(message)
        host.polling = False
        host.since, host.depth = update.next_event, update.depth
        host.granted = update.grants[-1] if update.grants else host.granted
        if host.granted - host.taken <= max(host.depth // 2, 1):
            self.after(TRAVEL_S, self._poll, host)
