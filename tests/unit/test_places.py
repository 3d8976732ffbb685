"""Places of hosts in a new world: the most stays where it lies, else the old order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfeed.pipeline.plan.boxes import boxes_of_hosts, device_boxes
from meshfeed.pipeline.plan.elastic import places
from meshfeed.pipeline.plan.elastic.places import assign_places, overlap_bytes
from meshfeed.pipeline.plan.mesh import MeshLayout
from meshfeed.pipeline.plan.moves import LeafPlacement, plan_moves


def total(overlap: np.ndarray, host_at: np.ndarray) -> int:
    return int(overlap[host_at, np.arange(len(host_at))].sum())


def displaced(host_at: np.ndarray) -> int:
    return int(((host_at - np.arange(len(host_at))) ** 2).sum())


@given(
    st.integers(1, 6).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(0, 4), min_size=n, max_size=n), min_size=n, max_size=n
        )
    )
)
def test_exact_places_are_the_best_of_all_and_the_least_displaced(rows: list[list[int]]) -> None:
    overlap = np.array(rows, dtype=np.int64)
    found = assign_places(overlap)
    every = [np.array(order) for order in itertools.permutations(range(len(overlap)))]
    best = max((total(overlap, order), -displaced(order)) for order in every)
    assert (total(overlap, found), -displaced(found)) == best


@given(st.integers(2, 40), st.integers(0, 10**6))
def test_greedy_places_are_good_ones(hosts: int, seed: int) -> None:
    """At least half of the best, whatever the overlap (each pair taken bars two others)."""
    overlap = np.random.default_rng(seed).integers(0, 1000, (hosts, hosts))
    found = places._greedy(overlap)
    assert sorted(found) == list(range(hosts))
    assert 2 * total(overlap, found) >= total(overlap, places._exact(overlap))


@pytest.mark.parametrize("hosts", [1, 5, 300])
def test_ties_keep_the_old_order(hosts: int) -> None:
    same = np.full((hosts, hosts), 7, dtype=np.int64)
    assert assign_places(same).tolist() == list(range(hosts))
    assert assign_places(np.zeros_like(same)).tolist() == list(range(hosts))


def test_large_byte_counts_are_exact() -> None:
    overlap = np.array([[10**15, 10**15 + 1], [10**15, 10**15]])
    assert assign_places(overlap).tolist() == [1, 0]


def test_groups_stay_together() -> None:
    overlap = np.zeros((4, 4), dtype=np.int64)
    overlap[0, 2] = overlap[1, 3] = 5
    overlap[2, 1] = 3
    assert assign_places(overlap, hosts_per_group=2).tolist() == [2, 3, 0, 1]
    with pytest.raises(ValueError, match="groups of 3"):
        assign_places(overlap, hosts_per_group=3)


def leaf_of(
    old: MeshLayout, new: MeshLayout, hosts: list[int], spec: tuple[tuple[str, ...] | None, ...]
) -> LeafPlacement:
    """What the old hosts ``hosts`` have, and what each process of the new mesh needs."""
    had = boxes_of_hosts(old, device_boxes(old, spec, (24, 8)))
    needs = boxes_of_hosts(new, device_boxes(new, spec, (24, 8)))
    return LeafPlacement(
        name="w",
        shape=(24, 8),
        itemsize=4,
        held={f"node{h}": boxes for h, boxes in had.items()},
        needed={str(place): boxes for place, boxes in needs.items()},
    )


@pytest.mark.parametrize("stay", [[0, 1], [1, 3], [2, 3], [0, 2, 3], [3, 2, 1]])
@pytest.mark.parametrize("spec", [(("data",),), (("data",), ("model",)), (("model",), None), ()])
def test_hosts_that_stay_take_the_places_where_least_moves(
    stay: list[int], spec: tuple[tuple[str, ...] | None, ...]
) -> None:
    axes = {"data": -1, "model": 2}
    old = MeshLayout.build(axes, hosts=4, devices_per_host=2)
    new = MeshLayout.build(axes, hosts=len(stay), devices_per_host=2)
    leaf = leaf_of(old, new, stay, spec)
    names = [str(place) for place in range(len(stay))]
    overlap = overlap_bytes([leaf, leaf], [f"node{h}" for h in stay], names)

    def moved(order: tuple[int, ...]) -> int:
        at_home = {str(place): f"node{stay[host]}" for place, host in enumerate(order)}
        return plan_moves([leaf], at_home).bytes_moved

    found = tuple(assign_places(overlap).tolist())
    assert moved(found) == min(map(moved, itertools.permutations(range(len(stay)))))


def test_thousands_of_hosts_have_places_in_one_go() -> None:
    rng = np.random.default_rng(0)
    was_at = rng.permutation(2000)
    overlap = np.zeros((2000, 2000), dtype=np.int64)
    overlap[was_at, np.arange(2000)] = 1 << 30
    assert (assign_places(overlap) == was_at).all()
