"""The hosts that open a feed together."""

from __future__ import annotations

import asyncio
from typing import Any

from meshfeed.actors.messages import Opening
from meshfeed.pipeline.plan.errors import ConfigError, DisagreementError, StallError


class Joining:
    """A membership that is not complete yet.

    Args:
        feed: that it opens.
        processes: that must join, ``jax.process_count()``.
    """

    def __init__(self, feed: str, processes: int) -> None:
        self.processes = processes
        self.start: dict[str, Any] | None = None
        self.opening: asyncio.Future[Opening] = asyncio.get_running_loop().create_future()
        self._feed = feed
        self._joined: set[int] = set()

    def add(self, process_index: int, start: dict[str, Any] | None) -> bool:
        """A process joins at a cursor; True when it was the last.

        Raises:
            ConfigError: the index is not one of the membership.
            DisagreementError: another process wants to start elsewhere.
        """
        if not 0 <= process_index < self.processes:
            raise ConfigError(
                "process_index", f"{process_index} is not one of {self.processes} processes"
            )
        if self._joined and start != self.start:
            error = DisagreementError(
                f"feed {self._feed}: process {process_index} wants to start at {_short(start)}, "
                f"others at {_short(self.start)}. Restore the same state on every process"
            )
            self.opening.set_exception(error)  # those that wait hear it as well
            raise error
        self.start = start
        self._joined.add(process_index)
        return self.is_complete

    @property
    def is_complete(self) -> bool:
        """All have joined."""
        return len(self._joined) == self.processes

    def replace(self, processes: int) -> None:
        """Another number of processes opens the feed: who has waited for this one hears so."""
        if not self.opening.done():
            self.opening.set_exception(
                DisagreementError(
                    f"feed {self._feed}: {len(self._joined)} of {self.processes} processes had "
                    f"joined when one came that is of {processes}. Another membership opens it"
                )
            )

    async def wait(self, timeout_s: float) -> Opening:
        """The opening, once all have joined.

        Raises:
            StallError: not all did in time; names the missing.
        """
        try:
            return await asyncio.wait_for(asyncio.shield(self.opening), timeout_s)
        except TimeoutError:
            missing = sorted(set(range(self.processes)) - self._joined)
            raise StallError(
                f"process {', '.join(map(str, missing[:8]))} of {self.processes} to join feed "
                f"{self._feed}",
                timeout_s,
                stage="join",
            ) from None


class Joinings:
    """Of each feed the membership that is forming."""

    def __init__(self) -> None:
        self._forming: dict[str, Joining] = {}

    def of(self, feed: str, processes: int) -> Joining:
        """The one of so many processes; one of another number that was forming is given up."""
        joining = self._forming.get(feed)
        if joining is not None and joining.processes != processes:
            joining.replace(processes)
        if joining is None or joining.is_complete or joining.opening.done():
            joining = self._forming[feed] = Joining(feed, processes)
        return joining


def _short(start: dict[str, Any] | None) -> str:
    return "row 0" if start is None else f"step {start.get('step')}"
