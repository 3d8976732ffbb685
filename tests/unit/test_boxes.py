"""Boxes of arrays: every operation against a plain grid of booleans."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfeed.pipeline.plan.boxes import (
    Boxes,
    are_disjoint,
    box_of_index,
    boxes_of_hosts,
    count_cells,
    describe_box,
    device_boxes,
    distinct,
    fits,
    index_within,
    intersect,
    merge,
    no_boxes,
    overlay,
    sizes,
    split,
    subtract,
    union,
    whole,
)
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mesh import MeshLayout

SHAPES = [(), (9,), (6, 5), (4, 3, 5)]


def covered(boxes: Boxes, shape: tuple[int, ...]) -> np.ndarray:
    """How many of the boxes hold each cell."""
    grid = np.zeros(shape, dtype=int)
    for box in boxes.tolist():
        grid[tuple(slice(begin, end) for begin, end in box)] += 1
    return grid


@st.composite
def box_sets(draw: st.DrawFn, shape: tuple[int, ...]) -> Boxes:
    bounds = [st.tuples(st.integers(0, n), st.integers(0, n)).map(sorted) for n in shape]
    drawn = draw(st.lists(st.tuples(*bounds), max_size=6))
    return np.array(drawn, dtype=np.int64).reshape(len(drawn), len(shape), 2)


@st.composite
def two_sets(draw: st.DrawFn) -> tuple[tuple[int, ...], Boxes, Boxes]:
    shape = draw(st.sampled_from(SHAPES))
    return shape, draw(box_sets(shape)), draw(box_sets(shape))


@given(two_sets())
def test_operations_are_those_of_sets_of_cells(drawn: tuple[tuple[int, ...], Boxes, Boxes]) -> None:
    shape, a, b = drawn
    in_a, in_b = covered(a, shape) > 0, covered(b, shape) > 0
    assert (covered(union(a), shape) == in_a).all()
    assert (covered(overlay(a), shape) == in_a).all()
    assert (covered(subtract(a, b), shape) == (in_a & ~in_b)).all()
    assert count_cells(a) == in_a.sum()
    assert are_disjoint(a) == (covered(a, shape).max(initial=0) <= 1)
    for disjoint in (union(a), overlay(a), subtract(a, b)):
        assert are_disjoint(disjoint)
        assert (sizes(disjoint) > 0).all()
        assert sizes(disjoint).sum() == count_cells(disjoint)


@given(two_sets())
def test_intersections_of_all_pairs_and_whose_they_are(
    drawn: tuple[tuple[int, ...], Boxes, Boxes],
) -> None:
    shape, a, b = drawn
    common, of_a, of_b = intersect(a, b)
    expected = {
        (i, j): covered(a[i : i + 1], shape) * covered(b[j : j + 1], shape)
        for i in range(len(a))
        for j in range(len(b))
    }
    found = dict(zip(zip(of_a.tolist(), of_b.tolist(), strict=True), common, strict=True))
    assert set(found) == {pair for pair, grid in expected.items() if grid.any()}
    for pair, box in found.items():
        assert (covered(box[None], shape) == expected[pair]).all()
    assert of_a.tolist() == sorted(of_a.tolist())


@given(two_sets())
def test_an_atom_lies_in_a_box_as_a_whole_or_not_at_all(
    drawn: tuple[tuple[int, ...], Boxes, Boxes],
) -> None:
    _, a, _ = drawn
    atoms = overlay(a)
    common, of_atom, _ = intersect(atoms, a)
    assert (common == atoms[of_atom]).all()


@given(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)), st.integers(1, 200))
def test_split_cuts_into_contiguous_parts_of_limited_size(
    shape: tuple[int, int, int], most: int
) -> None:
    parts = split(whole(shape)[0], most)
    assert sizes(parts).max() <= most
    assert (covered(parts, shape) == 1).all()
    offsets = np.arange(np.prod(shape)).reshape(shape)
    begins = []
    for part in parts:
        cells = offsets[index_within(part, whole(shape)[0])].ravel()
        assert (np.diff(cells) == 1).all()
        begins.append(cells[0])
    assert begins == sorted(begins)


def test_split_makes_about_equal_parts_and_no_more_than_needed() -> None:
    parts = split(whole((10, 4))[0], 16)
    assert sizes(parts).tolist() == [12, 12, 16]
    assert len(split(whole((10, 4))[0], 40)) == 1
    assert split(whole(())[0], 1).shape == (1, 0, 2)


def test_neighbours_are_joined_into_few_boxes() -> None:
    mesh = MeshLayout.build({"a": 4, "b": 2}, hosts=2, devices_per_host=4)
    boxes = device_boxes(mesh, (("a",), ("b",)), (8, 6))
    assert len(distinct(boxes)) == 8
    assert merge(distinct(boxes)).tolist() == whole((8, 6)).tolist()
    assert {host: own.tolist() for host, own in boxes_of_hosts(mesh, boxes).items()} == {
        0: [[[0, 4], [0, 6]]],
        1: [[[4, 8], [0, 6]]],
    }


def test_boxes_of_devices_follow_the_spec() -> None:
    mesh = MeshLayout.build({"a": 2, "b": 3}, hosts=6, devices_per_host=1)
    split_twice = device_boxes(mesh, (None, ("b", "a")), (5, 12))
    assert [describe_box(box) for box in split_twice] == [
        "[0:5, 0:2]",
        "[0:5, 4:6]",
        "[0:5, 8:10]",
        "[0:5, 2:4]",
        "[0:5, 6:8]",
        "[0:5, 10:12]",
    ]
    assert device_boxes(mesh, (), ()).shape == (6, 0, 2)
    assert (device_boxes(mesh, (("a",),), (4, 3))[:, 1] == [0, 3]).all()
    with pytest.raises(ConfigError, match=r"dimension 0 .* \(5, 12\) .* 6 parts over a,b"):
        device_boxes(mesh, (("a", "b"),), (5, 12))
    with pytest.raises(ConfigError, match="2 entries for the 1 dimensions"):
        device_boxes(mesh, (None, None), (5,))


def test_an_index_of_slices_is_a_box() -> None:
    assert box_of_index((slice(2, 4), slice(None)), (6, 5)).tolist() == [[[2, 4], [0, 5]]]
    assert box_of_index((), ()).shape == (1, 0, 2)
    with pytest.raises(ConfigError, match="has a step"):
        box_of_index((slice(0, 4, 2),), (6,))
    box, outer = np.array([[3, 4], [2, 5]]), np.array([[2, 6], [0, 5]])
    assert index_within(box, outer) == (slice(1, 2), slice(2, 5))


def test_scalars_have_one_cell() -> None:
    twice = np.concatenate([whole(()), whole(())])
    assert len(union(twice)) == 1
    assert count_cells(twice) == 1
    assert count_cells(no_boxes(0)) == 0
    assert len(subtract(twice, whole(()))) == 0
    assert len(intersect(twice, whole(()))[0]) == 2


def test_boxes_outside_the_array_are_seen() -> None:
    assert fits(whole((3, 4)), (3, 4))
    assert not fits(whole((3, 5)), (3, 4))
    assert not fits(whole((3,)), (3, 4))
    assert fits(no_boxes(2), (3, 4))


def test_large_grids_are_compared_without_all_pairs() -> None:
    """4,096 boxes against 4,096: the pairs looked at stay near those that overlap."""
    mesh = MeshLayout.build({"a": 64, "b": 64}, hosts=512, devices_per_host=8)
    rows = device_boxes(mesh, (("a",), ("b",)), (4096, 4096))
    columns = device_boxes(mesh, (("b",), ("a",)), (4096, 4096))
    assert len(intersect(rows, columns)[0]) == 4096
    thin = device_boxes(mesh, (("a", "b"),), (8192,))
    shifted = device_boxes(mesh, (("b", "a"),), (8192,))
    assert len(intersect(thin, shifted)[0]) == 4096
    assert union(rows).tolist() == whole((4096, 4096)).tolist()
