"""A global batch on a mesh: does it divide, who supplies what, and what does that cost.

``plan_batch`` is what coordinator, hosts and ``meshfeed plan`` all ask. A batch that does not
divide is refused before anything starts, naming the sizes that would do, or padded at the end of
the global batch: never per host, which would put padding into the middle of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mesh import MeshLayout
from meshfeed.pipeline.plan.partition import (
    AxisRoles,
    DataPartitionType,
    Spec,
    describe_spec,
    resolve,
)
from meshfeed.pipeline.plan.run_config import UnevenBatch
from meshfeed.pipeline.plan.slices import HostSlice, SlicePlan, WireBytes, cover, plan_slices, union


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchPlan:
    """Who supplies what of each global batch.

    Attributes:
        batch_size: rows that a step takes.
        rows: rows of the global arrays; those from ``batch_size`` on are padding.
        seq_len: columns.
        specs: spec of each leaf, by meshfeed's name.
        slice_plans: the plan of each distinct spec.
        processes: int32 [processes], ascending.
        group_of_process: int32 [processes]; processes of a group need the same of every leaf.
    """

    batch_size: int
    rows: int
    seq_len: int
    specs: Mapping[str, Spec]
    slice_plans: Mapping[Spec, SlicePlan]
    processes: npt.NDArray[np.int32]
    group_of_process: npt.NDArray[np.int32]

    @property
    def global_shape(self) -> tuple[int, int]:
        """(rows, columns) of every leaf."""
        return self.rows, self.seq_len

    @property
    def pad_rows(self) -> int:
        """Rows of weight zero at the end of every global batch."""
        return self.rows - self.batch_size

    @property
    def num_groups(self) -> int:
        """Slice groups."""
        return int(self.group_of_process.max()) + 1

    def group_of(self, process_index: int) -> int:
        """The slice group of a process.

        Raises:
            ConfigError: the process owns no device of the mesh.
        """
        next(iter(self.slice_plans.values())).group_of(process_index)
        return int(self.group_of_process[np.searchsorted(self.processes, process_index)])

    def members(self, group: int) -> npt.NDArray[np.int32]:
        """int32 [members], the processes of a slice group, ascending."""
        members: npt.NDArray[np.int32] = self.processes[self.group_of_process == group]
        return members

    def leaf_slice(self, process_index: int, leaf: str) -> HostSlice:
        """What a process must supply of one leaf."""
        return self.slice_plans[self.specs[leaf]].slice_of(process_index)

    def slice_of(self, process_index: int) -> HostSlice:
        """What a process fetches: what it must supply of any leaf."""
        slices = [plan.slice_of(process_index) for plan in self.slice_plans.values()]
        return slices[0] if len(slices) == 1 else union(slices)


def plan_batch(
    mesh: MeshLayout,
    specs: Mapping[str, Spec],
    *,
    batch_size: int,
    seq_len: int,
    uneven_batch: UnevenBatch = UnevenBatch.REFUSE,
) -> BatchPlan:
    """Checks that the batch divides, or pads it, and lays it over the mesh.

    Raises:
        ConfigError: it does not divide; names the batch, what it is divided by, the number of
            hosts, and the nearest sizes that would do.
    """
    distinct = tuple(dict.fromkeys(specs.values()))
    row_parts = math.lcm(*(mesh.split_over(rows) for rows, _ in distinct))
    col_parts = math.lcm(*(mesh.split_over(cols) for _, cols in distinct))
    shown = " and ".join(describe_spec(spec) for spec in distinct)
    if batch_size < 1 or (batch_size % row_parts and uneven_batch is UnevenBatch.REFUSE):
        raise ConfigError(
            "batch_size",
            f"{batch_size} rows do not divide into {row_parts} equal parts "
            f"({shown} on mesh {mesh}, {_hosts(mesh)})",
            f"{_nearest(batch_size, row_parts)} would do, and uneven_batch=pad adds rows of "
            "weight zero at the end of each batch",
        )
    if seq_len % col_parts:
        raise ConfigError(
            "seq_len",
            f"{seq_len} columns do not divide into {col_parts} equal parts "
            f"({shown} on mesh {mesh}, {_hosts(mesh)})",
            f"{_nearest(seq_len, col_parts)} would do",
        )
    rows = -(-batch_size // row_parts) * row_parts
    plans = {spec: plan_slices(mesh, spec, (rows, seq_len)) for spec in distinct}
    first = plans[distinct[0]]
    groups = np.stack([plan.group_of_process for plan in plans.values()], axis=1)
    group_of_process = np.unique(groups, axis=0, return_inverse=True)[1].reshape(-1)
    return BatchPlan(
        batch_size=batch_size,
        rows=rows,
        seq_len=seq_len,
        specs=dict(specs),
        slice_plans=plans,
        processes=first.processes,
        group_of_process=group_of_process.astype(np.int32),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCost:
    """What one global batch costs under one partition.

    Attributes:
        rows, pad_rows: rows of the global arrays, and how many of them are padding.
        specs: spec of each leaf.
        groups: slice groups.
        hosts_per_group: processes in the largest of them.
        local_shape: (rows, columns) that the host with the most supplies; None: no grid.
        device_shape: (rows, columns) of a device's box of the tokens.
        wire_bytes: that the host with the most fetches.
        wire_bytes_all: that all hosts fetch.
        host_array_bytes: of the leaves of the host with the most, before they go to the devices.
        device_bytes: of the leaves on each device.
    """

    rows: int
    pad_rows: int
    specs: Mapping[str, Spec]
    groups: int
    hosts_per_group: int
    local_shape: tuple[int, int] | None
    device_shape: tuple[int, int]
    wire_bytes: int
    wire_bytes_all: int
    host_array_bytes: int
    device_bytes: int

    def host_memory(self, prefetch: int) -> int:
        """Bytes of host memory that a process needs to keep ``prefetch`` batches ahead.

        One region more than that is arriving, and the leaves of one batch are being derived.
        """
        return (prefetch + 1) * self.wire_bytes + self.host_array_bytes

    def device_memory(self, prefetch: int) -> int:
        """Bytes on each device: ``prefetch`` batches ready and the one in the step."""
        return (prefetch + 1) * self.device_bytes


def cost_of(plan: BatchPlan, *, wire: WireBytes, leaf_bytes: Mapping[str, int]) -> PartitionCost:
    """Bytes per host and device of one global batch.

    Args:
        plan: the batch on its mesh.
        wire: (rows, columns) of a region -> bytes that it takes on the wire.
        leaf_bytes: bytes of an element of each leaf.
    """
    shapes, shape_of_group = _distinct_shapes(plan)
    hosts = np.bincount(shape_of_group[plan.group_of_process], minlength=len(shapes))
    wires = [shape.wire_bytes(wire) for shape in shapes]
    most = int(np.argmax(wires))
    device_shape = _box_shape(plan, "tokens" if "tokens" in plan.specs else next(iter(plan.specs)))
    return PartitionCost(
        rows=plan.rows,
        pad_rows=plan.pad_rows,
        specs=plan.specs,
        groups=plan.num_groups,
        hosts_per_group=int(np.bincount(plan.group_of_process).max()),
        local_shape=shapes[most].parts[0].shape if shapes[most].is_grid else None,
        device_shape=device_shape,
        wire_bytes=wires[most],
        wire_bytes_all=int(sum(int(n) * w for n, w in zip(hosts, wires, strict=True))),
        host_array_bytes=shapes[most].cells * sum(leaf_bytes[leaf] for leaf in plan.specs),
        device_bytes=sum(
            math.prod(_box_shape(plan, leaf)) * leaf_bytes[leaf] for leaf in plan.specs
        ),
    )


def compare_partitions(
    mesh: MeshLayout,
    *,
    batch_size: int,
    seq_len: int,
    wire: WireBytes,
    leaf_bytes: Mapping[str, int],
    roles: AxisRoles | None = None,
    uneven_batch: UnevenBatch = UnevenBatch.REFUSE,
) -> dict[DataPartitionType, PartitionCost | ConfigError]:
    """What each partition type costs on this mesh; a type that does not fit has its refusal."""
    costs: dict[DataPartitionType, PartitionCost | ConfigError] = {}
    for kind in DataPartitionType:
        try:
            specs = {leaf: resolve(kind, mesh, roles=roles)["tokens"] for leaf in leaf_bytes}
            plan = plan_batch(
                mesh, specs, batch_size=batch_size, seq_len=seq_len, uneven_batch=uneven_batch
            )
        except ConfigError as refusal:
            costs[kind] = refusal
        else:
            costs[kind] = cost_of(plan, wire=wire, leaf_bytes=leaf_bytes)
    return costs


def _box_shape(plan: BatchPlan, leaf: str) -> tuple[int, int]:
    row_parts, col_parts = plan.slice_plans[plan.specs[leaf]].parts
    return plan.rows // row_parts, plan.seq_len // col_parts


def _distinct_shapes(plan: BatchPlan) -> tuple[list[HostSlice], npt.NDArray[Any]]:
    """The slices up to where they lie, which is all that bytes depend on: there are few.

    Returns:
        The slices, moved to row and column 0, and int64 [groups], which one each group has.
    """
    if len(plan.slice_plans) > 1:
        first_of_group = np.unique(plan.group_of_process, return_index=True)[1]
        slices = [plan.slice_of(int(plan.processes[at])) for at in first_of_group]
        return slices, np.arange(len(slices))
    slice_plan = next(iter(plan.slice_plans.values()))
    blocks, col_parts = slice_plan.blocks_of_group, slice_plan.parts[1]
    empty = blocks < 0
    far = np.int64(1 << 60)
    rows = np.where(empty, far, blocks // col_parts)
    cols = np.where(empty, far, blocks % col_parts)
    rows, cols = rows - rows.min(axis=1, keepdims=True), cols - cols.min(axis=1, keepdims=True)
    moved = np.where(empty, -1, rows * col_parts + cols)  # [groups, most]
    distinct, which = np.unique(moved, axis=0, return_inverse=True)
    height, width = _box_shape(plan, next(iter(plan.specs)))
    slices = []
    for row in distinct:
        kept = row[row >= 0]
        top, left = kept // col_parts * height, kept % col_parts * width
        slices.append(cover(np.stack([top, top + height, left, left + width], axis=1)))
    return slices, which.reshape(-1)


def _hosts(mesh: MeshLayout) -> str:
    hosts = len(mesh.processes)
    return f"{hosts} hosts with {mesh.num_devices} devices in all"


def _nearest(size: int, parts: int) -> str:
    """The multiples of ``parts`` on both sides of ``size``."""
    below = size // parts * parts
    return f"{below} or {below + parts}" if below else f"{parts}"
