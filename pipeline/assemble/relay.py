"""A planned shrink, before the old world is left: the state is laid on those who stay.

While the old world is up, its collectives can bring the hosts that stay just what they will need,
without host memory. For this the old devices are laid out as copies of the new mesh, the first of
them on the devices of those who stay:

::

    mesh = mesh_of_copies(jax.devices(), new_layout, old_place_of=[2, 0])
    if mesh is not None:                            # 4 hosts to 2, not 4 to 3
        state = relay(state, shardings_on(mesh), memory_limit=2 << 30).state
    held = HeldState.copy_of(state)                 # then leave the old world

What those who stay lack afterwards travels as boxes. All processes of the old world call it with
the same state.

It pays where devices reach each other faster than hosts do. The devices of those who leave receive
a copy as well: 96 MiB of float32 over 4 hosts of 2 devices, to 2 hosts, are 96 MiB received where
boxes are 48 MiB. On one machine (CPU, Gloo, 2 busy cores) the shrink took 1.1 to 1.3 s with it, 0.3
of them here, and 0.8 to 1.2 s with boxes alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from meshfeed.pipeline.assemble.resharding.placements import named, placement_of
from meshfeed.pipeline.assemble.resharding.trees import reshard
from meshfeed.pipeline.assemble.state_leaves import describe, leaves_of, sharding_of_each
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mesh import MeshLayout
from meshfeed.pipeline.plan.reshard.planner import plan_reshard

logger = logging.getLogger(__name__)

COPIES = "copies"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relaid:
    """The state on the devices of those who stay, as far as that went.

    Attributes:
        state: with the leaves that could be re-laid on the copies, the others as they were.
        left: path of a leaf that stayed as it was -> why.
        received_bytes: that the devices of the leaves' routes receive, all together.
        seconds: that it took.
    """

    state: Any
    left: Mapping[str, str]
    received_bytes: int
    seconds: float


def mesh_of_copies(
    old_devices: Sequence[Any], layout: MeshLayout, old_place_of: Sequence[int]
) -> Mesh | None:
    """Copies of the new mesh on the old devices; ``COPIES`` is an axis more, before the others.

    Args:
        old_devices: ``jax.devices()`` of the old world.
        layout: of the new mesh.
        old_place_of: for each process of the new world its process index in the old one.

    Returns:
        The mesh, or None where the old devices are no multiple of the new ones.

    Raises:
        ConfigError: a host of the new mesh was not in the old world or has too few devices.
    """
    free: dict[int, list[Any]] = {}
    for device in sorted(old_devices, key=lambda one: one.id):
        free.setdefault(device.process_index, []).append(device)
    laid = []
    for process in layout.process_of_device.tolist():
        own = free.get(old_place_of[process], [])
        if not own:
            raise ConfigError(
                "old_place_of",
                f"process {process} of the new mesh has more devices than process "
                f"{old_place_of[process]} of the old world",
                "Only a shrink to hosts that are there can be prepared",
            )
        laid.append(own.pop(0))
    copies, rest = divmod(len(old_devices), len(laid))
    if rest:
        return None
    laid += [device for own in free.values() for device in own]
    shape = (copies, *layout.shape)
    return Mesh(np.array(laid, dtype=object).reshape(shape), (COPIES, *layout.axis_names))


def relay(state: Any, shardings: Any, *, memory_limit: int | None = None) -> Relaid:
    """Brings to the hosts that stay, by collectives, what they will need of the state.

    A leaf is left as it is where its move would need more memory than the limit, and where every
    process has it anyway. The old arrays are given back as the new ones are made, so take a
    snapshot before if the old world may fail on the way.

    Args:
        state: in the old world.
        shardings: as for ``StateBuilder``, but on ``mesh_of_copies``.
        memory_limit: bytes of a device that the move of one leaf may take, old and new included.

    Raises:
        ConfigError: the shardings are not of the state's form.
    """
    began = time.monotonic()
    leaves = leaves_of(state)
    each = sharding_of_each(shardings, state)
    left: dict[str, str] = {}
    to_move: dict[str, Any] = {}
    targets: dict[str, NamedSharding] = {}
    received = 0.0
    for (path, leaf), target in zip(leaves.items(), each, strict=True):
        cost, reason = _cost(path, leaf, target, memory_limit)
        if reason:
            left[path] = reason
            continue
        received += cost
        to_move[path], targets[path] = leaf, target
    moved = reshard(to_move, targets, donate=True, memory_limit=memory_limit)
    flat = [moved.get(path, leaf) for path, leaf in leaves.items()]
    relaid = Relaid(
        state=jax.tree.unflatten(jax.tree.structure(state), flat),
        left=left,
        received_bytes=round(received),
        seconds=time.monotonic() - began,
    )
    logger.info(
        "%d of %d leaves re-laid on those who stay: %d bytes received in %.2f s",
        *(len(to_move), len(leaves), relaid.received_bytes, relaid.seconds),
    )
    return relaid


def _cost(path: str, leaf: Any, target: Any, memory_limit: int | None) -> tuple[float, str]:
    """Bytes that a leaf's route moves, and why it is not taken; empty where it is."""
    source = named(leaf.sharding) if isinstance(leaf, jax.Array) else None
    if source is None or target is None:
        return 0.0, "every process has it"
    if len(source.device_set) == 1:
        return 0.0, "it lies on one device"
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    try:
        plan = plan_reshard(
            describe(path, leaf).shape if is_key else leaf.shape,
            "uint32" if is_key else str(leaf.dtype),
            placement_of(source),
            placement_of(target),
            memory_limit=memory_limit,
            donate=True,
        )
    except ConfigError as error:  # BudgetError included
        return 0.0, str(error)
    if any(hop.crosses for hop in plan.hops):
        return 0.0, "it would leave the old devices"
    return sum(plan.bytes_of(hop.received) * hop.target.mesh.num_devices for hop in plan.hops), ""
