"""What a person sees while it runs: stages, then steps with speed and the share of time waited."""

from __future__ import annotations

import atexit
import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.status import Status

if TYPE_CHECKING:
    from meshfeed.launch.report import Report


class Progress:
    """Lines on stderr; on a terminal the last one is renewed in place."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._live: Status | None = None
        self._began = time.monotonic()
        self._last_line = 0.0
        self._line = ""
        self._quiet = quiet
        if not quiet and sys.stderr.isatty():
            self._live = live = self._console.status("starting")
            live.start()
            atexit.register(live.stop)  # gives the cursor back also where an error ends the command

    def stage(self, line: str) -> None:
        """A stage has begun, or a choice was made."""
        if self._live is not None:
            self._live.update(line)
            self._live.start()
            return
        if line == self._line:
            return
        self._line = line
        self._console.print(f"[dim]{time.monotonic() - self._began:6.1f} s[/dim]  {line}")

    def tick(self, line: str) -> None:
        """A detail of the stage, shown only where a line can be renewed in place."""
        if self._live is not None:
            self._live.update(line)

    def pause(self) -> None:
        """Takes the line away, so that something else can be printed; the next stage brings it."""
        if self._live is not None:
            self._live.stop()

    def wants_status(self) -> bool:
        """A new line of steps is due."""
        return not self._quiet and time.monotonic() - self._last_line >= 1.0

    def steps(self, report: Report, status: dict[str, Any] | None) -> None:
        """Some steps have been taken."""
        if status is None:
            return
        self._last_line = time.monotonic()
        total = status["feeds"][report.feed].get("total_steps")
        of = f" of {total}" if total is not None else ""
        busy = sorted({r["stage"] for r in status["readers"] if r.get("stage")})
        self.stage(
            f"step {len(report.steps)}{of}"
            + (f"  {report.tokens_per_second():,.0f} tokens/s" if len(report.steps) > 1 else "")
            + f"  waiting for data {report.waiting_share():.0%}"
            + (f"  readers: {', '.join(busy)}" if busy else "  readers: idle")
        )

    def close(self) -> None:
        """Nothing more will come."""
        if self._live is not None:
            self._live.stop()
