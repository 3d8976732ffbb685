"""Which part of a global batch each process must supply.

A device needs one *box* of the global batch, rows x columns. A process needs the union of the
boxes of its devices: its *slice*. Processes with the same slice form a *slice group*.

====================  ====================================================================
index                 runs over
====================  ====================================================================
mesh position         the devices in mesh order
``process``           the processes that own a device of the mesh (``SlicePlan.processes``)
``group``             the slice groups, in ascending order of their first block
global row, column    of the global batch, padding rows at its end included
block                 the equal parts of the batch: ``row_block * col_parts + col_block``
local row, column     within a part of a slice: ascending global rows and columns, packed,
                      which is how ``jax.make_array_from_process_local_data`` packs them
====================  ====================================================================

A slice is nearly always a *grid*: some rows x some columns, both perhaps with gaps. A mesh in
which the devices of a process lie askew gives a slice that is not; it is then several grids
(``SlicePart``) without a column in common, so that no process is asked for more than its own
devices hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mesh import MeshLayout
from meshfeed.pipeline.plan.partition import Spec, describe_spec

Range = tuple[int, int]
"""[begin, end)."""

WireBytes = Callable[[int, int], int]
"""(rows, columns) of one contiguous region -> bytes that it takes on the wire."""


@dataclass(frozen=True, slots=True)
class SlicePart:
    """A grid of the global batch: every one of ``rows`` x every one of ``cols``.

    Attributes:
        rows: ranges of global rows, ascending, with gaps between them.
        cols: ranges of global columns, likewise.
    """

    rows: tuple[Range, ...]
    cols: tuple[Range, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Local (rows, columns) when packed."""
        return _length(self.rows), _length(self.cols)

    def row_index(self) -> npt.NDArray[np.int64]:
        """int64 [local rows], the global row of each local row."""
        return _expand(self.rows)

    def col_index(self) -> npt.NDArray[np.int64]:
        """int64 [local columns], the global column of each local column."""
        return _expand(self.cols)

    def rows_below(self, limit: int) -> int:
        """Local rows whose global row is below ``limit``; they come first.

        With ``limit`` the number of rows that are not padding, the rest has weight zero.
        """
        return sum(max(0, min(end, limit) - begin) for begin, end in self.rows)

    def locate(self, box: npt.NDArray[np.int64]) -> tuple[slice, slice] | None:
        """Where ``box`` (row begin, row end, col begin, col end) lies in the packed part.

        None where it does not lie in it as a whole.
        """
        rows = _locate(self.rows, int(box[0]), int(box[1]))
        cols = _locate(self.cols, int(box[2]), int(box[3]))
        return None if rows is None or cols is None else (rows, cols)


