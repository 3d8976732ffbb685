"""A bounded cache: the least recently used entry goes first, and is closed where it must be.

Readers keep open files and shard indexes (footers) in caches of this kind, so that neither grows
with the number of shards or sources that a process has seen.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Keeps at most ``max_items`` entries that cost at most ``max_cost`` together.

    The newest entry is always kept, also when it alone costs more than ``max_cost``.

    Args:
        max_items: entries at most, 1 or more.
        max_cost: sum of costs at most, in the unit of ``cost``; None: no limit.
        on_evict: called with each value that leaves the cache.
    """

    def __init__(
        self,
        *,
        max_items: int,
        max_cost: int | None = None,
        on_evict: Callable[[V], Any] | None = None,
    ) -> None:
        self._max_items = max_items
        self._max_cost = max_cost
        self._on_evict = on_evict
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._cost = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def cost(self) -> int:
        """Sum of the costs of the entries."""
        return self._cost

    def get(self, key: K, make: Callable[[], V], cost: Callable[[V], int] | None = None) -> V:
        """The entry of ``key``, made by ``make`` where it is not there.

        Args:
            key: of the entry.
            make: called without arguments; what it raises goes to the caller and is not kept.
            cost: what the value costs; None: 0.
        """
        if key in self._entries:
            self._entries.move_to_end(key)
            return self._entries[key][0]
        value = make()
        price = cost(value) if cost else 0
        self._entries[key] = (value, price)
        self._cost += price
        while len(self._entries) > 1 and self._is_over():
            self.drop(next(iter(self._entries)))
        return value

    def drop(self, key: K) -> None:
        """Take one entry out, if it is there."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self._cost -= entry[1]
        if self._on_evict is not None:
            self._on_evict(entry[0])

    def clear(self) -> None:
        """Take all entries out."""
        for key in list(self._entries):
            self.drop(key)

    def _is_over(self) -> bool:
        too_many = len(self._entries) > self._max_items
        return too_many or (self._max_cost is not None and self._cost > self._max_cost)
