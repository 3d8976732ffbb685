"""Picking records gives what ``Table.take`` gives, for every kind of column."""

import numpy as np
import pyarrow as pa
import pytest

from meshfeed.pipeline.data.sources.gather import RecordPicker

TEXTS = ["a", "", "bc", "äöü", "x" * 300, "last"]
LISTS = [[1], [], [2, 3], [4, 5, 6], list(range(70)), [9]]


def column(kind: pa.DataType) -> pa.Array:
    values = TEXTS if pa.types.is_string(kind) or pa.types.is_large_string(kind) else LISTS
    if pa.types.is_fixed_size_list(kind):
        values = [[i, i + 1, i + 2] for i in range(len(LISTS))]
    return pa.array(values, kind)


KINDS = [
    pa.string(),
    pa.large_string(),
    pa.list_(pa.uint16()),
    pa.large_list(pa.int32()),
    pa.list_(pa.int64(), 3),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_records_are_those_asked_for_in_the_order_asked_for(kind: pa.DataType) -> None:
    whole = pa.table({"c": column(kind)})
    picker = RecordPicker([whole.slice(0, 2), whole.slice(2, 1), whole.slice(3)])
    order = np.array([5, 0, 4, 1, 1, 3, 2], np.int64)
    assert picker.take(order).column("c").to_pylist() == [
        whole.column("c")[i].as_py() for i in order.tolist()
    ]
    assert picker.slice(1, 4).column("c").to_pylist() == whole.column("c").to_pylist()[1:4]
    assert len(picker) == len(whole)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_no_record_at_all(kind: pa.DataType) -> None:
    picker = RecordPicker([pa.table({"c": column(kind)})])
    assert picker.take(np.zeros(0, np.int64)).num_rows == 0


def test_columns_of_other_kinds_and_nulls_come_along() -> None:
    table = pa.table({"text": ["a", None, "c"], "score": [0.5, 1.5, 2.5], "ids": LISTS[:3]})
    picked = RecordPicker([table.slice(0, 1), table.slice(1)]).take(np.array([2, 0, 1], np.int64))
    assert picked.to_pylist() == table.take(pa.array([2, 0, 1])).to_pylist()


def test_what_was_picked_before_stays_as_it_was() -> None:
    picker = RecordPicker([pa.table({"c": TEXTS})])
    first = picker.take(np.array([4, 5], np.int64))
    for _ in range(8):
        picker.take(np.array([0, 1, 2, 3], np.int64))
    assert first.column("c").to_pylist() == ["x" * 300, "last"]
