"""Between JAX's meshes and shardings and the plain tuples that planning works with."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mesh import MeshLayout
from meshfeed.pipeline.plan.partition import Spec
from meshfeed.pipeline.plan.slices import WireBytes, cover


def layout_of(mesh: Mesh) -> MeshLayout:
    """What planning needs to know of a mesh, by mesh position (device ids are not dense)."""
    owners = [device.process_index for device in mesh.devices.flat]
    return MeshLayout(
        axis_names=tuple(str(name) for name in mesh.axis_names),
        shape=mesh.devices.shape,
        process_of_device=np.array(owners, dtype=np.int32),
    )


def mesh_of(layout: MeshLayout) -> Mesh:
    """The mesh whose device at each position is one of the process that the layout says.

    Raises:
        ConfigError: a process has fewer devices than the layout gives it.
    """
    by_process: dict[int, list[Any]] = {}
    for device in sorted(jax.devices(), key=lambda d: d.id):
        by_process.setdefault(device.process_index, []).append(device)
    order = []
    for process in layout.process_of_device.tolist():
        if not by_process.get(process):
            raise ConfigError("mesh", f"{layout}: process {process} has too few devices for it")
        order.append(by_process[process].pop(0))
    return Mesh(np.array(order).reshape(layout.shape), layout.axis_names)


def partition_spec(spec: Spec) -> PartitionSpec:
    """JAX's form of a spec: a single axis by its bare name, ``P('data', None)``."""
    return PartitionSpec(
        *(entry[0] if entry is not None and len(entry) == 1 else entry for entry in spec)
    )


def named_sharding(mesh: Mesh, spec: Spec) -> NamedSharding:
    """The sharding of a leaf."""
    return NamedSharding(mesh, partition_spec(spec))


def addressable_boxes(sharding: Sharding, global_shape: tuple[int, int]) -> npt.NDArray[np.int64]:
    """int64 [boxes, 4], the distinct boxes of this process's devices, as JAX states them.

    Row begin, row end, column begin, column end.

    Raises:
        ConfigError: no device of the sharding belongs to this process.
    """
    indices = sharding.addressable_devices_indices_map(global_shape)
    boxes = {box_of(index, global_shape) for index in indices.values() if index is not None}
    if not boxes:
        raise ConfigError(
            "mesh",
            "no device of it belongs to this process",
            "Every process that feeds needs a device in the mesh",
        )
    return np.array(sorted(boxes), dtype=np.int64)


def box_of(index: tuple[slice, ...], global_shape: tuple[int, int]) -> tuple[int, int, int, int]:
    """A device's index of a ``[rows, columns]`` array as (row begin, end, column begin, end)."""
    (top, bottom, _), (left, right, _) = (
        part.indices(size) for part, size in zip(index, global_shape, strict=True)
    )
    return top, bottom, left, right


def needed_bytes(
    shardings: list[NamedSharding],
    global_shape: tuple[int, int],
    wire: WireBytes,
    real_rows: int | None = None,
) -> int:
    """Bytes that this process must fetch for one global batch, from JAX's own indices.

    Args:
        shardings: of all leaves.
        global_shape: (rows, columns).
        wire: (rows, columns) of a region -> bytes that it takes on the wire.
        real_rows: rows of the batch that are not padding, which does not travel; None: all.
    """
    boxes = np.concatenate([addressable_boxes(s, global_shape) for s in set(shardings)])
    if real_rows is not None:
        boxes = boxes[boxes[:, 0] < real_rows]
        boxes[:, 1] = np.minimum(boxes[:, 1], real_rows)
    return cover(boxes).wire_bytes(wire) if len(boxes) else 0
