"""CPU devices in this process, as many as a mesh has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mesh import describe_axes

MOST_DEVICES = 128
"""Each has threads of its own, so that a larger mesh would bring a machine down, not explain it."""


def check_size(axes: Mapping[str, int], setting: str = "mesh") -> int:
    """The devices of a mesh that this machine is to stand for.

    Raises:
        ConfigError: an axis is open or below 1, or there are too many devices.
    """
    wrong = [name for name, size in axes.items() if size < 1]
    if wrong:
        raise ConfigError(
            setting,
            f"axis {wrong[0]!r} of {describe_axes(axes)} has size {axes[wrong[0]]}",
            "Give 1 or more: the CPU devices are made for the mesh, nothing is left over",
        )
    return check_count(math.prod(axes.values()), setting)


def check_count(devices: int, setting: str) -> int:
    """The number itself, if this machine can stand for so many devices.

    Raises:
        ConfigError: it cannot.
    """
    if devices > MOST_DEVICES:
        raise ConfigError(
            setting,
            f"{devices:,} devices are needed; {MOST_DEVICES} are the most that are simulated here",
            "Make axes smaller: collectives and bytes per device follow from the axes' sizes",
        )
    return devices


def start_cpu_devices(count: int) -> list[Any]:
    """The first of ``count`` CPU devices with which JAX starts, whatever accelerators there are.

    Raises:
        ConfigError: JAX has started already, or is told otherwise by XLA_FLAGS.
    """
    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)
        devices = jax.devices("cpu")
    except (RuntimeError, ValueError):
        devices = jax.devices("cpu")
    if len(devices) < count:
        raise ConfigError(
            "mesh",
            f"needs {count} CPU devices, JAX has started with {len(devices)}",
            "Unset xla_force_host_platform_device_count in XLA_FLAGS, and start the command in a "
            "process of its own",
        )
    return devices[:count]


def cpu_mesh(axes: Mapping[str, int], setting: str = "mesh") -> Mesh:
    """A mesh over the first CPU devices, in their order."""
    devices = start_cpu_devices(check_size(axes, setting))
    return Mesh(np.array(devices).reshape(tuple(axes.values())), tuple(axes))
