"""Axis-aligned boxes of an array: which part of it a device, a host or a vault has or needs.

``n`` boxes of an array of ``d`` dimensions are one int64 array ``[n, d, 2]``: begin and end of each
dimension. A scalar has ``d`` = 0 and one box of one cell. Boxes without a cell may be given and
are never returned.

A set of boxes may overlap (replicas do). ``union``, ``subtract`` and ``overlay`` return *disjoint*
boxes; ``count_cells`` counts the cells of a set without making it disjoint, and shares no code with
them, so that each can check the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mesh import MeshLayout, describe_axes

Boxes = npt.NDArray[np.int64]
"""int64 [boxes, dimensions, 2], begin and end."""

Index = npt.NDArray[np.int64]
"""int64 [n], positions in a set of boxes."""


def no_boxes(ndim: int) -> Boxes:
    """The empty set of boxes."""
    return np.empty((0, ndim, 2), dtype=np.int64)


def whole(shape: Sequence[int]) -> Boxes:
    """int64 [1, d, 2], all of an array."""
    ends = np.array(shape, dtype=np.int64).reshape(-1)
    return np.stack([np.zeros_like(ends), ends], axis=-1)[None]


def box_of_index(index: Sequence[slice], shape: Sequence[int]) -> Boxes:
    """int64 [1, d, 2] of an index of plain slices, as JAX gives for a shard.

    Raises:
        ConfigError: a slice has a step.
    """
    bounds = [part.indices(size) for part, size in zip(index, shape, strict=True)]
    if any(step != 1 for _, _, step in bounds):
        raise ConfigError("index", f"{tuple(index)} has a step", "Give ranges without gaps")
    return np.array([bound[:2] for bound in bounds], dtype=np.int64).reshape(1, -1, 2)


def index_within(box: Boxes, outer: Boxes) -> tuple[slice, ...]:
    """Where ``box`` lies in an array that holds just ``outer``; both int64 [d, 2]."""
    begins = (box[:, 0] - outer[:, 0]).tolist()
    ends = (box[:, 1] - outer[:, 0]).tolist()
    return tuple(slice(begin, end) for begin, end in zip(begins, ends, strict=True))


def device_boxes(
    mesh: MeshLayout, spec: Sequence[tuple[str, ...] | None], shape: Sequence[int]
) -> Boxes:
    """int64 [devices, d, 2], the box of each mesh position.

    Args:
        mesh: the mesh.
        spec: for each dimension the mesh axes over which it is split, major axis first; missing
            entries at the end are None.
        shape: of the array.

    Raises:
        ConfigError: a dimension does not divide, or the spec is longer than the shape.
    """
    if len(spec) > len(shape):
        raise ConfigError("spec", f"{len(spec)} entries for the {len(shape)} dimensions of {shape}")
    coordinates = np.unravel_index(np.arange(mesh.num_devices), mesh.shape)
    boxes = np.repeat(whole(shape), mesh.num_devices, axis=0)
    for dim, axes in enumerate(spec):
        parts = mesh.split_over(axes)
        if shape[dim] % parts:
            raise ConfigError(
                "spec",
                f"dimension {dim} of shape {tuple(shape)} does not divide into {parts} parts "
                f"over {','.join(axes or ())} of mesh {describe_axes(mesh.axes)}",
            )
        block = np.zeros(mesh.num_devices, dtype=np.int64)
        for axis in axes or ():
            at = mesh.axis_names.index(axis)
            block = block * mesh.shape[at] + coordinates[at]
        length = shape[dim] // parts
        boxes[:, dim, 0] = block * length
        boxes[:, dim, 1] = (block + 1) * length
    return boxes


def sizes(boxes: Boxes) -> npt.NDArray[np.int64]:
    """int64 [boxes], cells in each."""
    lengths = np.maximum(boxes[:, :, 1] - boxes[:, :, 0], 0)
    cells: npt.NDArray[np.int64] = lengths.prod(axis=1, dtype=np.int64)
    return cells


def distinct(boxes: Boxes) -> Boxes:
    """Each box once, in lexicographic order; those without a cell left out."""
    kept = boxes[sizes(boxes) > 0]
    if kept.shape[1] == 0 or len(kept) < 2:
        return kept[:1]
    flat = kept.reshape(len(kept), 2 * kept.shape[1])
    return np.unique(flat, axis=0).reshape(-1, *kept.shape[1:])


def intersect(a: Boxes, b: Boxes) -> tuple[Boxes, Index, Index]:
    """What every box of ``a`` shares with every box of ``b``, where they share anything.

    Only pairs that overlap along the most telling dimension are looked at, so that two grids of
    4,096 boxes cost thousands of pairs and not 16 million.

    Returns:
        int64 [k, d, 2] the common boxes; int64 [k] which box of ``a``, ascending; int64 [k] which
        box of ``b``.
    """
    of_a, of_b = _candidates(a, b)
    low = np.maximum(a[of_a, :, 0], b[of_b, :, 0])
    high = np.minimum(a[of_a, :, 1], b[of_b, :, 1])
    common = (low < high).all(axis=1)
    return np.stack([low[common], high[common]], axis=-1), of_a[common], of_b[common]


def _candidates(a: Boxes, b: Boxes) -> tuple[Index, Index]:
    """Pairs that may overlap: all that do along one dimension, the one with the fewest."""
    fewest: tuple[int, Index, Index, Index] | None = None
    for dim in range(a.shape[1]):
        order = np.argsort(b[:, dim, 0], kind="stable")
        begins, reach = b[order, dim, 0], np.maximum.accumulate(b[order, dim, 1])
        # In order of their begins, those before `first` all end too early, those from `last` on
        # begin too late.
        first = np.searchsorted(reach, a[:, dim, 0], side="right")
        last = np.searchsorted(begins, a[:, dim, 1], side="left")
        counts = np.maximum(last - first, 0)
        total = int(counts.sum())
        if fewest is None or total < fewest[0]:
            fewest = total, order, first, counts
    if fewest is None:  # scalars: any two share their one cell
        return np.repeat(np.arange(len(a)), len(b)), np.tile(np.arange(len(b)), len(a))
    total, order, first, counts = fewest
    of_a = np.repeat(np.arange(len(a)), counts)
    within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return of_a, order[np.repeat(first, counts) + within]


def subtract(a: Boxes, b: Boxes) -> Boxes:
    """Disjoint boxes that hold just the cells of ``a`` that are not in ``b``."""
    rest = union(a)
    hit = np.unique(intersect(rest, b)[2])
    for box in b[hit]:
        rest = _without(rest, box)
    return merge(rest) if len(hit) else rest


def _without(boxes: Boxes, hole: Boxes) -> Boxes:
    """Disjoint boxes [n, d, 2] less one box [d, 2]: each falls into two for every dimension."""
    low = np.maximum(boxes[:, :, 0], hole[:, 0])
    high = np.minimum(boxes[:, :, 1], hole[:, 1])
    hit = (low < high).all(axis=1)
    parts = [boxes[~hit]]
    core = boxes[hit].copy()
    low, high = low[hit], high[hit]
    for dim in range(boxes.shape[1]):
        below, above = core.copy(), core.copy()
        below[:, dim, 1] = low[:, dim]
        above[:, dim, 0] = high[:, dim]
        parts += [below[sizes(below) > 0], above[sizes(above) > 0]]
        core[:, dim, 0], core[:, dim, 1] = low[:, dim], high[:, dim]
    return np.concatenate(parts)


def are_disjoint(boxes: Boxes) -> bool:
    """Whether no cell lies in two of the boxes."""
    return len(intersect(boxes, boxes)[0]) == int((sizes(boxes) > 0).sum())


def overlay(boxes: Boxes) -> Boxes:
    """Disjoint boxes, each of which lies in each of the given ones as a whole or not at all.

    Together they hold the same cells. Boxes that are equal or apart, as those of one sharding
    are, come back as they are.
    """
    once = distinct(boxes)
    if len(once) < 2:
        return once
    _, one, other = intersect(once, once)
    tangled = np.zeros(len(once), dtype=bool)
    tangled[one[one != other]] = True
    atoms = no_boxes(boxes.shape[1])
    for box in once[tangled]:
        inside, _, _ = intersect(atoms, box[None])
        fresh = box[None]
        for atom in inside:
            fresh = _without(fresh, atom)
        atoms = np.concatenate([inside, _without(atoms, box), fresh])
    return distinct(np.concatenate([once[~tangled], atoms]))


def merge(boxes: Boxes) -> Boxes:
    """Disjoint boxes with neighbours joined where the two make a box."""
    while True:
        before = len(boxes)
        for dim in reversed(range(boxes.shape[1])):
            boxes = _join_along(boxes, dim)
        if len(boxes) == before:
            return boxes


def _join_along(boxes: Boxes, dim: int) -> Boxes:
    if len(boxes) < 2:
        return boxes
    others = np.delete(boxes, dim, axis=1).reshape(len(boxes), -1)
    order = np.lexsort((boxes[:, dim, 0], *others.T[::-1]))
    boxes, others = boxes[order], others[order]
    goes_on = (others[1:] == others[:-1]).all(axis=1) & (boxes[1:, dim, 0] == boxes[:-1, dim, 1])
    first = np.flatnonzero(np.concatenate([[True], ~goes_on]))
    last = np.concatenate([first[1:], [len(boxes)]]) - 1
    joined = boxes[first].copy()
    joined[:, dim, 1] = boxes[last, dim, 1]
    return joined


def union(boxes: Boxes) -> Boxes:
    """Few disjoint boxes with the same cells."""
    return merge(overlay(boxes))


def split(box: Boxes, most_cells: int) -> Boxes:
    """One box [d, 2] cut into boxes [n, d, 2] of at most that many cells, about equal ones.

    It is cut along its first dimensions, so that the parts are contiguous in row-major order.
    """
    cells = int(sizes(box[None])[0])
    if cells <= most_cells or not len(box):
        return box[None]
    dim = int(np.argmax(box[:, 1] - box[:, 0] > 1))
    begin, end = box[dim].tolist()
    row = cells // (end - begin)
    parts = min(end - begin, -(-cells // max(most_cells // row * row, row)))
    edges = begin + (end - begin) * np.arange(parts + 1) // parts
    cut = np.repeat(box[None], parts, axis=0)
    cut[:, dim, 0], cut[:, dim, 1] = edges[:-1], edges[1:]
    return np.concatenate([split(part, most_cells) for part in cut])


def count_cells(boxes: Boxes) -> int:
    """Cells in any of the boxes, each counted once."""
    if boxes.shape[1] == 0:
        return min(len(boxes), 1)
    edges = [np.unique(boxes[:, dim]) for dim in range(boxes.shape[1])]
    if any(len(edge) < 2 for edge in edges):
        return 0
    covered = np.zeros([len(edge) - 1 for edge in edges], dtype=bool)
    at = [np.searchsorted(edge, boxes[:, dim]) for dim, edge in enumerate(edges)]
    for bounds in zip(*(bound.tolist() for bound in at), strict=True):
        covered[tuple(slice(begin, end) for begin, end in bounds)] = True
    cells = covered.astype(np.int64)
    for edge in reversed(edges):
        cells = cells @ np.diff(edge)
    return int(cells)


def describe_box(box: Boxes) -> str:
    """``[0:4, 8:16]`` of one box [d, 2]."""
    return "[" + ", ".join(f"{begin}:{end}" for begin, end in box.tolist()) + "]"


def boxes_of_hosts(mesh: MeshLayout, boxes: Boxes) -> Mapping[int, Boxes]:
    """Disjoint boxes of each process, from those of its devices: int64 [devices, d, 2]."""
    return {
        process: union(boxes[mesh.process_of_device == process])
        for process in mesh.processes.tolist()
    }


def fits(boxes: Boxes, shape: Sequence[int]) -> bool:
    """Whether all boxes lie within an array of this shape."""
    if boxes.ndim != 3 or boxes.shape[1:] != (len(shape), 2):
        return False
    ends = np.array(shape, dtype=np.int64)
    return bool((boxes[:, :, 0] >= 0).all() and (boxes[:, :, 1] <= ends).all())
