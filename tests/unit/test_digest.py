import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshfeed.pipeline.data.batches import digest as digest_module
from meshfeed.pipeline.data.batches.digest import combine, hex_digest, leaf_digest
from meshfeed.pipeline.plan.errors import ConfigError


def edges(draw, size):
    cuts = draw(st.sets(st.integers(1, size), max_size=4))
    return sorted({0, size} | {c for c in cuts if c < size})


@st.composite
def tilings(draw):
    rows, cols = draw(st.integers(1, 9)), draw(st.integers(1, 12))
    dtype = draw(st.sampled_from([np.int32, np.uint16, np.int64, np.float32, np.bool_]))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    array = rng.integers(-5 if dtype in (np.int32, np.int64) else 0, 5, (rows, cols)).astype(dtype)
    return array, edges(draw, rows), edges(draw, cols), draw(st.permutations(range(rows)))


@settings(max_examples=200, deadline=None)
@given(tilings())
def test_any_tiling_and_order_of_rows_gives_the_same_digest(tiling):
    array, row_edges, col_edges, order = tiling
    whole = leaf_digest("tokens", range(100, 100 + len(array)), 0, array)
    order = np.array(order)
    tiles = [
        leaf_digest("tokens", 100 + order[a:b], c, array[order[a:b], c:d])
        for a, b in itertools.pairwise(row_edges)
        for c, d in itertools.pairwise(col_edges)
    ]
    assert combine(tiles) == whole
    assert 0 <= whole < 1 << 64


def test_every_single_change_is_seen():
    array = np.arange(24, dtype=np.int32).reshape(4, 6) % 5
    rows = np.arange(4)
    seen = {leaf_digest("tokens", rows, 0, array)}
    seen.add(leaf_digest("targets", rows, 0, array))
    seen.add(leaf_digest("tokens", rows + 1, 0, array))
    seen.add(leaf_digest("tokens", rows, 1, array))
    seen.add(leaf_digest("tokens", rows[[1, 0, 2, 3]], 0, array))
    expected = 5
    for place in np.ndindex(4, 6):
        for change in (1, 1 << 20, 1 << 30):
            other = array.copy()
            other[place] ^= change
            seen.add(leaf_digest("tokens", rows, 0, other))
            expected += 1
    for a, b in (([0, 1], [0, 2]), ([0, 0], [1, 0]), ([2, 5], [3, 5])):  # two values swapped
        other = array.copy()
        other[tuple(a)], other[tuple(b)] = array[tuple(b)], array[tuple(a)]
        if (other != array).any():
            seen.add(leaf_digest("tokens", rows, 0, other))
            expected += 1
    assert len(seen) == expected


def test_changes_that_a_linear_sum_would_miss_are_seen():
    # a change of +1 and -1 in two rows, taken back in another two columns
    array = np.full((2, 2), 7, np.int32)
    other = array + np.array([[1, -1], [-1, 1]], np.int32)
    assert leaf_digest("tokens", [0, 1], 0, array) != leaf_digest("tokens", [0, 1], 0, other)


def test_integers_count_by_value_and_floats_by_bits():
    values = np.array([[0, -1, 3]])
    rows = [5]
    assert leaf_digest("x", rows, 0, values.astype(np.int32)) == leaf_digest("x", rows, 0, values)
    zero = np.zeros((1, 3), np.float32)
    assert leaf_digest("x", rows, 0, zero) != leaf_digest("x", rows, 0, -zero)
    ones = np.ones((1, 3), np.float32)
    assert leaf_digest("x", rows, 0, ones) == leaf_digest("x", rows, 0, ones.view(np.uint32))


def test_bfloat16_has_a_digest():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    ones = np.ones((2, 3), bfloat16)
    assert leaf_digest("x", [0, 1], 0, ones) == leaf_digest("x", [0, 1], 0, ones.view(np.uint16))


def test_the_digest_is_pinned():
    """Digests are compared between versions: a change here is a change of the report's format."""
    array = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert hex_digest(leaf_digest("tokens", [7, 8, 9], 2, array)) == "ab5c7e392a4117df"
    assert hex_digest(255) == "00000000000000ff"


def test_long_rows_and_many_rows_are_done_in_parts(monkeypatch):
    array = np.arange(60, dtype=np.int32).reshape(10, 6)
    whole = leaf_digest("tokens", range(10), 0, array)
    for at_once in (1, 6, 13):
        monkeypatch.setattr(digest_module, "_TOKENS_AT_ONCE", at_once)
        assert leaf_digest("tokens", range(10), 0, array) == whole


def test_no_rows_and_no_columns_have_digest_0():
    assert leaf_digest("x", [], 0, np.zeros((0, 5), np.int32)) == 0
    assert leaf_digest("x", [1], 0, np.zeros((1, 0), np.int32)) == 0
    assert combine([]) == 0


def test_what_is_no_tile_is_refused():
    with pytest.raises(ConfigError, match=r"\[2, 3\] is not \[1, columns\]"):
        leaf_digest("x", [0], 0, np.zeros((2, 3), np.int32))
    with pytest.raises(ConfigError, match="complex128"):
        leaf_digest("x", [0], 0, np.zeros((1, 3), np.complex128))
