"""Between JAX's named shardings and the placements that planning works with."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from meshfeed.pipeline.assemble.shardings import layout_of
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.reshard.placement import Placement

Device: TypeAlias = Any
"""A jax.Device: jaxlib gives it no type."""


def placement_of(sharding: NamedSharding) -> Placement:
    """What planning needs to know of a sharding.

    Raises:
        ConfigError: its spec leaves something open, or its mesh has no devices.
    """
    ids = np.array([device.id for device in devices_of(sharding)], dtype=np.int64)
    mesh: Any = sharding.mesh
    return Placement(mesh=layout_of(mesh), spec=_entries(sharding.spec), device_ids=ids)


def _entries(spec: PartitionSpec) -> tuple[tuple[str, ...], ...]:
    if getattr(spec, "unreduced", None):
        raise ConfigError("shardings", f"{spec} is unreduced", "Sum it up first")
    entries = []
    for entry in spec:
        axes = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        if not all(isinstance(axis, str) for axis in axes):
            raise ConfigError(
                "shardings", f"{spec} leaves a dimension open", "Name its axes, or None"
            )
        entries.append(tuple(axes))
    return tuple(entries)


@lru_cache(maxsize=8192)
def sharding_of(placement: Placement, devices: DeviceTable) -> NamedSharding:
    """The sharding that a placement stands for.

    Args:
        placement: the placement.
        devices: the devices it speaks of.
    """
    laid = np.array([devices[i] for i in placement.device_ids.tolist()], dtype=object)
    mesh = Mesh(laid.reshape(placement.mesh.shape), placement.mesh.axis_names)
    spec = PartitionSpec(
        *(axes[0] if len(axes) == 1 else axes if axes else None for axes in placement.spec)
    )
    return NamedSharding(mesh, spec)


class DeviceTable:
    """Devices by their id."""

    def __init__(self, *shardings: NamedSharding) -> None:
        self._devices: Mapping[int, Device] = {
            device.id: device for one in shardings for device in devices_of(one)
        }
        self._key = tuple(sorted(self._devices))

    def __getitem__(self, device_id: int) -> Device:
        return self._devices[device_id]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceTable) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def named(sharding: Any) -> NamedSharding | None:
    """The sharding as a named one, where it is or stands for one; else None."""
    if isinstance(sharding, NamedSharding):
        return sharding
    if isinstance(sharding, SingleDeviceSharding):
        (device,) = sharding.device_set
        return NamedSharding(Mesh(np.array([device], dtype=object), ("device",)), PartitionSpec())
    return None


def same_order(source: NamedSharding, target: NamedSharding) -> bool:
    """Whether one program can take both: the same devices in the same order."""
    return devices_of(source) == devices_of(target)


def devices_of(sharding: NamedSharding) -> list[Device]:
    """The devices of its mesh, in mesh order."""
    mesh = sharding.mesh
    if not isinstance(mesh, Mesh):
        raise ConfigError(
            "shardings", f"the mesh of {sharding.spec} has no devices", "Give a jax.sharding.Mesh"
        )
    return list(mesh.devices.flat)
