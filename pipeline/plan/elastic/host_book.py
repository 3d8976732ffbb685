"""The hosts that are there, and which of them the next world is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from meshfeed.pipeline.plan.elastic.worlds import HostId


@dataclass(slots=True, kw_only=True)
class Drain:
    """A host is to leave.

    Attributes:
        reason: why.
        asked: when it was asked for.
        deadline: when the host will be gone; None: it stays as long as it takes.
    """

    reason: str
    asked: float
    deadline: float | None = None


@dataclass(slots=True, kw_only=True)
class HostRecord:
    """A host that is there.

    Attributes:
        host: its name and incarnation.
        group: hosts that join and leave together; "": any others.
        arrival: hosts that came earlier go first.
        heard: when it was last heard from.
        generation: of the last world that it is a member of; 0: of none.
        drain: it is to leave.
        dropped: a wish for fewer hosts has left it over; it is released when that is safe.
    """

    host: HostId
    group: str
    arrival: int
    heard: float
    generation: int = 0
    drain: Drain | None = None
    dropped: bool = False


@dataclass(slots=True, kw_only=True)
class HostBook:
    """All hosts.

    Attributes:
        hosts: by name, those that are there.
        gone: by name, the highest incarnation that was fenced or released: it is not heard.
        released: of these, those that were released.
        arrivals: hosts that have come so far.
    """

    hosts: dict[str, HostRecord] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    released: dict[str, int] = field(default_factory=dict)
    arrivals: int = 0

    def knows(self, host: HostId) -> bool:
        """Whether this very incarnation is there."""
        record = self.hosts.get(host.name)
        return record is not None and record.host == host

    def add(self, host: HostId, group: str, now: float) -> bool:
        """A host has come; False if it is known, or has been replaced or sent away."""
        known = self.hosts.get(host.name)
        newest = known.host.incarnation if known else self.gone.get(host.name, -1)
        if host.incarnation <= newest:
            return False
        self.hosts[host.name] = HostRecord(host=host, group=group, arrival=self.arrivals, heard=now)
        self.arrivals += 1
        return True

    def remove(self, name: str, *, released: bool = False) -> HostId:
        """A host is there no more."""
        host = self.hosts.pop(name).host
        self.gone[name] = host.incarnation
        if released:
            self.released[name] = host.incarnation
        return host

    def hear(self, name: str, now: float) -> None:
        """A host was heard from."""
        self.hosts[name].heard = max(self.hosts[name].heard, now)

    def draining(self, names: Sequence[str]) -> list[HostRecord]:
        """Which of these hosts are to leave."""
        return [
            record
            for name in names
            if (record := self.hosts.get(name)) is not None and record.drain is not None
        ]

    def eligible(self, hosts_per_group: int, first: Sequence[str]) -> list[list[str]]:
        """The whole groups of hosts that may be members, in the order in which they are taken.

        Args:
            hosts_per_group: hosts of a group.
            first: members of the last world, which go first, in their order.
        """
        rank = {name: i for i, name in enumerate(first)}
        free = sorted(
            (record for record in self.hosts.values() if record.drain is None),
            key=lambda r: (rank.get(r.host.name, len(rank)), r.dropped, r.arrival),
        )
        groups: dict[str, list[list[str]]] = {}
        whole = []
        for record in free:
            open_groups = groups.setdefault(record.group, [[]])
            open_groups[-1].append(record.host.name)
            if len(open_groups[-1]) == hosts_per_group:
                whole.append(open_groups[-1])
                # Hosts beyond a named group's size wait as its spares.
                open_groups.append([])
        order = {record.host.name: i for i, record in enumerate(free)}
        return sorted(whole, key=lambda group: order[group[0]])


def choose(
    groups: Sequence[Sequence[str]], largest: Callable[[int], int | None]
) -> tuple[str, ...]:
    """The members of the next world: as many hosts as fit, the first groups first; () if none do.

    Args:
        groups: whole groups, in the order in which they are taken.
        largest: the largest number of hosts up to a number that is allowed.
    """
    names = [name for group in groups for name in group]
    return tuple(names[: largest(len(names)) or 0])
