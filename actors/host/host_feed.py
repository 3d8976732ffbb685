"""The host's end of a feed: fetches this process's slice of every step, ahead of the trainer.

Three threads and three stations::

    update   asks the coordinator for grants and ledger   -> Schedule
    fetch    asks nodes for regions of granted steps      -> bytes of a stretch of steps
    assemble derives the leaves, puts them on the devices -> queue of ready batches

The trainer takes from the queue. Nothing here depends on what other hosts do: no collective.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from queue import Empty
from typing import Generic, TypeVar

import ray
from ray.actor import ActorHandle

from meshfeed.actors.host.feed_limits import FeedCounters, FeedLimits, cause_of, what_is_missing
from meshfeed.actors.host.fetching import Fetcher, Stretch
from meshfeed.actors.host.granted import Granted
from meshfeed.actors.host.handoff import Handoff
from meshfeed.actors.host.presence import Presence
from meshfeed.actors.host.waiting import Waiting
from meshfeed.actors.messages import FeedUpdate, Opening
from meshfeed.actors.slice_checks import SliceSamples
from meshfeed.pipeline.plan.batch_plan import BatchPlan
from meshfeed.pipeline.plan.cursor import Cursor
from meshfeed.pipeline.plan.errors import FeedError, MeshfeedError, StallError
from meshfeed.pipeline.plan.schedule import Schedule

log = logging.getLogger(__name__)

HEARTBEAT_S = 2.0
"""A host that takes steps says so at least this often."""

STALL = "stall: generation %d, host %d, step %d, stage %s: no batch for %.1f s; %s"

Batch = TypeVar("Batch")


class HostFeed(Generic[Batch]):
    """Batches of one opening of a feed, in order, for one process.

    Args:
        coordinator: of the run.
        feed: its name.
        opening: what ``join`` answered.
        plan: who supplies what of each batch.
        process_index: of this process.
        make_batches: the leaves of each step out of fetched bytes, on the devices or not.
        limits: how far ahead, how long.
    """

    def __init__(
        self,
        coordinator: ActorHandle,
        feed: str,
        *,
        opening: Opening,
        plan: BatchPlan,
        process_index: int,
        make_batches: Callable[[Stretch], Iterable[Batch]],
        limits: FeedLimits,
    ) -> None:
        self.counters = FeedCounters()
        self.waiting = Waiting()
        self.generation = opening.generation
        self._coordinator = coordinator
        self._feed = feed
        self._process_index = process_index
        self._limits = limits
        self._make_batches = make_batches
        self._batch_size = opening.spec.config.batch_size
        epochs = opening.spec.epochs()
        cursor = None if opening.start is None else Cursor.from_json(opening.start)
        self._schedule = Schedule(opening.spec.source_plans(epochs), start=cursor)
        self._fetcher = Fetcher(feed, opening, plan, process_index)
        self._start = cursor
        self._taken = 0 if cursor is None else cursor.step
        self._step_bytes = self._fetcher.step_bytes
        stretch_steps = max(1, limits.stretch_bytes // self._step_bytes)
        self._granted = Granted(self._taken, opening.least_depth, stretch_steps)
        self._since = 0
        self._samples = SliceSamples()
        self._error: BaseException | None = None
        self._closed = threading.Event()
        self._state = threading.Condition()
        self._ended = False
        self._stretches: Handoff[Stretch | None] = Handoff(1, self._closed)
        self._ready: Handoff[Batch | None] = Handoff(limits.batches(self._step_bytes), self._closed)
        self._threads = [
            threading.Thread(target=self._guard, args=(work,), name=f"meshfeed-{name}", daemon=True)
            for name, work in (
                ("update", self._update),
                ("fetch", self._fetch),
                ("assemble", self._assemble),
            )
        ]
        self._presence = Presence(
            coordinator,
            feed,
            opening.generation,
            process_index,
            step=lambda: self._taken,
            on_end=self._fail,
        )
        for thread in self._threads:
            thread.start()

    # -- for the trainer ------------------------------------------------------------------------

    def take(self) -> Batch | None:
        """The batch of the next step, or None at the end of the feed or at a barrier.

        Raises:
            StallError: none came within ``timeout_s``.
            MeshfeedError: what ended the run.
        """
        if self._ended:
            self._raise_error()
            return None
        self.waiting.begin()
        warned = False
        while True:
            try:
                batch = self._ready.get(0.2)
                break
            except Empty:
                waited = self.waiting.look()
                self._raise_error()
                if waited > self._limits.timeout_s:
                    raise self._stall(waited) from None
                if waited > self._limits.stall_s and not warned:
                    warned = True
                    self._warn(waited)
        self.waiting.end()
        if batch is None:
            self._ended = True
            self._error = self._error or self._granted.no_more
            self._raise_error()
            self._tell_update()
            return None
        self._taken += 1
        self.counters.steps += 1
        if self._wants_more():
            self._tell_update()
        return batch

    @property
    def step(self) -> int:
        """The step that ``take`` gives next."""
        return self._taken

    @property
    def ended_for(self) -> str:
        """Why ``take`` gives no more: ``end`` of the feed, ``barrier``; "" while it does."""
        if not self._ended or self._error is not None:
            return ""
        return "end" if self._granted.total == self._taken else "barrier"

    def rows_of(self, step: int) -> int:
        """Rows of a step that exist: all but for the last step of the feed."""
        total = self._schedule.total_rows
        left = self._batch_size if total is None else total - step * self._batch_size
        return max(0, min(self._batch_size, left))

    def cursor(self) -> Cursor:
        """Where the feed is after the last batch taken: the same on every host."""
        with self._state:
            if self._start is not None and self._taken == self._start.step:
                return self._start
            row = self._taken * self._batch_size
            total = self._schedule.total_rows
            return self._schedule.cursor(row if total is None else min(row, total), self._taken)

    def close(self, error: BaseException | None = None) -> None:
        """Ends the threads and leaves the membership; the others hear an error, if there is one."""
        if self._closed.is_set():
            return
        self._presence.leave(error)
        self._closed.set()
        with self._state:
            self._state.notify_all()
        for thread in self._threads:
            thread.join(timeout=10)
        self._ready.drain()
        self._stretches.drain()

    # -- threads --------------------------------------------------------------------------------

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - handed to the trainer, which raises it
            if not self._closed.is_set():
                self._fail(cause_of(error))
                self._presence.leave(self._error)

    def _fail(self, error: BaseException) -> None:
        """The trainer is to raise this; the first error is the one that counts."""
        if self._error is None:
            self._error = error
        with self._state:
            self._state.notify_all()

    def _update(self) -> None:
        """Asks again when half of what was granted is taken, or at once when there is no more.

        And now and then in between, so that ``status`` and release do not lag far behind.
        """
        told = self._taken
        while not self._closed.is_set():
            with self._state:
                self._state.wait_for(self._wants_more, timeout=HEARTBEAT_S)
                finished = self._granted.is_finished(self._taken)
                if self._closed.is_set():
                    return
                taken, granted = self._taken, self._granted.step
                if not finished and not self._wants_more() and taken == told:
                    continue
                told = taken
            self.counters.polls += 1
            update: FeedUpdate = ray.get(
                self._coordinator.poll.remote(
                    self._feed,
                    self.generation,
                    self._process_index,
                    acked=taken,
                    granted=granted,
                    since=self._since,
                    waited=self.waiting.plain(),
                    known_nodes=len(self._fetcher.nodes),
                    checks=self._samples.take(),
                ),
                timeout=self._limits.timeout_s,
            )
            self._apply(update)
            if finished:
                return

    def _wants_more(self) -> bool:
        return self._closed.is_set() or self._granted.wants_more(self._taken)

    def _apply(self, update: FeedUpdate) -> None:
        self._fetcher.learn(update)
        with self._state:
            for source, rows, records in update.row_counts():
                self._schedule.append(source, rows, records)
            self._forget_taken()
            self._since = update.next_event
            self._granted.learn(update)
            self._state.notify_all()

    def _forget_taken(self) -> None:
        """Keeps memory flat: what lies before the next batch is not asked for again."""
        if self._taken * self._batch_size > self._schedule.first_row:
            cursor = self.cursor()
            self._fetcher.forget_before(cursor)
            self._schedule.forget(cursor.global_row)

    def _fetch(self) -> None:
        """Fetches granted steps in stretches, one of them always under way ahead."""
        ahead: Stretch | None = None
        while not self._closed.is_set():
            if ahead is None:
                self.waiting.fetching = "grant"
                with self._state:
                    self._state.wait_for(lambda: self._closed.is_set() or self._fetchable(), 1.0)
                    if self._closed.is_set():
                        return
                    if not self._granted.has_stretch and self._granted.all_granted:
                        break
                ahead = self._request()
                continue
            now, ahead = ahead, self._request()
            self.waiting.fetching = "fetch"
            now.wait(self._limits.timeout_s)
            self.counters.bytes_fetched += now.nbytes
            self.counters.fetches += now.requests
            if self._fetcher.group_size > 1:
                self._samples.add(self._fetcher.group, now.begin, now.end, now.digest)
            self._stretches.put(now)
        self._stretches.put(None)

    def _fetchable(self) -> bool:
        return self._granted.has_stretch or self._granted.all_granted

    def _request(self) -> Stretch | None:
        """Asks for the next stretch, if one is granted."""
        with self._state:
            steps = self._granted.next_stretch()
            if steps is None:
                return None
            begin, end = steps
            first, last = begin * self._batch_size, end * self._batch_size
            total = self._schedule.total_rows
            places = self._schedule.locate(first, last if total is None else min(last, total))
        return self._fetcher.request(begin, end, places)

    def _assemble(self) -> None:
        while not self._closed.is_set():
            try:
                stretch = self._stretches.get(0.5)
            except Empty:
                continue
            if stretch is None:
                break
            self.waiting.assembling = True
            for batch in self._make_batches(stretch):
                self.waiting.assembling = False
                if not self._ready.put(batch):
                    return
                self.waiting.assembling = True
            self.waiting.assembling = False
        self._ready.put(None)

    def _tell_update(self) -> None:
        with self._state:
            self._state.notify_all()

    def _warn(self, waited: float) -> None:
        """Says what is waited for, so that nobody has to guess."""
        where = (self.generation, self._process_index, self._taken, self.waiting.stage, waited)
        missing = what_is_missing(self._coordinator, self._feed)
        log.warning(STALL, *where, missing)

    def _stall(self, waited: float) -> StallError:
        return StallError(
            f"batch of step {self._taken}",
            waited,
            generation=self.generation,
            host=str(self._process_index),
            stage=self.waiting.stage,
        )

    def _raise_error(self) -> None:
        error = self._error
        if error is None:
            return
        if isinstance(error, MeshfeedError):
            raise error
        raise FeedError(
            f"feed {self._feed}, host {self._process_index}, step {self._taken}: {error}"
        ) from error
