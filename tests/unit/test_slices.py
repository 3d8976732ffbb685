from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax_boxes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mesh import DeviceOrder, MeshLayout
from meshfeed.pipeline.plan.partition import AxisRoles, DataPartitionType, Spec, spec_of
from meshfeed.pipeline.plan.slices import HostSlice, SlicePart, plan_slices, regrid, union

Grid = npt.NDArray[np.bool_]


@pytest.fixture(scope="module")
def jax_answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("jax") / "boxes.json"
    program = Path(jax_boxes.__file__)
    subprocess.run([sys.executable, str(program), str(out)], check=True, timeout=300)
    answers: list[dict[str, Any]] = json.loads(out.read_text())
    return answers


def _mesh(axes: dict[str, int], owners: list[int]) -> MeshLayout:
    return MeshLayout(
        axis_names=tuple(axes),
        shape=tuple(axes.values()),
        process_of_device=np.array(owners, dtype=np.int32),
    )


def _spec(raw: list[list[str] | None]) -> Spec:
    rows, cols = (None if entry is None else tuple(entry) for entry in raw)
    return rows, cols


def _cells(host_slice: HostSlice, shape: tuple[int, int]) -> Grid:
    """The cells of a slice; fails where its parts overlap."""
    count = np.zeros(shape, dtype=np.int64)
    for part in host_slice.parts:
        count[np.ix_(part.row_index(), part.col_index())] += 1
    assert count.max() == 1
    return count > 0


def _needed(boxes: npt.NDArray[np.int64], shape: tuple[int, int]) -> Grid:
    cells = np.zeros(shape, dtype=bool)
    for top, bottom, left, right in boxes:
        cells[top:bottom, left:right] = True
    return cells


