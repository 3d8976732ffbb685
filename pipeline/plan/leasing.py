"""Which node runs which window.

A node takes windows while it has a free slot and its row blocks stay within its budget. Urgent
windows (see ``FeedState.next_urgent``) go before all others and may use all of it; the others
leave alone what ``smallest_budget`` keeps for the urgent ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshfeed.pipeline.plan.budget import FeedNeed, smallest_budget
from meshfeed.pipeline.plan.feed_state import FeedState, WindowKey
from meshfeed.pipeline.plan.node_slots import NodeSlots

Named = tuple[str, WindowKey]


class Lease(NamedTuple):
    """Node ``node`` is to run window ``key`` of feed ``feed``."""

    node: int
    feed: str
    key: WindowKey


@dataclass(slots=True)
class _Place:
    """Where a window runs or lies.

    Attributes:
        node: the node.
        nbytes: of its rows; while it runs, what was reserved for them.
        running: it has not completed.
    """

    node: int
    nbytes: int
    running: bool = True


class LeaseBook:
    """Slots and bytes of every node, and the windows that take them.

    Args:
        block_bytes: bytes that the next window of (feed, source) takes at most.
        group: windows of a source with the same group share cached chunks and stay on one node.
        needs: what each feed of the run needs, open or not.
    """

    def __init__(
        self,
        *,
        block_bytes: Callable[[str, int], int],
        group: Callable[[str, WindowKey], Hashable],
        needs: Callable[[], Sequence[FeedNeed]],
    ) -> None:
        self._block_bytes = block_bytes
        self._group = group
        self._needs = needs
        self._nodes = NodeSlots()
        self._places: dict[Named, _Place] = {}
        self._home: dict[tuple[str, int], tuple[Hashable, int]] = {}

    @property
    def used_bytes(self) -> int:
        """Bytes of row blocks on all nodes, those of running windows as reserved."""
        return self._nodes.used_bytes

    def used_on(self, node: int) -> int:
        """The same of one node."""
        return self._nodes.used(node)

    def add_node(self, node: int, readers: int, budget: int) -> None:
        """A node with so many readers may hold so many bytes of row blocks."""
        self._nodes.add(node, readers, budget)

    def remove_node(self, node: int) -> dict[str, list[WindowKey]]:
        """The node is gone with all that it held.

        Returns:
            The windows of each feed that must be run again: tell ``FeedState.lost``.
        """
        gone: dict[str, list[WindowKey]] = defaultdict(list)
        self._nodes.remove(node)
        for (feed, key), place in list(self._places.items()):
            if place.node == node:
                del self._places[feed, key]
                gone[feed].append(key)
        return dict(gone)

    def assign(self, feeds: Sequence[tuple[str, FeedState]]) -> list[Lease]:
        """Leases as many windows as the nodes take; feeds in order of importance."""
        if not len(self._nodes):
            return []
        leases: list[Lease] = []
        for name, feed in feeds:
            while (key := feed.next_urgent()) is not None:
                if (node := self._pick(name, key, None)) is None:
                    break
                leases.append(self._lease(node, name, feed, key))
        kept = smallest_budget(self._needs(), len(self._nodes))
        for name, feed in feeds:
            while (key := feed.next_lease()) is not None:
                if (node := self._pick(name, key, kept)) is None:
                    break
                leases.append(self._lease(node, name, feed, key))
        return leases

    def completed(self, feed: str, key: WindowKey, node: int, nbytes: int) -> bool:
        """A window has run on a node and takes so many bytes there.

        Returns:
            False where it is not leased there, so that it counts for nothing.
        """
        place = self._places.get((feed, key))
        if place is None or place.node != node:
            return False
        self._nodes.change(node, running=-place.running, nbytes=nbytes - place.nbytes)
        place.running, place.nbytes = False, nbytes
        return True

    def released(self, feed: str, keys: Iterable[WindowKey]) -> list[tuple[int, WindowKey]]:
        """Nobody needs these windows, run or not: which node is to forget which."""
        freed = []
        for key in keys:
            place = self._places.pop((feed, key), None)
            if place is not None:
                self._nodes.change(
                    place.node, running=-place.running, windows=-1, nbytes=-place.nbytes
                )
                freed.append((place.node, key))
        return freed

    def _lease(self, node: int, name: str, feed: FeedState, key: WindowKey) -> Lease:
        feed.leased(key, node)
        nbytes = self._block_bytes(name, key.source)
        self._nodes.change(node, running=1, windows=1, nbytes=nbytes)
        self._places[name, key] = _Place(node, nbytes)
        group = self._group(name, key)
        home = self._home.get((name, key.source))
        if home is None or home[0] != group or home[1] not in self._nodes:
            self._home[name, key.source] = (group, node)
        return Lease(node, name, key)

    def _pick(self, feed: str, key: WindowKey, kept: int | None) -> int | None:
        """The node for a window: where its group is, or with most room.

        Args:
            feed: of the window.
            key: the window.
            kept: bytes that it must leave free on its node; None: it is urgent.
        """
        nbytes = self._block_bytes(feed, key.source) + (kept or 0)
        group, home = self._home.get((feed, key.source), (None, -1))
        near = home in self._nodes and self._nodes.takes(home, nbytes)
        if near and group == self._group(feed, key):
            return home
        return self._nodes.pick_any(nbytes) if kept is None else self._nodes.pick(nbytes)
