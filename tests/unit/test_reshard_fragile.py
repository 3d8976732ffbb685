"""Programs over which some versions of XLA abort are known, and gone around."""

from __future__ import annotations

import itertools

from meshfeed.pipeline.plan.reshard.placement import Placement
from meshfeed.pipeline.plan.reshard.planner import plan_reshard

build = Placement.build


def test_a_cut_where_no_axis_ends_is_fragile_and_gone_around() -> None:
    """Six tiles over axes of 3 and 2 do not fall into an outer 2 and an inner 3."""
    mesh = {"a": 3, "b": 2}
    plan = plan_reshard((48, 48), "float32", build(mesh, ["b", "a"]), build(mesh, [("a", "b")]))
    assert plan.direct is not None
    assert plan.direct.fragile
    assert not any(hop.fragile for hop in plan.hops)
    assert plan.received_bytes <= (plan.direct_bytes or 0)


def test_meshes_of_powers_of_two_are_never_fragile() -> None:
    meshes = ({"a": 4, "b": 2}, {"a": 2, "b": 4}, {"a": 8, "b": 1})
    specs = (["a", "b"], ["b", "a"], [("a", "b")], [None, ("b", "a")], [None, "b"], ["a"])
    ends = [build(mesh, spec) for mesh in meshes for spec in specs]
    for src, dst in itertools.permutations(ends, 2):
        plan = plan_reshard((48, 48), "float32", src, dst)
        assert plan.direct is not None
        assert not plan.direct.fragile
