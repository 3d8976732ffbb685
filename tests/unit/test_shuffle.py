"""Permutations: bijective, keyed, the same element by element as all at once."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshfeed.pipeline.plan.shuffle import derive_key, mix64, permute

KEYS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("n", [*range(40), 255, 256, 257, 4096, 9973, 10_000, 100_003])
def test_permute_is_a_bijection(n: int) -> None:
    for key in (0, 1, 2**64 - 1, derive_key("x", n)):
        assert sorted(permute(np.arange(n), n, key).tolist()) == list(range(n))


@settings(max_examples=60)
@given(n=st.integers(1, 2**62), key=KEYS, data=st.data())
def test_single_indices_give_what_all_at_once_gives(n: int, key: int, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20, unique=True))
    at_once = permute(indices, n, key).tolist()
    assert at_once == [int(permute([i], n, key)[0]) for i in indices]
    assert len(set(at_once)) == len(indices)
    assert all(0 <= place < n for place in at_once)


def test_permute_leaves_its_argument_alone() -> None:
    index = np.arange(100)
    permute(index, 100, 7)
    mixed = np.arange(5, dtype=np.uint64)
    mix64(mixed)
    assert index.tolist() == list(range(100))
    assert mixed.tolist() == list(range(5))


@pytest.mark.parametrize("n", [2, 3, 4])
def test_all_permutations_come_about_as_often(n: int) -> None:
    draws = 4800
    seen = Counter(tuple(permute(np.arange(n), n, derive_key(k)).tolist()) for k in range(draws))
    kinds = list(itertools.permutations(range(n)))
    share = draws / len(kinds)
    assert set(seen) == set(kinds)
    assert max(abs(seen[kind] - share) for kind in kinds) < 6 * share**0.5


def test_permuted_order_is_unrelated_to_the_index_and_to_other_keys() -> None:
    n = 100_000
    one, other = permute(np.arange(n), n, 1), permute(np.arange(n), n, 2)
    for left, right in ((np.arange(n), one), (one[1:], one[:-1]), (one, other)):
        assert abs(np.corrcoef(left, right)[0, 1]) < 5 / n**0.5
    assert np.count_nonzero(one == other) < 12
    # Thousandths of the index range land evenly over thousandths of the places.
    hits = np.bincount(one[: n // 10] // 100, minlength=n // 100)
    assert hits.max() < 35


@pytest.mark.parametrize(("index", "n"), [([-1], 5), ([5], 5), ([0], 0), ([0], 2**62 + 1)])
def test_outside_indices_are_refused(index: list[int], n: int) -> None:
    with pytest.raises(ValueError, match=r"outside|limit"):
        permute(index, n, 1)


def test_keys_tell_their_parts_apart() -> None:
    parts = [(1, 2), (12,), ("1", 2), (1, "2"), ("12",), ("1", "2"), (1,), ("",), (), (-1, 2)]
    assert len({derive_key(*p) for p in parts}) == len(parts)
    assert derive_key("a", 1) == derive_key("a", 1)


def test_mix64_is_injective_and_spreads_single_bits() -> None:
    bits = np.left_shift(np.uint64(1), np.arange(64, dtype=np.uint64))
    mixed = mix64(np.concatenate([bits, np.zeros(1, np.uint64)]))
    assert len(set(mixed.tolist())) == 65
    flipped = [
        bin(int(a) ^ int(mix64(b + np.uint64(1))[0])).count("1")
        for a, b in zip(mix64(bits), bits, strict=True)
    ]
    assert 24 < np.mean(flipped) < 40
