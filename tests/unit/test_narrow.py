"""Token ids in fewer bytes are the same ids; what does not fit stays as it is."""

import numpy as np
import pyarrow as pa
import pytest

from meshfeed.pipeline.data.sources.narrow import narrowed

LISTS = [[1, 2], [], [65_535], [0, 7, 9], [4], [5, 6]]
KINDS = [pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.uint32())]


def ids_of(table: pa.Table) -> list[list[int]]:
    return table.column("ids").to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_lists_in_any_pieces_come_out_as_one_of_the_smaller_type(kind: pa.DataType) -> None:
    whole = pa.table({"other": list("abcdef"), "ids": pa.array(LISTS, kind)})
    pieces = pa.concat_tables([whole.slice(1, 2), whole.slice(4, 2), whole.slice(0, 0)])
    table = narrowed(pieces, "ids", "uint16")
    assert ids_of(table) == [[], [65_535], [4], [5, 6]]
    assert table.column("ids").num_chunks == 1
    assert table.column("ids").type.value_type == pa.uint16()
    assert table.column("other").to_pylist() == ["b", "c", "e", "f"]


def test_lists_of_one_size_stay_such() -> None:
    kind = pa.list_(pa.int32(), 3)
    table = pa.table({"ids": pa.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], kind)}).slice(1)
    made = narrowed(table, "ids", np.uint16)
    assert ids_of(made) == [[4, 5, 6], [7, 8, 9]]
    assert made.column("ids").type == pa.list_(pa.uint16(), 3)


@pytest.mark.parametrize("wrong", [65_536, -1])
def test_an_id_that_does_not_fit_leaves_all_as_they_are(wrong: int) -> None:
    table = pa.table({"ids": pa.array([[1], [wrong]], pa.list_(pa.int32()))})
    assert narrowed(table, "ids", "uint16") is table


@pytest.mark.parametrize("column", [["a", "b"], pa.array([[1], [2]], pa.list_(pa.uint16()))])
def test_text_and_small_ids_are_left_alone(column: pa.Array) -> None:
    table = pa.table({"ids": column})
    assert narrowed(table, "ids", "uint16") is table


def test_no_record_at_all() -> None:
    table = pa.table({"ids": pa.array([], pa.list_(pa.int32()))})
    assert ids_of(narrowed(table, "ids", "uint16")) == []
