"""The mixture's pattern: exact counts in a period, every prefix within a row of its share."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mixture import MAX_PERIOD, Mixture, integer_weights

WEIGHTS = st.lists(st.integers(1, 60), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("weights", "whole"),
    [
        ([1.0], (1,)),
        ([5.0, 5.0], (1, 1)),
        ([0.7, 0.3], (7, 3)),
        ([0.1, 0.2, 0.7], (1, 2, 7)),
        ([0.25, 1.5], (1, 6)),
        ([1 / 3, 1.0], (1, 3)),
        ([0.0001, 0.9999], (1, 9999)),
        ([300e9, 100e9], (3, 1)),
    ],
)
def test_simple_weights_are_exact(weights: list[float], whole: tuple[int, ...]) -> None:
    assert integer_weights(weights) == whole


@settings(deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=40))
def test_any_weights_keep_their_shares_to_a_millionth(weights: list[float]) -> None:
    whole = integer_weights(weights)
    total = sum(map(Fraction, weights))
    assert sum(whole) <= MAX_PERIOD
    for weight, share in zip(weights, whole, strict=True):
        assert abs(Fraction(share, sum(whole)) - Fraction(weight) / total) < Fraction(
            len(weights), MAX_PERIOD
        )


def test_a_source_with_next_to_no_weight_still_gives_rows() -> None:
    assert integer_weights([1e-12, 1.0]) == (1, MAX_PERIOD - 1)
    assert min(integer_weights([1e-12] * 1000 + [0.1234567891234] * 3)) == 1


@pytest.mark.parametrize("weights", [[], [1.0, 0.0], [-1.0], [float("nan")], [float("inf"), 1.0]])
def test_wrong_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(ConfigError):
        Mixture(weights)


@settings(deadline=None)
@given(WEIGHTS)
def test_prefixes_are_within_a_row_of_the_share_and_periods_exact(weights: list[int]) -> None:
    mixture = Mixture(weights)
    period = mixture.period
    pattern = mixture.pattern(0, 2 * period)
    given_so_far = np.cumsum(pattern[:, None] == np.arange(len(weights)), axis=0)
    share = np.arange(1, 2 * period + 1)[:, None] * np.array(mixture.weights)
    assert np.abs(given_so_far * period - share).max() < period
    assert given_so_far[period - 1].tolist() == list(mixture.weights)
    assert (pattern[:period] == pattern[period:]).all()


@pytest.mark.parametrize("light", [10, 100, 1000])
def test_a_heavy_source_does_not_fall_behind_among_many_light_ones(light: int) -> None:
    mixture = Mixture([light, *[1] * light])
    heavy = np.cumsum(mixture.pattern(0, mixture.period) == 0)
    assert np.abs(2 * heavy - np.arange(1, mixture.period + 1)).max() < 2


@settings(deadline=None)
@given(WEIGHTS, st.integers(0, 10**12), st.integers(0, 200))
def test_counts_positions_and_draws_agree(weights: list[int], begin: int, rows: int) -> None:
    mixture = Mixture(weights)
    source, number = mixture.draws(begin, begin + rows)
    assert (source == mixture.pattern(begin, begin + rows)).all()
    before = mixture.counts(begin).tolist()
    assert sum(before) == begin
    for row, (s, k) in enumerate(zip(source.tolist(), number.tolist(), strict=True), begin):
        assert k == before[s] == mixture.count(s, row)
        assert mixture.position(s, k) == row
        before[s] += 1
    assert mixture.counts(begin + rows).tolist() == before


def test_the_longest_pattern_keeps_the_bound() -> None:
    mixture = Mixture([0.123456789, 0.2345678901, 0.00345678, 1.0])
    assert mixture.period == MAX_PERIOD
    pattern = mixture.pattern(0, mixture.period)
    for source, weight in enumerate(mixture.weights):
        ahead = np.cumsum(pattern == source) * mixture.period
        share = np.arange(1, mixture.period + 1) * weight
        assert np.abs(ahead - share).max() < mixture.period
