"""The cells of a training state that this process holds, as raw bytes, to be copied elsewhere.

On CPU a numpy view of a ``jax.Array`` is the device's memory, and as long as any such view is there
a step that donates the array quietly copies it instead. So whoever takes cells copies them at once
and keeps no view.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.assemble.state_leaves import cells_of
from meshfeed.pipeline.plan.boxes import Boxes, box_of_index


def local_cells(leaf: Any, boxes: Boxes) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """The boxes that this process holds of a leaf: place in ``boxes``, raw cells [*, itemsize].

    Waits for the array. What is given may be a view of device memory: it must not be kept.
    """
    array = cells_of(leaf)
    if isinstance(array, np.ndarray):
        yield 0, raw(array)
        return
    places = {box.tobytes(): place for place, box in enumerate(boxes)}
    for shard in array.addressable_shards:
        place = places.pop(box_of_index(shard.index, array.shape)[0].tobytes(), None)
        if place is not None:
            yield place, raw(np.asarray(shard.data))


def raw(cells: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """An array's elements as bytes, [*shape, itemsize], without a copy where it is contiguous."""
    flat = np.ascontiguousarray(cells).reshape(-1)
    return flat.view(np.uint8).reshape(*cells.shape, flat.itemsize)