@pytest.mark.parametrize("hosts", [1, 2, 4, 8])
@pytest.mark.parametrize("order", jax_boxes.ORDERS)
def test_slices_are_what_jax_puts_on_the_devices_of_each_process(
    jax_answers: list[dict[str, Any]], order: str, hosts: int
) -> None:
    checked = 0
    for answer in jax_answers:
        if answer["order"] != order:
            continue
        owners = [i // (jax_boxes.DEVICES // hosts) for i in jax_boxes.ORDERS[order]]
        plan = plan_slices(_mesh(answer["axes"], owners), _spec(answer["spec"]), jax_boxes.SHAPE)
        np.testing.assert_array_equal(plan.boxes, answer["boxes"], err_msg=str(answer))
        for process in range(hosts):
            theirs = np.array(answer["boxes"])[np.array(owners) == process]
            ours = plan.slice_of(process)
            np.testing.assert_array_equal(
                _cells(ours, jax_boxes.SHAPE), _needed(theirs, jax_boxes.SHAPE), err_msg=str(answer)
            )
        checked += 1
    assert checked > 50


@st.composite
def _layouts(draw: st.DrawFn) -> tuple[MeshLayout, tuple[int, int]]:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    devices = int(np.prod(sizes))
    owners = draw(st.lists(st.integers(0, 5), min_size=devices, max_size=devices))
    axes = dict(zip(("data", "seq", "model"), sizes, strict=False))
    grain = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    return _mesh(axes, owners), (grain[0] * devices, grain[1] * devices)


@st.composite
def _specs(draw: st.DrawFn, mesh: MeshLayout) -> Spec:
    axes = draw(st.permutations(mesh.axis_names))
    one, two = sorted(draw(st.tuples(st.integers(0, len(axes)), st.integers(0, len(axes)))))
    return tuple(axes[:one]) or None, tuple(axes[one:two]) or None


@given(st.data())
def test_any_mesh_gives_each_process_just_its_devices_boxes(data: st.DataObject) -> None:
    mesh, shape = data.draw(_layouts())
    plan = plan_slices(mesh, data.draw(_specs(mesh)), shape)
    cells = {}
    for process in mesh.processes.tolist():
        boxes = plan.boxes[mesh.process_of_device == process]
        host_slice = plan.slice_of(process)
        cells[process] = _needed(boxes, shape)
        np.testing.assert_array_equal(_cells(host_slice, shape), cells[process])
        assert host_slice.cells == cells[process].sum()
        # A grid is never cut in two, so that one array does wherever one can.
        rows, cols = cells[process].any(axis=1), cells[process].any(axis=0)
        assert host_slice.is_grid == bool(np.array_equal(np.outer(rows, cols), cells[process]))
        for part in host_slice.parts:
            assert (np.diff(part.row_index()) > 0).all()
            assert (np.diff(part.col_index()) > 0).all()
            assert part.shape == (len(part.row_index()), len(part.col_index()))
            for limit in (0, 1, shape[0] // 2, shape[0]):
                assert part.rows_below(limit) == (part.row_index() < limit).sum()
    for one, needed in cells.items():
        same = [other for other, grid in cells.items() if np.array_equal(grid, needed)]
        assert plan.members(plan.group_of(one)).tolist() == same
    assert plan.num_groups == len({grid.tobytes() for grid in cells.values()})


@given(st.data())
def test_a_device_finds_its_box_in_the_packed_slice(data: st.DataObject) -> None:
    mesh, shape = data.draw(_layouts())
    plan = plan_slices(mesh, data.draw(_specs(mesh)), shape)
    batch = np.arange(shape[0] * shape[1]).reshape(shape)
    for box, process in zip(plan.boxes, mesh.process_of_device.tolist(), strict=True):
        found = []
        for part in plan.slice_of(process).parts:
            packed = batch[np.ix_(part.row_index(), part.col_index())]
            place = part.locate(box)
            found += [] if place is None else [packed[place]]
        (only,) = found
        np.testing.assert_array_equal(only, batch[box[0] : box[1], box[2] : box[3]])


@given(st.data())
def test_leaves_of_different_specs_come_out_of_one_fetched_slice(data: st.DataObject) -> None:
    mesh, shape = data.draw(_layouts())
    plans = [plan_slices(mesh, data.draw(_specs(mesh)), shape) for _ in range(2)]
    batch = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape)
    process = data.draw(st.sampled_from(mesh.processes.tolist()))
    inner = [plan.slice_of(process) for plan in plans]
    outer = union(inner)
    np.testing.assert_array_equal(
        _cells(outer, shape), _cells(inner[0], shape) | _cells(inner[1], shape)
    )
    held = [batch[np.ix_(part.row_index(), part.col_index())] for part in outer.parts]
    for wanted in inner:
        for array, part in zip(regrid(held, outer, wanted), wanted.parts, strict=True):
            np.testing.assert_array_equal(array, batch[np.ix_(part.row_index(), part.col_index())])


def test_interleaved_devices_give_rows_with_gaps() -> None:
    mesh = MeshLayout.build(
        {"data": 4, "model": 2}, hosts=2, devices_per_host=4, order=DeviceOrder.INTERLEAVED
    )
    full = plan_slices(mesh, (("data", "model"), None), (16, 8)).slice_of(1)
    assert full.parts[0].rows == ((2, 4), (6, 8), (10, 12), (14, 16))
    assert full.parts[0].shape == (8, 8)
    split = plan_slices(mesh, (("data",), ("model",)), (16, 8)).slice_of(1)
    assert split.parts == (SlicePart(((0, 16),), ((4, 8),)),)


def test_a_slice_that_is_no_grid_asks_for_its_own_boxes_alone() -> None:
    # Process 0 has the two corners of a 2x2 mesh, process 1 the other two.
    plan = plan_slices(
        _mesh({"data": 2, "model": 2}, [0, 1, 1, 0]), (("data",), ("model",)), (8, 4)
    )
    host_slice = plan.slice_of(0)
    assert host_slice.parts == (
        SlicePart(((0, 4),), ((0, 2),)),
        SlicePart(((4, 8),), ((2, 4),)),
    )
    assert host_slice.wire_bytes(lambda rows, cols: rows * cols) == 16  # of the product's 32


def test_columns_with_gaps_travel_as_regions_of_their_own() -> None:
    mesh = _mesh({"seq": 4}, [0, 1, 0, 1])
    host_slice = plan_slices(mesh, (None, ("seq",)), (4, 16)).slice_of(1)
    assert host_slice.regions == ((((0, 4),), (4, 8)), (((0, 4),), (12, 16)))
    assert host_slice.wire_bytes(lambda rows, cols: rows * (cols + 1)) == 2 * 4 * 5


@pytest.mark.parametrize("order", DeviceOrder)
def test_ten_thousand_hosts_cover_the_batch_once_per_replica(order: DeviceOrder) -> None:
    mesh = MeshLayout.build(
        {"data": 20_000, "model": 4}, hosts=10_000, devices_per_host=8, order=order
    )
    plan = plan_slices(mesh, spec_of(DataPartitionType.DATA, mesh, AxisRoles()), (40_000, 128))
    groups = [plan.slice_of_group(group).parts[0] for group in range(plan.num_groups)]
    rows = np.concatenate([part.row_index() for part in groups])
    np.testing.assert_array_equal(np.sort(rows), np.arange(40_000))
    sharing = {DeviceOrder.BY_HOST: 1, DeviceOrder.INTERLEAVED: 4}[order]
    assert set(np.bincount(plan.group_of_process).tolist()) == {sharing}


def test_a_process_without_a_device_in_the_mesh_is_told_so() -> None:
    plan = plan_slices(_mesh({"data": 2}, [0, 2]), (("data",), None), (4, 4))
    assert plan.slice_of(2).parts[0].rows == ((2, 4),)
    with pytest.raises(ConfigError, match="process 1 owns no device"):
        plan.slice_of(1)


def test_a_shape_that_does_not_divide_is_refused() -> None:
    mesh = MeshLayout.build(None, hosts=4, devices_per_host=1)
    with pytest.raises(ConfigError, match="10 rows do not divide into 4"):
        plan_slices(mesh, (("data",), None), (10, 8))
    with pytest.raises(ConfigError, match="seq_len: 10 columns do not divide into 4"):
        plan_slices(mesh, (None, ("data",)), (8, 10))
