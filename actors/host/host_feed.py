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
import time
from collections.abc import Callable, Iterable
from queue import Empty
from typing import Generic, TypeVar

from ray.actor import ActorHandle

from meshfeed.actors.host.assembly import Assembly
from meshfeed.actors.host.feed_limits import (
    FeedCounters,
    FeedLimits,
    cause_of,
    raise_as_ours,
    what_is_missing,
)
from meshfeed.actors.host.feed_view import FeedView
from meshfeed.actors.host.fetching import Fetcher, Stretch
from meshfeed.actors.host.handoff import Handoff
from meshfeed.actors.host.line import Line
from meshfeed.actors.host.presence import Presence
from meshfeed.actors.host.waiting import Waiting
from meshfeed.actors.messages import FeedUpdate, Opening
from meshfeed.actors.slice_checks import SliceDigest, SliceSamples
from meshfeed.pipeline.plan.batch_plan import BatchPlan
from meshfeed.pipeline.plan.cursor import Cursor
from meshfeed.pipeline.plan.errors import StallError

log = logging.getLogger(__name__)

HEARTBEAT_S = 2.0
"""A host that takes steps says so at least this often."""

LOOK_AGAIN_S = 1.0
"""Rows that a node did not give are asked for again after so long, if nothing was heard of them."""

