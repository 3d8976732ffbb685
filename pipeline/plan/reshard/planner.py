"""The best route of an array from one sharding to another: direct, or through one other sharding.

Over all pairs of shardings of a small mesh, one intermediate comes within 0.4 % of any number of
them. Which one is searched for: every spec on the sub-axes that source and target have in common
(``subaxes``), each hop costed as XLA compiles it (``partitioner``), least bytes first.

The search knows no sizes, only which numbers of parts divide them; so arrays that differ in nothing
else are planned once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.plan.errors import BudgetError
from meshfeed.pipeline.plan.reshard.collectives import Moves
from meshfeed.pipeline.plan.reshard.costs import item_bytes, lacking
from meshfeed.pipeline.plan.reshard.partitioner import compiled_moves
from meshfeed.pipeline.plan.reshard.placement import Placement
from meshfeed.pipeline.plan.reshard.plan import Hop, HopKind, ReshardPlan, Route, peak_of
from meshfeed.pipeline.plan.reshard.subaxes import frames_of
from meshfeed.pipeline.plan.reshard.tiling import Tiling

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What the search finds: all that a plan says and that does not depend on sizes."""

    hops: tuple[Hop, ...]
    direct: Hop | None
    bound: Fraction
    lowest_peak: Fraction


def plan_reshard(
    shape: tuple[int, ...],
    dtype: npt.DTypeLike | str,
    src: Placement,
    dst: Placement,
    *,
    memory_limit: int | None = None,
    donate: bool = False,
) -> ReshardPlan:
    """The route on which the devices receive the fewest bytes.

    Args:
        shape: of the array.
        dtype: of its elements.
        src: sharding before.
        dst: sharding after, on the same devices, fewer, more or others.
        memory_limit: bytes of a device that the move may take, source and result included.
        donate: the source may be freed as soon as the first hop is done.

    Returns:
        The plan; among routes with equally few bytes the one with the fewest hops, then the lowest
        peak, then the fewest collectives.

    Raises:
        ConfigError: a sharding does not fit the shape.
        BudgetError: no route fits into ``memory_limit``.
    """
    src.check(shape, "src")
    dst.check(shape, "dst")
    total = math.prod(shape) * item_bytes(dtype)
    parts = math.lcm(src.mesh.num_devices, dst.mesh.num_devices)
    known = tuple(math.gcd(size, parts) if size else parts for size in shape)
    limit = None if memory_limit is None or not total else Fraction(memory_limit) / total
    same_devices = np.array_equal(np.sort(src.device_ids), np.sort(dst.device_ids))
    search = _search if same_devices else _search_other_devices
    found = search(known, src, dst, limit, donate)
    if limit is not None and found.lowest_peak > limit:
        raise BudgetError(
            "memory_limit",
            int(memory_limit or 0),
            math.ceil(found.lowest_peak * total),
            f"Moving {dtype} {list(shape)} from {src} to {dst} takes that on a device"
            + ("" if donate else "; donating the source takes less"),
        )
    return ReshardPlan(
        shape=tuple(shape),
        dtype=dtype if isinstance(dtype, str) else str(np.dtype(dtype)),
        source=src,
        target=dst,
        route=_route(found.hops),
        hops=found.hops,
        direct=found.direct,
        bound=found.bound,
        donate=donate,
    )


def _route(hops: tuple[Hop, ...]) -> Route:
    if not any(hop.received for hop in hops):
        return Route.NONE
    if any(hop.kind is HopKind.BOXES for hop in hops):
        return Route.BOXES
    return Route.INTERMEDIATE if len(hops) > 1 else Route.DIRECT


