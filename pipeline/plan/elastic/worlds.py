"""Hosts, worlds, and what a world restores from.

A *world* is a generation with its members: who is which ``process_index``, on which mesh, from
which step on, and where its state comes from. There is one at a time.

A host is a name (of a node or a slot on it) and an *incarnation* that rises whenever what runs
there was lost and replaced: a process that wakes up after it has been replaced speaks with the old
one and is not heard. Where each world has new processes, the host keeps its incarnation, and the
generation tells its processes apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, order=True)
class HostId:
    """A host, as often as it has been started."""

    name: str
    incarnation: int = 0

    def __str__(self) -> str:
        return f"{self.name}.{self.incarnation}" if self.incarnation else self.name


class RestoreKind(StrEnum):
    """What a world begins with."""

    INIT = "init"
    """Nothing: the user's init, at step 0."""

    LIVE = "live"
    """The state with which the hosts of the last world reached its barrier."""

    SNAPSHOT = "snapshot"
    """A snapshot in the vaults."""

    CHECKPOINT = "checkpoint"
    """The last checkpoint, on storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one member has stored: its part of a world's state.

    Attributes:
        owner: name of the host whose shards they are.
        vaults: names of the hosts on whose nodes they lie.
    """

    owner: str
    vaults: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """Where a world's state comes from.

    Attributes:
        kind: what it is.
        step: steps before this one are in it.
        generation: the world whose state it is; 0 for ``INIT``.
        parts: for ``LIVE`` and ``SNAPSHOT``, where each part lies.
    """

    kind: RestoreKind = RestoreKind.INIT
    step: int = 0
    generation: int = 0
    parts: tuple[Part, ...] = ()

    def __str__(self) -> str:
        return "init" if self.kind is RestoreKind.INIT else f"{self.kind} of step {self.step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One membership and its mesh.

    Attributes:
        generation: rises with every world.
        members: the host at each ``process_index``.
        mesh: name and size of each axis.
        restore: where its state comes from; it starts at ``restore.step``.
    """

    generation: int
    members: tuple[HostId, ...]
    mesh: tuple[tuple[str, int], ...]
    restore: Restore

    @property
    def start_step(self) -> int:
        """The first step it takes."""
        return self.restore.step

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its members, by ``process_index``."""
        return tuple(host.name for host in self.members)
