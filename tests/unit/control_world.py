"""A run without Ray: nodes that run windows in any order, hosts that take and acknowledge steps.

Drives ``FeedState`` and ``LeaseBook`` as the coordinator does, and checks after each move what must
hold. Hosts are as lazy as real ones may be: see ``Host.may_wait``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from order import Source, plans

from meshfeed.pipeline.plan.budget import FeedNeed, smallest_budget
from meshfeed.pipeline.plan.config import Remainder
from meshfeed.pipeline.plan.cursor import Cursor
from meshfeed.pipeline.plan.feed_state import FeedState, Publication, WindowKey
from meshfeed.pipeline.plan.grants import GrantBook, GrantLimits
from meshfeed.pipeline.plan.leasing import LeaseBook
from meshfeed.pipeline.plan.schedule import Schedule

ROW_BYTES = 10
FEED = "train"
PATIENCE = 3000


@dataclass
class Host:
    """One process: what it was granted, has taken, and has said that it took."""

    granted: int
    taken: int
    acked: int

    def may_wait(self, least_depth: int, ended: bool) -> bool:
        """It waits for a grant and does not say how far it is, as ``GrantBook.patience`` allows."""
        behind = self.granted - self.acked <= least_depth // 2
        return self.taken == self.acked or (behind and not ended)


@dataclass
class Node:
    """What really is on a node: bytes of windows that run (reserved) and that have run."""

    readers: int
    running: dict[WindowKey, int] = field(default_factory=dict)
    held: dict[WindowKey, int] = field(default_factory=dict)


class World:
    """One feed on some nodes, consumed by some hosts."""

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        batch_size: int = 4,
        processes: int = 2,
        nodes: Sequence[int] = (2,),
        budget: int | None = None,
        remainder: Remainder = Remainder.PAD,
        max_steps: int | None = None,
        prefetch: int = 1,
        most_rows: int | None = None,
        rows_estimate: int = 3,
    ) -> None:
        self.sources = list(sources)
        self.batch_size = batch_size
        self.remainder = remainder
        self.max_steps = max_steps
        self.limits = GrantLimits(prefetch=prefetch, gather_seconds=0.0)
        self.rows_estimate = rows_estimate
        largest = max((r for s in sources for e in s.windows for r in e), default=1)
        self.most_rows = max(largest, 1) if most_rows is None else most_rows
        window_bytes = [self.most_rows * ROW_BYTES] * len(sources)
        self.need = FeedNeed.of(self.limits.least_depth, batch_size * ROW_BYTES, window_bytes)
        self.smallest = smallest_budget([self.need], len(nodes))
        self.budget = self.smallest if budget is None else budget
        self.lost_a_node = False
        self.book = LeaseBook(
            block_bytes=lambda _, source: self.state.most_rows(source) * ROW_BYTES,
            group=lambda _, key: key,
            needs=lambda: [self.need],
        )
        self.nodes: dict[int, Node] = {}
        self.next_node = 0
        for readers in nodes:
            self.add_node(readers)
        self.now = 0.0
        self.open(processes, None)

    # -- moves ----------------------------------------------------------------------------------

    def open(self, processes: int, cursor: Cursor | None) -> None:
        """A membership begins; what the last one held is released."""
        held = self.state.held() if hasattr(self, "state") else []
        for node, key in self.book.released(FEED, held):
            self.nodes[node].running.pop(key, None)
            self.nodes[node].held.pop(key, None)
        step = 0 if cursor is None else cursor.step
        count = len(self.sources)
        self.state = FeedState(
            Schedule(plans(self.sources), start=cursor),
            batch_size=self.batch_size,
            remainder=self.remainder,
            max_steps=self.max_steps,
            grants=GrantBook(processes, step, self.limits),
            rows_estimate=[self.rows_estimate] * count,
            most_rows=[self.most_rows] * count,
        )
        self.replica = Schedule(plans(self.sources), start=cursor)  # a host's, that never forgets
        self.first_row = self.replica.first_row
        self.where: dict[WindowKey, int] = {}
        self.queue: list[Publication] = []
        self.published: dict[WindowKey, int] = {}
        self.hosts = [Host(step, step, step) for _ in range(processes)]
        self.most_ready = step
        self.released: set[WindowKey] = set()

    def add_node(self, readers: int) -> None:
        self.nodes[self.next_node] = Node(readers)
        self.book.add_node(self.next_node, readers, self.budget)
        self.next_node += 1

    def lose_node(self, node: int) -> None:
        """A node dies, and another takes its place."""
        self.lost_a_node = True
        readers = self.nodes.pop(node).readers
        gone = self.book.remove_node(node)
        self.state.lost(gone.get(FEED, []))
        self.add_node(readers)

    def assign(self) -> int:
        leases = self.book.assign([(FEED, self.state)])
        for node, feed, key in leases:
            assert feed == FEED
            assert all(key not in n.running and key not in n.held for n in self.nodes.values())
            self.nodes[node].running[key] = self.state.most_rows(key.source) * ROW_BYTES
            assert len(self.nodes[node].running) <= 2 * self.nodes[node].readers
        return len(leases)

    def running(self) -> list[tuple[int, WindowKey]]:
        return [(node, key) for node, state in self.nodes.items() for key in state.running]

    def complete(self, node: int, key: WindowKey) -> None:
        """A window has run on a node, now or for a second time."""
        rows = self.sources[key.source].rows_in(key.epoch)[key.window]
        if self.book.completed(FEED, key, node, rows * ROW_BYTES):
            self.nodes[node].running.pop(key, None)
            self.nodes[node].held[key] = rows * ROW_BYTES
        done = self.state.completed(key, rows, rows, node)
        if done.moved:
            assert key in self.published
            self.where[key] = node
        self.queue += done.publications

    def write(self) -> None:
        """The ledger has what was queued."""
        told = [p for p in self.queue if self.state.is_held(p.key)]
        self.queue = []
        unneeded = self.state.publish(told)
        for key, rows, _ in told:
            assert key not in self.published, "published twice"
            assert tuple(key[1:]) == self.replica.next_window(key.source), "out of order"
            self.replica.append(key.source, [rows])
            self.published[key] = rows
            self.where[key] = self.state.holder(key)
        self._release(unneeded)

    def advance(self) -> None:
        """Hosts hear of grants."""
        self.now += 0.01
        before = self.state.grants.granted
        ready = self.state.ready_steps
        self.most_ready = max(self.most_ready, ready)
        granted = self.state.grants.advance(ready, self.now, ended=ready == self.state.total_steps)
        assert granted >= before
        assert granted <= self.most_ready
        for host in self.hosts:
            for grant in self.state.grants.grants_after(host.granted):
                assert grant > host.granted
                host.granted = grant
            assert host.granted == granted

    def take(self, process: int) -> bool:
        """A host takes its next step, if all its rows lie somewhere."""
        host = self.hosts[process]
        if host.taken >= host.granted:
            return False
        begin = host.taken * self.batch_size
        places = self.replica.locate(begin, min(begin + self.batch_size, self.replica.known_rows))
        for source, epoch, window, _ in zip(*(p.tolist() for p in places), strict=True):
            key = WindowKey(source, epoch, window)
            assert key not in self.released, "released before it was taken"
            if key not in getattr(self.nodes.get(self.where[key]), "held", {}):
                assert self.lost_a_node, f"{key} was granted and is not there"
                return False
        host.taken += 1
        return True

    def acknowledge(self, process: int) -> None:
        host = self.hosts[process]
        host.acked = host.taken
        self.now += 0.01
        self._release(self.state.acknowledge(process, host.acked, self.now))

    # -- what must hold -------------------------------------------------------------------------

    def check(self) -> None:
        floor = min(host.acked for host in self.hosts)
        assert self.state.grants.floor == floor
        total = 0
        for number, node in self.nodes.items():
            used = sum(node.running.values()) + sum(node.held.values())
            assert self.book.used_on(number) == used >= 0
            if not self.lost_a_node and self.budget >= self.smallest:
                assert used <= self.budget
            total += used
        assert self.book.used_bytes == total
        assert total <= len(self.nodes) * self.budget + self.need.reserved
        held = {key for node in self.nodes.values() for key in (*node.running, *node.held)}
        assert held <= set(self.state.held())
        assert not held & self.released

    def _release(self, keys: list[WindowKey]) -> None:
        floor = min(host.acked for host in self.hosts)
        behind = min(floor * self.batch_size, self.replica.known_rows)
        end = self.state.end_row
        ended = self.state.total_steps is not None
        last = self.replica.known_rows if not ended or end is None else max(end, self.first_row)
        if keys:
            places = self.replica.locate(behind, max(last, behind))
            wanted = set(zip(*(p.tolist() for p in places[:3]), strict=True))
            drawn = self.replica.drawn(behind).tolist()
            for key in keys:
                assert key not in self.released
                assert tuple(key) not in wanted, "released, but not all have taken it"
                # Nor may rows of it lie further on than is known.
                if not ended and self.published.get(key):
                    assert self._end_of(key) <= drawn[key.source]
        self.released.update(key for key in keys if key in self.published)
        for node, key in self.book.released(FEED, keys):
            self.nodes[node].running.pop(key, None)
            self.nodes[node].held.pop(key, None)

    def _end_of(self, key: WindowKey) -> int:
        """Rows of its source up to the end of a window, from the first of the run."""
        source = self.sources[key.source]
        before = sum(sum(source.rows_in(epoch)) for epoch in range(key.epoch))
        return before + sum(source.rows_in(key.epoch)[: key.window + 1])

    # -- to the end -----------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        total = self.state.last_step
        return total is not None and all(host.acked >= total for host in self.hosts)

    def run(self, random: random.Random, steps: int) -> None:
        """Goes on until the feed ends or all hosts have acknowledged so many steps.

        Fails where nothing can move any more.
        """
        while not self.ended and min(host.acked for host in self.hosts) < steps:
            moved = self.assign()
            running = self.running()
            if running:
                self.complete(*random.choice(running))
                moved += 1
            moved += bool(self.queue)
            self.write()
            self.advance()
            for process in random.sample(range(len(self.hosts)), len(self.hosts)):
                if random.random() < 0.7:
                    moved += self.take(process)
            if not moved:
                moved = self._all_take()
            self.check()
            assert moved, f"nothing moves: {self.state.grants.floor}, {self.state.ready_steps}"

    def _all_take(self) -> int:
        """Every host takes what it can, and then says so if it must."""
        moved = 0
        for process, host in enumerate(self.hosts):
            while self.take(process):
                moved += 1
            total = self.state.last_step
            if not host.may_wait(self.limits.least_depth, host.granted == total):
                self.acknowledge(process)
                moved += 1
        return moved
