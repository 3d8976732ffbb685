"""What a feed's windows have cost, by source and by reader, which tells a slow one from others."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from meshfeed.actors.messages import WindowReport

MOST_READERS = 100_000
"""Readers that are remembered; those replaced after they died have names of their own."""


@dataclass(slots=True)
class SourceTally:
    """What the windows of one source have cost and given so far."""

    windows: int = 0
    windows_again: int = 0
    records: int = 0
    rows: int = 0
    tokens: int = 0
    padding: int = 0
    storage_bytes: int = 0
    used_bytes: int = 0
    skipped: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, report: WindowReport, *, again: bool) -> None:
        """Counts one window; ``again``: it had been run before."""
        self.windows += 1
        self.windows_again += again
        self.storage_bytes += report.storage_bytes
        self.used_bytes += report.used_bytes
        for stage, seconds in report.seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        if again:
            return
        self.records += report.records
        self.rows += report.rows
        self.tokens += report.tokens
        self.padding += report.padding
        for name, count in report.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count


@dataclass(slots=True)
class ReaderTimes:
    """Windows that a reader has run, and its seconds by stage.

    Attributes:
        windows: run.
        tokens: in their rows.
        seconds: by stage.
    """

    windows: int = 0
    tokens: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


class ReaderTally:
    """Times of all readers of a feed."""

    def __init__(self) -> None:
        self._readers: dict[str, ReaderTimes] = {}

    def add(self, report: WindowReport) -> None:
        """A reader has run a window."""
        if report.reader not in self._readers and len(self._readers) >= MOST_READERS:
            self._readers.pop(next(iter(self._readers)))
        times = self._readers.setdefault(report.reader, ReaderTimes())
        times.windows += 1
        times.tokens += report.tokens
        for stage, seconds in report.seconds.items():
            times.seconds[stage] = times.seconds.get(stage, 0.0) + seconds

    def plain(self) -> dict[str, dict[str, Any]]:
        """By reader, as plain values."""
        return {name: asdict(times) for name, times in sorted(self._readers.items())}
