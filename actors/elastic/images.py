"""Images: what one host holds of the live state at a step, as one file in shared memory.

::

    | leaf 0, box 0 | leaf 0, box 1 | leaf 1, box 0 | ...      each at a multiple of 64 bytes

The boxes are those of the host's own devices, each once; they are plain memory in C order. A vault
owns the files; the trainer process beside it maps them, writes them and reads them.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.data.memory import round_up
from meshfeed.pipeline.plan.boxes import (
    Boxes,
    count_cells,
    describe_box,
    index_within,
    intersect,
    sizes,
)
from meshfeed.pipeline.plan.errors import DisagreementError

Bytes = npt.NDArray[np.uint8]
Cells = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeafImage:
    """One leaf in an image.

    Attributes:
        name: its path in the state.
        shape: of the whole array.
        dtype: its name, as numpy or ml_dtypes know it.
        itemsize: bytes of an element.
        boxes: int64 [n, d, 2], what is there of it.
        offsets: int64 [n], where each lies in the file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    boxes: Boxes
    offsets: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Image:
    """What lies where in the file of one host's state at one step.

    Attributes:
        host: whose it is.
        generation: in which it was made.
        step: steps before this one are in it.
        cursor: of the feed at that step.
        leaves: in the order of the state.
        nbytes: of the file.
    """

    host: str
    generation: int
    step: int
    cursor: Mapping[str, Any]
    leaves: tuple[LeafImage, ...]
    nbytes: int

    @property
    def key(self) -> tuple[int, int]:
        """(generation, step): images with the same key make up one state."""
        return self.generation, self.step

    def only(self, kept: Sequence[npt.NDArray[np.bool_]]) -> Image:
        """An image of some of the boxes of each leaf, laid out anew; ``kept`` bool [n] of each."""
        parts = [
            (leaf.name, leaf.shape, leaf.dtype, leaf.itemsize, leaf.boxes[keep])
            for leaf, keep in zip(self.leaves, kept, strict=True)
        ]
        return lay_out(self.host, self.generation, self.step, self.cursor, parts)


Part = tuple[str, tuple[int, ...], str, int, Boxes]
"""Name, shape, dtype, itemsize and boxes of a leaf."""


def lay_out(
    host: str, generation: int, step: int, cursor: Mapping[str, Any], parts: Sequence[Part]
) -> Image:
    """The image of these boxes, one after the other."""
    at, leaves = 0, []
    for name, shape, dtype, itemsize, boxes in parts:
        lengths = [round_up(int(cells) * itemsize) for cells in sizes(boxes)]
        offsets = at + np.cumsum([0, *lengths])
        at = int(offsets[-1])
        leaves.append(
            LeafImage(
                name=name,
                shape=shape,
                dtype=dtype,
                itemsize=itemsize,
                boxes=boxes,
                offsets=offsets[:-1].astype(np.int64),
            )
        )
    return Image(
        host=host,
        generation=generation,
        step=step,
        cursor=cursor,
        leaves=tuple(leaves),
        nbytes=max(at, 64),
    )


def map_file(path: Path, nbytes: int, *, create: bool = False) -> Bytes:
    """uint8 [nbytes], the file's memory, writable; pages that were touched before stay touched."""
    with path.open("ab+" if create else "r+b") as file:
        if create:
            file.truncate(nbytes)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        return np.frombuffer(mmap.mmap(file.fileno(), nbytes, flags), np.uint8)


def view_box(memory: Bytes, leaf: LeafImage, place: int) -> Cells:
    """The cells of one stored box as raw elements, [*box lengths, itemsize] uint8: no copy."""
    box = leaf.boxes[place]
    lengths = (box[:, 1] - box[:, 0]).tolist()
    at = int(leaf.offsets[place])
    nbytes = int(np.prod(lengths, dtype=np.int64)) * leaf.itemsize
    return memory[at : at + nbytes].reshape(*lengths, leaf.itemsize)


def copy_box(target: Cells, box: Boxes, stored: Sequence[tuple[Bytes, LeafImage]]) -> None:
    """Fills ``target`` [*lengths, itemsize] uint8 with a box [d, 2] of a leaf from its images.

    Raises:
        DisagreementError: they do not hold all of it.
    """
    cells = int(sizes(box[None])[0])
    done = box[None][:0]
    for memory, leaf in stored:
        common, _, places = intersect(box[None], leaf.boxes)
        for part, place in zip(common, places.tolist(), strict=True):
            within = index_within(part, leaf.boxes[place])
            target[index_within(part, box)] = view_box(memory, leaf, place)[within]
        done = np.concatenate([done, common])
        if count_cells(done) == cells:
            return
    raise DisagreementError(
        f"of {describe_box(box)} only {count_cells(done)} of {cells} cells are in the vault"
    )


def pieces(boxes: Sequence[tuple[Boxes, int]]) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Where boxes [d, 2] with their itemsizes lie in a flat buffer: begin, end, shape of cells."""
    at = 0
    for box, itemsize in boxes:
        lengths = (box[:, 1] - box[:, 0]).tolist()
        nbytes = int(np.prod(lengths, dtype=np.int64)) * itemsize
        yield at, at + nbytes, (*lengths, itemsize)
        at += round_up(nbytes)
