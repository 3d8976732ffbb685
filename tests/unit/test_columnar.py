"""Parquet and Arrow: which chunk owns what, only the used column is read, and bad records."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc
from reading import QUICK, bad_of, chunks_of, manifest_of, places_of, source_of, values_of

from meshfeed.pipeline.data.formats import read_chunk
from meshfeed.pipeline.data.formats.records import RecordSpec, describe_place
from meshfeed.pipeline.data.storage import Storage
from meshfeed.pipeline.plan.errors import ChangedError, DataError

KINDS = ["parquet", "arrow", "arrows", "feather"]


def write(path: Path, table: pa.Table, rows: int = 10, compression: str | None = "zstd") -> Path:
    """``table`` in row groups or record batches of ``rows`` records."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows, compression=compression or "none")
        return path
    make = ipc.new_stream if path.suffix == ".arrows" else ipc.new_file
    options = ipc.IpcWriteOptions(compression=compression)
    with make(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def documents(count: int, words: int = 20) -> list[str]:
    return [
        f"{i} " + "".join(chr(97 + (i * k) % 26) for k in range(words * 6)) for i in range(count)
    ]


def wide(count: int, words: int = 20) -> pa.Table:
    """The used column between others of several kinds."""
    return pa.table(
        {
            "nothing": pa.nulls(count),
            "nested": pa.array([{"a": i, "b": [str(i)]} for i in range(count)]),
            "text": documents(count, words),
            "noise": pa.array([np.random.default_rng(i).bytes(400) for i in range(count)]),
            "flag": pa.array([i % 2 == 0 for i in range(count)]),
            "kind": pa.array([f"k{i % 3}" for i in range(count)]).dictionary_encode(),
            "ids": pa.array([[i, i + 1] for i in range(count)], pa.list_(pa.int32())),
        }
    )


@pytest.mark.parametrize("compression", ["zstd", None])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("column", ["text", "ids", "kind"])
def test_every_record_is_in_exactly_one_chunk(
    tmp_path: Path, kind: str, compression: str | None, column: str
) -> None:
    table = wide(95)
    path = write(tmp_path / f"a.{kind}", table, compression=compression)
    for size in (97, 777, 5000, path.stat().st_size):
        chunks = chunks_of(source_of(path, column=column), chunk_size=size)
        assert values_of(chunks) == table.column(column).to_pylist()
        places = [p for _, p in places_of(chunks)]
        if kind == "parquet":
            assert places == list(range(95))
        else:
            assert places == [(i // 10 << 32) + i % 10 for i in range(95)]
        assert not bad_of(chunks)


def test_the_chunk_of_a_row_group_is_that_of_its_first_byte(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", pa.table({"ids": [[i] * 50 for i in range(100)]}))
    metadata = pq.read_metadata(path)
    columns = [metadata.row_group(g).column(0) for g in range(metadata.num_row_groups)]
    begins = [min(c.dictionary_page_offset or 1 << 60, c.data_page_offset) for c in columns]
    assert begins[0] == 4
    size = begins[1]  # so that the second row group begins on the edge of a chunk
    for ref, chunk in chunks_of(source_of(path, column="ids"), chunk_size=size):
        owned = [g for g, begin in enumerate(begins) if ref.begin <= begin < ref.end]
        assert sorted({int(p) // 10 for p in chunk.places}) == owned


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrows"])
def test_only_the_used_column_is_read(tmp_path: Path, kind: str) -> None:
    table = wide(4000, words=100)
    path = write(tmp_path / f"a.{kind}", table, rows=500, compression=None)
    storage = Storage(QUICK)
    manifest = manifest_of(source_of(path), storage, chunk_size=path.stat().st_size // 4)
    storage.close()
    before = storage.counters.bytes_read
    spec = RecordSpec(columns=("text",))
    parts = [read_chunk(storage, manifest, manifest.chunk(i), spec) for i in range(4)]
    read = sum(p.storage_bytes for p in parts)
    assert read == storage.counters.bytes_read - before
    used = sum(p.used_bytes for p in parts)
    assert read <= 1.05 * used
    assert used < 0.8 * path.stat().st_size
    assert sum(len(p) for p in parts) == 4000


def test_a_parquet_footer_is_read_once_for_all_chunks_of_a_shard(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", wide(1000))
    storage = Storage(QUICK)
    manifest = manifest_of(source_of(path), storage, chunk_size=5000)
    spec = RecordSpec(columns=("text",))
    parts = [
        read_chunk(storage, manifest, manifest.chunk(i), spec) for i in range(manifest.num_chunks)
    ]
    assert sum(p.storage_bytes for p in parts) == sum(p.used_bytes for p in parts)


LISTS = [
    pa.list_(pa.int32()),
    pa.large_list(pa.uint16()),
    pa.list_(pa.int64(), 2),
    pa.list_(pa.uint8()),
]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrows"])
@pytest.mark.parametrize("type_", LISTS, ids=str)
def test_lists_of_integers_pass_through_as_they_are(
    tmp_path: Path, kind: str, type_: pa.DataType
) -> None:
    rows = [[1, 2], [3, 4], None, [5, None], [6, 7]]
    path = write(tmp_path / f"a.{kind}", pa.table({"ids": pa.array(rows, type_)}))
    chunks = chunks_of(source_of(path, column="ids"))
    assert values_of(chunks) == [[1, 2], [3, 4], [6, 7]]
    assert chunks[0][1].table.schema.field("ids").type == type_
    assert [b.place & 0xFFFFFFFF for b in bad_of(chunks)] == [2, 3]
    assert "null among the integers" in bad_of(chunks)[1].reason


TEXTS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view()]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("type_", TEXTS, ids=str)
def test_nulls_and_bytes_that_are_no_text_are_bad_records(
    tmp_path: Path, kind: str, type_: pa.DataType
) -> None:
    raw = pa.array([b"good", None, b"\xff\xfe", "é".encode(), b""], pa.binary())
    large = type_ in (pa.large_string(), pa.large_binary())
    text = raw if type_ == pa.binary() else raw.cast(pa.large_binary()) if large else raw
    if type_ in (pa.string(), pa.large_string()):
        text = text.view(type_)
    elif type_ == pa.string_view():
        text = raw.view(pa.string()).cast(pa.string_view())
    path = write(tmp_path / f"a.{kind}", pa.table({"text": text}))
    chunks = chunks_of(source_of(path))
    assert values_of(chunks) == ["good", "é", ""]
    assert [b.place & 0xFFFFFFFF for b in bad_of(chunks)] == [1, 2]
    assert [b.reason.split(":")[0] for b in bad_of(chunks)] == [
        "column 'text' is null or missing",
        "column 'text' is not UTF-8",
    ]


def test_long_values_are_bad_records(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", "b" * 101, "c"], "ids": [[1], [1] * 20, [2]]})
    path = write(tmp_path / "a.parquet", table)
    for column in ("text", "ids"):
        chunks = chunks_of(source_of(path, column=column, max_record_bytes=100))
        assert len(values_of(chunks)) == 2
        assert "above max_record_bytes 100" in bad_of(chunks)[0].reason


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrows"])
def test_a_missing_column_and_a_wrong_type_name_the_file(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"a.{kind}", pa.table({"body": ["a"], "score": [1.5]}))
    with pytest.raises(DataError, match=rf"a.{kind}: no column 'text'.*body, score"):
        chunks_of(source_of(path))
    with pytest.raises(DataError, match=rf"a.{kind}: column 'score' has type double"):
        chunks_of(source_of(path, column="score"))


@pytest.mark.parametrize("kind", KINDS)
def test_case_27_empty_shards_are_normal(tmp_path: Path, kind: str) -> None:
    table = pa.table({"text": ["a", "b", "c"]})
    write(tmp_path / f"0.{kind}", table.slice(0, 0))
    (tmp_path / f"1.{kind}").touch()
    write(tmp_path / f"2.{kind}", table)
    assert values_of(chunks_of(source_of(tmp_path))) == ["a", "b", "c"]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_case_26_a_column_of_nulls_fixes_no_type(tmp_path: Path, kind: str) -> None:
    texts = [f"a{i}" for i in range(20_000)]
    write(tmp_path / f"0.{kind}", pa.table({"m": pa.nulls(20_000), "text": texts}), rows=5000)
    write(tmp_path / f"1.{kind}", pa.table({"m": ["s"], "text": ["b"]}))
    assert values_of(chunks_of(source_of(tmp_path))) == [*texts, "b"]


def test_a_used_column_of_nulls_is_one_of_bad_records(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", pa.table({"text": pa.nulls(3)}))
    chunks = chunks_of(source_of(path))
    assert values_of(chunks) == []
    assert len(bad_of(chunks)) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_of_the_format_is_named(tmp_path: Path, kind: str) -> None:
    whole = write(tmp_path / f"good.{kind}", wide(100)).read_bytes()
    for name, raw in (("text", b"hello " * 100), ("cut", whole[: len(whole) // 2]), ("tiny", b"x")):
        path = tmp_path / f"{name}.{kind}"
        path.write_bytes(raw)
        with pytest.raises(DataError, match=f"{name}.{kind}"):
            chunks_of(source_of(path))


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrows"])
def test_damaged_bytes_are_an_error_of_content(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"a.{kind}", pa.table({"text": documents(500)}), rows=500)
    raw = bytearray(path.read_bytes())
    middle = len(raw) // 2
    raw[middle : middle + 200] = bytes(200)
    path.write_bytes(raw)
    with pytest.raises(DataError, match=f"a.{kind}, (records|batch) 0.*cannot be decoded"):
        chunks_of(source_of(path))


def test_a_shard_that_became_shorter_is_not_an_error_of_content(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", wide(100))
    manifest = manifest_of(source_of(path))
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ChangedError, match="bytes, but"):
        read_chunk(Storage(QUICK), manifest, manifest.chunk(0), RecordSpec(columns=("text",)))


def test_a_stream_with_dictionaries_of_used_and_unused_columns(tmp_path: Path) -> None:
    table = wide(30)
    path = write(tmp_path / "a.arrows", table, compression=None)
    source = source_of(path, column="kind", loss_mask_column="ids")
    chunks = chunks_of(source, chunk_size=500)
    assert values_of(chunks) == table.column("kind").to_pylist()
    assert values_of(chunks, 1) == table.column("ids").to_pylist()


def test_places_for_people() -> None:
    assert describe_place("record", 7) == "record 7"
    assert describe_place("batch", (3 << 32) + 9) == "batch 3, record 9"


def test_row_groups_far_larger_than_a_chunk(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", pa.table({"text": documents(5000)}), rows=2500)
    manifest = manifest_of(source_of(path))
    small = dataclasses.replace(manifest, chunk_size=100)
    spec, storage = RecordSpec(columns=("text",)), Storage(QUICK)
    counts = [
        len(read_chunk(storage, small, small.chunk(i), spec)) for i in range(small.num_chunks)
    ]
    assert sorted(c for c in counts if c) == [2500, 2500]