PAUSE_S = 0.1

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
        self._assembly = Assembly(make_batches, self.waiting)
        self._fetcher = Fetcher(feed, opening, plan, process_index)
        step_bytes = self._fetcher.step_bytes
        self._view = FeedView(opening, max(1, limits.stretch_bytes // step_bytes))
        self._granted = self._view.granted
        self._taken = self._view.start_step
        self._looking_for: Stretch | None = None
        self._line = Line(coordinator, feed, opening, process_index, limits.timeout_s)
        self._is_cut_off = False
        self._samples = SliceSamples()
        self._error: BaseException | None = None
        self._closed = threading.Event()
        self._ended = False
        self._stretches: Handoff[Stretch | None] = Handoff(1, self._closed)
        self._ready: Handoff[Batch | None] = Handoff(limits.batches(step_bytes), self._closed)
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
            on_restart=self._cut_off,
        )
        self._presence.take_part(opening.incarnation)
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
                    raise self._stall(waited, f"batch of step {self._taken}") from None
                if waited > self._limits.stall_s and not warned:
                    warned = True
                    self._warn(waited)
        self.waiting.end()
        if batch is None:
            self._ended = True
            self._error = self._error or self._granted.no_more
            self._raise_error()
            self._view.notify()
            return None
        self._taken += 1
        self.counters.steps += 1
        if self._wants_more():
            self._view.notify()
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
        return self._view.rows_of(step)

    def cursor(self) -> Cursor:
        """Where the feed is after the last batch taken: the same on every host."""
        return self._view.cursor(self._taken)

    def close(self, error: BaseException | None = None) -> None:
        """Ends the threads and leaves the membership; the others hear an error, if there is one."""
        if self._closed.is_set():
            return
        self._presence.leave(error)
        self._closed.set()
        self._view.notify()
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
        self._view.notify()

    def _update(self) -> None:
        """Asks again when half of what was granted is taken, or at once when there is no more.

        And now and then in between, so that ``status`` and release do not lag far behind.
        """
        told = self._taken
        while not self._closed.is_set():
            with self._view.changed:
                self._view.changed.wait_for(self._wants_more, timeout=HEARTBEAT_S)
                finished = self._granted.is_finished(self._taken)
                if self._closed.is_set():
                    return
                taken, granted = self._taken, self._granted.step
                if not finished and not self._wants_more() and taken == told:
                    continue
                told = taken
            self.counters.polls += 1
            update = self._line.poll(
                acked=taken,
                granted=granted,
                since=self._view.since,
                waited=self.waiting.plain(),
                known_nodes=len(self._fetcher.nodes),
                checks=self._samples.take(),
            )
            self._is_cut_off = False
            if update is None:
                self._rejoin(taken)
                continue
            self._apply(update)
            if finished:
                return
            if self._looking_for is not None:
                self._closed.wait(PAUSE_S)

    def _wants_more(self) -> bool:
        asks = self._looking_for is not None or self._is_cut_off or self._closed.is_set()
        return asks or self._granted.wants_more(self._taken)

    def _cut_off(self) -> None:
        self._is_cut_off = True
        self._view.notify()

    def _rejoin(self, taken: int) -> None:
        """The coordinator is another one: it hears where this host is, and has nodes of its own."""
        self._line.rejoin(self._view.cursor(taken).to_json(), self._granted.step)
        self._view.since = 0
        self._fetcher.forget_nodes(self._line.incarnation)
        self._presence.take_part(self._line.incarnation)

    def _apply(self, update: FeedUpdate) -> None:
        self._fetcher.learn(update)
        passed = self._view.apply(update, self._taken)
        if passed is not None:
            self._fetcher.forget_before(passed)

    def _fetch(self) -> None:
        """Fetches granted steps in stretches, one of them always under way ahead."""
        ahead: Stretch | None = None
        while not self._closed.is_set():
            if ahead is None:
                self.waiting.fetching = "grant"
                with self._view.changed:
                    self._view.changed.wait_for(self._fetchable, 1.0)
                    if self._closed.is_set():
                        return
                    if not self._granted.has_stretch and self._granted.all_granted:
                        break
                ahead = self._request()
                continue
            now, ahead = ahead, self._request()
            self.waiting.fetching = "fetch"
            if not now.wait(self._limits.timeout_s):
                now = self._fetch_again(now)
            self.counters.bytes_fetched += now.nbytes
            self.counters.fetches += now.requests
            if self._fetcher.group_size > 1:
                self._samples.add(
                    SliceDigest(self._fetcher.group, now.begin, now.end, now.digest, now.moves)
                )
            self._stretches.put(now)
        self._stretches.put(None)

    def _fetchable(self) -> bool:
        granted = self._granted
        return granted.has_stretch or granted.all_granted or self._closed.is_set()

    def _request(self) -> Stretch | None:
        """Asks for the next stretch, if one is granted."""
        steps = self._view.next_stretch()
        return None if steps is None else self._fetcher.request(*steps)

    def _fetch_again(self, lost: Stretch) -> Stretch:
        """A node is gone with some rows: asks for all anew, once they lie elsewhere.

        Raises:
            StallError: nobody has run their windows again in time.
        """
        began = time.monotonic()
        self.counters.fetched_again += 1
        while (waited := time.monotonic() - began) < self._limits.timeout_s:
            self._await_moves(lost)
            again = self._fetcher.request(*self._view.steps(lost.begin, lost.end))
            if again.wait(self._limits.timeout_s) or self._closed.is_set():
                return again
            lost = again
        raise self._stall(waited, f"window {next(iter(lost.unheld))} of step {lost.begin}")

    def _await_moves(self, lost: Stretch) -> None:
        """Asks the coordinator where the windows of a stretch lie now; gives up after a while."""
        self._looking_for = lost
        with self._view.changed:
            self._view.changed.notify_all()
            self._view.changed.wait_for(
                lambda: self._closed.is_set() or self._fetcher.has_moved(lost), LOOK_AGAIN_S
            )
        self._looking_for = None

    def _assemble(self) -> None:
        for batch in self._assembly.batches(self._stretches, self._closed):
            if not self._ready.put(batch):
                return
        self._ready.put(None)

    def _warn(self, waited: float) -> None:
        """Says what is waited for, so that nobody has to guess."""
        where = (self.generation, self._process_index, self._taken, self.waiting.stage, waited)
        log.warning(STALL, *where, what_is_missing(self._coordinator, self._feed))

    def _stall(self, waited: float, what: str) -> StallError:
        host, stage = str(self._process_index), self.waiting.stage
        return StallError(what, waited, generation=self.generation, host=host, stage=stage)

    def _raise_error(self) -> None:
        if self._error is not None:
            where = f"feed {self._feed}, host {self._process_index}, step {self._taken}"
            raise_as_ours(self._error, where)
