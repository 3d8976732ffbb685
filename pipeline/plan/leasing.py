"""Which node runs which window: slots, byte budgets, and the smallest budget that works.

A node takes windows as long as it has a free slot and its row blocks stay within its budget.
Urgent windows (see ``FeedState.urgent_leases``) go before all others and need no budget: a part
of it is reserved for them, ``smallest_budget`` counts it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from meshfeed.pipeline.plan.errors import BudgetError
from meshfeed.pipeline.plan.feed_state import FeedState, WindowKey

SLOTS_PER_READER = 2
"""Windows that a reader has at most: one in work and one waiting, so that it never idles."""


class Lease(NamedTuple):
    """Node ``node`` is to run window ``key`` of feed ``feed``."""

    node: int
    feed: str
    key: WindowKey


@dataclass(slots=True)
class _Node:
    slots: int
    budget: int
    used: int = 0
    running: set[tuple[str, WindowKey]] = field(default_factory=set)

    def takes(self, nbytes: int) -> bool:
        return len(self.running) < self.slots and self.used + nbytes <= self.budget


class LeaseBook:
    """Slots and bytes of every node.

    Args:
        block_bytes: bytes that the next window of (feed, source) will take.
        group: windows with the same group share cached chunks and stay on one node.
    """

    def __init__(
        self,
        *,
        block_bytes: Callable[[str, int], int],
        group: Callable[[str, WindowKey], Hashable],
    ) -> None:
        self._block_bytes = block_bytes
        self._group = group
        self._nodes: dict[int, _Node] = {}
        self._turn: deque[int] = deque()
        self._bytes: dict[tuple[str, WindowKey], tuple[int, int]] = {}
        self._home: dict[tuple[str, int], tuple[Hashable, int]] = {}

    @property
    def used_bytes(self) -> int:
        """Bytes of row blocks on all nodes, those of running windows as estimated."""
        return sum(node.used for node in self._nodes.values())

    def add_node(self, node: int, readers: int, budget: int) -> None:
        """A node with so many readers may hold so many bytes of row blocks."""
        self._nodes[node] = _Node(readers * SLOTS_PER_READER, budget)
        self._turn.append(node)

    def remove_node(self, node: int) -> None:
        """The node is gone with all that it held."""
        self._nodes.pop(node, None)
        if node in self._turn:
            self._turn.remove(node)
        for name, (where, _) in list(self._bytes.items()):
            if where == node:
                del self._bytes[name]

    def assign(self, feeds: Sequence[tuple[str, FeedState]]) -> list[Lease]:
        """Leases as many windows as the nodes take; feeds in order of importance."""
        leases = []
        for name, feed in feeds:
            for key in feed.urgent_leases():
                node = self._pick(name, key, 0)
                if node is not None:
                    leases.append(self._lease(node, name, feed, key))
        for name, feed in feeds:
            while (next_key := feed.next_lease()) is not None:
                node = self._pick(name, next_key, self._block_bytes(name, next_key.source))
                if node is None:
                    break
                leases.append(self._lease(node, name, feed, next_key))
        return leases

    def completed(self, feed: str, key: WindowKey, nbytes: int) -> None:
        """A window has run and takes so many bytes on its node."""
        where = self._bytes.get((feed, key))
        if where is None:
            return
        node = self._nodes[where[0]]
        node.running.discard((feed, key))
        node.used += nbytes - where[1]
        self._bytes[feed, key] = (where[0], nbytes)

    def released(self, feed: str, keys: Iterable[WindowKey]) -> list[tuple[int, WindowKey]]:
        """Nobody needs these windows: which node is to forget which."""
        freed = []
        for key in keys:
            where = self._bytes.pop((feed, key), None)
            if where is not None and where[0] in self._nodes:
                node = self._nodes[where[0]]
                node.used -= where[1]
                node.running.discard((feed, key))
                freed.append((where[0], key))
        return freed

    def _lease(self, node: int, name: str, feed: FeedState, key: WindowKey) -> Lease:
        estimate = self._block_bytes(name, key.source)
        state = self._nodes[node]
        state.used += estimate
        state.running.add((name, key))
        self._bytes[name, key] = (node, estimate)
        self._home[name, key.source] = (self._group(name, key), node)
        feed.leased(key, node)
        return Lease(node, name, key)

    def _pick(self, feed: str, key: WindowKey, nbytes: int) -> int | None:
        """The node for a window: where its group is, else the next that takes it.

        ``nbytes`` 0 asks for a slot alone.
        """
        group, home = self._home.get((feed, key.source), (None, -1))
        if home in self._nodes and group == self._group(feed, key):
            state = self._nodes[home]
            if len(state.running) < state.slots and (not nbytes or state.takes(nbytes)):
                return home
        for _ in range(len(self._turn)):
            node = self._turn[0]
            self._turn.rotate(-1)
            state = self._nodes[node]
            if len(state.running) < state.slots and (not nbytes or state.takes(nbytes)):
                return node
        return None


def smallest_budget(
    *, steps_ahead: int, batch_bytes: int, window_bytes: Sequence[int], nodes: int = 1
) -> int:
    """Bytes of row blocks per node below which a feed could not keep its prefetch full.

    The rows of the steps that hosts may be ahead, and for every source one window that is being
    taken and one that is being run.

    Args:
        steps_ahead: steps that a grant reaches ahead at least.
        batch_bytes: of one global batch in row blocks.
        window_bytes: of one window of each source.
        nodes: over which the windows are spread.
    """
    return -(-(steps_ahead * batch_bytes + 2 * sum(window_bytes)) // nodes)


def check_budget(given_bytes: int, needed_bytes: int) -> None:
    """Refuses a budget that is too small.

    Raises:
        BudgetError: with the number that works.
    """
    if given_bytes < needed_bytes:
        raise BudgetError(
            "memory_budget",
            given_bytes,
            needed_bytes,
            "It must hold the steps ahead and two windows of each source; smaller batches, "
            "seq_len or prefetch need less",
        )
