"""What travels when live state goes to a new world: which part of which leaf, from where, to whom.

``plan_moves`` is given what every *holder* has (the vault of a node) and what every *host* of the
new world needs, leaf by leaf, as boxes. It returns exact *moves*: a host takes from the holder on
its own node all that lies there, and receives the rest once, each part from one of the holders
that have it, so that all of them give about as much.

Bytes received cannot be fewer than what a host needs and its own node has not: ``bytes_bound``
counts that by itself, and ``bytes_moved`` adds up the moves.

Example: leaf ``w`` [8], two holders with a half each, one new host beside the first: ``w[0:4]``
is taken from its own node and ``w[4:8]`` moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.plan.boxes import (
    Boxes,
    describe_box,
    fits,
    no_boxes,
    sizes,
)
from meshfeed.pipeline.plan.errors import ConfigError, MissingStateError
from meshfeed.pipeline.plan.leaf_parts import LeafParts, parts_of

DEFAULT_LIMIT_BYTES = 256 << 20
"""That a holder gives, and a host receives, in one stage."""

DEFAULT_MOVE_BYTES = 16 << 20
"""Of one move at most: large ones are cut, so that replicas can share them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafPlacement:
    """Where a leaf of the state lies, and who needs what of it.

    Attributes:
        name: of the leaf, for messages.
        shape: of the whole array.
        itemsize: bytes of an element.
        held: int64 [n, d, 2] of each holder; they may overlap. One that has nothing may be absent.
        needed: the same of each host of the new world.
    """

    name: str
    shape: tuple[int, ...]
    itemsize: int
    held: Mapping[str, Boxes]
    needed: Mapping[str, Boxes]

    def __post_init__(self) -> None:
        for what, boxes_of in (("held", self.held), ("needed", self.needed)):
            all_boxes = list(boxes_of.values())
            alike = all(boxes.shape[1:] == (len(self.shape), 2) for boxes in all_boxes)
            if alike and (not all_boxes or fits(np.concatenate(all_boxes), self.shape)):
                continue
            who = next(who for who, boxes in boxes_of.items() if not fits(boxes, self.shape))
            raise ConfigError(
                f"{self.name}.{what}",
                f"the boxes of {who}, {boxes_of[who].tolist()}, are not within {self.shape}",
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Move:
    """One part of one leaf from a holder to a host.

    Attributes:
        leaf: its name.
        source: the holder.
        target: the host.
        box: int64 [d, 2].
        nbytes: of the part.
        stage: moves of a stage may be under way together.
    """

    leaf: str
    source: str
    target: str
    box: Boxes
    nbytes: int
    stage: int

    def __str__(self) -> str:
        return f"{self.leaf}{describe_box(self.box)} {self.source} -> {self.target}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeafMoves:
    """The moves of one leaf, as columns.

    Attributes:
        leaf: its name.
        itemsize: bytes of an element.
        source, target: int32 [n], positions in ``MovePlan.holders`` and ``MovePlan.hosts``.
        boxes: int64 [n, d, 2].
        stage: int32 [n].
    """

    leaf: str
    itemsize: int
    source: npt.NDArray[np.int32]
    target: npt.NDArray[np.int32]
    boxes: Boxes
    stage: npt.NDArray[np.int32]

    @property
    def nbytes(self) -> npt.NDArray[np.int64]:
        """int64 [n], bytes of each."""
        return sizes(self.boxes) * self.itemsize


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MovePlan:
    """All moves of a resize.

    Attributes:
        holders, hosts: names, in the order of the columns.
        moved: of each leaf, in the order given, what travels.
        kept: of each leaf what a host takes from the holder on its own node; nothing travels.
        bytes_bound: bytes that hosts need and their own nodes have not, counted apart.
    """

    holders: tuple[str, ...]
    hosts: tuple[str, ...]
    moved: tuple[LeafMoves, ...]
    kept: tuple[LeafMoves, ...]
    bytes_bound: int

    @property
    def bytes_moved(self) -> int:
        """That travel, all moves together."""
        return sum(int(leaf.nbytes.sum()) for leaf in self.moved)

    @property
    def stages(self) -> int:
        """Stages, one after the other."""
        return 1 + max((int(leaf.stage.max(initial=-1)) for leaf in self.moved), default=-1)

    def given(self) -> npt.NDArray[np.int64]:
        """int64 [stages, holders], bytes that each holder gives in each stage."""
        return self._by_stage(len(self.holders), "source")

    def received(self) -> npt.NDArray[np.int64]:
        """int64 [stages, hosts], bytes that each host receives in each stage."""
        return self._by_stage(len(self.hosts), "target")

    def _by_stage(self, columns: int, end: str) -> npt.NDArray[np.int64]:
        total = np.zeros((self.stages, columns), dtype=np.int64)
        for leaf in self.moved:
            np.add.at(total, (leaf.stage, getattr(leaf, end)), leaf.nbytes)
        return total

    def moves(self, *, source: str | None = None, target: str | None = None) -> Iterator[Move]:
        """What travels, leaf by leaf; of one holder or to one host alone where that is given."""
        return self._each(self.moved, source, target)

    def local(self, *, target: str | None = None) -> Iterator[Move]:
        """What hosts take from their own nodes, leaf by leaf."""
        return self._each(self.kept, None, target)

    def _each(
        self, leaves: Sequence[LeafMoves], source: str | None, target: str | None
    ) -> Iterator[Move]:
        for leaf in leaves:
            wanted = np.ones(len(leaf.boxes), dtype=bool)
            if source is not None:
                wanted &= leaf.source == self.holders.index(source)
            if target is not None:
                wanted &= leaf.target == self.hosts.index(target)
            nbytes = leaf.nbytes
            for i in np.flatnonzero(wanted).tolist():
                yield Move(
                    leaf=leaf.leaf,
                    source=self.holders[leaf.source[i]],
                    target=self.hosts[leaf.target[i]],
                    box=leaf.boxes[i],
                    nbytes=int(nbytes[i]),
                    stage=int(leaf.stage[i]),
                )


def plan_moves(
    leaves: Sequence[LeafPlacement],
    local: Mapping[str, str],
    *,
    limit_bytes: int = DEFAULT_LIMIT_BYTES,
    most_move_bytes: int = DEFAULT_MOVE_BYTES,
) -> MovePlan:
    """The moves that give every host of the new world what it needs.

    Args:
        leaves: in the order in which they are moved.
        local: host -> the holder on its own node; a host without one may be absent.
        limit_bytes: that a holder gives and a host receives in one stage.
        most_move_bytes: of one move; large parts are cut.

    Raises:
        ConfigError: a limit is smaller than one element, or two leaves have one name.
        MissingStateError: no holder has a part that a host needs.
    """
    largest = max((leaf.itemsize for leaf in leaves), default=1)
    for setting, value in (("limit_bytes", limit_bytes), ("most_move_bytes", most_move_bytes)):
        if value < largest:
            raise ConfigError(setting, f"{value} is less than one element of {largest} bytes")
    names = [leaf.name for leaf in leaves]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise ConfigError("leaves", f"leaf {twice[0]!r} is given twice", "Names must be unique")
    holders = tuple(dict.fromkeys(who for leaf in leaves for who in leaf.held))
    hosts = tuple(dict.fromkeys(who for leaf in leaves for who in leaf.needed))
    at = {who: i for i, who in enumerate(holders)}
    beside = [at.get(local.get(host, ""), -1) for host in hosts]
    parts = _parts_of_leaves(leaves, holders, hosts, beside, min(limit_bytes, most_move_bytes))
    each = list(zip(leaves, parts, strict=True))
    return MovePlan(
        holders=holders,
        hosts=hosts,
        moved=_in_stages(each, _share_out(each, len(holders)), limit_bytes),
        kept=tuple(
            LeafMoves(
                leaf=leaf.name,
                itemsize=leaf.itemsize,
                source=own.kept_source,
                target=own.kept_target,
                boxes=own.kept,
                stage=np.zeros(len(own.kept), dtype=np.int32),
            )
            for leaf, own in each
        ),
        bytes_bound=sum(own.cells_bound * leaf.itemsize for leaf, own in each),
    )


def _parts_of_leaves(
    leaves: Sequence[LeafPlacement],
    holders: Sequence[str],
    hosts: Sequence[str],
    beside: Sequence[int],
    most_bytes: int,
) -> list[LeafParts]:
    """What hosts have and lack of each leaf; leaves that lie alike are worked out once."""
    known: dict[object, LeafParts] = {}
    found = []
    for leaf in leaves:
        none = no_boxes(len(leaf.shape))
        held = [leaf.held.get(who, none) for who in holders]
        needed = [leaf.needed.get(who, none) for who in hosts]
        most_cells = most_bytes // leaf.itemsize
        # A scalar's boxes have no bytes, so their number belongs to the key.
        boxes_of_all = [(len(boxes), boxes.tobytes()) for boxes in (*held, *needed)]
        key = (leaf.shape, most_cells, *boxes_of_all)
        if key not in known:
            parts = parts_of(held, needed, beside, most_cells)
            if len(parts.missing):
                raise MissingStateError(
                    leaf.name, describe_box(parts.missing[0]), hosts[parts.missing_target]
                )
            known[key] = parts
        found.append(known[key])
    return found


def _share_out(
    each: Sequence[tuple[LeafPlacement, LeafParts]], holders: int
) -> list[npt.NDArray[np.int32]]:
    """Which holder gives each part: of those that have it the one that gives least so far.

    Parts that only one holder has come first, then the others, the largest first: of jobs placed
    in that order none is far from the best place (Graham 1969).
    """
    given = np.zeros(holders, dtype=np.int64)
    sources = [np.full(len(own.lacking), -1, dtype=np.int32) for _, own in each]
    free: list[tuple[int, int, int]] = []
    for n, (leaf, own) in enumerate(each):
        nbytes = sizes(own.lacking) * leaf.itemsize
        only = np.array([len(choice) == 1 for choice in own.holders_of_atom], dtype=bool)
        first = np.array([choice[0] for choice in own.holders_of_atom], dtype=np.int32)
        fixed = only[own.atom] if len(own.atom) else np.zeros(0, dtype=bool)
        sources[n][fixed] = first[own.atom[fixed]]
        np.add.at(given, sources[n][fixed], nbytes[fixed])
        free += [(-int(nbytes[i]), n, i) for i in np.flatnonzero(~fixed).tolist()]
    for size, n, i in sorted(free):
        own = each[n][1]
        choice = own.holders_of_atom[own.atom[i]]
        source = choice[int(given[choice].argmin())]
        sources[n][i] = source
        given[source] -= size
    return sources


def _in_stages(
    each: Sequence[tuple[LeafPlacement, LeafParts]],
    sources: Sequence[npt.NDArray[np.int32]],
    limit_bytes: int,
) -> tuple[LeafMoves, ...]:
    """The moves, leaf by leaf, each in the first stage where its two ends still have room.

    Neither end goes back to an earlier stage, so that leaves stay in their order.
    """
    at_source: dict[int, tuple[int, int]] = {}  # holder -> (stage, bytes in it)
    at_target: dict[int, tuple[int, int]] = {}
    moved = []
    for (leaf, own), source in zip(each, sources, strict=True):
        stages = np.zeros(len(source), dtype=np.int32)
        nbytes = (sizes(own.lacking) * leaf.itemsize).tolist()
        for i, (giver, taker, size) in enumerate(
            zip(source.tolist(), own.target.tolist(), nbytes, strict=True)
        ):
            gives, takes = at_source.get(giver, (0, 0)), at_target.get(taker, (0, 0))
            stage = max(gives[0], takes[0])
            given = gives[1] if gives[0] == stage else 0
            taken = takes[1] if takes[0] == stage else 0
            if max(given, taken) + size > limit_bytes:
                stage, given, taken = stage + 1, 0, 0
            at_source[giver] = stage, given + size
            at_target[taker] = stage, taken + size
            stages[i] = stage
        moved.append(
            LeafMoves(
                leaf=leaf.name,
                itemsize=leaf.itemsize,
                source=source,
                target=own.target,
                boxes=own.lacking,
                stage=stages,
            )
        )
    return tuple(moved)
