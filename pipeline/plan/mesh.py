"""A device mesh without its devices: axis names, shape, and the process that owns each device.

Planning needs no more than this, so that a mesh of 10,000 hosts can be planned on a laptop.

====================  ====================================================================
index                 runs over
====================  ====================================================================
mesh position         the devices in mesh order: row-major over ``shape``, as
                      ``mesh.devices.flat``. Never a device id: ids are not dense.
``process_index``     the processes, as JAX numbers them
====================  ====================================================================
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.plan.errors import ConfigError


class DeviceOrder(StrEnum):
    """How the devices of equal hosts lie in a mesh that has no real devices yet."""

    BY_HOST = "by_host"
    """All devices of host 0, then all of host 1: what ``jax.make_mesh`` gives on CPU."""

    INTERLEAVED = "interleaved"
    """One device of each host in turn."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeshLayout:
    """A mesh as planning sees it.

    Attributes:
        axis_names: in the order of ``shape``.
        shape: size of each axis.
        process_of_device: int32 [devices], the owner of each mesh position.
    """

    axis_names: tuple[str, ...]
    shape: tuple[int, ...]
    process_of_device: npt.NDArray[np.int32]

    def __post_init__(self) -> None:
        if not self.axis_names or len(self.axis_names) != len(self.shape):
            raise ConfigError(
                "mesh", f"{len(self.axis_names)} axis names for {len(self.shape)} sizes"
            )
        if len(set(self.axis_names)) != len(self.axis_names):
            raise ConfigError("mesh", f"an axis of {describe_axes(self.axes)} is named twice")
        if min(self.shape) < 1:
            raise ConfigError("mesh", f"{describe_axes(self.axes)} has an axis below 1")
        owners = np.ascontiguousarray(self.process_of_device, dtype=np.int32).reshape(-1)
        if owners.size != math.prod(self.shape):
            raise ConfigError(
                "mesh",
                f"{describe_axes(self.axes)} is {math.prod(self.shape)} devices, "
                f"{owners.size} owners are given",
            )
        owners = owners.copy()
        owners.setflags(write=False)
        object.__setattr__(self, "process_of_device", owners)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MeshLayout):
            return NotImplemented
        return self.axes == other.axes and np.array_equal(
            self.process_of_device, other.process_of_device
        )

    def __hash__(self) -> int:
        return hash((self.axis_names, self.shape, self.process_of_device.tobytes()))

    def __str__(self) -> str:
        return describe_axes(self.axes)

    @property
    def axes(self) -> dict[str, int]:
        """Size of each axis, in order."""
        return dict(zip(self.axis_names, self.shape, strict=True))

    @property
    def num_devices(self) -> int:
        """Devices in the mesh."""
        return self.process_of_device.size

    @property
    def processes(self) -> npt.NDArray[np.int32]:
        """int32 [hosts], the processes that own a device of the mesh, ascending."""
        return np.unique(self.process_of_device)

    def split_over(self, axes: tuple[str, ...] | None) -> int:
        """Parts into which a dimension split over ``axes`` falls."""
        return math.prod(self.axes[axis] for axis in axes or ())

    @classmethod
    def build(
        cls,
        axes: Mapping[str, int] | None,
        *,
        hosts: int,
        devices_per_host: int,
        order: DeviceOrder = DeviceOrder.BY_HOST,
    ) -> MeshLayout:
        """The mesh of ``hosts`` equal hosts.

        Args:
            axes: size of each axis, at most one of them -1 (what is left); None: one axis
                ``data`` over all devices.
            hosts: processes.
            devices_per_host: devices that each process owns.
            order: how the devices lie in the mesh.

        Raises:
            ConfigError: the sizes do not give the number of devices; names sizes that do.
        """
        for setting, value in (("hosts", hosts), ("devices_per_host", devices_per_host)):
            if value < 1:
                raise ConfigError(setting, f"{value} is below 1")
        devices = hosts * devices_per_host
        sizes = fit_axes(axes or {"data": -1}, devices)
        position = np.arange(devices, dtype=np.int32)
        owners = (
            position % hosts if order is DeviceOrder.INTERLEAVED else position // devices_per_host
        )
        return cls(axis_names=tuple(sizes), shape=tuple(sizes.values()), process_of_device=owners)


def parse_axes(text: str) -> dict[str, int]:
    """``"data=4,model=2"`` -> ``{"data": 4, "model": 2}``; one size may be -1.

    Raises:
        ConfigError: the text is no such list.
    """
    axes: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*(-?\d+)\s*", part)
        if match is None:
            raise ConfigError(
                "mesh", f"{part.strip()!r} in {text!r} is no axis", "Write data=4,model=2"
            )
        if match[1] in axes:
            raise ConfigError("mesh", f"axis {match[1]!r} is named twice in {text!r}")
        axes[match[1]] = int(match[2])
    return axes


def fit_axes(axes: Mapping[str, int], devices: int) -> dict[str, int]:
    """The axes with -1 replaced by what is left of ``devices``.

    Raises:
        ConfigError: they do not give ``devices``; names sizes that do.
    """
    wrong = [name for name, size in axes.items() if size < 1 and size != -1]
    if wrong:
        raise ConfigError(
            "mesh",
            f"axis {wrong[0]!r} has size {axes[wrong[0]]}",
            "Give 1 or more, or -1 for the rest",
        )
    open_axes = [name for name, size in axes.items() if size == -1]
    if len(open_axes) > 1:
        raise ConfigError(
            "mesh",
            f"{describe_axes(axes)} leaves {' and '.join(open_axes)} open",
            "Give all but one",
        )
    fixed = math.prod(size for size in axes.values() if size != -1)
    if open_axes and devices % fixed == 0:
        return {**axes, open_axes[0]: devices // fixed}
    if not open_axes and fixed == devices:
        return dict(axes)
    problem = (
        f"{describe_axes(axes)} leaves a part of the {devices} devices over"
        if open_axes
        else f"{describe_axes(axes)} is {fixed} devices, there are {devices}"
    )
    raise ConfigError("mesh", problem, _sizes_that_fit(axes, devices))


def _sizes_that_fit(axes: Mapping[str, int], devices: int) -> str:
    """Which meshes would do: one axis changed where that is enough, else the divisors."""
    fits = []
    for name in axes:
        others = math.prod(size for other, size in axes.items() if other != name and size != -1)
        if -1 in [size for other, size in axes.items() if other != name]:
            continue
        if devices % others == 0:
            fits.append(describe_axes({**axes, name: devices // others}))
    if fits:
        return f"What would do: {'; '.join(fits)}"
    divisors = [d for d in range(1, devices + 1) if devices % d == 0]
    shown = divisors if len(divisors) <= 12 else [*divisors[:6], *divisors[-6:]]
    return f"The sizes must multiply to {devices}; each one of {', '.join(map(str, shown))}"


def describe_axes(axes: Mapping[str, int]) -> str:
    """``data=4,model=2``: the form that ``parse_axes`` reads."""
    return ",".join(f"{name}={size}" for name, size in axes.items())
