"""The nodes' slots for windows and their bytes, and which node has most room.

Each node is kept in one of two heaps, by its room: nodes with an idle reader, and those where a
window would have to wait its turn. A node that changes goes into a heap anew; what is out of date
is passed over when it comes up, so that a thousand nodes cost as little as ten. A node that holds
very many windows is in neither.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

SLOTS_PER_READER = 2
"""Windows that a reader has at most: one in work and one waiting, so that it never idles."""

MOST_WINDOWS = 4096
"""Held by a node ahead of need at most: each costs it a mapping, however few rows it has."""


@dataclass(slots=True)
class _Node:
    readers: int
    budget: int
    used: int = 0
    running: int = 0
    windows: int = 0
    changes: int = 0

    @property
    def room(self) -> int:
        return self.budget - self.used

    @property
    def has_slot(self) -> bool:
        return self.running < self.readers * SLOTS_PER_READER

    @property
    def is_crowded(self) -> bool:
        return self.windows >= MOST_WINDOWS


class NodeSlots:
    """Slots and bytes of every node."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}
        self._idle: list[tuple[int, int, int]] = []
        self._queueing: list[tuple[int, int, int]] = []
        self._crowded = 0
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node: int) -> bool:
        return node in self._nodes

    def used(self, node: int) -> int:
        """Bytes of row blocks on a node, those of running windows as reserved."""
        return self._nodes[node].used

    def running(self, node: int) -> int:
        """Windows that run or wait on a node."""
        return self._nodes[node].running

    def add(self, node: int, readers: int, budget: int) -> None:
        """A node with so many readers may hold so many bytes."""
        self._nodes[node] = _Node(readers, budget)
        self._changed(node)

    def remove(self, node: int) -> None:
        """A node is gone with all that it held."""
        gone = self._nodes.pop(node, None)
        if gone is not None:
            self.used_bytes -= gone.used
            self._crowded -= gone.is_crowded

    def change(self, node: int, *, running: int = 0, windows: int = 0, nbytes: int = 0) -> None:
        """A node runs and holds so many more windows, and so many more bytes lie there."""
        state = self._nodes[node]
        self._crowded -= state.is_crowded
        state.running += running
        state.windows += windows
        state.used += nbytes
        self.used_bytes += nbytes
        self._crowded += state.is_crowded
        if state.running < 0 or state.used < 0:
            raise ValueError(f"node {node} has {state.running} windows and {state.used} bytes")
        self._changed(node)

    def takes(self, node: int, nbytes: int) -> bool:
        """A node has a slot, that many bytes of room, and not too many windows."""
        state = self._nodes[node]
        return state.has_slot and state.room >= nbytes and not state.is_crowded

    def pick(self, nbytes: int) -> int | None:
        """The node with a slot that has most room, and that much; one with an idle reader first."""
        for heap in (self._idle, self._queueing):
            top = self._top(heap)
            if top is not None and self._nodes[top].room >= nbytes:
                return top
        return None

    def pick_any(self, nbytes: int) -> int | None:
        """The same for a window that must run: on a node with too many windows, or too few bytes.

        None where it is right to wait: for the slot of a node that has the room.
        """
        node = self.pick(nbytes)
        if node is not None:
            return node
        tops = [self._top(heap) for heap in (self._idle, self._queueing)]
        some = [top for top in tops if top is not None]
        if self._crowded:
            some += [n for n, state in self._nodes.items() if state.has_slot and state.is_crowded]
        if not some:
            return None
        best = max(some, key=lambda n: self._nodes[n].room)
        if self._nodes[best].room >= nbytes:
            return best
        waits = any(state.room >= nbytes for state in self._nodes.values())
        return None if waits else best

    def _top(self, heap: list[tuple[int, int, int]]) -> int | None:
        while heap:
            _, node, changes = heap[0]
            state = self._nodes.get(node)
            if state is not None and state.changes == changes:
                return node
            heapq.heappop(heap)
        return None

    def _changed(self, node: int) -> None:
        state = self._nodes[node]
        state.changes += 1
        if not state.has_slot or state.is_crowded:
            return
        heap = self._idle if state.running < state.readers else self._queueing
        heapq.heappush(heap, (-state.room, node, state.changes))
        if len(heap) > 64 + 8 * len(self._nodes):
            live = [e for e in heap if self._is_live(e)]
            heapq.heapify(live)
            heap[:] = live

    def _is_live(self, entry: tuple[int, int, int]) -> bool:
        state = self._nodes.get(entry[1])
        return state is not None and state.changes == entry[2]
