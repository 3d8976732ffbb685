"""How long a trainer waits for its batches, and for which stage of its feed.

==============  ===============================================================================
stage           what a batch that is not there waits for
==============  ===============================================================================
``opening``     the feed to be opened
``grant``       rows that readers have not made yet, or that hosts may not take yet
``fetch``       rows on their way from the nodes
``assemble``    leaves to be derived and placed on the devices
==============  ===============================================================================
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class Waiting:
    """Times of one opening of a feed in one process; from its first batch on, once that is there.

    Args:
        clock: seconds.

    Attributes:
        fetching: what the fetching thread is at: ``opening``, ``grant`` or ``fetch``.
        assembling: a batch is being assembled, which is then what is waited for.
        seconds: waited.
        by_stage: of those, for each stage.
        first_batch_seconds: from the opening to the first batch; 0 before.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.fetching = "opening"
        self.assembling = False
        self.seconds = 0.0
        self.by_stage: dict[str, float] = {}
        self.first_batch_seconds = 0.0
        self._clock = clock
        self._counted_from = clock()
        self._wait_began: float | None = None
        self._slice_began = 0.0
        self._slice_stage = ""

    @property
    def stage(self) -> str:
        """What a batch that is not there waits for now."""
        return "assemble" if self.assembling else self.fetching

    def begin(self) -> None:
        """The trainer asks for a batch."""
        self._wait_began = self._slice_began = self._clock()
        self._slice_stage = self.stage

    def look(self) -> float:
        """The trainer still waits: for so many seconds now."""
        now = self._clock()
        self._count(now)
        self._slice_began, self._slice_stage = now, self.stage
        return now - (now if self._wait_began is None else self._wait_began)

    def end(self) -> None:
        """The trainer has its batch."""
        now = self._clock()
        self._count(now)
        self._wait_began = None
        if not self.first_batch_seconds:
            self.first_batch_seconds = max(now - self._counted_from, 1e-9)
            self._counted_from = now
            self.seconds, self.by_stage = 0.0, {}

    def plain(self) -> dict[str, Any]:
        """Times so far, a wait that is going on included, as plain values.

        Returns:
            ``seconds`` waited, ``of_seconds`` that they are a part of, ``by_stage``,
            ``waiting_for``: the stage waited for now, or "", and ``batches``: there was one.
        """
        now = self._clock()
        seconds, by_stage = self.seconds, dict(self.by_stage)
        waits = self._wait_began is not None
        if waits:
            going_on = max(now - self._slice_began, 0.0)
            seconds += going_on
            by_stage[self._slice_stage] = by_stage.get(self._slice_stage, 0.0) + going_on
        return {
            "seconds": seconds,
            "of_seconds": now - self._counted_from,
            "by_stage": by_stage,
            "waiting_for": self.stage if waits else "",
            "batches": bool(self.first_batch_seconds),
        }

    def _count(self, now: float) -> None:
        """The slice that ends now counts for the stage at its beginning."""
        seconds = now - self._slice_began
        self.seconds += seconds
        self.by_stage[self._slice_stage] = self.by_stage.get(self._slice_stage, 0.0) + seconds
