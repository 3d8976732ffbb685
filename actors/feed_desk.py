"""What the coordinator keeps for one feed: its ledger, its opening, and what its hosts are told.

No Ray in here: the coordinator and a simulation of a thousand hosts use the same desk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from meshfeed.actors.messages import FeedUpdate, Opening, WindowReport
from meshfeed.actors.reader_times import ReaderTally
from meshfeed.pipeline.data.blocks import BlockFormat
from meshfeed.pipeline.plan.cursor import Cursor
from meshfeed.pipeline.plan.errors import DisagreementError, StaleGenerationError
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.feed_state import FeedState, Publication, WindowKey
from meshfeed.pipeline.plan.grants import GrantBook, GrantLimits
from meshfeed.pipeline.plan.ledger import Ledger, LedgerEntry
from meshfeed.pipeline.plan.schedule import Schedule


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


class FeedDesk:
    """One feed of a run.

    Args:
        spec: of the feed.
        ledger: its row counts so far; windows that run again must give the same.
        max_steps: the feed ends there; None: when its sources do.
        limits: of grants.
    """

    def __init__(
        self, spec: FeedSpec, ledger: Ledger, max_steps: int | None, limits: GrantLimits
    ) -> None:
        self.spec = spec
        self.epochs = spec.epochs()
        self.generation = 0
        self.state: FeedState | None = None
        self.tallies = [SourceTally() for _ in spec.manifests]
        self.waiting: dict[int, dict[str, Any]] = {}
        self.readers = ReaderTally()
        self._ledger = ledger
        self._max_steps = max_steps
        self._limits = limits
        self._events: list[tuple[int, int, int, int, int, int]] = []
        self._run_before: set[WindowKey] = set()
        self._written: dict[WindowKey, tuple[int, int]] = {}

    def open(self, generation: int, processes: int, start: dict[str, Any] | None) -> Opening:
        """A new membership takes the feed from a cursor on; the one before it ends."""
        cursor = None if start is None else Cursor.from_json(start)
        schedule = Schedule(self.spec.source_plans(self.epochs), start=cursor)
        first_step = 0 if cursor is None else cursor.step
        config = self.spec.config
        self.generation = generation
        self._events = []
        self.waiting = {}
        self.state = FeedState(
            schedule,
            batch_size=config.batch_size,
            remainder=config.remainder,
            max_steps=self._max_steps,
            grants=GrantBook(processes, first_step, self._limits),
            weights=[source.weight for source in config.sources],
            rows_estimate=[self.spec.window_rows] * len(config.sources),
        )
        return Opening(
            generation=generation,
            spec=self.spec,
            start=start,
            max_steps=self._max_steps,
            least_depth=self._limits.least_depth,
        )

    def check(self, generation: int) -> FeedState:
        """The state, for a message of this generation.

        Raises:
            StaleGenerationError: the message is of an older one.
        """
        if generation != self.generation or self.state is None:
            raise StaleGenerationError(generation, self.generation)
        return self.state

    def completed(self, node: int, reports: Sequence[WindowReport]) -> list[WindowKey]:
        """Windows have run: their counts enter the ledger in order, durably, then the schedule.

        Returns:
            Windows without rows, which the node may forget at once.

        Raises:
            DisagreementError: a window gave another number of rows than an earlier run.
        """
        if self.state is None:
            return []
        publications = []
        for report in reports:
            again = report.key in self._run_before
            self._run_before.add(report.key)
            self._written[report.key] = (report.tokens, report.digest)
            self.tallies[report.key.source].add(report, again=again)
            self.readers.add(report)
            publications += self.state.completed(report.key, report.rows, report.records, node)
        self._record(publications)
        self._events += [(*key, rows, records, where) for key, rows, records, where in publications]
        return self.state.publish(publications)

    def update(self, since: int, granted: int, nodes: dict[int, Any]) -> FeedUpdate:
        """What a host is told that has seen ``since`` events and the grant ``granted``."""
        if self.state is None:
            raise StaleGenerationError(0, self.generation)
        events = np.array(self._events[since:], np.int64).reshape(-1, 6)
        return FeedUpdate(
            grants=tuple(self.state.grants.grants_after(granted)),
            total_steps=self.state.total_steps,
            events=events,
            next_event=len(self._events),
            moved=np.zeros((0, 4), np.int64),
            nodes=nodes,
            depth=self.state.grants.depth,
        )

    def status(self) -> dict[str, Any]:
        """Where the feed is, and what each source has cost and given, as plain values."""
        sources = zip(self.spec.config.sources, self.tallies, strict=True)
        status: dict[str, Any] = {"sources": {s.name: asdict(tally) for s, tally in sources}}
        state = self.state
        if state is not None:
            limiting = state.limiting_window()
            status |= {
                "generation": self.generation,
                "granted": state.grants.granted,
                "taken": state.grants.floor,
                "ready": state.ready_steps,
                "total_steps": state.total_steps,
                "steps_per_second": state.grants.steps_per_second,
                "slowest_process": state.grants.slowest(),
                "waiting": dict(self.waiting),
                "readers": self.readers.plain(),
                "limiting_window": None if limiting is None else self._describe(state, limiting),
            }
        return status

    def block_bytes(self, source: int) -> int:
        """Bytes that the next window of a source will take, about."""
        rows = self.spec.window_rows if self.state is None else self.state.mean_rows(source)
        return BlockFormat.of(self.spec).nbytes(max(1, round(rows)))

    def group(self, key: WindowKey) -> tuple[int, int]:
        """Windows of a source with the same value read the same chunks."""
        window = self.epochs.windows(key.source, key.epoch).window(key.window)
        return key.epoch, window.group

    def _describe(self, state: FeedState, key: WindowKey) -> dict[str, Any]:
        window = self.epochs.windows(key.source, key.epoch).window(key.window)
        manifest = self.spec.manifests[key.source]
        shards = sorted({chunk.shard_index for chunk in window.chunks})
        return {
            "source": self.spec.config.sources[key.source].name,
            "epoch": key.epoch,
            "window": key.window,
            "node": state.holder(key),
            "shards": [manifest.address(shard) for shard in shards[:4]],
        }

    def _record(self, publications: Sequence[Publication]) -> None:
        fresh = []
        for key, rows, records, _ in publications:
            known = self._ledger.rows(*key)
            tokens, digest = self._written.pop(key, (0, 0))
            if known is None:
                entry = LedgerEntry(
                    source=key.source,
                    epoch=key.epoch,
                    window=key.window,
                    rows=rows,
                    records=records,
                    tokens=tokens,
                    digest=digest,
                )
                fresh.append(entry)
            elif known != rows:
                name = self.spec.config.sources[key.source].name
                raise DisagreementError(
                    f"window {key.window} of epoch {key.epoch} of source {name} gave {known} rows "
                    f"in an earlier run and {rows} now: its data or a transform has changed"
                )
        if fresh:
            self._ledger.append(fresh)
