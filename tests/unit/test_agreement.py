from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfeed.pipeline.data.batches.agreement import Box, BoxDigest, agreed_digest, join_boxes
from meshfeed.pipeline.data.batches.digest import leaf_digest
from meshfeed.pipeline.plan.errors import DisagreementError

SHAPE = (8, 6)
BATCH = np.arange(48, dtype=np.int32).reshape(SHAPE)
QUARTERS: list[Box] = [(0, 4, 0, 3), (0, 4, 3, 6), (4, 8, 0, 3), (4, 8, 3, 6)]


def _digest(box: Box, batch: np.ndarray = BATCH) -> BoxDigest:
    top, bottom, left, right = box
    tile = batch[top:bottom, left:right]
    return BoxDigest(
        "tokens", box, str(tile.dtype), leaf_digest("tokens", range(top, bottom), left, tile)
    )


def _agreed(reports: dict[int, list[BoxDigest]]) -> int:
    return agreed_digest(reports, leaves=["tokens"], shape=SHAPE)


@given(st.integers(1, 7), st.integers(1, 5))
def test_the_digest_does_not_depend_on_the_tiling(row: int, col: int) -> None:
    tiles: list[Box] = [(0, row, 0, col), (0, row, col, 6), (row, 8, 0, col), (row, 8, col, 6)]
    reports = {0: [_digest(tiles[0]), _digest(tiles[3])], 1: [_digest(tile) for tile in tiles]}
    assert _agreed(reports) == _agreed({0: [_digest((0, 8, 0, 6))]})


def test_copies_that_differ_name_both_processes_and_the_place() -> None:
    changed = BATCH.copy()
    changed[5, 4] += 1
    reports = {0: [_digest(box) for box in QUARTERS], 3: [_digest(QUARTERS[3], changed)]}
    with pytest.raises(DisagreementError, match=r"rows 4-7, columns 3-5: process 0 .* process 3"):
        _agreed(reports)


def test_a_box_that_nobody_has_is_named() -> None:
    with pytest.raises(DisagreementError, match=r"rows 4-7, columns 0-2 .* is missing"):
        _agreed({0: [_digest(QUARTERS[0])], 1: [_digest(QUARTERS[1]), _digest(QUARTERS[3])]})
    with pytest.raises(DisagreementError, match="leaf tokens: no process has any of it"):
        _agreed({0: []})


def test_boxes_that_overlap_without_being_copies_are_named() -> None:
    with pytest.raises(DisagreementError, match=r"rows 2-3, columns 0-5 .* is there 2 times"):
        _agreed({0: [_digest((0, 4, 0, 6))], 1: [_digest((2, 8, 0, 6))]})


def test_a_box_outside_the_batch_is_named() -> None:
    beyond = BoxDigest("tokens", (8, 10, 0, 6), "int32", 1)
    with pytest.raises(DisagreementError, match="rows 8-9, columns 0-5"):
        _agreed({0: [_digest((0, 8, 0, 6)), beyond]})


def test_a_dtype_of_its_own_is_named() -> None:
    other = _digest((4, 8, 0, 6))._replace(dtype="int16")
    with pytest.raises(DisagreementError, match="int32 on process 0 and int16 on process 1"):
        _agreed({0: [_digest((0, 4, 0, 6))], 1: [other]})


def test_a_leaf_that_the_batch_has_not_is_named() -> None:
    odd = _digest((0, 8, 0, 6))._replace(leaf="labels")
    with pytest.raises(DisagreementError, match="leaf labels is none of tokens"):
        _agreed({0: [_digest((0, 8, 0, 6)), odd]})


def test_joined_boxes_are_the_batch() -> None:
    tiles = [(box, BATCH[box[0] : box[1], box[2] : box[3]]) for box in [*QUARTERS, QUARTERS[1]]]
    np.testing.assert_array_equal(join_boxes(tiles, SHAPE), BATCH)
    with pytest.raises(DisagreementError, match=r"rows 0-3, columns 0-2 .* is missing"):
        join_boxes(tiles[1:], SHAPE)
    with pytest.raises(DisagreementError, match="two copies of rows 0-3, columns 0-2 differ"):
        join_boxes([*tiles, (QUARTERS[0], np.zeros((4, 3), np.int32))], SHAPE)
