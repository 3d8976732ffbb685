from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfeed.pipeline.plan.batch_plan import (
    PartitionCost,
    compare_partitions,
    cost_of,
    plan_batch,
)
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mesh import DeviceOrder, MeshLayout
from meshfeed.pipeline.plan.partition import DataPartitionType, resolve
from meshfeed.pipeline.plan.run_config import UnevenBatch

LEAF_BYTES = {"tokens": 4, "targets": 4, "loss_weights": 4}


def _wire(rows: int, cols: int) -> int:
    return rows * (12 + 2 * (cols + 1))


def test_case_02_a_batch_that_does_not_divide_is_refused_with_the_sizes_that_would_do() -> None:
    mesh = MeshLayout.build(None, hosts=4, devices_per_host=1)
    with pytest.raises(ConfigError) as refusal:
        plan_batch(mesh, resolve("DATA", mesh), batch_size=10, seq_len=16)
    message = str(refusal.value)
    for named in ("10 rows", "4 hosts", "8 or 12", "uneven_batch=pad"):
        assert named in message
    assert refusal.value.setting == "batch_size"


def test_a_batch_below_one_row_a_part_names_the_smallest_that_would_do() -> None:
    mesh = MeshLayout.build({"data": 4, "model": 2}, hosts=4, devices_per_host=2)
    with pytest.raises(ConfigError, match=r"3 rows do not divide into 8 .*\. 8 would do"):
        plan_batch(mesh, resolve("FULL", mesh), batch_size=3, seq_len=16)


def test_a_sequence_that_does_not_divide_is_refused_whatever_the_rows_do() -> None:
    mesh = MeshLayout.build({"data": 2, "seq": 4}, hosts=4, devices_per_host=2)
    with pytest.raises(ConfigError, match=r"seq_len: 18 columns .* 4 .*16 or 20 would do"):
        plan_batch(
            mesh,
            resolve("BATCH", mesh),
            batch_size=8,
            seq_len=18,
            uneven_batch=UnevenBatch.PAD,
        )


def test_leaves_of_different_specs_divide_by_all_of_them() -> None:
    mesh = MeshLayout.build({"data": 2, "fsdp": 3}, hosts=3, devices_per_host=2)
    specs = resolve({"tokens": ["data"], "positions": ["fsdp"]}, mesh)
    with pytest.raises(ConfigError, match="8 rows do not divide into 6"):
        plan_batch(mesh, specs, batch_size=8, seq_len=4)
    plan = plan_batch(mesh, specs, batch_size=12, seq_len=4)
    # fsdp runs fastest: hosts 0, 1, 2 own (d0 f0, d0 f1), (d0 f2, d1 f0), (d1 f1, d1 f2).
    assert plan.leaf_slice(0, "tokens").parts[0].rows == ((0, 6),)
    assert plan.leaf_slice(0, "positions").parts[0].rows == ((0, 8),)
    assert plan.slice_of(0).parts[0].rows == ((0, 8),)
    assert plan.slice_of(2).parts[0].rows == ((4, 12),)
    assert plan.num_groups == 3
    assert plan.members(plan.group_of(1)).tolist() == [1]
    with pytest.raises(ConfigError, match="process 7"):
        plan.group_of(7)


@pytest.mark.parametrize("order", DeviceOrder)
def test_case_03_padding_lies_at_the_end_of_the_global_batch(order: DeviceOrder) -> None:
    mesh = MeshLayout.build({"data": 4}, hosts=2, devices_per_host=2, order=order)
    plan = plan_batch(
        mesh, resolve("DATA", mesh), batch_size=7, seq_len=4, uneven_batch=UnevenBatch.PAD
    )
    assert (plan.rows, plan.pad_rows) == (8, 1)
    real = []
    for process in (0, 1):
        (part,) = plan.slice_of(process).parts
        real += part.row_index()[: part.rows_below(plan.batch_size)].tolist()
    assert sorted(real) == list(range(7))


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 4))
def test_padding_is_the_least_that_divides(batch_size: int, hosts: int, devices: int) -> None:
    mesh = MeshLayout.build(None, hosts=hosts, devices_per_host=devices)
    plan = plan_batch(
        mesh, resolve("FULL", mesh), batch_size=batch_size, seq_len=4, uneven_batch=UnevenBatch.PAD
    )
    assert 0 <= plan.pad_rows < hosts * devices
    assert plan.rows % (hosts * devices) == 0


