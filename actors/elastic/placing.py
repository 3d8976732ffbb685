"""Which host takes which place of the next world, so that as little as possible travels.

What each place will need follows from how the state lies on the present mesh: a leaf is split over
the same axes of the next one. That is a forecast; what moves in the end follows from the shardings
that ``train(job)`` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshfeed.pipeline.plan.boxes import boxes_of_hosts, device_boxes
from meshfeed.pipeline.plan.elastic.mesh_rule import MeshRule
from meshfeed.pipeline.plan.elastic.places import assign_places, overlap_bytes
from meshfeed.pipeline.plan.elastic.worlds import HostId, Restore, World
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.moves import LeafPlacement


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafSpec:
    """How a leaf of the state lies on any mesh.

    Attributes:
        name: its path in the state.
        shape: of the whole array.
        itemsize: bytes of an element.
        spec: for each dimension the mesh axes over which it is split.
    """

    name: str
    shape: tuple[int, ...]
    itemsize: int
    spec: tuple[tuple[str, ...] | None, ...]


def arrange_hosts(
    rule: MeshRule, leaves: Callable[[], Sequence[LeafSpec]]
) -> Callable[[World | None, tuple[HostId, ...], Restore], Sequence[HostId]]:
    """The machine's ``Arrange``: as much as possible of the state stays where it lies.

    Args:
        rule: of the meshes.
        leaves: of the state, as the last world laid it out; none before there was one.
    """

    def arrange(
        last: World | None, members: tuple[HostId, ...], restore: Restore
    ) -> Sequence[HostId]:
        if last is None or not restore.parts:
            return members
        owners = [part.owner for part in restore.parts]
        placements = [
            placement
            for leaf in leaves()
            if (placement := _placement(leaf, rule, owners, len(members))) is not None
        ]
        places = [str(place) for place in range(len(members))]
        overlap = overlap_bytes(placements, [host.name for host in members], places)
        order = assign_places(overlap, hosts_per_group=rule.hosts_per_group)
        return [members[host] for host in order.tolist()]

    return arrange


def _placement(
    leaf: LeafSpec, rule: MeshRule, owners: Sequence[str], hosts: int
) -> LeafPlacement | None:
    """Where a leaf lies, and what each place will need; None where it will lie in another way."""
    before, after = rule.mesh(len(owners)), rule.mesh(hosts)
    try:
        held = boxes_of_hosts(before, device_boxes(before, leaf.spec, leaf.shape))
        needed = boxes_of_hosts(after, device_boxes(after, leaf.spec, leaf.shape))
    except ConfigError:
        return None
    return LeafPlacement(
        name=leaf.name,
        shape=leaf.shape,
        itemsize=leaf.itemsize,
        held={owners[place]: boxes for place, boxes in held.items()},
        needed={str(place): boxes for place, boxes in needed.items()},
    )
