"""A feed's desk with nodes and hosts around it, messages and ledger as in a run; no Ray."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshfeed.actors.control.feed_desk import FeedDesk
from meshfeed.actors.control.node_desk import NodeDesk
from meshfeed.actors.messages import WindowReport
from meshfeed.pipeline.data.packing.blocks import BlockFormat
from meshfeed.pipeline.plan.budget import smallest_budget
from meshfeed.pipeline.plan.config import FeedConfig, OnEnd, Shuffle, SourceConfig
from meshfeed.pipeline.plan.cursor import Cursor
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.feed_state import WindowKey
from meshfeed.pipeline.plan.grants import GrantLimits
from meshfeed.pipeline.plan.leasing import LeaseBook
from meshfeed.pipeline.plan.ledger import Ledger
from meshfeed.pipeline.plan.manifest import Shard, SourceManifest, Unit
from meshfeed.pipeline.plan.schedule import Schedule

FEED = "train"


def spec_of(
    *,
    weights: tuple[float, ...] = (0.7, 0.3),
    windows: int = 12,
    epochs: int = 1,
    batch_size: int = 8,
    on_end: OnEnd = OnEnd.CONTINUE,
) -> FeedSpec:
    """A feed of records that are counted: windows of about 100 of them, which give some rows."""
    names = [f"source-{i}" for i in range(len(weights))]
    config = FeedConfig(
        name=FEED,
        sources=tuple(
            SourceConfig(name=n, data=(n,), weight=w, on_end=on_end)
            for n, w in zip(names, weights, strict=True)
        ),
        seq_len=16,
        batch_size=batch_size,
        epochs=epochs,
        shuffle=Shuffle.CHUNK,
    )
    manifests = tuple(
        SourceManifest(
            name=name,
            root="",
            format="grain",
            unit=Unit.RECORDS,
            shards=(Shard(name, 100 * windows),),
            splittable=True,
            random_access=False,
            chunk_size=100,
            window_size=100,
            group_size=400,
        )
        for name in names
    )
    return FeedSpec(
        config=config,
        manifests=manifests,
        token_dtype="uint16",
        loss_mask=False,
        window_rows=6,
        engine="",
        tokenizer_fingerprint="",
        fingerprint="desk",
    )


def rows_of(key: WindowKey) -> int:
    """A window gives 0 to 9 rows, always as many."""
    return (key.source * 7 + key.epoch * 5 + key.window * 3) % 10


class Host:
    """One process, with a schedule of its own, as ``HostFeed`` keeps it."""

    def __init__(self, process: int, spec: FeedSpec, start: dict[str, Any] | None) -> None:
        cursor = None if start is None else Cursor.from_json(start)
        self.process = process
        self.schedule = Schedule(spec.source_plans(spec.epochs()), start=cursor)
        self.taken = self.granted = 0 if cursor is None else cursor.step
        self.since = 0
        self.total: int | None = None
        self.node_of: dict[WindowKey, int] = {}
        self.events: list[WindowKey] = []

    def hear(self, update: Any) -> None:
        for source, epoch, window, rows, records, node in update.events.tolist():
            key = WindowKey(source, epoch, window)
            assert key[1:] == self.schedule.next_window(source)
            assert rows == rows_of(key)
            self.schedule.append(source, [rows], [records])
            self.events.append(key)
            self.node_of[key] = node
        for source, epoch, window, node in update.moved.tolist():
            self.node_of[WindowKey(source, epoch, window)] = node
        self.since = update.next_event
        for grant in update.grants:
            assert grant > self.granted
            self.granted = grant
        self.total = update.total_steps


class DeskWorld:
    """Nodes, hosts and the coordinator's desks; nothing waits, nothing is a thread."""

    def __init__(
        self,
        folder: Path,
        spec: FeedSpec,
        *,
        hosts: int = 2,
        nodes: int = 2,
        readers: int = 2,
        max_steps: int | None = None,
        extra_budget: int = 0,
        rows: Callable[[WindowKey], int] = rows_of,
    ) -> None:
        self.spec = spec
        self.rows = rows
        self.ledger = Ledger(folder / "train.ledger", spec.fingerprint)
        self.limits = GrantLimits(prefetch=1, gather_seconds=0.0)
        self.desk = FeedDesk(spec, self.ledger, max_steps, self.limits)
        self.tell = NodeDesk({FEED: spec})
        self.book = LeaseBook(
            block_bytes=lambda _, source: self.desk.block_bytes(source),
            group=lambda _, key: self.desk.group(key),
            needs=lambda: [self.desk.need],
        )
        self.budget = smallest_budget([self.desk.need], nodes) + extra_budget
        self.readers = readers
        self.running: dict[int, dict[WindowKey, int]] = {}
        self.held: dict[int, set[WindowKey]] = {}
        for node in range(nodes):
            self.add_node(node)
        self.generation = 0
        self.now = 0.0
        self.windows_run = 0
        self.open(hosts, None)

    def add_node(self, node: int) -> None:
        self.tell.add(node)
        self.book.add_node(node, self.readers, self.budget)
        self.running[node], self.held[node] = {}, set()

    def open(self, hosts: int, start: dict[str, Any] | None) -> None:
        held = [] if self.desk.state is None else self.desk.state.held()
        self.generation += 1
        self.desk.open(self.generation, hosts, start)
        self.release(held)
        self.hosts = [Host(process, self.spec, start) for process in range(hosts)]

    @property
    def state(self) -> Any:
        return self.desk.check(self.generation)

    def release(self, keys: list[WindowKey]) -> None:
        for node, key in self.book.released(FEED, keys):
            self.tell.release(node, FEED, key)

    def lose_node(self, node: int, instead: int) -> None:
        del self.running[node], self.held[node]
        self.state.lost(self.book.remove_node(node).get(FEED, []))
        self.add_node(instead)

    def lease(self) -> None:
        for lease in self.book.assign([(FEED, self.state)]):
            self.tell.lease(lease)
        for node in self.running:
            update = pickle.loads(pickle.dumps(self.tell.take(node)))
            for _, key in update.releases:
                self.running[node].pop(key, None)
                self.held[node].discard(key)
            self.running[node] |= {lease.key: lease.number for lease in update.leases}

    def complete(self, node: int, key: WindowKey, **other: Any) -> None:
        number = self.running[node].pop(key)
        rows = self.rows(key)
        nbytes = BlockFormat.of(self.spec).nbytes(rows) if rows else 0
        report = WindowReport(
            feed=FEED,
            key=key,
            lease=number,
            rows=rows,
            records=100,
            nbytes=nbytes,
            tokens=16 * rows,
            digest=hash(key) & 0xFFFF,
        )
        self.held[node].add(key)
        self.windows_run += 1
        if self.tell.is_current(report):
            self.book.completed(FEED, key, node, nbytes)
            self.desk.completed(node, [report])

    def write(self) -> None:
        writing = self.desk.take()
        if writing is not None:
            self.desk.write(writing)
            self.release(self.desk.publish(writing))

    def poll(self, host: Host) -> None:
        self.now += 0.01
        self.release(self.state.acknowledge(host.process, host.taken, self.now))
        ready = self.state.ready_steps
        self.state.grants.advance(ready, self.now, ended=ready == self.state.total_steps)
        update = self.desk.update(host.process, host.since, host.granted, {})
        host.hear(pickle.loads(pickle.dumps(update)))

    def take(self, host: Host, steps: int = 1) -> bool:
        """Takes steps, if all their windows lie where the host believes."""
        for _ in range(steps):
            if host.taken >= host.granted:
                return False
            begin = host.taken * self.spec.config.batch_size
            end = min(begin + self.spec.config.batch_size, host.schedule.known_rows)
            places = host.schedule.locate(begin, end)
            for name in zip(*(p.tolist() for p in places[:3]), strict=True):
                node = host.node_of[WindowKey(*name)]
                if WindowKey(*name) not in self.held.get(node, ()):
                    return False
            host.taken += 1
        return True

    def run(self, random: random.Random, steps: int = 1 << 30) -> None:
        """Goes on until all hosts have acknowledged the end, or so many steps."""
        idle = 0
        while not self.ended and min(h.taken for h in self.hosts) < steps:
            before = (self.windows_run, [h.taken for h in self.hosts], self.ledger.num_entries)
            self.lease()
            running = [(node, key) for node, keys in self.running.items() for key in keys]
            few = min(len(running), random.randint(0, 4))
            for node, key in random.sample(running, few) if idle < 5 else running[:1]:
                self.complete(node, key)
            if random.random() < 0.6 or idle >= 5:
                self.write()
            for host in random.sample(self.hosts, len(self.hosts)):
                self.take(host, random.randint(0, 6) if idle < 5 else 1)
                if random.random() < 0.5 or idle >= 5:
                    self.poll(host)
            after = (self.windows_run, [h.taken for h in self.hosts], self.ledger.num_entries)
            idle = idle + 1 if before == after else 0
            assert idle < 20, f"nothing moves: {self.desk.status()}"

    @property
    def ended(self) -> bool:
        total = self.state.total_steps
        return total is not None and self.state.grants.floor >= total
