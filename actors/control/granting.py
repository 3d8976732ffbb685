"""What follows from every event: grants, leases, and news for hosts that wait."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from meshfeed.actors.control.feed_desk import FeedDesk
from meshfeed.pipeline.plan.leasing import Lease, LeaseBook


class Granting:
    """Grants what is ready and leases what is needed.

    Args:
        desks: of the run's feeds, in order of importance.
        leases: which windows run and lie where.
        gather_s: a grant that is only being gathered is raised after so long.
        on_lease: told which node is to run which window.
        on_failure: told what went wrong meanwhile.
    """

    def __init__(
        self,
        desks: Mapping[str, FeedDesk],
        leases: LeaseBook,
        gather_s: float,
        *,
        on_lease: Callable[[Lease], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._desks = desks
        self._leases = leases
        self._gather_s = gather_s
        self._on_lease = on_lease
        self._on_failure = on_failure
        self._changed = asyncio.Event()
        self._news: dict[str, tuple[Any, ...]] = {}
        self._gathering = False

    def advance(self) -> None:
        """Something has happened."""
        try:
            self._grant_and_lease()
        except Exception as error:  # noqa: BLE001 - any failure here is the run's: all hosts hear it
            self._on_failure(error)

    def wake_hosts(self) -> None:
        """Hosts that wait are to look again."""
        # A new event each time: who looked before this and waits only now is woken as well.
        self._changed.set()
        self._changed = asyncio.Event()

    async def news(self, limit_s: float) -> None:
        """Waits until there may be something to hear, or for so long."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed.wait(), limit_s)

    def _grant_and_lease(self) -> None:
        opened = [(n, d.state) for n, d in self._desks.items() if d.state is not None]
        now = time.monotonic()
        for _, state in opened:
            ready = state.ready_steps
            state.grants.advance(ready, now, ended=ready == state.total_steps)
            if not self._gathering and state.grants.could_raise(ready):
                self._gathering = True
                asyncio.get_running_loop().call_later(self._gather_s, self._gathered)
        for lease in self._leases.assign(opened):
            self._on_lease(lease)
        news = {name: desk.news for name, desk in self._desks.items()}
        if news != self._news:
            self._news = news
            self.wake_hosts()

    def _gathered(self) -> None:
        self._gathering = False
        self.advance()
