"""What every process of a mesh holds of a state: the boxes of each leaf, for plans and images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Sharding

from meshfeed.actors.elastic.placing import LeafSpec
from meshfeed.pipeline.assemble.state_leaves import (
    StateLeaf,
    boxes_needed,
    describe,
    leaves_of,
)
from meshfeed.pipeline.plan.boxes import Boxes, whole
from meshfeed.pipeline.plan.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeafBoxes:
    """One leaf of a state on a mesh.

    Attributes:
        leaf: what it is.
        sharding: None for a leaf that is no ``jax.Array``: each process has all of it.
        held: of each process, int64 [n, d, 2], its distinct boxes.
    """

    leaf: StateLeaf
    sharding: Sharding | None
    held: tuple[Boxes, ...]

    def alone(self, process: int) -> npt.NDArray[np.bool_]:
        """Bool [n]: which boxes of a process no other process has."""
        others = {box.tobytes() for p, held in enumerate(self.held) if p != process for box in held}
        return np.array([box.tobytes() not in others for box in self.held[process]], np.bool_)

    def described(self) -> LeafSpec:
        """As planning knows it, for any mesh."""
        spec = tuple(getattr(self.sharding, "spec", ()))
        return LeafSpec(
            name=self.leaf.path,
            shape=self.leaf.shape,
            itemsize=self.leaf.itemsize,
            spec=tuple((entry,) if isinstance(entry, str) else entry for entry in spec),
        )


def leaf_boxes(shapes: Any, shardings: Any, processes: int) -> list[LeafBoxes]:
    """The leaves of a state, in JAX's order.

    Args:
        shapes: what ``jax.eval_shape`` gives for the state.
        shardings: a tree of its form, or of a part of it that stands for all below.
        processes: of the mesh.

    Raises:
        ConfigError: the shardings do not fit the state.
    """
    each: list[Any] = []
    try:
        jax.tree.map(
            lambda sharding, below: each.extend([sharding] * len(jax.tree.leaves(below))),
            shardings,
            shapes,
            is_leaf=lambda node: node is None or isinstance(node, Sharding),
        )
    except ValueError as error:
        raise ConfigError("shardings", f"have another form than the state: {error}") from error
    found = []
    for (path, shape), sharding in zip(leaves_of(shapes).items(), each, strict=True):
        leaf = describe(path, shape)
        laid = sharding if isinstance(sharding, Sharding) else None
        held = [
            whole(leaf.shape) if laid is None else boxes_needed(leaf.shape, laid, process)
            for process in range(processes)
        ]
        found.append(LeafBoxes(leaf=leaf, sharding=laid, held=tuple(held)))
    return found