@dataclass(frozen=True, slots=True)
class HostSlice:
    """What one process, and every other of its slice group, must supply.

    Attributes:
        parts: grids without a column in common; more than one only where the slice is no grid.
    """

    parts: tuple[SlicePart, ...]

    @property
    def is_grid(self) -> bool:
        """Whether one array holds it all."""
        return len(self.parts) == 1

    @property
    def cells(self) -> int:
        """Tokens in it."""
        return sum(rows * cols for rows, cols in (part.shape for part in self.parts))

    @property
    def regions(self) -> tuple[tuple[tuple[Range, ...], Range], ...]:
        """(row ranges, one column range) of each region that travels by itself."""
        return tuple((part.rows, cols) for part in self.parts for cols in part.cols)

    def wire_bytes(self, wire: WireBytes) -> int:
        """Bytes that travel for one global batch."""
        return sum(wire(_length(rows), end - begin) for rows, (begin, end) in self.regions)

    def __str__(self) -> str:
        return " + ".join(
            f"rows {describe_ranges(part.rows)} x columns {describe_ranges(part.cols)}"
            for part in self.parts
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlicePlan:
    """Boxes, slices and slice groups of one spec on one mesh.

    Attributes:
        global_shape: (rows, columns).
        parts: equal parts into which (rows, columns) are split.
        boxes: int64 [devices, 4], row begin, row end, column begin, column end of each mesh
            position.
        processes: int32 [processes], ascending.
        group_of_process: int32 [processes].
        blocks_of_group: int64 [groups, most], the blocks of each group, ascending; -1 behind.
    """

    global_shape: tuple[int, int]
    parts: tuple[int, int]
    boxes: npt.NDArray[np.int64]
    processes: npt.NDArray[np.int32]
    group_of_process: npt.NDArray[np.int32]
    blocks_of_group: npt.NDArray[np.int64]

    @property
    def num_groups(self) -> int:
        """Slice groups."""
        return len(self.blocks_of_group)

    def group_of(self, process_index: int) -> int:
        """The slice group of a process.

        Raises:
            ConfigError: the process owns no device of the mesh.
        """
        at = int(np.searchsorted(self.processes, process_index))
        if at == len(self.processes) or self.processes[at] != process_index:
            raise ConfigError(
                "mesh",
                f"process {process_index} owns no device of it",
                "Every process that feeds needs a device in the mesh",
            )
        return int(self.group_of_process[at])

    def members(self, group: int) -> npt.NDArray[np.int32]:
        """int32 [members], the processes of a slice group, ascending."""
        members: npt.NDArray[np.int32] = self.processes[self.group_of_process == group]
        return members

    def boxes_of_group(self, group: int) -> npt.NDArray[np.int64]:
        """int64 [blocks, 4], the distinct boxes of a slice group."""
        blocks = self.blocks_of_group[group]
        blocks = blocks[blocks >= 0]
        height, width = (n // k for n, k in zip(self.global_shape, self.parts, strict=True))
        rows, cols = blocks // self.parts[1] * height, blocks % self.parts[1] * width
        return np.stack([rows, rows + height, cols, cols + width], axis=1)

    def slice_of_group(self, group: int) -> HostSlice:
        """What the processes of a slice group must supply."""
        return cover(self.boxes_of_group(group))

    def slice_of(self, process_index: int) -> HostSlice:
        """What a process must supply.

        Raises:
            ConfigError: the process owns no device of the mesh.
        """
        return self.slice_of_group(self.group_of(process_index))


def plan_slices(mesh: MeshLayout, spec: Spec, global_shape: tuple[int, int]) -> SlicePlan:
    """Boxes, slices and slice groups, for any mesh in one pass over its devices.

    Example: ``data=2,model=2`` over 2 hosts x 2 devices, ``P('data', None)``, shape (8, 16):
    host 0 supplies rows 0..3, host 1 rows 4..7, all columns, in slice groups of their own.

    Raises:
        ConfigError: the shape does not divide (``batch_plan`` says it better, beforehand).
    """
    parts = (mesh.split_over(spec[0]), mesh.split_over(spec[1]))
    for size, count, what in zip(global_shape, parts, ("rows", "columns"), strict=True):
        if size < 1 or size % count:
            raise ConfigError(
                "batch_size" if what == "rows" else "seq_len",
                f"{size} {what} do not divide into {count} under {describe_spec(spec)} on {mesh}",
            )
    height, width = (size // count for size, count in zip(global_shape, parts, strict=True))
    coordinates = np.unravel_index(np.arange(mesh.num_devices), mesh.shape)
    row_block = _block_index(mesh, spec[0], coordinates)  # [devices]
    col_block = _block_index(mesh, spec[1], coordinates)  # [devices]
    rows, cols = row_block * height, col_block * width
    processes, owner = np.unique(mesh.process_of_device, return_inverse=True)
    # One number for each (process, block) pair; the distinct ones, sorted, list the blocks of
    # each process in ascending order, process by process.
    blocks = parts[0] * parts[1]
    pairs = np.unique(owner.astype(np.int64) * blocks + row_block * parts[1] + col_block)
    pair_owner, pair_block = pairs // blocks, pairs % blocks
    counts = np.bincount(pair_owner, minlength=len(processes))
    begins = np.concatenate([[0], np.cumsum(counts)[:-1]])
    table = np.full((len(processes), int(counts.max())), -1, dtype=np.int64)
    table[pair_owner, np.arange(len(pairs)) - begins[pair_owner]] = pair_block
    groups, group_of_process = np.unique(table, axis=0, return_inverse=True)
    return SlicePlan(
        global_shape=global_shape,
        parts=parts,
        boxes=np.stack([rows, rows + height, cols, cols + width], axis=1),
        processes=processes,
        group_of_process=group_of_process.reshape(-1).astype(np.int32),
        blocks_of_group=groups,
    )


def cover(boxes: npt.NDArray[np.int64]) -> HostSlice:
    """The grids that cover just the union of boxes, without a column in common.

    Also the union of slices of several leaves: give the boxes of all of them.

    Args:
        boxes: int64 [n, 4], n at least 1.
    """
    if len(boxes) == 1:
        top, bottom, left, right = boxes[0].tolist()
        return HostSlice((SlicePart(((top, bottom),), ((left, right),)),))
    row_edges = np.unique(boxes[:, :2])
    col_edges = np.unique(boxes[:, 2:])
    # A cell lies between neighbouring edges. Each box adds 1 at its first cell and takes it back
    # past its last one, in both directions; the running sums then count the boxes on each cell.
    r0, r1 = (np.searchsorted(row_edges, boxes[:, i]) for i in (0, 1))
    c0, c1 = (np.searchsorted(col_edges, boxes[:, i]) for i in (2, 3))
    change = np.zeros((len(row_edges), len(col_edges)), dtype=np.int64)
    for r, c, sign in ((r0, c0, 1), (r1, c0, -1), (r0, c1, -1), (r1, c1, 1)):
        np.add.at(change, (r, c), sign)
    covered = change.cumsum(axis=0).cumsum(axis=1)[:-1, :-1] > 0  # [row cells, column cells]
    patterns, which = np.unique(covered.T, axis=0, return_inverse=True)
    which = which.reshape(-1)
    parts = [
        SlicePart(rows=_ranges(row_edges, pattern), cols=_ranges(col_edges, which == i))
        for i, pattern in enumerate(patterns)
        if pattern.any()
    ]
    return HostSlice(tuple(sorted(parts, key=lambda part: part.cols)))


def union(slices: Iterable[HostSlice]) -> HostSlice:
    """What a process fetches when its leaves have different specs: all of ``slices``, no more."""
    boxes = [
        (*rows, *cols)
        for one in dict.fromkeys(slices)
        for part in one.parts
        for rows in part.rows
        for cols in part.cols
    ]
    return cover(np.array(boxes, dtype=np.int64))


def regrid(
    arrays: Sequence[npt.NDArray[Any]], outer: HostSlice, inner: HostSlice
) -> list[npt.NDArray[Any]]:
    """The packed parts of ``inner``, out of those of ``outer``, which holds all of it.

    Args:
        arrays: [local rows, local columns] of each part of ``outer``.
        outer: the slice that they hold, e.g. a ``union``.
        inner: the slice that one leaf needs.

    Returns:
        One array for each part of ``inner``; the arrays themselves where the slices are equal.
    """
    if outer == inner:
        return list(arrays)
    taken = []
    for part in inner.parts:
        out = np.empty(part.shape, dtype=arrays[0].dtype)
        rows, cols = part.row_index(), part.col_index()
        for array, held in zip(arrays, outer.parts, strict=True):
            _, to_row, from_row = np.intersect1d(
                rows, held.row_index(), assume_unique=True, return_indices=True
            )
            _, to_col, from_col = np.intersect1d(
                cols, held.col_index(), assume_unique=True, return_indices=True
            )
            out[np.ix_(to_row, to_col)] = array[np.ix_(from_row, from_col)]
        taken.append(out)
    return taken


def describe_ranges(ranges: Sequence[Range], most: int = 6) -> str:
    """``0-3, 8-11``: the ranges with their last index; the middle left out where there are many."""
    texts = [f"{begin}-{end - 1}" if end - begin > 1 else f"{begin}" for begin, end in ranges]
    if len(texts) > most:
        texts = [*texts[: most - 2], "...", texts[-1]]
    return ", ".join(texts)


def _block_index(
    mesh: MeshLayout, axes: tuple[str, ...] | None, coordinates: Sequence[npt.NDArray[np.intp]]
) -> npt.NDArray[np.int64]:
    """int64 [devices], the block of a dimension that is split over ``axes``, major axis first."""
    block = np.zeros(mesh.num_devices, dtype=np.int64)
    for axis in axes or ():
        at = mesh.axis_names.index(axis)
        block = block * mesh.shape[at] + coordinates[at]
    return block


def _ranges(edges: npt.NDArray[np.int64], taken: npt.NDArray[np.bool_]) -> tuple[Range, ...]:
    """Runs of taken cells as ranges; ``edges`` [cells + 1], ``taken`` [cells]."""
    change = np.diff(taken.astype(np.int8), prepend=0, append=0)
    begins, ends = edges[np.flatnonzero(change == 1)], edges[np.flatnonzero(change == -1)]
    return tuple(zip(begins.tolist(), ends.tolist(), strict=True))


def _length(ranges: Sequence[Range]) -> int:
    return sum(end - begin for begin, end in ranges)


def _expand(ranges: Sequence[Range]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.arange(begin, end, dtype=np.int64) for begin, end in ranges])


def _locate(ranges: Sequence[Range], begin: int, end: int) -> slice | None:
    """Where [begin, end) lies among the packed ranges."""
    before = 0
    for low, high in ranges:
        if low <= begin and end <= high:
            return slice(before + begin - low, before + end - low)
        before += high - low
    return None
