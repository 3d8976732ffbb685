"""Copies of the training state that are taken between steps, so that a lost host costs few steps.

::

    snapshots = Snapshots(state, keep=2, memory_limit=2 << 30)
    for step, batch in ...:
        state = train_step(state, batch)
        if step % every == 0:
            snapshots.take(state, step)      # before the next step is dispatched
    snapshots.newest.state.read(path, box)

A step that donates its inputs and then fails has destroyed them: the copy must be complete before
the step is dispatched. The memory is taken and touched at the start, and used in turn.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import jax

from meshfeed.pipeline.assemble.held_state import HeldState, needed_bytes
from meshfeed.pipeline.plan.errors import BudgetError, ConfigError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """What this process held of the state at a step.

    Attributes:
        step: training steps in it: the step that comes next.
        generation: in which it was taken. One of another generation has other boxes.
        state: the copy; its memory is used again after ``keep`` more snapshots.
        seconds: that the copying took, the wait for the state itself not counted.
    """

    step: int
    generation: int
    state: HeldState
    seconds: float


class Snapshots:
    """The last snapshots of this process.

    Args:
        state: that will be taken, as it lies now.
        keep: how many; two, so that one is whole while the other is written.
        memory_limit: bytes that they may take together.
        generation: of the world.

    Raises:
        BudgetError: the memory limit is too small; carries the bytes that would do.
    """

    def __init__(
        self, state: Any, *, keep: int = 2, memory_limit: int, generation: int = 0
    ) -> None:
        if keep < 1:
            raise ConfigError("keep", f"{keep} snapshots", "Keep at least 1")
        needed = keep * needed_bytes(state)
        if needed > memory_limit:
            raise BudgetError(
                "snapshot memory",
                memory_limit,
                needed,
                f"{keep} copies of the {needed // keep} bytes that this host holds of the state",
            )
        self._generation = generation
        self._free = [HeldState.allocate(state) for _ in range(keep)]
        self._taken: deque[Snapshot] = deque()

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are taken, whether in use or not."""
        return sum(one.nbytes for one in (*self._free, *(s.state for s in self._taken)))

    @property
    def newest(self) -> Snapshot | None:
        """The last one."""
        return self._taken[-1] if self._taken else None

    @property
    def kept(self) -> tuple[Snapshot, ...]:
        """All that are kept, the oldest first."""
        return tuple(self._taken)

    def at(self, step: int) -> Snapshot | None:
        """The snapshot of a step, if it is kept."""
        return next((one for one in self._taken if one.step == step), None)

    def take(self, state: Any, step: int) -> Snapshot:
        """Copies the state, over the oldest snapshot if all are in use; waits for the state.

        The oldest is given up before the copying begins, so that a failure in the middle of it
        never leaves half a snapshot that counts.

        Raises:
            ConfigError: the leaves do not lie as they did at the start.
        """
        spare = (*self._free, *(one.state for one in self._taken))[0]
        if not spare.suits(state):
            raise ConfigError(
                "state",
                "it does not lie as the one that these snapshots were made for",
                "Make new ones after a resize",
            )
        if not self._free:
            self._free.append(self._taken.popleft().state)
        jax.block_until_ready(state)
        began = time.monotonic()
        self._free[-1].take(state)
        taken = Snapshot(
            step=step,
            generation=self._generation,
            state=self._free.pop(),
            seconds=time.monotonic() - began,
        )
        self._taken.append(taken)
        logger.debug(
            "generation %d, step %d: %d bytes copied in %.3f s",
            *(self._generation, step, taken.state.nbytes, taken.seconds),
        )
        return taken
