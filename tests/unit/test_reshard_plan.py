"""Routes between shardings: bytes, bounds, memory limits, devices that come and go."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfeed.pipeline.plan.errors import BudgetError, ConfigError
from meshfeed.pipeline.plan.reshard import planner
from meshfeed.pipeline.plan.reshard.order import lowest_peak_order, peak_in_order
from meshfeed.pipeline.plan.reshard.placement import Placement
from meshfeed.pipeline.plan.reshard.plan import HopKind, ReshardPlan, Route
from meshfeed.pipeline.plan.reshard.planner import plan_reshard
from meshfeed.pipeline.plan.reshard.replicas import best_intermediate, replicated_axes

MIB = 1 << 20
SHAPE = (8192, 8192)
build = Placement.build

FACTS: dict[str, tuple[Placement, Placement, Route, float, float, float, list[str]]] = {
    "fsdp 8 to 2 replicas of tp 4": (
        build({"fsdp": 8, "tp": 1}, ["fsdp", "tp"]),
        build({"rep": 2, "tp": 4}, [None, "tp"]),
        *(Route.INTERMEDIATE, 56, 224, 56),
        ["all-to-all of 4", "all-gather of 2"],
    ),
    "rows to columns over other axes": (
        build({"a": 4, "b": 2}, ["a", None]),
        build({"a": 4, "b": 2}, [None, "b"]),
        *(Route.INTERMEDIATE, 96, 192, 96),
        ["local slice", "all-gather of 4"],
    ),
    "rows to columns": (
        build({"x": 8}, ["x", None]),
        build({"x": 8}, [None, "x"]),
        *(Route.DIRECT, 28, 28, 28),
        ["all-to-all of 8"],
    ),
    "rows over another axis": (
        build({"a": 4, "b": 2}, ["a"]),
        build({"a": 4, "b": 2}, ["b"]),
        *(Route.INTERMEDIATE, 96, 112, 96),
        ["collective-permute", "all-gather of 2"],
    ),
    "to all": (
        build({"x": 8}, ["x"]),
        build({"x": 8}, []),
        *(Route.DIRECT, 224, 224, 224),
        ["all-gather of 8"],
    ),
    "from all": (
        build({"x": 8}, []),
        build({"x": 8}, ["x"]),
        *(Route.NONE, 0, 0, 0),
        ["local slice"],
    ),
}


@pytest.mark.parametrize("case", FACTS)
def test_known_cases(case: str) -> None:
    src, dst, route, received, direct, bound, hops = FACTS[case]
    plan = plan_reshard(SHAPE, "float32", src, dst)
    assert plan.route is route
    assert [hop.describe() for hop in plan.hops] == hops
    assert plan.received_bytes == received * MIB
    assert plan.direct_bytes == direct * MIB
    assert plan.bound_bytes == bound * MIB
    assert plan.exact


def test_the_peak_is_that_of_the_worst_hop() -> None:
    src, dst, *_ = FACTS["fsdp 8 to 2 replicas of tp 4"]
    kept = plan_reshard(SHAPE, "float32", src, dst)
    freed = plan_reshard(SHAPE, "float32", src, dst, donate=True)
    assert kept.direct is not None
    assert kept.bytes_of(kept.direct.peak) == (32 + 64 + 256) * MIB
    assert freed.peak_bytes == (32 + 32 + 56) * MIB
    assert kept.peak_bytes == (32 + 32 + 64) * MIB


def test_a_memory_limit_is_kept_or_refused_with_what_would_do() -> None:
    src, dst, *_ = FACTS["rows to columns"]
    free = plan_reshard(SHAPE, "float32", src, dst, donate=True)
    assert free.route is Route.DIRECT
    with pytest.raises(BudgetError) as refused:
        plan_reshard(SHAPE, "float32", src, dst, memory_limit=70 * MIB, donate=True)
    needed = refused.value.needed_bytes
    assert 70 * MIB < needed <= free.peak_bytes
    tight = plan_reshard(SHAPE, "float32", src, dst, memory_limit=needed, donate=True)
    assert tight.peak_bytes <= needed
    assert tight.received_bytes >= free.received_bytes


def test_what_does_not_fit_is_refused_in_words() -> None:
    rows = build({"x": 8}, ["x"])
    with pytest.raises(ConfigError, match=r"dst: dimension 0 of \[12, 8\] .* Pad it to 16"):
        plan_reshard((12, 8), "float32", build({"x": 8}, []), rows)
    with pytest.raises(ConfigError, match="splits more than the array's 1 dimensions"):
        plan_reshard((8,), "float32", build({"x": 8}, [None, "x"]), rows)
    with pytest.raises(ConfigError, match=r"axis 'y' is not in the mesh\. Its axes are x"):
        build({"x": 8}, ["y"])
    with pytest.raises(ConfigError, match="an axis stands twice in P"):
        build({"x": 8}, ["x", "x"])
    with pytest.raises(ConfigError, match="7 different devices are given for x=8"):
        build({"x": 8}, ["x"], device_ids=[0, 1, 2, 3, 4, 5, 6, 6])
    with pytest.raises(ConfigError, match="'text' has no fixed size"):
        plan_reshard((8,), "text", rows, rows)


@pytest.mark.parametrize(
    ("dtype", "bytes_each"),
    [("float32", 4), ("bfloat16", 2), ("int8", 1), ("int4", 0.5), (bool, 1)],
)
def test_bytes_follow_the_type(dtype: Any, bytes_each: float) -> None:
    src, dst, *_ = FACTS["to all"]
    assert plan_reshard((64,), dtype, src, dst).received_bytes == 56 * bytes_each


def test_an_order_of_devices_counts() -> None:
    """The same spec on other devices in turn: tiles change places, as a plain map of them says."""
    ids = [0, 2, 4, 6, 1, 3, 5, 7]
    src, dst = build({"x": 8}, ["x"]), build({"x": 8}, ["x"], device_ids=ids)
    plan = plan_reshard((64,), "int8", src, dst)
    assert plan.route is Route.DIRECT
    assert plan.received_bytes == plan.bound_bytes == 8 * 6 / 8
    renamed = build({"p": 2, "q": 4}, [("p", "q")])
    assert plan_reshard((64,), "int8", src, renamed).route is Route.NONE


def test_fewer_devices_are_fed_from_the_old_mesh_and_more_from_what_is_there() -> None:
    eight, four = build({"x": 8}, ["x"]), build({"x": 4}, [None, "x"])
    shrink = plan_reshard((64, 64), "float32", eight, four)
    assert [hop.kind for hop in shrink.hops][-1] is HopKind.COPY
    assert shrink.hops[-1].received == 0
    assert {hop.source.mesh.num_devices for hop in shrink.hops} == {8}
    grow = plan_reshard((64, 64), "float32", four, eight)
    assert grow.hops[0].kind is HopKind.COPY
    assert grow.received_bytes >= grow.bound_bytes
    elsewhere = build({"x": 4}, [None, "x"], device_ids=[8, 9, 10, 11])
    moved = plan_reshard((64, 64), "float32", four, elsewhere)
    assert [hop.kind for hop in moved.hops] == [HopKind.COPY]
    assert moved.received_bytes == moved.bound_bytes == 64 * 64


def test_without_a_common_tile_boxes_are_moved_and_no_byte_more_than_is_lacking() -> None:
    src = build({"x": 8}, ["x"], devices_per_process=2)
    dst = build({"x": 6}, ["x"], devices_per_process=2)
    plan = plan_reshard((48, 8), "float32", src, dst)
    assert plan.route is Route.BOXES
    assert plan.received_bytes == plan.bound_bytes
    by_device = plan.box_moves(by_process=False)
    assert by_device.bytes_moved == pytest.approx(plan.bound_bytes * 6)
    by_process = plan.box_moves(by_process=True)
    assert by_process.bytes_moved < by_device.bytes_moved
    assert by_process.bytes_moved == by_process.bytes_bound


def test_many_arrays_on_many_devices_are_searched_once_for_each_kind() -> None:
    planner._search.cache_clear()
    src = [build({"data": 64, "model": 64}, spec) for spec in (["data", "model"], ["model"])]
    dst = [build({"data": 128, "model": 32}, spec) for spec in (["data", "model"], [None, "model"])]
    for layer in range(500):
        shape = (4096 * (1 + layer % 7), 8192 + 4096 * (layer % 5))
        plan_reshard(shape, "bfloat16", src[layer % 2], dst[layer // 2 % 2])
    assert planner._search.cache_info().misses <= 4


MESHES = [(8,), (4, 2), (2, 4), (2, 2, 2), (6,), (3, 2), (2, 3)]
NAMES = "abc"


@st.composite
def placements(draw: st.DrawFn, devices: int, dimensions: int) -> Placement:
    mesh = draw(st.sampled_from([m for m in MESHES if math.prod(m) == devices]))
    axes = dict(zip(NAMES, mesh, strict=False))
    order = draw(st.permutations(list(axes)))
    used = draw(st.integers(0, len(order)))
    dims = [draw(st.integers(0, dimensions - 1)) for _ in order[:used]]
    spec = [
        tuple(a for a, d in zip(order, dims, strict=False) if d == dim) for dim in range(dimensions)
    ]
    ids = draw(st.one_of(st.just(list(range(devices))), st.permutations(range(devices))))
    return build(axes, spec, device_ids=ids)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[tuple[int, ...], Placement, Placement]:
    dimensions = draw(st.integers(1, 3))
    devices = draw(st.sampled_from([6, 8]))
    shape = tuple(draw(st.sampled_from([24, 48])) for _ in range(dimensions))
    return (
        shape,
        draw(placements(devices, dimensions)),
        draw(placements(devices, dimensions)),
    )


def cells_held(placement: Placement, shape: tuple[int, ...]) -> dict[int, Any]:
    """Which elements each device holds, counted the slow way."""
    held = {}
    for device, box in zip(placement.device_ids.tolist(), placement.boxes(shape), strict=True):
        mask = np.zeros(shape, dtype=bool)
        mask[tuple(slice(begin, end) for begin, end in box)] = True
        held[device] = mask
    return held


def check(plan: ReshardPlan) -> None:
    """What holds for every plan."""
    before = cells_held(plan.source, plan.shape)
    after = cells_held(plan.target, plan.shape)
    nothing = np.zeros(plan.shape, dtype=bool)
    lacking = sum(int((mask & ~before.get(d, nothing)).sum()) for d, mask in after.items())
    assert plan.bound_bytes == pytest.approx(4 * lacking / len(after))
    assert plan.received_bytes >= plan.bound_bytes - 1e-6
    assert (plan.route is Route.NONE) == (plan.received_bytes == 0)
    assert plan.hops[0].source == plan.source
    assert plan.hops[-1].target == plan.target
    for first, second in zip(plan.hops, plan.hops[1:], strict=False):
        assert first.target == second.source
        first.target.check(plan.shape, "intermediate")


@given(pair=pairs())
def test_every_plan_moves_at_least_what_is_lacking_and_at_most_what_direct_does(
    pair: tuple[tuple[int, ...], Placement, Placement],
) -> None:
    shape, src, dst = pair
    plan = plan_reshard(shape, "float32", src, dst)
    check(plan)
    assert plan.direct is not None
    if plan.direct.fragile:  # some versions of XLA abort over it: gone around at any cost
        assert not any(hop.fragile for hop in plan.hops)
    else:
        assert plan.received_bytes <= (plan.direct_bytes or 0)


@given(
    pair=st.tuples(
        st.sampled_from([6, 8]).flatmap(lambda n: placements(n, 2)),
        st.sampled_from([6, 8]).flatmap(lambda n: placements(n, 2)),
    ),
    shift=st.integers(0, 9),
)
def test_devices_may_come_and_go(pair: tuple[Placement, Placement], shift: int) -> None:
    src, dst = pair
    moved = Placement(mesh=dst.mesh, spec=dst.spec, device_ids=dst.device_ids + shift)
    check(plan_reshard((24, 48), "float32", src, moved))


@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 9), st.integers(-9, 9)).map(lambda j: (max(j[0], j[1]), j[1])),
        min_size=1,
        max_size=6,
    )
)
def test_no_other_order_of_arrays_needs_less_memory(jobs: list[tuple[int, int]]) -> None:
    needs, changes = [float(n) for n, _ in jobs], [float(c) for _, c in jobs]
    ours = peak_in_order(needs, changes, lowest_peak_order(needs, changes))
    every = itertools.permutations(range(len(jobs)))
    assert ours == min(peak_in_order(needs, changes, order) for order in every)


def test_the_intermediate_with_replicas_is_the_one_that_is_documented() -> None:
    src = build({"fsdp": 8, "tp": 1}, ["fsdp", "tp"])
    dst = build({"fsdp": 1, "tp": 4}, ["fsdp", "tp"])
    found = best_intermediate(src, dst)
    assert found is not None
    assert found.mesh.axes == {"fsdp_split": 4, "fsdp_replica": 2, "tp": 1}
    assert found.spec == (("fsdp_split",), ())
    assert replicated_axes(found) == ("fsdp_replica",)


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        (build({"x": 8}, ["x", None]), build({"x": 8}, [None, "x"])),
        (build({"x": 8}, ["x"]), build({"x": 4}, ["x"])),
        (build({"x": 4}, ["x"]), build({"x": 8}, [None, "x"])),
        (build({"x": 8}, ["x"]), build({"x": 6}, [None, "x"])),
        (build({"x": 8}, []), build({"x": 4}, ["x"])),
    ],
    ids=["equal totals", "whole tiles", "growing", "8 to 6", "from all"],
)
def test_no_intermediate_where_direct_is_best(src: Placement, dst: Placement) -> None:
    assert best_intermediate(src, dst) is None
