"""A copy of what this process holds of a training state, in host memory of its own.

On CPU a numpy view of a ``jax.Array`` is the device's memory, and as long as any such view is there
a step that donates the array quietly copies it instead. So the cells are copied, once for each
distinct box, and no view outlives the copying.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.assemble.state_leaves import StateLeaf, cells_of, describe, leaves_of
from meshfeed.pipeline.plan.boxes import (
    Boxes,
    box_of_index,
    describe_box,
    index_within,
    intersect,
    sizes,
)
from meshfeed.pipeline.plan.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldState:
    """Copies of boxes of leaves.

    Attributes:
        leaves: by path, with the boxes that are held.
        cells: by path, one array for each box, in the order of ``StateLeaf.boxes``.
    """

    leaves: Mapping[str, StateLeaf]
    cells: Mapping[str, tuple[npt.NDArray[Any], ...]]

    @classmethod
    def allocate(cls, state: Any) -> HeldState:
        """Memory for what this process holds of ``state``; nothing is copied yet.

        Raises:
            ConfigError: a leaf that cannot be moved.
        """
        leaves = {path: describe(path, leaf) for path, leaf in leaves_of(state).items()}
        cells = {
            path: tuple(_touched(_lengths(box), leaf.numpy_dtype) for box in leaf.boxes)
            for path, leaf in leaves.items()
        }
        return cls(leaves=leaves, cells=cells)

    @classmethod
    def copy_of(cls, state: Any) -> HeldState:
        """What this process holds of ``state``, once that is there."""
        held = cls.allocate(state)
        held.take(state)
        return held

    @property
    def nbytes(self) -> int:
        """Bytes of all copies."""
        return sum(one.nbytes for all_of_leaf in self.cells.values() for one in all_of_leaf)

    def suits(self, state: Any) -> bool:
        """Whether ``take`` has a place for everything that this process holds of ``state``."""
        found = {path: describe(path, leaf) for path, leaf in leaves_of(state).items()}
        return found.keys() == self.leaves.keys() and all(
            not leaf.differs_from(self.leaves[path])
            and np.array_equal(leaf.boxes, self.leaves[path].boxes)
            for path, leaf in found.items()
        )

    def take(self, state: Any) -> None:
        """Copies ``state`` over what is here; its leaves lie as those this was allocated for."""
        for path, leaf in leaves_of(state).items():
            array = cells_of(leaf)
            own = self.leaves[path].boxes
            if isinstance(array, np.ndarray):
                for cells in self.cells[path]:
                    np.copyto(cells, array)
                continue
            at = {box.tobytes(): i for i, box in enumerate(own)}
            for shard in array.addressable_shards:
                i = at.pop(box_of_index(shard.index, array.shape)[0].tobytes(), None)
                if i is not None:
                    _copy_shard(shard, self.cells[path][i])

    def read(self, path: str, box: Boxes) -> npt.NDArray[Any]:
        """The cells of one box [d, 2], which may lie in several of those held.

        It may be a view of what is held: to be sent or copied before the next ``take``.

        Raises:
            ConfigError: not all of it is held.
        """
        leaf = self.leaves[path]
        common, _, of = intersect(box[None], leaf.boxes)
        if int(sizes(common).sum()) < int(sizes(box[None])[0]):
            held = " ".join(describe_box(own) for own in leaf.boxes)
            raise ConfigError(f"state{path}", f"{describe_box(box)} is not held, but {held}")
        if len(common) == 1:
            part = self.cells[path][of[0]][index_within(box, leaf.boxes[of[0]])]
            return np.asarray(part, order="C")
        cells = np.empty(_lengths(box), dtype=leaf.numpy_dtype)
        for part_box, i in zip(common, of, strict=True):
            source = self.cells[path][i][index_within(part_box, leaf.boxes[i])]
            cells[index_within(part_box, box)] = source
        return cells


def needed_bytes(state: Any) -> int:
    """Bytes of a copy of what this process holds of ``state``, each box once."""
    total = 0
    for path, leaf in leaves_of(state).items():
        described = describe(path, leaf)
        total += int(sizes(described.boxes).sum()) * described.itemsize
    return total


def _lengths(box: Boxes) -> tuple[int, ...]:
    return tuple((box[:, 1] - box[:, 0]).tolist())


def _touched(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Memory that is really there: a page that is touched for the first time costs 50 times."""
    cells = np.empty(shape, dtype=dtype)
    cells.reshape(-1).view(np.uint8).fill(0)
    return cells


def _copy_shard(shard: Any, into: npt.NDArray[Any]) -> None:
    """Copies one device's cells; the view of them ends here."""
    np.copyto(into, np.asarray(shard.data))
