"""The last station before the trainer: fetched stretches become batches, one after another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from queue import Empty
from typing import Generic, TypeVar

from meshfeed.actors.host.fetching import Stretch
from meshfeed.actors.host.handoff import Handoff
from meshfeed.actors.host.waiting import Waiting

Batch = TypeVar("Batch")

LOOK_EVERY_S = 0.5


class Assembly(Generic[Batch]):
    """Makes batches, and says while it is at one.

    Args:
        make_batches: the leaves of each step of a stretch, on the devices or not.
        waiting: told whether a batch is being made.
    """

    def __init__(
        self, make_batches: Callable[[Stretch], Iterable[Batch]], waiting: Waiting
    ) -> None:
        self._make_batches = make_batches
        self._waiting = waiting

    def batches(
        self, stretches: Handoff[Stretch | None], closed: threading.Event
    ) -> Iterator[Batch]:
        """Of all stretches until there is None, or the feed is closed."""
        while not closed.is_set():
            try:
                stretch = stretches.get(LOOK_EVERY_S)
            except Empty:
                continue
            if stretch is None:
                return
            self._waiting.assembling = True
            for batch in self._make_batches(stretch):
                self._waiting.assembling = False
                yield batch
                self._waiting.assembling = True
            self._waiting.assembling = False
