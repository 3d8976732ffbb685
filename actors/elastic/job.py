"""``train(job)``: the loop that a user writes once and that survives every resize.

::

    def train(job):
        shardings = ...  # by job.mesh
        state = job.state(init, shardings)
        for batch in job.feed:
            state, metrics = update(state, batch)
            job.report(metrics)
            job.commit(state)

It is called once for each generation, on every host of it. The feed ends where the generation
does; ``job.state`` gives the live state to the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import jax
from jax.sharding import Mesh

from meshfeed.actors.connect import FeedIterator
from meshfeed.actors.elastic.compile_times import compile_seconds
from meshfeed.actors.elastic.messages import TrainedStep
from meshfeed.actors.elastic.progress import Progress
from meshfeed.pipeline.assemble.readback import box_digests
from meshfeed.pipeline.data.batches.agreement import BoxDigest
from meshfeed.pipeline.plan.errors import ConfigError


class StateKeeper(Protocol):
    """Where a job's state comes from and goes to."""

    def restore(self, init: Callable[[], Any], shardings: Any) -> Any:
        """The state that the generation begins with."""

    def committed(self, step: int, state: Any, cursor: Mapping[str, Any]) -> None:
        """The state after all steps before ``step``."""


class JobFeed:
    """The batches of one generation, in order.

    Args:
        feed: the open feed.
        digests: whether every batch is digested as it lies on the devices.
    """

    def __init__(self, feed: FeedIterator, *, digests: bool) -> None:
        self._feed = feed
        self._digests = digests
        self.ended = False
        self.taken: TrainedStep | None = None

    def __iter__(self) -> Iterator[dict[str, jax.Array]]:
        return self

    def __next__(self) -> dict[str, jax.Array]:
        began = time.monotonic()
        step = self._feed.step
        batch: dict[str, jax.Array] | None = next(self._feed, None)
        if batch is None:
            self.ended = True
            raise StopIteration
        waited = time.monotonic() - began
        rows = self._feed.real_rows
        self.taken = TrainedStep(
            step=step, rows=rows, boxes=self._boxes(batch, step, rows), waited=waited
        )
        return batch

    @property
    def step(self) -> int:
        """The step that comes next."""
        return self._feed.step

    @property
    def real_rows(self) -> int:
        """Rows of the batch returned last that are not padding; they come first."""
        return self._feed.real_rows

    def get_state(self) -> dict[str, Any]:
        """Where the feed is, as plain JSON values; the same on every host."""
        return self._feed.get_state()

    def metrics(self) -> dict[str, Any]:
        """What this host fetched and waited for since the generation began."""
        return self._feed.metrics()

    def _boxes(self, batch: dict[str, jax.Array], step: int, rows: int) -> tuple[BoxDigest, ...]:
        if not self._digests:
            return ()
        first_row = step * self._feed.plan.batch_size
        return box_digests(batch, first_row=first_row, real_rows=rows)


class Job:
    """What ``train(job)`` is given.

    Attributes:
        mesh: of this generation.
        feed: its batches; it ends with the generation, or with training.
        generation: its number, from 1 on.
    """

    def __init__(
        self, generation: int, mesh: Mesh, feed: JobFeed, keeper: StateKeeper, progress: Progress
    ) -> None:
        self.generation = generation
        self.mesh = mesh
        self.feed = feed
        self._keeper = keeper
        self._progress = progress
        self._began: tuple[float, float] | None = None
        self._reported: tuple[TrainedStep, Mapping[str, Any]] | None = None

    @property
    def step(self) -> int:
        """The step that comes next; those before it have been trained."""
        return self.feed.step

    def state(self, init: Callable[[], Any], shardings: Any) -> Any:
        """The state to train on.

        Args:
            init: makes it, in the first generation; called under ``jax.jit``, so that each device
                makes only its part.
            shardings: a tree of ``NamedSharding`` over ``job.mesh`` in the form of the state, or
                of a part of it that stands for all below.

        Returns:
            In the first generation what ``init`` gives, later the live state, laid out anew.

        Raises:
            MeshfeedError: the state of the run has another form, or cannot be had.
        """
        state = self._keeper.restore(init, shardings)
        self._began = time.monotonic(), compile_seconds()
        return state

    def report(self, metrics: Mapping[str, Any]) -> None:
        """Metrics of the batch taken last: scalars, the same on every host.

        They are read one step later, so that training does not wait for them.
        """
        taken = self.feed.taken
        if taken is None:
            raise ConfigError("job.report", "no batch has been taken", "Report after a step")
        self.flush()
        self._reported = taken, metrics
        self.feed.taken = None

    def commit(self, state: Any) -> None:
        """Training may go on from this state: it follows from the batches taken so far.

        Called after every step; what is kept of it, and how often, is for the run to decide.
        """
        if self.feed.taken is not None:
            self.report({})
        step = self.feed.step
        if self._began is not None:
            self._tell_first_step(state, *self._began)
        self._keeper.committed(step, state, self.feed.get_state())
        self._progress.commit(step)
        if self._progress.holds(step):
            jax.block_until_ready(state)
            self.flush()
            self._progress.hold(step)

    def _tell_first_step(self, state: Any, began: float, compiled: float) -> None:
        """The first step of the generation is done: how long it took, compilation apart."""
        jax.block_until_ready(state)
        seconds, compiling = time.monotonic() - began, compile_seconds() - compiled
        self._progress.took("compile", min(compiling, seconds))
        self._progress.took("first_step", max(0.0, seconds - compiling))
        self._began = None

    def flush(self) -> None:
        """Tells of the steps that were taken, metrics included; waits for these."""
        if self._reported is not None:
            taken, metrics = self._reported
            self._reported = None
            values = {name: float(value) for name, value in metrics.items()}
            self._progress.add(
                TrainedStep(
                    step=taken.step,
                    rows=taken.rows,
                    boxes=taken.boxes,
                    waited=taken.waited,
                    metrics=values,
                )
            )
