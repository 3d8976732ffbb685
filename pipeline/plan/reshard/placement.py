"""How an array lies on devices: a mesh with its devices, and the axes that split each dimension.

====================  ====================================================================
index                 runs over
====================  ====================================================================
mesh position         the devices in mesh order, as in ``plan.mesh``
device id             the devices themselves: two placements share a device where they share
                      an id, whatever their meshes
dimension             the dimensions of the array
====================  ====================================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.plan.boxes import Boxes, device_boxes
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mesh import MeshLayout, describe_axes
from meshfeed.pipeline.plan.reshard.tiling import Tiling

ArraySpec = tuple[tuple[str, ...], ...]
"""The mesh axes that split each dimension, major first; ``()`` where it is whole."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """A sharding as planning sees it.

    Attributes:
        mesh: axis names, shape, and the process of each mesh position.
        spec: mesh axes of each dimension of the array; trailing dimensions may be left out.
        device_ids: int64 [devices], the device at each mesh position.
    """

    mesh: MeshLayout
    spec: ArraySpec
    device_ids: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        spec = tuple(_axes_of(entry) for entry in self.spec)
        object.__setattr__(self, "spec", spec)
        used = [axis for axes in spec for axis in axes]
        for axis in used:
            if axis not in self.mesh.axis_names:
                raise ConfigError(
                    "spec",
                    f"axis {axis!r} is not in the mesh",
                    f"Its axes are {', '.join(self.mesh.axis_names)}",
                )
        if len(set(used)) != len(used):
            raise ConfigError("spec", f"an axis stands twice in {describe_placement_spec(spec)}")
        count = self.mesh.num_devices
        ids = np.array(self.device_ids, dtype=np.int64).reshape(-1)
        if ids.size != count or np.unique(ids).size != count:
            raise ConfigError(
                "device_ids",
                f"{np.unique(ids).size} different devices are given for {self.mesh}",
                f"Give {count}, each once",
            )
        ids.setflags(write=False)
        object.__setattr__(self, "device_ids", ids)

    @classmethod
    def build(
        cls,
        axes: Mapping[str, int],
        spec: Iterable[str | Sequence[str] | None],
        *,
        device_ids: Sequence[int] | npt.NDArray[np.int64] | None = None,
        devices_per_process: int | None = None,
    ) -> Placement:
        """A placement from plain values.

        Args:
            axes: size of each mesh axis.
            spec: of each dimension an axis, several axes, or None.
            device_ids: the device at each mesh position; None: 0, 1, 2, ...
            devices_per_process: consecutive device ids that one process owns; None: all.

        Raises:
            ConfigError: axis or devices do not fit the mesh.
        """
        count = math.prod(axes.values())
        ids = np.arange(count) if device_ids is None else np.asarray(device_ids, dtype=np.int64)
        together = devices_per_process or max(1, int(ids.max(initial=0)) + 1)
        owners = (ids // together).astype(np.int32)
        mesh = MeshLayout(
            axis_names=tuple(axes),
            shape=tuple(axes.values()),
            process_of_device=owners.astype(np.int32),
        )
        return cls(mesh=mesh, spec=tuple(_axes_of(entry) for entry in spec), device_ids=ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Placement):
            return NotImplemented
        return (
            self.mesh == other.mesh
            and self.spec == other.spec
            and np.array_equal(self.device_ids, other.device_ids)
        )

    def __hash__(self) -> int:
        return hash((self.mesh, self.spec, self.device_ids.tobytes()))

    def __str__(self) -> str:
        return f"{describe_placement_spec(self.spec)} on {describe_axes(self.mesh.axes)}"

    def spec_of(self, dimensions: int) -> ArraySpec:
        """The spec with an entry for each of ``dimensions``.

        Raises:
            ConfigError: it has more entries than that.
        """
        extra = self.spec[dimensions:]
        if any(extra):
            raise ConfigError(
                "spec",
                f"{describe_placement_spec(self.spec)} splits more than the array's "
                f"{dimensions} dimensions",
            )
        return self.spec[:dimensions] + ((),) * (dimensions - len(self.spec))

    def counts(self, dimensions: int) -> tuple[int, ...]:
        """Parts into which each dimension is split."""
        sizes = self.mesh.axes
        return tuple(math.prod(sizes[a] for a in axes) for axes in self.spec_of(dimensions))

    def check(self, shape: tuple[int, ...], setting: str) -> None:
        """That JAX could hold an array of ``shape`` so.

        Raises:
            ConfigError: a dimension is not a multiple of its parts; names sizes that are.
        """
        for dim, (size, parts) in enumerate(zip(shape, self.counts(len(shape)), strict=True)):
            if size % parts:
                raise ConfigError(
                    setting,
                    f"dimension {dim} of {list(shape)} is not a multiple of the {parts} parts "
                    f"that {self} splits it into",
                    f"Pad it to {-(-size // parts) * parts}, or split it over fewer devices",
                )

    def boxes(self, shape: tuple[int, ...]) -> Boxes:
        """int64 [devices, dimensions, 2], the begin and end of each mesh position's box."""
        return device_boxes(self.mesh, self.spec_of(len(shape)), shape)

    def tiling(self, dimensions: int, order: npt.NDArray[np.int64]) -> Tiling:
        """As XLA sees it.

        Args:
            dimensions: of the array.
            order: int64 [devices], device ids in the order of the program's device assignment;
                the same devices as the mesh's.
        """
        sorted_order = np.argsort(order, kind="stable")
        found = np.searchsorted(order[sorted_order], self.device_ids)
        place = sorted_order[found].reshape(self.mesh.shape)
        spec = self.spec_of(dimensions)
        used = [axis for axes in spec for axis in axes]
        axes = [*used, *(name for name in self.mesh.axis_names if name not in used)]
        laid = place.transpose([self.mesh.axis_names.index(name) for name in axes])
        sizes = tuple(tuple(self.mesh.axes[name] for name in axes) for axes in spec)
        return Tiling.of(self.counts(dimensions), laid, sizes)


def _axes_of(entry: str | Sequence[str] | None) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def describe_placement_spec(spec: ArraySpec) -> str:
    """``P('data', ('fsdp', 'tp'), None)``, the form that JAX prints."""
    names = [
        "None" if not axes else repr(axes[0]) if len(axes) == 1 else repr(axes) for axes in spec
    ]
    return f"P({', '.join(names)})"
