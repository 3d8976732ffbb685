"""What has entered the ledger since a feed was opened, as hosts are told it.

Every host asks for what follows the last event that it has seen. What all of them have seen is
forgotten, so that the log stays as short as the hosts are close together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.plan.feed_state import WindowKey

Int64s = npt.NDArray[np.int64]

_WIDTH = 6
_MOVED = -1
_TRIM_ABOVE = 4096


class EventLog:
    """Publications and moves of windows, numbered from 0.

    Args:
        processes: hosts that will ask.

    Attributes:
        last_move: number of the last move, -1 before the first.
    """

    def __init__(self, processes: int) -> None:
        self._seen = [0] * processes
        self._begin = 0
        self._end = 0
        self.last_move = -1
        self._buffer = np.zeros((_TRIM_ABOVE, _WIDTH), np.int64)
        self._trim_above = _TRIM_ABOVE

    @property
    def end(self) -> int:
        """Number of the next event."""
        return self._end

    def __len__(self) -> int:
        """Events that some host may still ask for."""
        return self._end - self._begin

    def publish(self, events: Sequence[tuple[int, int, int, int, int, int]]) -> None:
        """Windows have entered the ledger: source, epoch, window, rows, records, node of each."""
        if events:
            self._add(np.array(events, np.int64))

    def move(self, key: WindowKey, node: int) -> None:
        """A published window lies on another node now."""
        self.last_move = self._end
        self._add(np.array([(*key, _MOVED, 0, node)], np.int64))

    def moved_since(self, since: int) -> bool:
        """Some window has moved since the event with this number."""
        return self.last_move >= since

    def since(self, process: int, since: int) -> tuple[Int64s, Int64s]:
        """What a host has not seen, which has seen the events before ``since``.

        Returns:
            Publications int64 ``[n, 6]`` (source, epoch, window, rows, records, node) and moves
            int64 ``[m, 4]`` (source, epoch, window, node), each in order. They are views: what is
            in them never changes.

        Raises:
            ValueError: it was told these events before, and has said so.
        """
        if not self._begin <= since <= self._end:
            raise ValueError(
                f"process {process} asks for events from {since}; there are those of "
                f"[{self._begin}, {self._end})"
            )
        self._seen[process] = since
        events = self._buffer[since - self._begin : self._end - self._begin]
        if not self.moved_since(since):
            return events, events[:0, :4]
        moves = events[:, 3] == _MOVED
        return events[~moves], events[moves][:, [0, 1, 2, 5]]

    def _add(self, events: Int64s) -> None:
        if len(self) + len(events) > self._trim_above:
            self._trim()
        used = len(self)
        if used + len(events) > len(self._buffer):
            self._resize(2 * (used + len(events)))
        self._buffer[used : used + len(events)] = events
        self._end += len(events)

    def _trim(self) -> None:
        """Forgets what all have seen; the next time once as much has come again."""
        kept = self._buffer[min(self._seen) - self._begin : len(self)]
        self._begin = self._end - len(kept)
        self._trim_above = max(_TRIM_ABOVE, 2 * len(kept))
        self._buffer = kept
        self._resize(self._trim_above)

    def _resize(self, size: int) -> None:
        # Never in place: hosts may be about to be sent views of the old one.
        grown = np.zeros((size, _WIDTH), np.int64)
        grown[: len(self)] = self._buffer[: len(self)]
        self._buffer = grown
