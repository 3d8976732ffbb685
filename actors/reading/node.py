"""The node server: answers for the row blocks of one node.

It owns the node's readers, hands them windows, and cuts regions out of their blocks for hosts. Each
concern has a thread of its own, so that a fetch never waits for a tokenizer and a report never
waits for a fetch.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import OrderedDict
from typing import Any

import ray
import xxhash
from ray.actor import ActorHandle

from meshfeed.actors.messages import FetchRequest, NodeUpdate, WindowReport
from meshfeed.actors.reading.reader_pool import ReaderPool
from meshfeed.actors.reading.shared_memory import (
    NodeFolder,
    block_path,
    open_block,
    remove_leftovers,
    spare_block,
)
from meshfeed.pipeline.data.batches.regions import cut_region, region_nbytes
from meshfeed.pipeline.data.memory import RecycledMemory
from meshfeed.pipeline.data.packing.blocks import RowBlock
from meshfeed.pipeline.plan.errors import MeshfeedError, StallError
from meshfeed.pipeline.plan.feed_state import WindowKey
from meshfeed.pipeline.plan.run_config import RunConfig

SHARED_CUTS = 32
"""Cuts kept at most for hosts of a slice group that have not asked yet."""

CLEAN_EVERY_S = 30.0

LOOK_EVERY_S = 1.0
"""How often the server looks whether it should stop, when nothing else happens."""

Answer = tuple[Any, int] | list[WindowKey]


class NodeServer:
    """Wrapped as a Ray actor, one on each reader node.

    Args:
        node: number that the coordinator gave.
        config: of the run.
        coordinator: handle of the run's coordinator.
        readers: processes to run here.
    """

    def __init__(
        self, node: int, config: RunConfig, coordinator: ActorHandle, readers: int
    ) -> None:
        self._node = node
        self._coordinator = coordinator
        self._timeout_s = config.timeout_seconds
        self._folder = NodeFolder(config.run_id)
        self._blocks: dict[tuple[str, WindowKey], RowBlock] = {}
        self._shared: OrderedDict[str, _SharedCut] = OrderedDict()
        self._cuts = 0
        self._lock = threading.Lock()
        self._stop = threading.Lock()
        self._of_thread = threading.local()
        self._stopping = threading.Event()
        self._obeyed = 0
        self._early: dict[int, NodeUpdate] = {}
        self._pool = ReaderPool(node, config, self._folder.path, readers)
        threading.Thread(target=self._guard, args=(self._work,), daemon=True).start()

    def ready(self) -> dict[str, Any]:
        """Who and where this is."""
        node_id = ray.get_runtime_context().get_node_id()
        return {
            "node": self._node,
            "pid": os.getpid(),
            "ray_node": node_id,
            "readers": len(self._pool),
        }

    def watch(self) -> None:
        """Returns when the server stops; fails at once when it dies."""
        self._stopping.wait()

    def in_work(self) -> list[dict[str, Any]]:
        """What each reader does right now: reader, host, stage, feed, what, pid, seconds."""
        here = socket.gethostname()
        return [entry | {"host": here} for entry in self._pool.in_work()]

    def cuts(self) -> int:
        """Regions cut so far; hosts of one slice group share theirs."""
        return self._cuts

    def stop(self) -> None:
        """Ends readers and threads and removes the shared memory."""
        with self._stop:  # who comes second waits until it has stopped
            if self._stopping.is_set():
                return
            self._stopping.set()
            self._pool.kill()
            with self._lock:
                self._blocks.clear()
                self._shared.clear()
            self._folder.close()
            remove_leftovers()

    def fetch(self, request: FetchRequest) -> Answer:
        """The regions that a request names, in one flat buffer, and its digest.

        Returns:
            (uint8[nbytes], xxh3-64 of it), the buffer as a one-element list of an object
            reference where several hosts share it; or the windows that are not here.
        """
        if request.share_count == 1:
            return self._cut(request)
        with self._lock:
            shared = self._shared.setdefault(request.share_key, _SharedCut())
            first = not shared.asked
            shared.asked += 1
            if shared.asked == request.share_count:
                del self._shared[request.share_key]
            while len(self._shared) > SHARED_CUTS:
                self._shared.popitem(last=False)
        if first:
            answer: Answer = list(request.windows)  # what the others hear if the cut fails
            try:
                answer = self._cut(request)
                if isinstance(answer, tuple):
                    answer = ([ray.put(answer[0])], answer[1])
            finally:
                shared.give(answer)
        return shared.take(self._timeout_s)

    def _cut(self, request: FetchRequest) -> Answer:
        with self._lock:
            found = [self._blocks.get((request.feed, key)) for key in request.windows]
        blocks = [block for block in found if block is not None]
        if len(blocks) < len(found):
            pairs = zip(request.windows, found, strict=True)
            return [key for key, block in pairs if block is None]
        format = blocks[0].format
        sizes = [region_nbytes(format, len(rows), c1 - c0) for _, rows, (c0, c1) in request.regions]
        buffer = self._memory()(sum(sizes))
        at = 0
        for (windows, rows, (c0, c1)), size in zip(request.regions, sizes, strict=True):
            if size:
                part = buffer[at : at + size]
                cut_region(blocks, windows, rows, c0, c1, out=part, format=format)
            at += size
        with self._lock:
            self._cuts += 1
            kept = [self._blocks.get((request.feed, key)) for key in request.windows]
        if any(now is not then for now, then in zip(kept, found, strict=True)):
            return list(request.windows)  # released meanwhile: its memory may serve another
        return buffer, xxhash.xxh3_64_intdigest(buffer.data)

    def _memory(self) -> RecycledMemory:
        """Memory for cuts, this thread's own; Ray has copied an answer when it is cut anew."""
        memory: RecycledMemory | None = getattr(self._of_thread, "memory", None)
        if memory is None:
            memory = self._of_thread.memory = RecycledMemory(keep=2)
        return memory

    def _guard(self, work: Any) -> None:
        """A failure in a thread of the server is the run's."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - reported to every host by the coordinator
            if not self._stopping.is_set():
                known = isinstance(error, MeshfeedError)
                told = error if known else MeshfeedError(f"node {self._node}: {error!r}")
                self._coordinator.fail.remote(self._node, told)

    def _work(self) -> None:
        """Keeps every reader busy, reports what they have run, and does what it is told.

        One call is always with the coordinator that it answers when there is something to do; a
        report is answered with what follows from it.
        """
        turn = self._coordinator.node_turn.remote(self._node)
        cleaned = time.monotonic()
        asked = {turn: cleaned}
        while not self._stopping.is_set():
            now = time.monotonic()
            if now - cleaned > CLEAN_EVERY_S:
                remove_leftovers()  # of servers that have died since this one began
                cleaned = now
            if now - next(iter(asked.values())) > self._timeout_s:
                raise StallError("the coordinator's answer", self._timeout_s, stage="node")
            reports, answered = self._pool.turn(list(asked), LOOK_EVERY_S)
            for report in reports:
                self._open(report)
            if reports:
                call = self._coordinator.completed.remote(self._node, reports)
                asked[call] = time.monotonic()
            for answer in answered:
                del asked[answer]
                if not self._obey(answer):
                    self.stop()
                    return
            if turn in answered:
                turn = self._coordinator.node_turn.remote(self._node)
                asked[turn] = time.monotonic()

    def _obey(self, answer: Any) -> bool:
        """Does what it is told, in the order in which it was said: answers overtake each other.

        Returns:
            False where it is to end, or where the coordinator is gone: what comes after that has
            its own servers.
        """
        try:
            update: NodeUpdate | None = ray.get(answer)
        except ray.exceptions.RayActorError:
            return False
        if update is None or update.stop:
            return False
        self._early[update.number] = update
        while (now := self._early.pop(self._obeyed, None)) is not None:
            self._obeyed += 1
            if now.specs:
                self._pool.prepare(now.specs)
            for feed, key in now.releases:
                self._release(feed, key)
            self._pool.lease(now.leases)
        return True

    def _release(self, feed: str, key: WindowKey) -> None:
        """Forgets a window, in the thread that opens blocks: else one might be opened too late."""
        if self._pool.release(feed, key):
            return
        with self._lock:
            self._blocks.pop((feed, key), None)
        spare_block(block_path(self._folder.path, feed, key), keep=4 * len(self._pool))

    def _open(self, report: WindowReport) -> None:
        if report.error is None and report.rows:
            block = open_block(block_path(self._folder.path, report.feed, report.key))
            with self._lock:
                self._blocks[report.feed, report.key] = block


class _SharedCut:
    """A region that the first host of a slice group has cut and the others take."""

    def __init__(self) -> None:
        self.asked = 0
        self._given = threading.Event()
        self._answer: Answer = []

    def give(self, answer: Answer) -> None:
        self._answer = answer
        self._given.set()

    def take(self, timeout_s: float) -> Answer:
        if not self._given.wait(timeout_s):
            raise StallError("shared region", timeout_s, stage="cut")
        return self._answer
