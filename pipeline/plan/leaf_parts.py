"""What each host of a new world has and lacks of one leaf, and which holders have what it lacks.

====================  ====================================================================
index                 runs over
====================  ====================================================================
holder, target        the vaults that hold state; the hosts of the new world
atom                  disjoint boxes, each of which a holder has as a whole or not at all
part                  a box that one target lacks, within one atom
====================  ====================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.plan.boxes import (
    Boxes,
    are_disjoint,
    count_cells,
    distinct,
    intersect,
    no_boxes,
    overlay,
    sizes,
    split,
    subtract,
    union,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeafParts:
    """What targets have and lack of a leaf.

    Attributes:
        target: int32 [parts], who lacks it.
        lacking: int64 [parts, d, 2].
        atom: int64 [parts], the atom in which it lies.
        holders_of_atom: int32 [holders] of each atom, ascending.
        kept_source, kept_target: int32 [kept].
        kept: int64 [kept, d, 2], what a target has on its own node.
        cells_bound: cells that travel at least.
        missing: int64 [n, d, 2], what no holder has and ``missing_target`` needs.
        missing_target: -1 where nothing is missing.
    """

    target: npt.NDArray[np.int32]
    lacking: Boxes
    atom: npt.NDArray[np.int64]
    holders_of_atom: Sequence[npt.NDArray[np.int32]]
    kept_source: npt.NDArray[np.int32]
    kept_target: npt.NDArray[np.int32]
    kept: Boxes
    cells_bound: int
    missing: Boxes
    missing_target: int = -1


def parts_of(
    held: Sequence[Boxes], needed: Sequence[Boxes], beside: Sequence[int], most_cells: int
) -> LeafParts:
    """What every target has and lacks.

    Args:
        held: int64 [n, d, 2] of each holder.
        needed: int64 [n, d, 2] of each target.
        beside: of each target the holder on its own node, or -1.
        most_cells: of a part.
    """
    ndim = (*held, *needed)[0].shape[1]
    own = [union(boxes) for boxes in held]
    atoms, holders_of_atom = _atoms(held, own, ndim)
    kept, lacks, bound = [], [], 0
    for target, boxes in enumerate(needed):
        at = beside[target]
        here = own[at] if at >= 0 else no_boxes(ndim)
        wanted = union(boxes)
        kept.append((target, at, intersect(wanted, here)[0]))
        lacks.append((target, subtract(wanted, here)))
        bound += cells_beyond(boxes, held[at] if at >= 0 else no_boxes(ndim))
    target_of = _repeat([t for t, _ in lacks], [len(boxes) for _, boxes in lacks])
    lacking = _concatenate([boxes for _, boxes in lacks], ndim)
    parts, of_lack, atom = intersect(lacking, atoms)
    missing, missing_target = no_boxes(ndim), -1
    if sizes(parts).sum() < sizes(lacking).sum():
        missing_target, missing = next(
            (target, gap) for target, boxes in lacks if len(gap := subtract(boxes, atoms))
        )
    cut = [split(part, most_cells) for part in parts]
    counts = [len(boxes) for boxes in cut]
    return LeafParts(
        target=np.repeat(target_of[of_lack], counts),
        lacking=_concatenate(cut, ndim),
        atom=np.repeat(atom, counts),
        holders_of_atom=holders_of_atom,
        kept_source=_repeat([at for _, at, _ in kept], [len(boxes) for _, _, boxes in kept]),
        kept_target=_repeat([t for t, _, _ in kept], [len(boxes) for _, _, boxes in kept]),
        kept=_concatenate([boxes for _, _, boxes in kept], ndim),
        cells_bound=bound,
        missing=missing,
        missing_target=missing_target,
    )


def cells_beyond(needed: Boxes, held: Boxes) -> int:
    """Cells of ``needed`` that are not in ``held``, counted on a grid, without any subtraction."""
    return count_cells(np.concatenate([needed, held])) - count_cells(held)


def _atoms(
    held: Sequence[Boxes], own: Sequence[Boxes], ndim: int
) -> tuple[Boxes, list[npt.NDArray[np.int32]]]:
    """The atoms and the holders of each.

    Few large boxes are better than many, so what each holder has is joined first; but where
    holders overlap only in part, the boxes as they were given fit each other better.
    """
    joined = distinct(_concatenate(own, ndim))
    atoms = joined if are_disjoint(joined) else overlay(_concatenate(held, ndim))
    holder = _repeat(range(len(own)), [len(boxes) for boxes in own])
    _, of_atom, of_box = intersect(atoms, _concatenate(own, ndim))
    # An atom may reach over two of the joined boxes of a holder; it then has all of it.
    pairs = np.unique(of_atom * max(len(own), 1) + holder[of_box])
    ends = np.searchsorted(pairs, np.arange(1, len(atoms)) * max(len(own), 1))
    holders = [part.astype(np.int32) for part in np.split(pairs % max(len(own), 1), ends)]
    return atoms, holders if len(atoms) else []


def _concatenate(boxes: Sequence[Boxes], ndim: int) -> Boxes:
    return np.concatenate([no_boxes(ndim), *boxes])


def _repeat(values: Sequence[int], counts: Sequence[int]) -> npt.NDArray[np.int32]:
    return np.repeat(np.array(values, dtype=np.int32), np.array(counts, dtype=np.int64))
