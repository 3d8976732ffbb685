"""The smallest budget is the formula that it says, and is refused by name."""

import pickle

import pytest

from meshfeed.pipeline.plan.budget import FeedNeed, check_budget, smallest_budget
from meshfeed.pipeline.plan.errors import BudgetError, ConfigError


def test_it_holds_the_steps_ahead_and_two_windows_of_each_source() -> None:
    need = FeedNeed.of(6, 100, [10, 30])
    assert need.reserved == 6 * 100 + 2 * 40
    assert smallest_budget([need]) == 680
    assert smallest_budget([need, need]) == 1360


def test_on_several_nodes_each_may_be_left_with_less_room_than_a_window_takes() -> None:
    need = FeedNeed.of(6, 100, [10, 30])
    assert smallest_budget([need], nodes=4) == -(-(680 + 3 * 30) // 4)
    # Never more than on one node, and in the limit a window.
    sizes = [smallest_budget([need], nodes=n) for n in range(1, 2000)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 31
    assert smallest_budget([]) == 0


def test_a_smaller_one_is_refused_with_the_number_that_works() -> None:
    check_budget(680, 680)
    with pytest.raises(BudgetError, match=r"memory_budget: 679 bytes .* works is 680") as caught:
        check_budget(679, 680)
    assert isinstance(caught.value, ConfigError)
    assert pickle.loads(pickle.dumps(caught.value)).needed_bytes == 680
