"""The one sharding worth going through, for those who move arrays by themselves.

In the form of ``find_intermediate_sharding`` of pathways-utils: the intermediate, on the source's
mesh with axes split into a part that is used and a replica part, and the axes over which it is
replicated.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax.sharding import NamedSharding

from meshfeed.pipeline.assemble.resharding.placements import (
    DeviceTable,
    named,
    placement_of,
    sharding_of,
)
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.reshard.replicas import best_intermediate, replicated_axes


def find_intermediate_sharding(
    in_sharding: NamedSharding, out_sharding: NamedSharding
) -> tuple[NamedSharding, Sequence[str]] | None:
    """The sharding to go through on the way from one sharding to another.

    Over the same devices it is the one that brings them the fewest bytes. To fewer devices it
    lies on the old ones, so that one replica can go on to the new with the fewest bytes in all.
    The array is taken to divide as it must.

    Example: from ``fsdp=8, tp=1`` with ``P('fsdp', 'tp')`` to four devices, ``fsdp=1, tp=4``: on
    ``fsdp_split=4, fsdp_replica=2, tp=1`` with ``P('fsdp_split', None)``, replicated over
    ``fsdp_replica``.

    Args:
        in_sharding: of the array now.
        out_sharding: that it is to have.

    Returns:
        The intermediate and the axes over which it is replicated; None where direct is best.

    Raises:
        ConfigError: a sharding is no ``NamedSharding``.
    """
    both = []
    for setting, sharding in (("in_sharding", in_sharding), ("out_sharding", out_sharding)):
        one = named(sharding)
        if one is None:
            raise ConfigError(
                setting,
                f"{sharding!r} is no NamedSharding",
                "Give jax.sharding.NamedSharding(mesh, PartitionSpec(...))",
            )
        both.append(one)
    found = best_intermediate(placement_of(both[0]), placement_of(both[1]))
    if found is None:
        return None
    return sharding_of(found, DeviceTable(*both)), replicated_axes(found)
