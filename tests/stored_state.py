"""What one process holds of a training state, stored as a vault stores it, for tests of moves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from meshfeed.actors.elastic.images import Bytes, Image, copy_box, lay_out, view_box
from meshfeed.pipeline.assemble.local_cells import local_cells
from meshfeed.pipeline.assemble.state_leaves import StateLeaf, describe, leaves_of
from meshfeed.pipeline.plan.boxes import Boxes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """An image of a state and its memory, a copy."""

    leaves: Mapping[str, StateLeaf]
    image: Image
    memory: Bytes

    @classmethod
    def of(cls, state: Any, memory: Bytes | None = None) -> StoredState:
        """A copy of what this process holds of ``state``; into ``memory`` if that is given."""
        leaves = {path: describe(path, leaf) for path, leaf in leaves_of(state).items()}
        image = _image(leaves)
        memory = np.empty(image.nbytes, np.uint8) if memory is None else memory
        for array, leaf in zip(leaves_of(state).values(), image.leaves, strict=True):
            for place, cells in local_cells(array, leaf.boxes):
                view_box(memory, leaf, place)[...] = cells
        return cls(leaves=leaves, image=image, memory=memory)

    @classmethod
    def load(cls, folder: Path) -> StoredState:
        """What ``save`` wrote."""
        described = json.loads((folder / "leaves.json").read_text())
        leaves = {leaf.path: leaf for leaf in map(StateLeaf.from_data, described)}
        memory = np.fromfile(folder / "cells", np.uint8)
        return cls(leaves=leaves, image=_image(leaves), memory=memory)

    def save(self, folder: Path) -> list[dict[str, Any]]:
        """Writes it down; gives the description."""
        folder.mkdir(parents=True, exist_ok=True)
        described = [leaf.as_data() for leaf in self.leaves.values()]
        (folder / "leaves.json").write_text(json.dumps(described))
        self.memory.tofile(folder / "cells")
        return described

    def read(self, path: str, box: Boxes) -> npt.NDArray[Any]:
        """A copy of one box [d, 2], whatever boxes hold it."""
        leaf = self.leaves[path]
        lengths = (box[:, 1] - box[:, 0]).tolist()
        cells = np.empty([*lengths, leaf.itemsize], np.uint8)
        stored = next(one for one in self.image.leaves if one.name == path)
        copy_box(cells, box, [(self.memory, stored)])
        return cells.reshape(-1).view(leaf.numpy_dtype).reshape(lengths)

    def pieces(self) -> Iterator[tuple[str, Boxes, npt.NDArray[Any]]]:
        """All that is stored: path, box [d, 2], cells."""
        for path, leaf in self.leaves.items():
            for box in leaf.boxes:
                yield path, box, self.read(path, box)


def _image(leaves: Mapping[str, StateLeaf]) -> Image:
    parts = [(one.path, one.shape, one.dtype, one.itemsize, one.boxes) for one in leaves.values()]
    return lay_out("host", 0, 0, {}, parts)
