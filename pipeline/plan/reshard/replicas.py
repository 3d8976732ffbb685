"""Shardings of which one replica is to go on to fewer devices.

Where a mesh shrinks, the array can first be laid out on all the old devices so that each part of
them holds a whole copy; one copy then goes to the new devices. Which layout is best weighs what
the old devices receive against what the new ones still have to exchange.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np

from meshfeed.pipeline.plan.reshard.partitioner import compiled_moves
from meshfeed.pipeline.plan.reshard.placement import Placement
from meshfeed.pipeline.plan.reshard.planner import plan_reshard
from meshfeed.pipeline.plan.reshard.subaxes import Frame, SubSpec, frames_of
from meshfeed.pipeline.plan.reshard.tiling import Tiling


def best_intermediate(src: Placement, dst: Placement) -> Placement | None:
    """The sharding to go through; None where going straight is best.

    Args:
        src: sharding before.
        dst: sharding after, on the same devices, or on a divisor of their number. Both are taken
            to divide the array. Where its tiles are made of whole tiles of ``src``, going straight
            is best: each tile travels once, as it is.
    """
    dims = max(len(src.spec), len(dst.spec))
    shape = (math.lcm(src.mesh.num_devices, dst.mesh.num_devices),) * dims
    if np.array_equal(np.sort(src.device_ids), np.sort(dst.device_ids)):
        return plan_reshard(shape, "int8", src, dst).intermediate
    copies, rest = divmod(src.mesh.num_devices, dst.mesh.num_devices)
    whole = all(old % new == 0 for old, new in zip(src.counts(dims), dst.counts(dims), strict=True))
    if rest or copies < 2 or whole:
        return None
    return _with_replicas(shape, src, dst, copies)


def _with_replicas(
    shape: tuple[int, ...], src: Placement, dst: Placement, copies: int
) -> Placement | None:
    order = src.device_ids
    source = src.tiling(len(shape), order)
    target = dst.tiling(len(shape), dst.device_ids)
    best: tuple[Fraction, int, int, Placement | None] | None = None
    for frame in frames_of(src, src, len(shape)):
        for spec in frame.specs(len(shape)):
            between = frame.placement(spec)
            tiling = between.tiling(len(shape), order)
            one = _one_replica(frame, spec, tiling, copies)
            if one is None:
                continue
            to_it = compiled_moves(source, tiling, shape)
            onward = compiled_moves(one, target, shape)
            received = sum((move.received for move in to_it), Fraction(0)) * source.size
            received += sum((move.received for move in onward), Fraction(0)) * target.size
            cost = received, len(to_it) + len(onward), int(tiling != source)
            if best is None or cost < best[:3]:
                best = (*cost, None if tiling == source else between)
    return None if best is None else best[3]


def _one_replica(frame: Frame, spec: SubSpec, tiling: Tiling, copies: int) -> Tiling | None:
    """The tiling of the devices of one copy, numbered in their order; None where there is none."""
    used = {axis for axes in spec for axis in axes}
    spare = [axis for axis in range(len(frame.sizes)) if axis not in used]
    for count in range(1, len(spare) + 1):
        for dropped in itertools.combinations(spare, count):
            if math.prod(frame.sizes[axis] for axis in dropped) == copies:
                return _first_along(frame, tiling, dropped)
    return None


def _first_along(frame: Frame, tiling: Tiling, dropped: tuple[int, ...]) -> Tiling:
    place = np.arange(tiling.size).reshape(frame.sizes)
    index = tuple(0 if axis in dropped else slice(None) for axis in range(len(frame.sizes)))
    kept = np.asarray(place[index]).reshape(-1)
    number = np.full(tiling.size, -1, dtype=np.int64)
    number[kept] = np.arange(kept.size)
    chosen = np.sort(number[tiling.devices], axis=-1)
    return Tiling.of(tiling.counts, chosen[..., -(tiling.replicas * kept.size // tiling.size) :])


def replicated_axes(placement: Placement) -> tuple[str, ...]:
    """Axes over which the array is replicated, those of size 1 left out."""
    used = {axis for axes in placement.spec for axis in axes}
    return tuple(
        name for name, size in placement.mesh.axes.items() if size > 1 and name not in used
    )