@pytest.mark.parametrize("order", DeviceOrder)
@pytest.mark.parametrize("kind", DataPartitionType)
@pytest.mark.parametrize("axes", [{"data": 4, "model": 2}, {"data": 2, "seq": 4}, {"seq": 8}])
def test_costs_are_the_sums_over_hosts_and_devices(
    axes: dict[str, int], kind: DataPartitionType, order: DeviceOrder
) -> None:
    mesh = MeshLayout.build(axes, hosts=4, devices_per_host=2, order=order)
    specs = {leaf: resolve(kind, mesh)[leaf] for leaf in LEAF_BYTES}
    plan = plan_batch(mesh, specs, batch_size=16, seq_len=32)
    cost = cost_of(plan, wire=_wire, leaf_bytes=LEAF_BYTES)
    slices = [plan.slice_of(process) for process in range(4)]
    wires = [one.wire_bytes(_wire) for one in slices]
    assert (cost.wire_bytes, cost.wire_bytes_all) == (max(wires), sum(wires))
    assert cost.host_array_bytes == max(one.cells for one in slices) * 12
    boxes = plan.slice_plans[specs["tokens"]].boxes
    areas = (boxes[:, 1] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 2])
    assert set((areas * 12).tolist()) == {cost.device_bytes}
    assert cost.groups == len({str(one) for one in slices})
    assert cost.device_memory(2) == 3 * cost.device_bytes
    assert cost.host_memory(2) == 3 * cost.wire_bytes + cost.host_array_bytes


def test_costs_of_leaves_with_specs_of_their_own_count_what_is_fetched_once() -> None:
    mesh = MeshLayout.build({"data": 4, "model": 2}, hosts=4, devices_per_host=2)
    specs = resolve({"tokens": "DATA", "positions": "REPLICATED"}, mesh)
    plan = plan_batch(mesh, specs, batch_size=16, seq_len=32)
    cost = cost_of(plan, wire=_wire, leaf_bytes=dict.fromkeys(specs, 4))
    assert cost.wire_bytes == _wire(16, 32)
    assert cost.wire_bytes_all == 4 * _wire(16, 32)
    assert cost.device_bytes == 4 * (4 * 4 * 32 + 16 * 32)
    assert cost.groups == 4


def test_comparing_types_keeps_the_refusals() -> None:
    mesh = MeshLayout.build({"data": 4, "model": 2}, hosts=4, devices_per_host=2)
    costs = compare_partitions(mesh, batch_size=12, seq_len=32, wire=_wire, leaf_bytes=LEAF_BYTES)
    refusal = costs[DataPartitionType.FULL]
    assert isinstance(refusal, ConfigError)
    assert "8 or 16 would do" in str(refusal)
    data, replicated = costs[DataPartitionType.DATA], costs[DataPartitionType.REPLICATED]
    assert isinstance(data, PartitionCost)
    assert isinstance(replicated, PartitionCost)
    assert (data.local_shape, data.groups, data.hosts_per_group) == ((3, 32), 4, 1)
    assert (replicated.local_shape, replicated.groups, replicated.hosts_per_group) == (
        (12, 32),
        1,
        4,
    )
    assert replicated.wire_bytes_all == 4 * data.wire_bytes_all


@pytest.mark.parametrize("order", DeviceOrder)
def test_ten_thousand_hosts_fetch_each_region_as_often_as_it_is_replicated(
    order: DeviceOrder,
) -> None:
    mesh = MeshLayout.build(
        {"data": 10_000, "model": 8}, hosts=10_000, devices_per_host=8, order=order
    )
    costs = compare_partitions(
        mesh, batch_size=80_000, seq_len=64, wire=_wire, leaf_bytes=LEAF_BYTES
    )
    whole = _wire(80_000, 64)
    copies = {DataPartitionType.FULL: 1, DataPartitionType.REPLICATED: 10_000}
    copies[DataPartitionType.DATA] = 1 if order is DeviceOrder.BY_HOST else 8
    for kind, times in copies.items():
        cost = costs[kind]
        assert isinstance(cost, PartitionCost)
        assert cost.wire_bytes_all == times * whole
        assert cost.groups * cost.hosts_per_group == 10_000
    assert np.prod(mesh.shape) == 80_000