@lru_cache(maxsize=4096)
def _search(
    sizes: Sizes, src: Placement, dst: Placement, limit: Fraction | None, donate: bool
) -> _Found:
    """The best route over one set of devices."""
    dims = len(sizes)
    source = src.tiling(dims, dst.device_ids)
    target = dst.tiling(dims, dst.device_ids)
    direct = _compiled(src, dst, sizes)
    bound = lacking(source, target)
    best = _Best(limit=limit, donate=donate)
    best.offer((direct,))
    if best.is_sure(bound):
        return _Found(hops=best.hops, direct=direct, bound=bound, lowest_peak=best.lowest_peak)
    for lower, between in _candidates(sizes, src, dst, source, target):
        if best.is_sure(lower):
            break
        first, second = _compiled(src, between, sizes), _compiled(between, dst, sizes)
        if not (first.padded or second.padded):
            best.offer((first, second))
    return _Found(hops=best.hops, direct=direct, bound=bound, lowest_peak=best.lowest_peak)


class _Best:
    """The best of the routes offered so far."""

    def __init__(self, *, limit: Fraction | None, donate: bool) -> None:
        self.hops: tuple[Hop, ...] = ()
        self.lowest_peak = Fraction(0)
        self._limit = limit
        self._donate = donate
        self._cost: tuple[Fraction | int, ...] | None = None

    def offer(self, hops: tuple[Hop, ...]) -> None:
        """Takes the route if it is better."""
        peak = peak_of(hops, donate=self._donate)
        self.lowest_peak = min(self.lowest_peak, peak) if self.hops else peak
        cost: tuple[Fraction | int, ...] = (
            int(self._limit is not None and peak > self._limit),
            sum(hop.crosses + hop.fragile for hop in hops),
            sum((hop.received for hop in hops), Fraction(0)),
            sum(hop.involuntary for hop in hops),
            len(hops),
            peak,
            sum(hop.collectives for hop in hops),
        )
        if self._cost is None or cost < self._cost:
            self.hops, self._cost = hops, cost

    def is_sure(self, lower: Fraction) -> bool:
        """Whether no route that brings at least ``lower`` can be better."""
        if self._cost is None or self._cost[0] or self._cost[1]:
            return False
        return lower > self._cost[2] or (lower == self._cost[2] and not self._cost[3])


def _compiled(src: Placement, dst: Placement, sizes: Sizes) -> Hop:
    """The hop that one program over the devices of both makes."""
    dims = len(sizes)
    source, target = src.tiling(dims, dst.device_ids), dst.tiling(dims, dst.device_ids)
    if src.mesh.axes != dst.mesh.axes:
        source, target = replace(source, axes=None), replace(target, axes=None)
    moves = _moves(source, target, source.axes, target.axes, sizes)
    return Hop(
        kind=HopKind.COMPILED,
        source=src,
        target=dst,
        moves=moves,
        received=sum((move.received for move in moves), Fraction(0)),
        before=source.share,
        after=target.share,
    )


@lru_cache(maxsize=65536)
def _moves(source: Tiling, target: Tiling, *key: object) -> Moves:
    """The compiled moves; ``key`` is what tilings are not told apart by, sizes at its end."""
    sizes: Any = key[-1]
    return compiled_moves(source, target, sizes)


def _candidates(
    sizes: Sizes, src: Placement, dst: Placement, source: Tiling, target: Tiling
) -> Iterator[tuple[Fraction, Placement]]:
    """(bytes that going through it takes at least, sharding), the least first."""
    found: dict[Tiling, tuple[Fraction, int, Placement]] = {source: (Fraction(0), 0, src)}
    for frame in frames_of(src, dst, len(sizes)):
        for spec in frame.specs(len(sizes)):
            counts = [math.prod(frame.sizes[axis] for axis in axes) for axes in spec]
            if any(size % count for size, count in zip(sizes, counts, strict=True)):
                continue
            between = frame.placement(spec)
            tiling = between.tiling(len(sizes), dst.device_ids)
            if tiling not in found and tiling != target:
                lower = lacking(source, tiling) + lacking(tiling, target)
                found[tiling] = (lower, len(found), between)
    del found[source]
    for lower, _, between in sorted(found.values(), key=lambda one: one[:2]):
        yield lower, between


