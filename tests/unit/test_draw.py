from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from meshfeed.launch.areas import areas_of, describe_hosts, mesh_grid, rectangles, ticks
from meshfeed.launch.draw import HEIGHT, WIDTH, draw_plan
from meshfeed.launch.palette import host_colours
from meshfeed.pipeline.plan.batch_plan import BatchPlan, plan_batch
from meshfeed.pipeline.plan.mesh import DeviceOrder, MeshLayout
from meshfeed.pipeline.plan.partition import DataPartitionType, resolve
from meshfeed.pipeline.plan.run_config import UnevenBatch

SVG = "{http://www.w3.org/2000/svg}"


def _plan(
    axes: dict[str, int], hosts: int, kind: str, order: DeviceOrder, batch_size: int = 16
) -> tuple[BatchPlan, MeshLayout]:
    devices = int(np.prod(list(axes.values()))) // hosts
    mesh = MeshLayout.build(axes, hosts=hosts, devices_per_host=devices, order=order)
    specs = {"tokens": resolve(kind, mesh)["tokens"]}
    pad = UnevenBatch.PAD
    return plan_batch(mesh, specs, batch_size=batch_size, seq_len=64, uneven_batch=pad), mesh


@given(
    npst.arrays(
        np.int64, st.tuples(st.integers(1, 8), st.integers(1, 8)), elements=st.integers(0, 2)
    )
)
def test_rectangles_cover_each_cell_once_and_are_of_one_kind(grid: np.ndarray) -> None:
    count = np.zeros(grid.shape, dtype=int)
    for top, bottom, left, right in rectangles(grid):
        assert len(np.unique(grid[top:bottom, left:right])) == 1
        count[top:bottom, left:right] += 1
    assert (count == 1).all()


@pytest.mark.parametrize("order", DeviceOrder)
@pytest.mark.parametrize("kind", DataPartitionType)
@pytest.mark.parametrize("axes", [{"data": 8}, {"data": 4, "model": 2}, {"seq": 2, "data": 4}])
def test_areas_show_every_host_all_that_it_supplies(
    axes: dict[str, int], kind: str, order: DeviceOrder
) -> None:
    plan, _ = _plan(axes, 4, kind, order)
    drawn: dict[int, set[tuple[int, int]]] = {host: set() for host in range(4)}
    for area in areas_of(plan.slice_plans[plan.specs["tokens"]]):
        cells = set(itertools.product(range(*area.rows), range(*area.cols)))
        for host in area.hosts:
            assert not drawn[host] & cells
            drawn[host] |= cells
        left, top, right, bottom = area.place
        assert (top * plan.rows, bottom * plan.rows) == area.rows
        assert (left * plan.seq_len, right * plan.seq_len) == area.cols
        assert {plan.group_of(host) for host in area.hosts} == set(area.groups)
    for host, cells in drawn.items():
        (part,) = plan.slice_of(host).parts
        assert cells == set(itertools.product(part.row_index(), part.col_index()))


def test_the_picture_names_hosts_rows_and_shared_slices() -> None:
    plan, mesh = _plan({"data": 4, "model": 2}, 4, "DATA", DeviceOrder.BY_HOST)
    own = draw_plan(plan, mesh, name="DATA", facts=["a <fact> & more"])
    for host in range(4):
        assert f"host {host} · rows {4 * host}-{4 * host + 3}" in own
    assert "Each host has a slice of its own." in own
    assert "a &lt;fact&gt; &amp; more" in own
    plan, mesh = _plan({"data": 2, "model": 4}, 4, "DATA", DeviceOrder.BY_HOST)
    shared = draw_plan(plan, mesh, name="DATA")
    assert "hosts 0, 1 · rows 0-7 · slice group 0" in shared
    assert "2 slice groups" in shared
    for host, colour in enumerate(host_colours(4)):
        assert colour in own, host
        assert colour in shared, host


def test_padding_is_drawn_behind_the_last_row() -> None:
    plan, mesh = _plan({"data": 4}, 4, "DATA", DeviceOrder.BY_HOST, batch_size=14)
    assert "2 rows of" in draw_plan(plan, mesh, name="DATA")
    plan, mesh = _plan({"data": 4}, 4, "DATA", DeviceOrder.BY_HOST)
    assert "padding" not in draw_plan(plan, mesh, name="DATA")


@pytest.mark.parametrize(
    ("axes", "hosts"),
    [
        ({"data": 1}, 1),
        ({"data": 32}, 16),
        ({"data": 64, "model": 8}, 64),
        ({"data": 2048}, 256),
        ({"data": 16, "seq": 16, "model": 8}, 256),
        ({"data": 10_000, "model": 8}, 10_000),
        ({"data": 5000, "seq": 16}, 10_000),
    ],
)
@pytest.mark.parametrize("kind", ["FULL", "BATCH", "REPLICATED"])
@pytest.mark.parametrize("order", DeviceOrder)
def test_the_picture_stays_small_and_within_its_borders(
    axes: dict[str, int], hosts: int, kind: str, order: DeviceOrder
) -> None:
    plan, mesh = _plan(axes, hosts, kind, order)
    svg = draw_plan(plan, mesh, name=kind)
    assert len(svg) < 1_500_000
    root = ElementTree.fromstring(svg)
    names = {element.get("id") for element in root.iter() if element.get("id")}
    assert set(re.findall(r"url\(#(\w+)\)", svg)) <= names
    for rect in root.iter(f"{SVG}rect"):
        x, y = float(rect.get("x", 0)), float(rect.get("y", 0))
        width, height = float(rect.get("width", 0)), float(rect.get("height", 0))
        assert width > 0
        assert height > 0
        assert x >= 0
        assert y >= 0
        assert x + width <= WIDTH
        assert y + height <= HEIGHT


@given(st.integers(1, 300))
def test_hosts_have_colours_of_their_own(count: int) -> None:
    colours = host_colours(count)
    assert len(set(colours)) == count
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours)


def test_a_mesh_of_one_axis_is_written_in_lines_and_loses_no_device() -> None:
    grid = mesh_grid(MeshLayout.build({"data": 32}, hosts=16, devices_per_host=2))
    assert grid.owners.tolist() == [[2 * i, 2 * i, 2 * i + 1, 2 * i + 1] for i in range(8)]
    flat = mesh_grid(MeshLayout.build({"data": 2, "model": 4}, hosts=4, devices_per_host=2))
    assert flat.owners.tolist() == [[0, 0, 1, 1], [2, 2, 3, 3]]
    assert (flat.down, flat.across) == ("data 2", "model 4")


@given(st.integers(1, 200), st.integers(1, 50))
def test_ticks_lie_on_borders_of_parts(parts: int, height: int) -> None:
    places = ticks(parts * height, parts)
    assert (places[0], places[-1]) == (0, parts * height)
    assert places == sorted(set(places))
    assert all(place % height == 0 for place in places)
    assert len(places) <= 9


def test_hosts_are_named_shortly() -> None:
    assert describe_hosts([3]) == "host 3"
    assert describe_hosts([0, 1]) == "hosts 0, 1"
    assert describe_hosts(range(256)) == "hosts 0-255"
    assert describe_hosts(range(0, 64, 4)) == "hosts 0, 4, 8, ... 60 (16)"
