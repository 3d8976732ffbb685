"""Windows that have run enter the ledger together: durable first, then known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from meshfeed.actors.control.feed_desk import FeedDesk, Writing
from meshfeed.pipeline.plan.feed_state import WindowKey

GATHER_WRITES_S = 0.005
"""Windows that run within so short a time become durable at once."""


class LedgerWriter:
    """Writes what the desks have collected while they collect the next.

    Args:
        desks: of the run's feeds.
        check: raises where another coordinator has taken over; waits for storage.
        on_written: told of each feed the windows that nobody needs, once the others are known.
        on_failure: told what the storage refused.
    """

    def __init__(
        self,
        desks: Mapping[str, FeedDesk],
        check: Callable[[], None],
        on_written: Callable[[dict[str, list[WindowKey]]], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._desks = desks
        self._check = check
        self._on_written = on_written
        self._on_failure = on_failure
        self._work: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """A desk may have something to write."""
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._write())

    def _check_and_write(self, desk: FeedDesk, writing: Writing) -> None:
        self._check()
        desk.write(writing)

    async def _write(self) -> None:
        try:
            await asyncio.sleep(GATHER_WRITES_S)
            while taken := [(n, d, w) for n, d in self._desks.items() if (w := d.take())]:
                unneeded = {}
                for name, desk, writing in taken:
                    await asyncio.to_thread(self._check_and_write, desk, writing)
                    unneeded[name] = desk.publish(writing)
                self._on_written(unneeded)
                await asyncio.sleep(GATHER_WRITES_S)
        except Exception as error:  # noqa: BLE001 - any failure here is the run's: all hosts hear it
            self._on_failure(error)
