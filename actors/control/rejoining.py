"""The hosts of a membership come again, after the coordinator's process was restarted."""

from __future__ import annotations

import asyncio
from typing import Any

from meshfeed.actors.control.durable import Opened
from meshfeed.pipeline.plan.errors import FeedError, MeshfeedError

REJOIN_LIMIT_S = 60.0
"""A host that has not come again after so long is lost."""


class Rejoining:
    """A membership of which not all hosts have come again yet.

    Args:
        feed: its name.
        opened: what the run directory says of it.

    Attributes:
        start: cursor of the host that is least far, as plain JSON values.
        granted: the highest grant that some host had heard of.
        done: set once all have come.
    """

    def __init__(self, feed: str, opened: Opened) -> None:
        self.start: dict[str, Any] | None = None
        self.granted = 0 if opened.barrier is None else opened.barrier
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._feed = feed
        self._opened = opened
        self._come: set[int] = set()

    @property
    def is_complete(self) -> bool:
        """All have come that had not left before."""
        return len(self._come | set(self._opened.left)) == self._opened.processes

    def add(self, process: int, cursor: dict[str, Any], granted: int) -> None:
        """A host comes again, having taken all before its cursor and heard of a grant."""
        self._come.add(process)
        self.granted = max(self.granted, granted)
        if self.start is None or cursor["step"] < self.start["step"]:
            self.start = cursor

    def missing(self) -> MeshfeedError:
        """Not all have come in time: who is lost."""
        gone = set(range(self._opened.processes)) - self._come - set(self._opened.left)
        return FeedError(
            f"process {', '.join(map(str, sorted(gone)[:8]))} of {self._opened.processes} did not "
            f"come again to feed {self._feed} within {REJOIN_LIMIT_S:.0f} s of the coordinator's "
            "restart"
        )
