"""Where the state of a generation comes from and goes to: between devices and vaults."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
import ray

from meshfeed.actors.elastic.images import Image, Part, lay_out, map_file, view_box
from meshfeed.actors.elastic.messages import Keeping, Source
from meshfeed.actors.elastic.progress import Progress
from meshfeed.actors.elastic.restoring import Restorer
from meshfeed.actors.elastic.state_tree import LeafBoxes, leaf_boxes
from meshfeed.pipeline.assemble.local_cells import local_cells
from meshfeed.pipeline.assemble.state_builder import StateBuilder
from meshfeed.pipeline.assemble.state_leaves import without_weak_types
from meshfeed.pipeline.plan.errors import ConfigError

log = logging.getLogger(__name__)


class Keeper:
    """The state of one host in one generation.

    Args:
        generation: its number.
        process_index: of this process.
        keeping: what is kept.
        source: where the live state lies; None: the generation makes it.
        progress: is told what it took.
    """

    def __init__(
        self,
        generation: int,
        process_index: int,
        keeping: Keeping,
        source: Source | None,
        progress: Progress,
    ) -> None:
        self._generation = generation
        self._process_index = process_index
        self._keeping = keeping
        self._source = source
        self._progress = progress
        self._leaves: list[LeafBoxes] = []
        self._saved = -1
        self._commits = 0
        self._last: tuple[int, Any, Mapping[str, Any]] | None = None
        self._away: list[npt.NDArray[np.bool_]] | None = None

    def restore(self, init: Callable[[], Any], shardings: Any) -> Any:
        """The state that the generation begins with.

        Raises:
            ConfigError: the state has another form than the live one.
        """
        shapes = jax.eval_shape(init)
        self._leaves = leaf_boxes(shapes, shardings, len(self._keeping.hosts))
        self._reserve()
        facts: dict[str, Any] = {"leaves": [leaf.described() for leaf in self._leaves]}
        source = self._source
        if source is None:
            self._progress.has_state(facts)
            return without_weak_types(jax.jit(init, out_shardings=shardings)())
        began = time.monotonic()
        restorer = Restorer(source, self._keeping.hosts, self._process_index, self._leaves)
        builder = StateBuilder(shapes, shardings)
        state = restorer.restore(builder, self._keeping.timeout_s)
        for phase, seconds in restorer.seconds.items():
            self._progress.took(phase, seconds)
        self._progress.has_state(facts | restorer.facts)
        log.info(
            "generation %d, host %s: state of step %d restored in %.2f s",
            *(self._generation, self._keeping.host, source.step, time.monotonic() - began),
        )
        self._last = source.step, state, source.cursor
        return state

    def committed(self, step: int, state: Any, cursor: Mapping[str, Any]) -> None:
        """The state after all steps before ``step``; every so often it goes to the vaults."""
        self._last = step, state, cursor
        self._commits += 1
        if self._is_due(step):
            began = time.monotonic()
            self._save(step, state, cursor, is_snapshot=True)
            self._progress.took("snapshot", time.monotonic() - began)

    def _is_due(self, step: int) -> bool:
        """Every so many steps; and soon where the state of a world that has begun lies nowhere.

        Not at its first step: until all have taken that, the state of before is kept.
        """
        every = self._keeping.snapshot_every
        if not every:
            return False
        is_first = self._source is not None and self._commits == 2
        return step % every == 0 or is_first

    def leave(self) -> int:
        """The generation ends as planned: the last committed state goes to this host's vault.

        Returns:
            The step up to which it has been trained.

        Raises:
            ConfigError: nothing was committed, or what was has been donated to a later step.
        """
        if self._last is None:
            raise ConfigError("job.commit", "was never called", "Call it after every step")
        step, state, cursor = self._last
        if any(isinstance(x, jax.Array) and x.is_deleted() for x in jax.tree.leaves(state)):
            raise ConfigError(
                "job.commit",
                f"the state committed at step {step} was donated to a later step",
                "Commit after every step",
            )
        if self._saved != step:
            self._save(step, state, cursor, is_snapshot=False)
        return step

    def _reserve(self) -> None:
        """The memory that images will take must be there before the first step."""
        own = lay_out("", 0, 0, {}, self._parts(self._process_index)).nbytes
        replicas = 0
        if self._keeping.snapshot_every and self._keeping.neighbour is not None:
            before = (self._process_index - 1) % len(self._keeping.hosts)
            parts = self._parts(before)
            kept = self._alone(before)
            image = lay_out("", 0, 0, {}, parts)
            replicas = image.only(kept).nbytes
            self._away = self._alone(self._process_index)
        self._call("reserve", own, replicas)

    def _parts(self, process: int) -> list[Part]:
        return [
            (own.leaf.path, own.leaf.shape, own.leaf.dtype, own.leaf.itemsize, own.held[process])
            for own in self._leaves
        ]

    def _alone(self, process: int) -> list[npt.NDArray[np.bool_]]:
        """Of each leaf, which boxes of a process lie on no other: these need a replica."""
        return [leaf.alone(process) for leaf in self._leaves]

    def _save(self, step: int, state: Any, cursor: Mapping[str, Any], *, is_snapshot: bool) -> None:
        """Copies this host's boxes into a file of its vault: owned memory, no view is kept."""
        keeping = self._keeping
        self._saved = step
        image: Image = lay_out(
            keeping.host, self._generation, step, cursor, self._parts(self._process_index)
        )
        path = self._call("place", self._generation, step, image.nbytes)
        memory = map_file(Path(path), image.nbytes)
        arrays = jax.tree.leaves(state)
        for array, leaf in zip(arrays, image.leaves, strict=True):
            for place, cells in local_cells(array, leaf.boxes):
                view_box(memory, leaf, place)[...] = cells
        away = self._away if is_snapshot else None
        sealing = keeping.vault.seal.remote(
            image, path, keeping.neighbour, away, is_snapshot=is_snapshot
        )
        if not is_snapshot:
            ray.get(sealing, timeout=keeping.timeout_s)

    def _call(self, method: str, *args: Any) -> Any:
        call = getattr(self._keeping.vault, method).remote(*args)
        try:
            return ray.get(call, timeout=self._keeping.timeout_s)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
