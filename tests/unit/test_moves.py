"""Moves of live state: exact, nothing twice, balanced, within the limit of each stage."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfeed.pipeline.plan.boxes import Boxes, boxes_of_hosts, device_boxes, no_boxes, whole
from meshfeed.pipeline.plan.errors import ConfigError, MissingStateError
from meshfeed.pipeline.plan.mesh import MeshLayout
from meshfeed.pipeline.plan.moves import LeafPlacement, MovePlan, plan_moves

Spec = tuple[tuple[str, ...] | None, ...]


def box(*bounds: tuple[int, int]) -> Boxes:
    return np.array(bounds, dtype=np.int64).reshape(1, len(bounds), 2)


def mask(boxes: Boxes, shape: tuple[int, ...]) -> np.ndarray:
    grid = np.zeros(shape, dtype=bool)
    for one in boxes.tolist():
        grid[tuple(slice(begin, end) for begin, end in one)] = True
    return grid


def carried_out(leaves: list[LeafPlacement], local: dict[str, str], plan: MovePlan) -> None:
    """Moves real bytes by the plan and looks at what every host then has."""
    content = {leaf.name: np.arange(math.prod(leaf.shape)).reshape(leaf.shape) for leaf in leaves}
    has = {(leaf.name, host): np.full(leaf.shape, -1) for leaf in leaves for host in leaf.needed}
    held = {
        (leaf.name, who): mask(boxes, leaf.shape)
        for leaf in leaves
        for who, boxes in leaf.held.items()
    }
    for move in (*plan.local(), *plan.moves()):
        at = tuple(slice(begin, end) for begin, end in move.box.tolist())
        assert held[move.leaf, move.source][at].all(), f"{move}: the source has not all of it"
        assert (has[move.leaf, move.target][at] == -1).all(), f"{move}: comes twice"
        has[move.leaf, move.target][at] = content[move.leaf][at]
    for move in plan.moves():
        own = local.get(move.target)
        at = tuple(slice(begin, end) for begin, end in move.box.tolist())
        if (move.leaf, own) in held:
            assert not held[move.leaf, own or ""][at].any(), f"{move}: was there already"
    bound = 0
    for leaf in leaves:
        for host, boxes in leaf.needed.items():
            needed = mask(boxes, leaf.shape)
            expected = np.where(needed, content[leaf.name], -1)
            assert (has[leaf.name, host] == expected).all()
            here = mask(leaf.held.get(local.get(host, ""), no_boxes(len(leaf.shape))), leaf.shape)
            bound += int((needed & ~here).sum()) * leaf.itemsize
    assert plan.bytes_moved == plan.bytes_bound == bound


def resized(
    shape: tuple[int, ...],
    old: MeshLayout,
    new: MeshLayout,
    spec: Spec,
    *,
    name: str = "w",
    itemsize: int = 4,
) -> LeafPlacement:
    had = boxes_of_hosts(old, device_boxes(old, spec, shape))
    needs = boxes_of_hosts(new, device_boxes(new, spec, shape))
    return LeafPlacement(
        name=name,
        shape=shape,
        itemsize=itemsize,
        held={f"node{host}": boxes for host, boxes in had.items()},
        needed={f"host{host}": boxes for host, boxes in needs.items()},
    )


def same_nodes(hosts: int) -> dict[str, str]:
    return {f"host{i}": f"node{i}" for i in range(hosts)}


@pytest.mark.parametrize(("old", "new"), [*itertools.product([1, 2, 3, 4, 6], repeat=2)])
@pytest.mark.parametrize(
    "spec", [(), (("data",),), (None, ("model",)), (("data",), ("model",)), (("model", "data"),)]
)
def test_every_resize_moves_the_least(old: int, new: int, spec: Spec) -> None:
    before, after = (
        MeshLayout.build({"data": -1, "model": 2}, hosts=n, devices_per_host=2) for n in (old, new)
    )
    leaves = [
        resized((24, 12), before, after, spec),
        resized((48, 4), before, after, spec, name="v", itemsize=2),
    ]
    carried_out(leaves, same_nodes(new), plan_moves(leaves, same_nodes(new)))


@st.composite
def placements(draw: st.DrawFn) -> tuple[list[LeafPlacement], dict[str, str], int, int]:
    """Any boxes at all, some of them overlapping in part; all that is needed is held somewhere."""
    holders = [f"node{i}" for i in range(draw(st.integers(1, 4)))]
    hosts = [f"host{i}" for i in range(draw(st.integers(1, 4)))]
    leaves = []
    for n in range(draw(st.integers(1, 3))):
        shape = draw(st.sampled_from([(), (7,), (5, 6), (3, 4, 2)]))
        bounds = [st.tuples(st.integers(0, k), st.integers(0, k)).map(sorted) for k in shape]
        no_box = no_boxes(len(shape))
        some = st.lists(st.tuples(*bounds), max_size=3).map(
            lambda drawn, one=no_box: np.array(drawn, dtype=np.int64).reshape(
                len(drawn), *one.shape[1:]
            )
        )
        held = {who: draw(some) for who in holders}
        held[draw(st.sampled_from(holders))] = whole(shape)
        needed = {who: draw(some) for who in hosts}
        itemsize = draw(st.sampled_from([1, 2, 4]))
        leaves.append(
            LeafPlacement(name=f"leaf{n}", shape=shape, itemsize=itemsize, held=held, needed=needed)
        )
    local = {host: draw(st.sampled_from([*holders, "elsewhere"])) for host in hosts}
    return leaves, local, draw(st.integers(4, 60)), draw(st.integers(4, 60))


@given(placements())
def test_any_placement_is_carried_out_exactly(
    drawn: tuple[list[LeafPlacement], dict[str, str], int, int],
) -> None:
    leaves, local, limit, most = drawn
    plan = plan_moves(leaves, local, limit_bytes=limit, most_move_bytes=most)
    carried_out(leaves, local, plan)
    assert plan.given().max(initial=0) <= limit
    assert plan.received().max(initial=0) <= limit
    assert max((move.nbytes for move in plan.moves()), default=0) <= most
    assert plan.given().sum() == plan.received().sum() == plan.bytes_moved
    last: dict[str, int] = {}
    for move in plan.moves():
        for end in (move.source, move.target):
            assert move.stage >= last.get(end, 0)
            last[end] = move.stage


def test_the_example_of_the_module() -> None:
    leaf = LeafPlacement(
        name="w",
        shape=(8,),
        itemsize=4,
        held={"a": box((0, 4)), "b": box((4, 8))},
        needed={"new": box((0, 8))},
    )
    plan = plan_moves([leaf], {"new": "a"})
    assert [str(move) for move in plan.local()] == ["w[0:4] a -> new"]
    assert [str(move) for move in plan.moves()] == ["w[4:8] b -> new"]
    assert plan.bytes_moved == 16
    assert [str(move) for move in plan.moves(source="b", target="new")] == ["w[4:8] b -> new"]
    assert list(plan.moves(source="a")) == []


def test_a_part_that_nobody_holds_is_named() -> None:
    leaf = LeafPlacement(
        name="opt.mu",
        shape=(8, 4),
        itemsize=4,
        held={"a": box((0, 3), (0, 4)), "b": box((4, 8), (0, 4))},
        needed={"h0": box((0, 3), (0, 4)), "h1": box((0, 8), (0, 2))},
    )
    with pytest.raises(MissingStateError, match=r"opt.mu\[3:4, 0:2\], which host h1 needs") as info:
        plan_moves([leaf], {})
    assert (info.value.leaf, info.value.box, info.value.host) == ("opt.mu", "[3:4, 0:2]", "h1")


@pytest.mark.parametrize("replicas", [2, 3, 5, 8])
def test_replicas_give_about_as_much(replicas: int) -> None:
    """One new host takes leaves of very different sizes from hosts that all have everything."""
    shapes = [(1 << (i % 12), 33) for i in range(60)]
    everything = [
        LeafPlacement(
            name=f"leaf{i}",
            shape=shape,
            itemsize=4,
            held={f"node{r}": whole(shape) for r in range(replicas)},
            needed={"new": whole(shape)},
        )
        for i, shape in enumerate(shapes)
    ]
    plan = plan_moves(everything, {}, most_move_bytes=64 << 10)
    given = plan.given().sum(axis=0)
    assert given.max() <= 1.01 * given.sum() / replicas


@given(st.data())
def test_the_busiest_holder_is_near_the_best(data: st.DataObject) -> None:
    """Against the bound of every set of holders: what only they have must come from them."""
    holders = 4
    moves = data.draw(
        st.lists(
            st.tuples(st.integers(1, 20), st.sets(st.integers(0, holders - 1), min_size=1)),
            min_size=1,
            max_size=25,
        )
    )
    leaves = [
        LeafPlacement(
            name=f"leaf{i}",
            shape=(size,),
            itemsize=1,
            held={f"node{h}": whole((size,)) for h in sorted(have)},
            needed={"new": whole((size,))},
        )
        for i, (size, have) in enumerate(moves)
    ]
    plan = plan_moves(leaves, {})
    busiest = int(plan.given().sum(axis=0).max())
    sets = [s for n in range(1, holders + 1) for s in itertools.combinations(range(holders), n)]
    best = max(
        -(-sum(size for size, have in moves if have <= set(chosen)) // len(chosen))
        for chosen in sets
    )
    largest = max(size for size, _ in moves)
    assert busiest <= best + largest


def test_stages_keep_the_order_of_leaves_and_end_in_few() -> None:
    leaves = [
        LeafPlacement(
            name=f"leaf{i}",
            shape=(100,),
            itemsize=4,
            held={"a": whole((100,))},
            needed={"x": whole((100,)), "y": whole((100,))},
        )
        for i in range(4)
    ]
    plan = plan_moves(leaves, {}, limit_bytes=800, most_move_bytes=800)
    assert plan.given().tolist() == [[800]] * 4
    assert plan.received().tolist() == [[400, 400]] * 4
    assert [(m.leaf, m.stage) for m in plan.moves(target="x")] == [
        (f"leaf{i}", i) for i in range(4)
    ]


def test_what_cannot_be_is_refused() -> None:
    leaf = LeafPlacement(
        name="w", shape=(8,), itemsize=4, held={"a": whole((8,))}, needed={"n": whole((8,))}
    )
    for setting in ("limit_bytes", "most_move_bytes"):
        limit = {setting: 3}
        with pytest.raises(ConfigError, match=f"{setting}: 3 is less than one element of 4 bytes"):
            plan_moves([leaf], {}, **limit)
    with pytest.raises(ConfigError, match=r"w.held: the boxes of a, .* are not within \(8,\)"):
        LeafPlacement(name="w", shape=(8,), itemsize=4, held={"a": whole((9,))}, needed={})
    with pytest.raises(ConfigError, match="leaf 'w' is given twice"):
        plan_moves([leaf, leaf], {})
    assert plan_moves([], {}).bytes_moved == 0
    assert plan_moves([], {}).stages == 0


def test_a_large_mesh_is_planned_in_one_go() -> None:
    """500 leaves of three kinds on 4,096 devices, a quarter of the hosts taken away."""
    old = MeshLayout.build({"data": -1, "model": 8}, hosts=512, devices_per_host=8)
    new = MeshLayout.build({"data": -1, "model": 8}, hosts=384, devices_per_host=8)
    kinds: list[tuple[tuple[int, ...], Spec]] = [
        ((6144, 4096), (("data",), ("model",))),
        ((4096, 6144), (("model",), ("data",))),
        ((6144,), ()),
    ]
    model = [resized(*kind[:1], old, new, kind[1], name=str(i)) for i, kind in enumerate(kinds)]
    leaves = [
        LeafPlacement(
            name=f"layer{i}",
            shape=model[i % 3].shape,
            itemsize=4,
            held=model[i % 3].held,
            needed=model[i % 3].needed,
        )
        for i in range(500)
    ]
    plan = plan_moves(leaves, same_nodes(384))
    assert plan.bytes_moved == plan.bytes_bound > 0
