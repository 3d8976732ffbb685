"""ArrayRecord and Grain: records by index, over all shards of a source."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from grain import MapDataset
from hypothesis import given
from hypothesis import strategies as st
from reading import QUICK, bad_of, chunks_of, manifest_of, places_of, source_of, values_of

from meshfeed.pipeline.data.formats import read_records
from meshfeed.pipeline.data.formats.records import RecordSpec
from meshfeed.pipeline.data.formats.tf_example import parse_example
from meshfeed.pipeline.data.storage import Storage
from meshfeed.pipeline.plan.errors import ConfigError, DataError, ReadError
from meshfeed.pipeline.plan.manifest import Unit


def write(path: Path, records: list[bytes], group: int = 1) -> Path:
    writer = ArrayRecordWriter(str(path), f"group_size:{group}")
    for record in records:
        writer.write(record)
    writer.close()
    return path


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(value: Any) -> bytes:
    if isinstance(value, bytes):
        return field(1, field(1, value))
    if isinstance(value, list) and value and isinstance(value[0], float):
        return field(2, field(1, struct.pack(f"<{len(value)}f", *value)))
    packed = b"".join(varint(v & (1 << 64) - 1) for v in value)
    return field(3, field(1, packed) if value else b"")


def example(features: dict[str, Any]) -> bytes:
    entries = (field(1, k.encode()) + field(2, feature(v)) for k, v in features.items())
    return field(1, b"".join(field(1, entry) for entry in entries))


values = st.one_of(
    st.binary(max_size=300),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=5),
)


@given(st.dictionaries(st.text(max_size=5), values, max_size=4))
def test_examples_are_parsed_without_tensorflow(features: dict[str, Any]) -> None:
    assert parse_example(example(features)) == features


@given(st.binary(max_size=60))
def test_other_bytes_are_no_example_and_no_crash(data: bytes) -> None:
    found = parse_example(b"\n" + data)
    assert found is None or isinstance(found, dict)
    assert parse_example(b"\nA line of text, then another\n") is None


def test_unpacked_numbers_of_an_example() -> None:
    ints = field(3, b"".join(varint(1 << 3) + varint(v) for v in (5, 300)))
    data = field(1, field(1, field(1, b"ids") + field(2, ints)))
    assert parse_example(data) == {"ids": [5, 300]}


@pytest.mark.parametrize("group", [1, 10, 1000])
def test_array_records_are_each_in_one_chunk(tmp_path: Path, group: int) -> None:
    texts = [f"record {i} é" for i in range(103)]
    write(tmp_path / "0.arrayrecord", [t.encode() for t in texts[:50]], group)
    write(tmp_path / "1.array_record", [], group)
    write(tmp_path / "2.array_record-00002-of-00003", [t.encode() for t in texts[50:]], group)
    source = source_of(tmp_path)
    manifest = manifest_of(source)
    assert [s.size for s in manifest.shards] == [50, 0, 53]
    assert (manifest.unit, manifest.random_access) == (Unit.RECORDS, group <= 10)
    for size in (1, 7, 1000):
        chunks = chunks_of(source, chunk_size=size)
        assert values_of(chunks) == texts
        assert places_of(chunks) == [(0, i) for i in range(50)] + [(2, i) for i in range(53)]


def test_case_27_array_record_files_without_any_byte(tmp_path: Path) -> None:
    (tmp_path / "0.arrayrecord").touch()
    write(tmp_path / "1.arrayrecord", [b"a", b"b", b"c"])
    assert values_of(chunks_of(source_of(tmp_path))) == ["a", "b", "c"]


def test_array_records_of_examples(tmp_path: Path) -> None:
    rows = [{"text": b"a", "n": [1]}, {"n": [1]}, {"text": b"\xff"}, {"text": b"b"}]
    path = write(tmp_path / "a.arrayrecord", [example(r) for r in rows])
    chunks = chunks_of(source_of(path))
    assert values_of(chunks) == ["a", "b"]
    assert [b.place for b in bad_of(chunks)] == [1, 2]
    assert "the columns there are: n" in bad_of(chunks)[0].reason
    ids = [example({"ids": [i, -i]}) for i in range(5)]
    path = write(tmp_path / "b.arrayrecord", ids)
    assert values_of(chunks_of(source_of(path, column="ids"))) == [[i, -i] for i in range(5)]
    with pytest.raises(DataError, match=r"b.arrayrecord: no column 'text'.*ids"):
        chunks_of(source_of(path))


def test_single_records_come_in_the_order_asked_for(tmp_path: Path) -> None:
    texts = [f"r{i}" for i in range(60)]
    for i in range(3):
        part = [t.encode() for t in texts[20 * i : 20 * i + 20]]
        write(tmp_path / f"{i}.arrayrecord", [*part[:5], b"\xff", *part[5:]])
    storage = Storage(QUICK)
    source = source_of(tmp_path)
    manifest = manifest_of(source, storage)
    wanted = np.random.default_rng(0).permutation(63)[:40]
    found = read_records(storage, manifest, wanted, RecordSpec.of(source))
    flat: list[str | None] = []
    for i in range(3):
        flat += [*texts[20 * i : 20 * i + 5], None, *texts[20 * i + 5 : 20 * i + 20]]
    assert found.table.column(0).to_pylist() == [flat[p] for p in wanted if flat[p]]
    assert [21 * s + p for s, p in zip(found.shards, found.places, strict=True)] == [
        p for p in wanted if flat[p]
    ]
    assert len(found.bad) == sum(flat[p] is None for p in wanted)
    none = read_records(storage, manifest, np.empty(0, np.int64), RecordSpec.of(source))
    assert len(none) == 0


def test_damaged_array_records_are_an_error_of_content(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrayrecord", [b"record %d" % i for i in range(100)])
    whole = bytearray(path.read_bytes())
    whole[300:340] = bytes(40)
    path.write_bytes(whole)
    with pytest.raises(DataError, match=r"a.arrayrecord, records 0..63: cannot be decoded"):
        chunks_of(source_of(path))
    path.write_bytes(b"hello" * 100)
    with pytest.raises(DataError, match="not a whole ArrayRecord file"):
        chunks_of(source_of(path))
    with pytest.raises(ConfigError, match="local files only"):
        manifest_of(source_of("memory://a.arrayrecord", format="arrayrecord"), storage_with_file())


def storage_with_file() -> Storage:
    import fsspec

    fsspec.filesystem("memory").pipe("/a.arrayrecord", b"x")
    return Storage(QUICK)


TEXTS = [f"document {i}" for i in range(25)]


def grain_dicts() -> Any:
    return MapDataset.source([{"text": t, "n": i} for i, t in enumerate(TEXTS)])


def grain_filtered() -> Any:
    return MapDataset.source(TEXTS).filter(lambda t: not t.endswith("7"))


def grain_arrays() -> Any:
    return MapDataset.range(10).map(lambda i: np.arange(i, dtype=np.int32))


class TextSource:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: Any) -> Any:
        return [b"a", None, 1.5, "d"][index]


class FailingSource:
    failures: list[Exception]

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> str:
        if self.failures:
            raise self.failures.pop()
        return "a"


def grain_flaky() -> Any:
    return FailingSource(OSError("a"), TimeoutError("b"))


def grain_broken() -> Any:
    return FailingSource(*[OSError("no disk")] * 100)


def grain_wrong() -> Any:
    return FailingSource(*[ValueError("bad parse")] * 100)


def grain_endless() -> Any:
    return MapDataset.range(10).repeat()


def grain_number() -> Any:
    return 5


def named(function: Callable[[], Any]) -> str:
    return f"{function.__module__}:{function.__name__}"


def test_grain_mappings_text_and_arrays() -> None:
    assert values_of(chunks_of(source_of(named(grain_dicts)), chunk_size=4)) == TEXTS
    kept = [t for t in TEXTS if not t.endswith("7")]
    chunks = chunks_of(source_of(named(grain_filtered)), chunk_size=4)
    assert values_of(chunks) == kept
    assert [p for _, p in places_of(chunks)] == [i for i, t in enumerate(TEXTS) if t in kept]
    assert not bad_of(chunks)
    arrays = chunks_of(source_of(named(grain_arrays), column="ids"), chunk_size=3)
    assert values_of(arrays) == [list(range(i)) for i in range(10)]


def test_a_random_access_source_with_bad_records() -> None:
    chunks = chunks_of(source_of(named(TextSource)))
    assert values_of(chunks) == ["a", "d"]
    assert [b.place for b in bad_of(chunks)] == [2]


def test_random_access_over_grain() -> None:
    storage = Storage(QUICK)
    source = source_of(named(grain_dicts))
    manifest = manifest_of(source, storage)
    assert manifest.random_access
    wanted = np.array([24, 0, 13])
    found = read_records(storage, manifest, wanted, RecordSpec.of(source))
    assert found.table.column(0).to_pylist() == [TEXTS[24], TEXTS[0], TEXTS[13]]


def test_case_29_io_errors_of_a_data_set_are_tried_again_and_others_not() -> None:
    assert values_of(chunks_of(source_of(named(grain_flaky)))) == ["a"]
    with pytest.raises(ReadError, match=r"grain_broken: .*5 attempts.*no disk"):
        chunks_of(source_of(named(grain_broken)))
    with pytest.raises(DataError, match=r"grain_wrong, record 0: ValueError: bad parse"):
        chunks_of(source_of(named(grain_wrong)))


@pytest.mark.parametrize("name", ["no_such_module:f", f"{__name__}:nothing", "json:loads"])
def test_what_cannot_be_loaded_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded"):
        chunks_of(source_of(name))


def test_data_sets_without_end_or_length_are_refused() -> None:
    with pytest.raises(ConfigError, match="repeats without end"):
        chunks_of(source_of(named(grain_endless)))
    with pytest.raises(ConfigError, match="returned int"):
        chunks_of(source_of(named(grain_number)))
