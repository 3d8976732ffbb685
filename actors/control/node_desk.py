"""What the coordinator has to tell each node: windows to run, windows to forget.

No Ray in here, as in ``feed_desk``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from meshfeed.actors.messages import NodeUpdate, WindowLease, WindowReport
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.feed_state import WindowKey
from meshfeed.pipeline.plan.leasing import Lease

Named = tuple[str, WindowKey]


class NodeDesk:
    """Leases and releases that nodes have not heard of, and which lease of a window is current.

    Args:
        specs: of the run's feeds, which every node is told first.
    """

    def __init__(self, specs: Mapping[str, FeedSpec]) -> None:
        self._specs = dict(specs)
        self._untaught: set[int] = set()
        self._leases: dict[int, dict[Named, WindowLease]] = {}
        self._releases: dict[int, list[Named]] = {}
        self._numbers = itertools.count(1)
        self._told: dict[int, int] = {}
        self._current: dict[Named, int] = {}

    def add(self, node: int) -> None:
        """A node will ask."""
        self._untaught.add(node)
        self._leases[node] = {}
        self._releases[node] = []
        self._told[node] = 0

    def remove(self, node: int) -> None:
        """A node is gone and will not ask again."""
        self._untaught.discard(node)
        self._leases.pop(node, None)
        self._releases.pop(node, None)
        self._told.pop(node, None)

    def lease(self, lease: Lease) -> None:
        """A node is to run a window."""
        name = (lease.feed, lease.key)
        number = self._current[name] = next(self._numbers)
        told = WindowLease(feed=lease.feed, key=lease.key, number=number)
        self._leases[lease.node][name] = told

    def release(self, node: int, feed: str, key: WindowKey) -> None:
        """A node is to forget a window, or not to run it."""
        self._current.pop((feed, key), None)
        self._leases[node].pop((feed, key), None)
        self._releases[node].append((feed, key))

    def is_current(self, report: WindowReport) -> bool:
        """A report answers the window's last lease, not one of an opening that has ended."""
        return self._current.get((report.feed, report.key)) == report.lease

    def has_work(self, node: int) -> bool:
        """There is something to tell a node that it should not wait for.

        What it may forget can wait: until it is told, nothing else takes the place of that.
        """
        return bool(self._leases[node]) or node in self._untaught

    def take(self, node: int, *, stop: bool = False) -> NodeUpdate:
        """All that there is to tell a node."""
        leases, self._leases[node] = self._leases[node], {}
        releases, self._releases[node] = self._releases[node], []
        specs = self._specs if node in self._untaught else {}
        self._untaught.discard(node)
        number = self._told[node]
        self._told[node] += 1
        return NodeUpdate(
            number=number,
            leases=tuple(leases.values()),
            releases=tuple(releases),
            specs=specs,
            stop=stop,
        )
