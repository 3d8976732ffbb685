"""What outlives the coordinator's process: its incarnation, the generation, who has opened what.

Kept as plain data in the run directory, each change whole and durable before anyone is told of it.
How far the hosts are is not in it: they know that better, and say so when they come again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from meshfeed.pipeline.data.runs.run_folder import RunFolder
from meshfeed.pipeline.plan.errors import ChangedError, MeshfeedError


@dataclass(slots=True)
class Opened:
    """A membership, as a coordinator that was restarted finds it.

    Attributes:
        generation: of it.
        processes: in all.
        left: those that take no further step.
        barrier: step at which it ends, if one was called.
        early: the first process that closed the feed before its end, and at which step.
        error: what has ended it.
    """

    generation: int
    processes: int
    left: list[int] = field(default_factory=list)
    barrier: int | None = None
    early: list[int] | None = None
    error: str | None = None


class Durable:
    """The control state of a run, for the coordinator that has it now.

    Making one fences the coordinator that had it before: see ``check``.

    Args:
        folder: the run directory.

    Attributes:
        incarnation: of this coordinator; each one has a higher.
        generation: the highest of the run.
        opened: by feed, the membership that has it open.
        restarts: coordinators before this one since the run was started.
        placement: Ray node id -> readers, as the run was started.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        try:
            known = folder.control()
            self.incarnation = int(known.get("incarnation", 0)) + 1
            self.restarts = int(known.get("restarts", -1)) + 1
            self.generation = int(known.get("generation", 0))
            self.opened = {name: Opened(**plain) for name, plain in known.get("feeds", {}).items()}
            self.placement: dict[str, int] = dict(known.get("placement", {}))
        except (TypeError, ValueError, AttributeError) as error:
            raise ChangedError(
                f"control.json in {folder.path} is damaged ({error}). Move it away: hosts then "
                "open the feeds anew, from the states that they have saved"
            ) from error
        self._changes = self._saved = 0
        self._lock = asyncio.Lock()
        folder.save_control(self._plain())

    def begin(self, placement: Mapping[str, int]) -> None:
        """A run is started: nobody has a feed open."""
        self.restarts = 0
        self.opened = {}
        self.placement = dict(placement)
        self._folder.save_control(self._plain())

    async def save(self) -> None:
        """Makes all changes so far durable; those of many callers at once."""
        self._changes += 1
        wanted = self._changes
        async with self._lock:
            if self._saved >= wanted:
                return
            upto, plain = self._changes, self._plain()
            await asyncio.to_thread(self._folder.save_control, plain)
            self._saved = upto

    def check(self) -> None:
        """Nobody has taken over; waits for storage.

        Raises:
            MeshfeedError: another coordinator has: this one must not write any more.
        """
        now = self._folder.control().get("incarnation")
        if now != self.incarnation:
            raise MeshfeedError(
                f"coordinator {self.incarnation} of the run ends: coordinator {now} has taken over"
            )

    def _plain(self) -> dict[str, Any]:
        return {
            "incarnation": self.incarnation,
            "restarts": self.restarts,
            "generation": self.generation,
            "placement": self.placement,
            "feeds": {name: asdict(opened) for name, opened in self.opened.items()},
        }
