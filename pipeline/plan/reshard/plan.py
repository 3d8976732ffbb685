"""The plan of one array's move from a sharding to another, as values.

====================  ====================================================================
route                 how the array gets there
====================  ====================================================================
``none``              no byte moves: the same tiles on the same devices, or less of them
``direct``            one compiled program
``intermediate``      through one other sharding, because that moves less, or because the
                      devices change and the tiles must first fit
``boxes``             no tile in common (8 devices to 6): each device is brought the boxes
                      that it lacks, outside of XLA
====================  ====================================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from meshfeed.pipeline.plan.boxes import sizes
from meshfeed.pipeline.plan.moves import LeafPlacement, MovePlan, plan_moves
from meshfeed.pipeline.plan.reshard.collectives import MoveKind, Moves
from meshfeed.pipeline.plan.reshard.costs import item_bytes, temporary
from meshfeed.pipeline.plan.reshard.placement import Placement


class Route(StrEnum):
    """How an array gets from one sharding to another."""

    NONE = "none"
    DIRECT = "direct"
    INTERMEDIATE = "intermediate"
    BOXES = "boxes"


class HopKind(StrEnum):
    """How one hop is carried out."""

    COMPILED = "compiled"
    """A program of XLA over one set of devices."""

    COPY = "copy"
    """Whole tiles are copied to devices that are to hold them; the others keep theirs."""

    BOXES = "boxes"
    """Each device is brought the boxes that it lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One step of a route. Shares are parts of the whole array.

    Attributes:
        kind: how it is carried out.
        source: sharding before.
        target: sharding after.
        moves: what XLA compiles it to; empty where it is not compiled.
        received: that a device of ``target`` receives, the mean over them.
        before: part of the array that a device holds before.
        after: and after.
        crosses: bytes go to another process outside of a compiled program: several processes
            cannot do that by themselves.
    """

    kind: HopKind
    source: Placement
    target: Placement
    moves: Moves
    received: Fraction
    before: Fraction
    after: Fraction
    crosses: bool = False

    @property
    def temporary(self) -> Fraction:
        """Memory beside argument and result, on a device."""
        return temporary(self.moves)

    @property
    def peak(self) -> Fraction:
        """Argument, result and temporary memory together, on a device."""
        return self.before + self.after + self.temporary

    @property
    def collectives(self) -> int:
        """Collectives that run."""
        return sum(move.kind is not MoveKind.SLICE for move in self.moves)

    @property
    def involuntary(self) -> bool:
        """XLA puts the whole array together on each device for want of anything better."""
        return any(move.involuntary for move in self.moves)

    @property
    def fragile(self) -> bool:
        """Some versions of XLA abort the process over it."""
        return any(move.fragile for move in self.moves)

    @property
    def padded(self) -> bool:
        """XLA pads on the way, so that ``received`` is only about what moves."""
        return any(move.padded for move in self.moves)

    def describe(self) -> str:
        """``all-to-all of 4 + all-gather of 2``, or what it is instead."""
        if self.kind is not HopKind.COMPILED:
            return "copy of tiles" if self.kind is HopKind.COPY else "copy of boxes"
        words = [
            move.kind.value
            if move.kind is MoveKind.PERMUTE
            else f"{move.kind} of {move.group_size}"
            for move in self.moves
            if move.kind is not MoveKind.SLICE
        ]
        if not words:
            return "local slice" if self.moves else "nothing"
        return " + ".join(words) + (" (full rematerialization)" if self.involuntary else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardPlan:
    """How one array moves. Bytes are of one device, the mean where devices differ.

    Attributes:
        shape: of the array.
        dtype: name of its element type.
        source: sharding before.
        target: sharding after.
        route: how it gets there.
        hops: in order; one where nothing moves, too.
        direct: the one compiled program that a plain ``jax.device_put`` would run; None where
            the devices change.
        bound: part of the array that a device needs and did not hold: no route brings less.
        donate: the source may be freed as soon as the first hop is done.
    """

    shape: tuple[int, ...]
    dtype: str
    source: Placement
    target: Placement
    route: Route
    hops: tuple[Hop, ...]
    direct: Hop | None
    bound: Fraction
    donate: bool

    def bytes_of(self, share: Fraction) -> float:
        """A part of the array in bytes."""
        return float(share * math.prod(self.shape) * item_bytes(self.dtype))

    @property
    def array_bytes(self) -> float:
        """Of the whole array."""
        return self.bytes_of(Fraction(1))

    @property
    def received_bytes(self) -> float:
        """That a device receives, over all hops."""
        return self.bytes_of(sum((hop.received for hop in self.hops), Fraction(0)))

    @property
    def direct_bytes(self) -> float | None:
        """That a device would receive without an intermediate."""
        return None if self.direct is None else self.bytes_of(self.direct.received)

    @property
    def bound_bytes(self) -> float:
        """That a device needs and did not hold."""
        return self.bytes_of(self.bound)

    @property
    def peak_bytes(self) -> float:
        """The most memory that a device needs at once."""
        return self.bytes_of(peak_of(self.hops, donate=self.donate))

    @property
    def temporary_bytes(self) -> float:
        """The most temporary memory of any hop."""
        return self.bytes_of(max((hop.temporary for hop in self.hops), default=Fraction(0)))

    @property
    def collectives(self) -> int:
        """Collectives that run, over all hops."""
        return sum(hop.collectives for hop in self.hops)

    @property
    def intermediate(self) -> Placement | None:
        """The sharding gone through, if any."""
        return self.hops[0].target if len(self.hops) > 1 else None

    @property
    def exact(self) -> bool:
        """Whether the bytes are just those that XLA moves: it pads nothing on the way."""
        return not any(hop.padded for hop in self.hops)

    def box_moves(self, *, by_process: bool) -> MovePlan:
        """Which boxes go where, from the source's tiles to the target's.

        Args:
            by_process: holders and hosts are processes, named by their index; else devices, named
                by their id.
        """
        held, needed = self.source.boxes(self.shape), self.target.boxes(self.shape)
        owners = [
            [str(one) for one in (p.mesh.process_of_device if by_process else p.device_ids)]
            for p in (self.source, self.target)
        ]
        parts = []
        for names, boxes in zip(owners, (held, needed), strict=True):
            rows: dict[str, list[int]] = {}
            for row, name in enumerate(names):
                rows.setdefault(name, []).append(row)
            parts.append({name: boxes[own] for name, own in rows.items()})
        item = max(1, math.ceil(item_bytes(self.dtype)))
        largest = max(1, int(sizes(needed).max(initial=1))) * item
        return plan_moves(
            [
                LeafPlacement(
                    name="array", shape=self.shape, itemsize=item, held=parts[0], needed=parts[1]
                )
            ],
            {name: name for name in parts[1]},
            limit_bytes=max(largest, 256 << 20),
            most_move_bytes=largest,
        )


def peak_of(hops: tuple[Hop, ...], *, donate: bool) -> Fraction:
    """The most memory that a device needs at once, in parts of the array.

    The source stays until the end unless it is donated.
    """
    most = Fraction(0)
    for n, hop in enumerate(hops):
        kept = hops[0].before if n and not donate else Fraction(0)
        most = max(most, kept + hop.peak)
    return most
