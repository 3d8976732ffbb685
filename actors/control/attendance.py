"""The watch over the hosts of each membership, and the calls by which they hear of its end at once.

Every host has one call waiting here for as long as it takes part. The call's result belongs to the
host's process, so Ray tells whoever waits for that result when the process dies: that is how a host
that is gone without a word is noticed, within seconds and without anyone asking it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import ray

from meshfeed.pipeline.plan.errors import MeshfeedError, StaleGenerationError

log = logging.getLogger(__name__)

OnLost = Callable[[str, int, int, str], None]


class Attendance:
    """Who waits here for the end of which membership.

    Args:
        on_lost: told feed, generation, process and why, when a host's process is gone.
    """

    def __init__(self, on_lost: OnLost) -> None:
        self._on_lost = on_lost
        self._generations: dict[str, int] = {}
        self._over: dict[str, MeshfeedError | None] = {}
        self._waiting: dict[str, dict[int, asyncio.Future[MeshfeedError | None]]] = {}
        self._watches: set[asyncio.Task[None]] = set()

    def open(self, feed: str, generation: int) -> None:
        """A membership begins; who waits for the end of the one before is told so."""
        self.end(feed, StaleGenerationError(self._generations.get(feed, 0), generation))
        self._generations[feed] = generation
        self._over.pop(feed, None)

    async def present(self, feed: str, generation: int, process: int) -> MeshfeedError | None:
        """Waits until a host has left, or the membership has ended: with this error.

        Raises:
            StaleGenerationError: the membership is an older one.
        """
        current = self._generations.get(feed, 0)
        if generation != current:
            raise StaleGenerationError(generation, current)
        if feed in self._over:
            return self._over[feed]
        waits = self._waiting.setdefault(feed, {})
        if process not in waits:
            waits[process] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(waits[process])

    def watch(self, feed: str, generation: int, process: int, presence: Any) -> None:
        """Watches over a host by the result of its ``present``, which its process owns."""
        task = asyncio.create_task(self._watch(feed, generation, process, presence))
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)

    def left(self, feed: str, process: int) -> None:
        """A host has left: its call is answered."""
        self._answer(self._waiting.get(feed, {}).pop(process, None), None)

    def end(self, feed: str, error: MeshfeedError | None) -> None:
        """A membership has ended: all that wait are answered."""
        self._over[feed] = error
        for waiting in self._waiting.pop(feed, {}).values():
            self._answer(waiting, error)

    def stop(self, error: MeshfeedError) -> None:
        """The run has ended."""
        for watch in self._watches:
            watch.cancel()
        for feed in self._generations:
            self.end(feed, error)

    async def _watch(self, feed: str, generation: int, process: int, presence: Any) -> None:
        try:
            await presence
        except (ray.exceptions.ObjectLostError, ray.exceptions.WorkerCrashedError) as error:
            log.warning("generation %d, feed %s: host %d is gone", generation, feed, process)
            why = "its process has ended without a word, or its machine is gone"
            self._on_lost(feed, generation, process, f"{why} ({type(error).__name__})")
        except (MeshfeedError, ray.exceptions.RayError) as error:
            log.debug("generation %d, feed %s, host %d: %s", generation, feed, process, error)

    @staticmethod
    def _answer(
        waiting: asyncio.Future[MeshfeedError | None] | None, error: MeshfeedError | None
    ) -> None:
        if waiting is not None and not waiting.done():
            waiting.set_result(error)
