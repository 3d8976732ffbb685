"""How often what has died is started again in the same place. Pure."""

from __future__ import annotations

from collections import defaultdict, deque


class Restarts:
    """Allows so many restarts of each name within a time; what dies more often stays down.

    Args:
        most: restarts of one name within ``within_s``.
        within_s: seconds.
    """

    def __init__(self, most: int = 3, within_s: float = 600.0) -> None:
        self._most = most
        self._within_s = within_s
        self._times: dict[str, deque[float]] = defaultdict(deque)

    def allow(self, name: str, now: float) -> bool:
        """Whether it may be started again now, which is counted where it may.

        Args:
            name: of what has died.
            now: seconds, monotonic.
        """
        times = self._times[name]
        while times and now - times[0] >= self._within_s:
            times.popleft()
        if len(times) >= self._most:
            return False
        times.append(now)
        return True
