"""How far one host has come in a generation: written by its training thread, read by its beats."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from meshfeed.actors.elastic.messages import Beat, Phase, TrainedStep
from meshfeed.pipeline.plan.errors import StallError

NEWS_WAIT_S = 0.5
"""A beat without news is answered after this long."""


class Progress:
    """Of one host, for all generations that it takes part in. Two threads may use it.

    Args:
        hold_at: steps after which the training thread waits to be released.
        hold_s: it waits no longer than this.
    """

    def __init__(self, hold_at: frozenset[int], hold_s: float) -> None:
        self._hold_at = hold_at
        self._hold_s = hold_s
        self._news = threading.Condition()
        self._heard = False
        self._generation = 0
        self._phase = Phase.STARTING
        self._step = 0
        self._feed_generation = 0
        self._at_barrier = False
        self._has_state = False
        self._held_at: int | None = None
        self._released: set[int] = set()
        self._steps: list[TrainedStep] = []
        self._seconds: dict[str, float] = {}
        self._facts: dict[str, Any] = {}
        self._error: BaseException | None = None

    @property
    def generation(self) -> int:
        """That the host belongs to."""
        return self._generation

    def begin(self, generation: int) -> None:
        """The host belongs to this generation from now on; what it has not told yet is kept."""
        with self._news:
            self._generation = generation
            self._step = self._feed_generation = 0
            self._held_at, self._error = None, None
            self._at_barrier = self._has_state = False
            self._seconds, self._facts = {}, {}
            self._tell(Phase.JOINING)

    def enter(self, phase: Phase) -> None:
        """The host is at something else."""
        with self._news:
            self._tell(phase)

    def opened(self, feed_generation: int) -> None:
        """The feed is open."""
        with self._news:
            self._feed_generation = feed_generation
            self._heard = False
            self._news.notify_all()

    def took(self, phase_name: str, seconds: float) -> None:
        """A part of the resize has taken so long."""
        with self._news:
            self._seconds[phase_name] = self._seconds.get(phase_name, 0.0) + seconds

    def has_state(self, facts: Mapping[str, Any]) -> None:
        """The host has its state; ``facts`` are what the coordinator keeps of it."""
        with self._news:
            self._facts |= facts
            self._has_state = True
            self._heard = False
            self._news.notify_all()

    def add(self, step: TrainedStep) -> None:
        """A step was taken."""
        with self._news:
            self._steps.append(step)

    def commit(self, step: int) -> None:
        """All steps before ``step`` are committed."""
        with self._news:
            self._step = step

    def holds(self, step: int) -> bool:
        """Someone wants to see the run stand at this step."""
        return step in self._hold_at and step not in self._released

    def hold(self, step: int) -> None:
        """Waits until the step is released.

        Raises:
            StallError: it was not released in time.
        """
        with self._news:
            self._held_at = step
            self._tell(Phase.HELD)
            if not self._news.wait_for(lambda: step in self._released, self._hold_s):
                raise StallError(f"release of step {step}", self._hold_s, stage="held")
            self._held_at = None
            self._tell(Phase.TRAINING)

    def release(self, step: int) -> None:
        """``hold`` of this step ends, or does not begin."""
        with self._news:
            self._released.add(step)
            self._news.notify_all()

    def end(self, step: int, *, at_barrier: bool) -> None:
        """``train(job)`` has returned before this step."""
        with self._news:
            self._step = step
            self._at_barrier = at_barrier
            self._tell(Phase.ENDED)

    def fail(self, generation: int, error: BaseException) -> None:
        """``train(job)`` of a generation has raised; of an older one nobody wants to know."""
        with self._news:
            if generation != self._generation:
                return
            self._error = error
            self._tell(Phase.FAILED)

    def beat(self) -> Beat:
        """What there is to tell, as soon as there is something or a little later."""
        until = time.monotonic() + NEWS_WAIT_S
        with self._news:
            while self._heard and (left := until - time.monotonic()) > 0:
                self._news.wait(left)
            self._heard = True
            steps, self._steps = tuple(self._steps), []
            return Beat(
                generation=self._generation,
                phase=self._phase,
                step=self._step,
                feed_generation=self._feed_generation,
                at_barrier=self._at_barrier,
                held_at=self._held_at,
                has_state=self._has_state,
                steps=steps,
                seconds=dict(self._seconds),
                facts=dict(self._facts),
                error=self._error,
            )

    def _tell(self, phase: Phase) -> None:
        self._phase = phase
        self._heard = False
        self._news.notify_all()
