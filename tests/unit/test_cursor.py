"""Cursors as JSON: whole ones come back, parts and strangers are refused."""

import json
from typing import Any

import pytest

from meshfeed.pipeline.plan.cursor import Cursor, SourceCursor, cursor_key
from meshfeed.pipeline.plan.errors import ChangedError

CURSOR = Cursor(
    step=7,
    global_row=56,
    segment_row=20,
    sources=(
        SourceCursor(key="b", epoch=2, window=3, row=5, drawn=40, deficit=-3),
        SourceCursor(key="a", epoch=0, window=1, row=9, drawn=16, active=False),
    ),
)


def test_a_cursor_comes_back_from_json_with_its_sources_in_order() -> None:
    assert Cursor.from_json(json.loads(json.dumps(CURSOR.to_json()))) == CURSOR


@pytest.mark.parametrize("part", ["version", "step", "global_row", "segment_row", "sources"])
def test_case_14_a_part_of_the_state_is_refused(part: str) -> None:
    state = CURSOR.to_json()
    del state[part]
    with pytest.raises(ChangedError, match="whole state"):
        Cursor.from_json(state)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("version", 99),
        ("step", -1),
        ("step", "7"),
        ("global_row", True),
        ("sources", [1, 2]),
        ("sources", {"a": [1, 2, 3, 4, 5]}),
        ("sources", {"a": [1, 2, -3, 4, 5, 1]}),
        ("sources", {"a": None}),
    ],
)
def test_damaged_states_are_refused(part: str, value: Any) -> None:
    with pytest.raises(ChangedError, match="whole state"):
        Cursor.from_json({**CURSOR.to_json(), part: value})


@pytest.mark.parametrize("state", [None, [], "x", {}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(ChangedError, match="no cursor"):
        Cursor.from_json(state)


def test_long_names_get_short_keys_that_stay_apart() -> None:
    names = ["a" * n for n in range(1, 80)]
    keys = [cursor_key(name) for name in names]
    assert len(set(keys)) == len(names)
    assert max(map(len, keys)) == 32
    assert cursor_key("books/en") == "books/en"
