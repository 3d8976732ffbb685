"""The moves that XLA's partitioner makes a resharding of, and what each brings to a device.

Each function takes a device's tiling before and after, and returns the moves with their cost. The
bytes are a mean over the devices, in parts of the whole array, so that a plan holds for any
element type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction

from meshfeed.pipeline.plan.reshard.tiling import Tiling


class MoveKind(StrEnum):
    """What a device does; the collectives have XLA's names."""

    SLICE = "slice"
    """Keeps a part of what it holds: nothing is received."""

    PERMUTE = "collective-permute"
    ALL_TO_ALL = "all-to-all"
    ALL_GATHER = "all-gather"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One move of all devices at once.

    Attributes:
        kind: what they do.
        group_size: devices that take part together.
        received: that a device receives, in parts of the array; the mean over all devices.
        before: part of the array that a device holds before.
        after: and after.
        involuntary: XLA puts the whole array together on each device for want of anything
            better, and warns of a full rematerialization.
        padded: a tiling that it makes does not divide the array, so that XLA pads: ``received``
            is then only about what is moved.
        fragile: XLA cuts a dimension for it where none of its mesh axes ends; some versions (that
            of jax 0.12.0) abort the process over it.
    """

    kind: MoveKind
    group_size: int
    received: Fraction
    before: Fraction
    after: Fraction
    involuntary: bool = False
    padded: bool = False
    fragile: bool = False


Moves = tuple[Move, ...]
Sizes = tuple[int, ...]
"""Elements along each dimension."""

Pairs = list[tuple[int, int]]
"""(dimension that is put together, dimension that is cut instead) of the swaps of an all-to-all."""


def slice_to(source: Tiling, target: Tiling) -> Moves:
    """Each device keeps a part of its tile."""
    if source.share == target.share:
        return ()
    return (
        Move(
            kind=MoveKind.SLICE,
            group_size=1,
            received=Fraction(0),
            before=source.share,
            after=target.share,
        ),
    )


def can_permute(source: Tiling, target: Tiling) -> bool:
    """Whether whole tiles change places and nothing else."""
    return (
        not source.is_whole
        and source.counts == target.counts
        and source.size == target.size
        and source != target
    )


def permute(source: Tiling, target: Tiling) -> Moves:
    """Tiles change places; nothing where none does."""
    moved = int((source.devices != target.devices).sum())
    if not moved:
        return ()
    share = source.share
    return (
        Move(
            kind=MoveKind.PERMUTE,
            group_size=2,
            received=share * Fraction(moved, source.size),
            before=share,
            after=share,
        ),
    )


def gather(source: Tiling, target: Tiling, *, involuntary: bool = False) -> Moves:
    """Tiles are put together into larger ones, dimension by dimension, the last one first."""
    moves = []
    share = source.share
    for old, new in reversed(list(zip(source.counts, target.counts, strict=True))):
        if old > new:
            after = share * (old // new)
            moves.append(
                Move(
                    kind=MoveKind.ALL_GATHER,
                    group_size=old // new,
                    received=after - share,
                    before=share,
                    after=after,
                    involuntary=involuntary,
                )
            )
            share = after
    return tuple(moves)


def fragile(moves: Moves) -> Moves:
    """The moves, marked as ones that XLA may abort over."""
    return tuple(replace(move, fragile=True) for move in moves)


def scaled(moves: Moves, part: Fraction) -> Moves:
    """Moves of a part of the array as moves of the array."""
    return tuple(
        replace(
            move,
            received=move.received * part,
            before=move.before * part,
            after=move.after * part,
        )
        for move in moves
    )


def swaps_between(source: Tiling, target: Tiling) -> Pairs | None:
    """The swaps of counts that make ``source.dims`` into ``target.dims``, if swaps alone do.

    The replicas of a partial tiling count as a dimension. XLA looks for them by size, the
    smallest first, and takes the first dimension that fits.
    """
    old, new = source.dims, target.dims
    if (
        source.is_whole
        or target.is_whole
        or len(old) != len(new)
        or math.prod(source.counts) != math.prod(target.counts)
    ):
        return None
    differing = [dim for dim in range(len(old)) if old[dim] != new[dim]]
    if not differing or sorted(old[d] for d in differing) != sorted(new[d] for d in differing):
        return None
    by_size: dict[int, list[int]] = {}
    for dim in differing:
        by_size.setdefault(old[dim], []).append(dim)
    swaps: Pairs = []
    while by_size:
        size = min(by_size)
        dim = by_size[size][-1]
        wanted = new[dim]
        if wanted == size:
            _drop(by_size, size, dim)
            continue
        if size != 1 and wanted % size:
            return None
        partners = by_size[wanted]
        useful = [d for d in partners if (new[d] != 1 if size == 1 else new[d] == size)]
        # The last one where none is useful: XLA's search ends there.
        partner = useful[0] if useful else partners[-1]
        swaps.append((partner, dim))
        by_size[size][-1] = partner
        _drop(by_size, wanted, partner)
    return swaps


def _drop(by_size: dict[int, list[int]], size: int, dim: int) -> None:
    by_size[size] = [other for other in by_size[size] if other != dim]
    if not by_size[size]:
        del by_size[size]


def swapped(source: Tiling, swaps: Pairs) -> Tiling:
    """The tiling after an all-to-all along ``swaps``."""
    dims, devices = list(source.dims), source.devices.reshape(source.dims)
    for joined, cut in swaps:
        shape: list[int] = []
        moving = {}
        for dim, count in enumerate(dims):
            if dim == joined:
                shape += [dims[cut], count // dims[cut]]
                moving[dim] = len(shape) - 1
            elif dim == cut:
                shape += [count, 1]
                moving[dim] = len(shape) - 1
            else:
                shape.append(count)
        dims[joined], dims[cut] = dims[cut], dims[joined]
        devices = devices.reshape(shape).swapaxes(moving[joined], moving[cut]).reshape(dims)
    return Tiling.of(tuple(dims[: len(source.counts)]), devices)


def all_to_all(source: Tiling, target: Tiling, swaps: Pairs, sizes: Sizes) -> Moves:
    """The swaps, as many at once as have no dimension in common, then a permutation if needed."""
    if source == target or not swaps:
        return permute(source, target)
    at_once, later = _independent(swaps)
    several = len(at_once) > 1
    if not several:
        at_once, later = swaps[:1], swaps[1:]
    move, between = _exchange(source, at_once, sizes)
    follow = _one_by_one if several else all_to_all
    return (move, *follow(between, target, later, sizes))


def _one_by_one(source: Tiling, target: Tiling, swaps: Pairs, sizes: Sizes) -> Moves:
    if source == target or not swaps:
        return permute(source, target)
    move, between = _exchange(source, swaps[:1], sizes)
    return (move, *all_to_all(between, target, swaps[1:], sizes))


def _independent(swaps: Pairs) -> tuple[Pairs, Pairs]:
    seen: set[int] = set()
    at_once, later = [], []
    for joined, cut in sorted(swaps, key=lambda swap: swap[1]):
        if joined in seen or cut in seen:
            later.append((joined, cut))
        else:
            at_once.append((joined, cut))
            seen |= {joined, cut}
    return at_once, later


def _exchange(source: Tiling, swaps: Pairs, sizes: Sizes) -> tuple[Move, Tiling]:
    dims, share = source.dims, source.share
    group = math.prod(dims[joined] // dims[cut] for joined, cut in swaps)
    reached = swapped(source, swaps)
    move = Move(
        kind=MoveKind.ALL_TO_ALL,
        group_size=group,
        received=share * Fraction(group - 1, group),
        before=share,
        after=share,
        padded=any(n % k for n, k in zip(sizes, reached.counts, strict=True)),
    )
    return move, reached
