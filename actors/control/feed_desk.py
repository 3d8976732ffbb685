"""What the coordinator keeps for one feed: its ledger, its opening, and what its hosts are told.

No Ray in here: the coordinator and a simulation of a thousand hosts use the same desk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from meshfeed.actors.control.event_log import EventLog
from meshfeed.actors.control.feed_needs import feed_need, most_rows
from meshfeed.actors.control.tallies import ReaderTally, SourceTally
from meshfeed.actors.messages import FeedUpdate, Opening, WindowReport
from meshfeed.actors.slice_checks import SliceChecks, SliceDigest
from meshfeed.pipeline.data.packing.blocks import BlockFormat
from meshfeed.pipeline.plan.budget import FeedNeed
from meshfeed.pipeline.plan.config import Remainder
from meshfeed.pipeline.plan.cursor import Cursor
from meshfeed.pipeline.plan.errors import DisagreementError, MeshfeedError, StaleGenerationError
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.feed_state import FeedState, Publication, WindowKey
from meshfeed.pipeline.plan.grants import GrantBook, GrantLimits
from meshfeed.pipeline.plan.ledger import Ledger, LedgerEntry
from meshfeed.pipeline.plan.membership import Membership
from meshfeed.pipeline.plan.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """Windows on their way to the ledger.

    Attributes:
        state: the opening that they belong to.
        publications: what it will be told once they are there.
        entries: those of them that the ledger does not have yet.
    """

    state: FeedState
    publications: list[Publication]
    entries: list[LedgerEntry]


class FeedDesk:
    """One feed of a run.

    Windows that have run are written to the ledger together: ``completed`` collects them, then
    ``take``, ``write`` and ``publish`` make them durable and known. ``write`` is the only call that
    waits for storage and may run in another thread; meanwhile ``completed`` collects the next.

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
        self.members = Membership(spec.config.name, 0)
        self.waiting: dict[int, dict[str, Any]] = {}
        self.readers = ReaderTally()
        self._ledger = ledger
        self._max_steps = max_steps
        self._limits = limits
        self._format = BlockFormat.of(spec)
        self._log = EventLog(0)
        self._slices = SliceChecks()
        self._ready: list[Publication] = []
        self._unwritten: dict[WindowKey, LedgerEntry] = {}
        self._dropped = 0
        self._most_rows = most_rows(spec)
        self._block_bytes = [self._format.nbytes(rows) for rows in self._most_rows]
        self._need = feed_need(spec, limits)

    def open(self, generation: int, processes: int, start: dict[str, Any] | None) -> Opening:
        """A new membership takes the feed from a cursor on; the one before it ends."""
        cursor = None if start is None else Cursor.from_json(start)
        schedule = Schedule(self.spec.source_plans(self.epochs), start=cursor)
        first_step = 0 if cursor is None else cursor.step
        config = self.spec.config
        self.generation = generation
        self.members = Membership(config.name, processes)
        self._log = EventLog(processes)
        self._slices = SliceChecks()
        self._ready = []
        self.waiting = {}
        self.state = FeedState(
            schedule,
            batch_size=config.batch_size,
            remainder=config.remainder,
            max_steps=self._max_steps,
            grants=GrantBook(processes, first_step, self._limits),
            rows_estimate=[self.spec.window_rows] * len(config.sources),
            most_rows=self._most_rows,
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
            MeshfeedError: what has ended the membership.
        """
        if generation == self.generation and self.members.error is not None:
            raise self.members.error
        if generation != self.generation or self.state is None:
            raise StaleGenerationError(generation, self.generation)
        return self.state

    def resume(self, granted: int, left: Sequence[int], *, closed: bool) -> None:
        """The opening is one that was there before: with what it was granted, and who has left."""
        if self.state is None:
            return
        grants = self.state.grants
        grants.resume(granted)
        if closed:
            grants.close()
        for process in left:
            self.state.acknowledge(process, grants.granted, 0.0)
            self.members.leave(process, grants.granted, grants.granted, None)

    def leave(self, process: int, step: int, error: MeshfeedError | None) -> None:
        """A host ends its feed: in good order, or with an error that the others hear."""
        state = self.state
        if state is None:
            return
        self.members.leave(process, step, state.last_step, error)
        if self.members.left_early is not None:
            state.grants.close()

    def lose(self, process: int, why: str) -> None:
        """A host is gone without a word."""
        if self.state is not None:
            self.members.lose(process, self.state.grants.acknowledged(process), why)

    def barrier(self, generation: int) -> int:
        """All hosts end at the step after the last that was ever granted, which this gives.

        Raises:
            StaleGenerationError: the membership is an older one.
            MeshfeedError: what has ended it.
        """
        return self.check(generation).grants.close()

    def close(self) -> None:
        """The membership is over: no window is run for it, and none of its messages counts."""
        if self.state is not None:
            self._dropped = self._dropped_rows(self.state)
        self.state = None
        self._ready = []

    def hear(self, process: int, waited: dict[str, Any], digests: Sequence[SliceDigest]) -> None:
        """What a host tells along with an acknowledgement.

        Raises:
            DisagreementError: it was given other bytes than another host of its slice group.
        """
        self.waiting[process] = waited
        self._slices.add(process, digests)
        if self.state is not None:
            self._slices.forget(self.state.grants.floor)

    def completed(self, node: int, reports: Sequence[WindowReport]) -> None:
        """Windows have run on a node.

        Raises:
            DisagreementError: a window gave other rows than an earlier run of it.
        """
        for report in reports:
            again = self._compare(report)
            self.tallies[report.key.source].add(report, again=again)
            self.readers.add(report)
            self._note_rows(report.key.source, report.rows)
            if self.state is None:
                continue
            done = self.state.completed(report.key, report.rows, report.records, node)
            self._ready += done.publications
            if done.moved:
                self._log.move(report.key, node)

    def take(self) -> Writing | None:
        """What has run and may enter the ledger now, None where there is nothing."""
        if not self._ready or self.state is None:
            return None
        publications, self._ready = self._ready, []
        entries = [self._unwritten[p.key] for p in publications if p.key in self._unwritten]
        return Writing(state=self.state, publications=publications, entries=entries)

    def write(self, writing: Writing) -> None:
        """Makes it durable; waits for storage.

        Raises:
            OSError: the storage refused.
        """
        if writing.entries:
            self._ledger.append(writing.entries)

    def publish(self, writing: Writing) -> list[WindowKey]:
        """It is durable: its rows have their places now, and hosts are told.

        Returns:
            Windows that nobody needs, which their nodes may forget.
        """
        for source, epoch, window, *_ in writing.entries:
            self._unwritten.pop(WindowKey(source, epoch, window), None)
        state = writing.state
        if state is not self.state:
            return []
        # Windows behind the end of the feed may be among them; the state has dropped those.
        told = [p for p in writing.publications if state.is_held(p.key)]
        unneeded = state.publish(told)
        self._log.publish([(*_numbers(p), state.holder(p.key)) for p in told])
        return unneeded

    def update(self, process: int, since: int, granted: int, nodes: dict[int, Any]) -> FeedUpdate:
        """What a host is told that has seen ``since`` events and the grant ``granted``."""
        if self.state is None:
            raise StaleGenerationError(0, self.generation)
        events, moved = self._log.since(process, since)
        return FeedUpdate(
            grants=tuple(self.state.grants.grants_after(granted)),
            total_steps=self.state.total_steps,
            events=events,
            next_event=self._log.end,
            moved=moved,
            nodes=nodes,
            depth=self.state.grants.depth,
            last_step=self.state.last_step,
            no_more=self.members.why_no_more(),
        )

    @property
    def news(self) -> tuple[Any, ...]:
        """Changes when hosts that wait for a grant have something to hear."""
        state = self.state
        if state is None:
            return (self.generation,)
        return self.generation, state.grants.granted, state.last_step, self._log.last_move

    def moved_since(self, since: int) -> bool:
        """A host that has seen ``since`` events must hear where windows lie now."""
        return self._log.moved_since(since)

    def status(self) -> dict[str, Any]:
        """Where the feed is, and what each source has cost and given, as plain values."""
        sources = zip(self.spec.config.sources, self.tallies, strict=True)
        status: dict[str, Any] = {"sources": {s.name: asdict(tally) for s, tally in sources}}
        state = self.state
        status["dropped_rows"] = self._dropped if state is None else self._dropped_rows(state)
        if state is not None:
            limiting = state.limiting_window()
            status |= {
                "generation": self.generation,
                "granted": state.grants.granted,
                "taken": state.grants.floor,
                "ready": state.ready_steps,
                "total_steps": state.total_steps,
                "last_step": state.last_step,
                "steps_per_second": state.grants.steps_per_second,
                "slowest_process": state.grants.slowest(),
                "waiting": dict(self.waiting),
                "readers": self.readers.plain(),
                "limiting_window": None if limiting is None else self._describe(state, limiting),
            }
        return status

    @property
    def need(self) -> FeedNeed:
        """Bytes that the feed needs, by what is known of its windows."""
        return self._need

    def _dropped_rows(self, state: FeedState) -> int:
        """Rows at the feed's end that fill no step and are not given; 0 until its end is known."""
        total, config = state.schedule.total_rows, self.spec.config
        if total is None or config.remainder is not Remainder.DROP:
            return 0
        whole, rest = divmod(total, config.batch_size)
        return rest if state.total_steps == whole else 0

    def block_bytes(self, source: int) -> int:
        """Bytes that a window of a source takes at most."""
        return self._block_bytes[source]

    def group(self, key: WindowKey) -> tuple[int, int]:
        """Windows of a source with the same value read the same chunks."""
        return key.epoch, self.epochs.windows(key.source, key.epoch).group(key.window)

    def _note_rows(self, source: int, rows: int) -> None:
        if rows > self._most_rows[source]:
            self._most_rows[source] = rows
            self._block_bytes[source] = self._format.nbytes(rows)
            self._need = feed_need(self.spec, self._limits, self._most_rows)

    def _compare(self, report: WindowReport) -> bool:
        """True where the window has run before; its rows must be the same then."""
        key = report.key
        before = self._unwritten.get(key) or self._ledger.find(*key)
        if before is None:
            self._unwritten[key] = LedgerEntry(
                *key, report.rows, report.records, tokens=report.tokens, digest=report.digest
            )
            return False
        same = before.rows == report.rows and (
            before.digest == report.digest or not (before.digest and report.digest)
        )
        if not same:
            name = self.spec.config.sources[key.source].name
            raise DisagreementError(
                f"window {key.window} of epoch {key.epoch} of source {name} gave {before.rows} "
                f"rows (digest {before.digest:x}) in an earlier run and {report.rows} (digest "
                f"{report.digest:x}) now: its data has changed or a transform is not deterministic"
            )
        return True

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


def _numbers(publication: Publication) -> tuple[int, int, int, int, int]:
    key = publication.key
    return key.source, key.epoch, key.window, publication.rows, publication.records