@lru_cache(maxsize=4096)
def _search_other_devices(
    sizes: Sizes, src: Placement, dst: Placement, limit: Fraction | None, donate: bool
) -> _Found:
    """The best route where devices come or go: tiles that fit are copied, else boxes are."""
    boxes = Hop(
        kind=HopKind.BOXES,
        source=src,
        target=dst,
        moves=(),
        received=_copied(sizes, src, dst, whole_tiles=False),
        before=_share(src, sizes),
        after=_share(dst, sizes),
        crosses=len(np.union1d(src.mesh.processes, dst.mesh.processes)) > 1,
    )
    best = _Best(limit=limit, donate=donate)
    for hops in _routes_by_copy(sizes, src, dst, donate):
        best.offer(hops)
    if not best.hops or (limit is not None and best.lowest_peak > limit):
        best.offer((boxes,))
    return _Found(hops=best.hops, direct=None, bound=boxes.received, lowest_peak=best.lowest_peak)


def _routes_by_copy(
    sizes: Sizes, src: Placement, dst: Placement, donate: bool
) -> Iterator[tuple[Hop, ...]]:
    """A copy of tiles alone, after a move on the old devices, or before one on the new."""
    alone = _copy(sizes, src, dst)
    if alone is not None:
        yield (alone,)
    ratio = Fraction(src.mesh.num_devices, dst.mesh.num_devices)
    for between in _shardings_on(sizes, src):
        last = _copy(sizes, between, dst)
        if last is not None:
            before = _search(sizes, src, between, None, donate).hops
            yield (*(replace(hop, received=hop.received * ratio) for hop in before), last)
    for between in _shardings_on(sizes, dst):
        first = _copy(sizes, src, between)
        if first is not None:
            yield (first, *_search(sizes, between, dst, None, donate).hops)


def _shardings_on(sizes: Sizes, placement: Placement) -> Iterator[Placement]:
    """Every other sharding on the devices of ``placement`` that is looked at."""
    for frame in frames_of(placement, placement, len(sizes)):
        for spec in frame.specs(len(sizes)):
            counts = [math.prod(frame.sizes[axis] for axis in axes) for axes in spec]
            if not any(size % count for size, count in zip(sizes, counts, strict=True)):
                yield frame.placement(spec)


def _copy(sizes: Sizes, src: Placement, dst: Placement) -> Hop | None:
    """The copy of whole tiles, if every tile of ``dst`` is one of ``src``."""
    if src.counts(len(sizes)) != dst.counts(len(sizes)):
        return None
    received = _copied(sizes, src, dst, whole_tiles=True)
    return Hop(
        kind=HopKind.COPY,
        source=src,
        target=dst,
        moves=(),
        received=received,
        before=_share(src, sizes),
        after=_share(dst, sizes),
        crosses=_crosses(sizes, src, dst),
    )


def _crosses(sizes: Sizes, src: Placement, dst: Placement) -> bool:
    """Whether a process lacks a whole tile that its devices are to hold."""
    held, needed = (
        {
            (int(process), box.tobytes())
            for process, box in zip(p.mesh.process_of_device, p.boxes(sizes), strict=True)
        }
        for p in (src, dst)
    )
    return not needed <= held


def _copied(sizes: Sizes, src: Placement, dst: Placement, *, whole_tiles: bool) -> Fraction:
    """What a device of ``dst`` receives, the mean, where just what it lacks is copied."""
    held, needed = src.boxes(sizes), dst.boxes(sizes)
    by_id = np.argsort(src.device_ids, kind="stable")
    found = np.searchsorted(src.device_ids[by_id], dst.device_ids)
    own = by_id[np.minimum(found, len(by_id) - 1)]
    stays = src.device_ids[own] == dst.device_ids
    low = np.maximum(held[own][..., 0], needed[..., 0])
    high = np.minimum(held[own][..., 1], needed[..., 1])
    cells = (needed[..., 1] - needed[..., 0]).prod(axis=1, dtype=np.int64)
    common = np.maximum(high - low, 0).prod(axis=1, dtype=np.int64) * stays
    if whole_tiles:
        common = np.where(common == cells, cells, 0)
    total = math.prod(sizes) * dst.mesh.num_devices
    return Fraction(int((cells - common).sum()), total)


def _share(placement: Placement, sizes: Sizes) -> Fraction:
    return Fraction(1, math.prod(placement.counts(len(sizes))))
