"""Which moves XLA's partitioner makes of a resharding: its decisions, in its order.

XLA compiles a change of sharding by a fixed list of attempts (``PartitionedHlo::Reshard`` in
openxla/xla, ``service/spmd/spmd_partitioner.cc``). Here are the same attempts on plain arrays of
devices, so that a plan can know what will be compiled without a compiler:

1. whole tiles change places: a permutation;
2. counts change places: all-to-all;
3. from replicas: a slice, then a permutation;
4. to replicas: a permutation, then all-gather;
5. a dimension cut in two so that 1 to 4 apply to the halves;
6. dimensions whose counts stay, left alone, and 1 to 5 for the rest;
7. the whole array on every device, then a slice: the *involuntary full rematerialization*.

A tiling that an attempt passes through may not divide the array. XLA then pads, and moves other
bytes than are computed here: such moves are marked ``padded``.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from meshfeed.pipeline.plan.reshard.collectives import (
    Moves,
    Sizes,
    all_to_all,
    can_permute,
    fragile,
    gather,
    permute,
    scaled,
    slice_to,
    swaps_between,
)
from meshfeed.pipeline.plan.reshard.tiling import Tiling


def compiled_moves(source: Tiling, target: Tiling, sizes: Sizes) -> Moves:
    """The moves that XLA makes of ``source`` to ``target``.

    Args:
        source: tiling before, over the same devices as
        target: tiling after.
        sizes: elements along each dimension; both tilings divide them.

    Returns:
        The moves in order; none where nothing moves.
    """
    moves = _attempts(source, target, sizes)
    if moves is not None:
        return moves
    whole = Tiling.whole(len(source.counts), source.size)
    return (*gather(source, whole, involuntary=True), *slice_to(whole, target))


def _attempts(source: Tiling, target: Tiling, sizes: Sizes) -> Moves | None:
    """The moves by attempts 1 to 6; None where only the last resort is left."""
    if source == target:
        return ()
    if source.is_whole:
        return slice_to(source, target)
    if target.is_whole:
        return gather(source, target)
    if can_permute(source, target):
        return permute(source, target)
    swaps = swaps_between(source, target)
    if swaps is not None:
        return all_to_all(source, target, swaps, sizes)
    for attempt in (_from_replicas, _to_replicas, _by_cutting, _by_leaving_equal_dimensions):
        moves = attempt(source, target, sizes)
        if moves is not None:
            return moves
    return None


def _from_replicas(source: Tiling, target: Tiling, sizes: Sizes) -> Moves | None:
    if not source.is_partial:
        return None
    between = _refinement(source, target)
    if between is None:
        return _replicas_by_swaps(source, target, sizes)
    return (*slice_to(source, between), *permute(between, target))


def _to_replicas(source: Tiling, target: Tiling, sizes: Sizes) -> Moves | None:
    if not target.is_partial:
        return None
    between = _refinement(target, source)
    if between is None:
        return _replicas_by_swaps(source, target, sizes)
    return (*permute(source, between), *gather(between, target))


def _refinement(partial: Tiling, fine: Tiling) -> Tiling | None:
    """The tiling with the counts of ``fine`` that slices of ``partial`` give without any move.

    ``fine`` itself where it is one; else the replicas are dealt out to the dimensions in order.
    """
    if len(partial.counts) != len(fine.counts):
        return None
    if any(new % old for old, new in zip(partial.counts, fine.counts, strict=True)):
        return None
    factors = [new // old for old, new in zip(partial.counts, fine.counts, strict=True)]
    if (fine.tile_of_device() // np.array(factors) == partial.tile_of_device()).all():
        return fine
    grown = [dim for dim, factor in enumerate(factors) if factor > 1]
    shape = [*partial.counts, *(factors[dim] for dim in grown), fine.replicas]
    if math.prod(shape) != partial.size:
        return None
    order = []
    for dim in range(len(factors)):
        order.append(dim)
        if dim in grown:
            order.append(len(factors) + grown.index(dim))
    dealt = partial.devices.reshape(shape).transpose(*order, len(shape) - 1)
    return Tiling.of(fine.counts, dealt)


def _replicas_by_swaps(source: Tiling, target: Tiling, sizes: Sizes) -> Moves | None:
    """Between [a, b, ...] and the same counts one dimension further on, replicas behind."""
    from_partial = source.is_partial
    partial, tiled = (source, target) if from_partial else (target, source)
    if not partial.is_partial or tiled.is_partial or tiled.is_whole:
        return None
    if len(tiled.counts) != len(partial.counts) or partial.dims != (1, *tiled.counts):
        return None
    last = max(dim for dim, count in enumerate(tiled.counts) if count > 1)
    if not np.array_equal(partial.devices.reshape(-1), tiled.devices.reshape(-1)):
        return None
    counts = (*tiled.counts[:last], 1, *tiled.counts[last + 1 :])
    between = Tiling.of(counts, tiled.devices)
    if from_partial:
        swaps = swaps_between(source, between)
        if swaps is None:
            return None
        return (*all_to_all(source, between, swaps, sizes), *compiled_moves(between, target, sizes))
    swaps = swaps_between(between, target)
    if swaps is None:
        return None
    return (*compiled_moves(source, between, sizes), *all_to_all(between, target, swaps, sizes))


def _by_cutting(source: Tiling, target: Tiling, sizes: Sizes) -> Moves | None:
    cut = _dimension_to_cut(source, target)
    if cut is not None:
        dim, outer = cut
        inner_target = target.cut(dim, outer)
        inner_sizes = (*sizes[:dim], outer, sizes[dim] // outer, *sizes[dim + 1 :])
        moves = _attempts(source.cut(dim, outer), inner_target, inner_sizes)
        rest = _attempts(inner_target.joined(dim), target, sizes)
        if moves is None or rest is None:
            return None
        safe = source.can_be_cut(dim, outer) and target.can_be_cut(dim, outer)
        return (*(moves if safe else fragile(moves)), *rest)
    between = _replicated_early(source, target)
    if between is None:
        between = _replicas_as_tiles(source, target)
    if between is None:
        return None
    rest = _attempts(between, target, sizes)
    return None if rest is None else (*compiled_moves(source, between, sizes), *rest)


def _dimension_to_cut(source: Tiling, target: Tiling) -> tuple[int, int] | None:
    """(dimension, count of its outer part), where the halves then match counts elsewhere."""
    if source.is_partial != target.is_partial or source.replicas != target.replicas:
        return None
    old, new = source.counts, target.counts
    one_is_whole = [d for d in range(len(old)) if old[d] != new[d] and 1 in (old[d], new[d])]
    nested = [
        d
        for d in range(len(old))
        if old[d] != new[d]
        and min(old[d], new[d]) > 1
        and max(old[d], new[d]) % min(old[d], new[d]) == 0
    ]
    for dim in nested:
        if any(old[dim] * old[other] == new[dim] * new[other] for other in one_is_whole):
            return dim, min(old[dim], new[dim])
    return next(((dim, new[dim]) for dim in nested if old[dim] > new[dim]), None)


def _replicated_early(source: Tiling, target: Tiling) -> Tiling | None:
    """Tiles that the target replicates, put together first."""
    if not target.is_partial:
        return None
    replicas = source.replicas if source.is_partial else 1
    for dim, count in enumerate(source.counts):
        if count > 1 and count * replicas == target.replicas:
            return source.replicated_over(dim)
    return None


def _replicas_as_tiles(source: Tiling, target: Tiling) -> Tiling | None:
    """Replicas cut along the first dimension that the target cuts and the source does not."""
    if not source.is_partial or target.is_partial:
        return None
    for dim, (old, new) in enumerate(zip(source.counts, target.counts, strict=True)):
        if old == 1 and new != 1 and new % source.replicas == 0:
            counts = (*source.counts[:dim], source.replicas, *source.counts[dim + 1 :])
            return Tiling.of(counts, source.devices.swapaxes(dim, -1))
    return None


def _by_leaving_equal_dimensions(source: Tiling, target: Tiling, sizes: Sizes) -> Moves | None:
    both = zip(source.counts, target.counts, strict=True)
    equal = tuple(dim for dim, (old, new) in enumerate(both) if old == new > 1)
    if not equal:
        return None
    members, inner_source = source.grouped(equal)
    target_members, inner_target = target.grouped(equal)
    same = np.sort(members, axis=1) == np.sort(target_members, axis=1)
    if same.all() and not inner_target.is_whole:
        place = np.empty(source.size, dtype=np.int64)
        place[members[0]] = np.arange(members.shape[1])
        inner_target = Tiling.of(
            inner_target.counts, place[target_members[0]][inner_target.devices]
        )
    part = Fraction(1, len(members))
    inner_sizes = tuple(
        size // source.counts[dim] if dim in equal else size for dim, size in enumerate(sizes)
    )
    moves = scaled(compiled_moves(inner_source, inner_target, inner_sizes), part)
    rest = [dim for dim in range(len(target.counts) + 1) if dim not in equal]
    laid_as = (*target.counts, inner_target.replicas)
    laid = members[:, inner_target.devices.reshape(-1)]
    laid = laid.reshape([laid_as[dim] for dim in (*equal, *rest)])
    reached = Tiling.of(target.counts, laid.transpose(np.argsort([*equal, *rest])))
    return (*moves, *compiled_moves(reached, target, sizes))
