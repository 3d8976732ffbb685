"""JSONL and text: every line in exactly one chunk, and a bad line is bad by itself."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from reading import QUICK, bad_of, chunks_of, places_of, source_of, values_of

from meshfeed.pipeline.data.storage import Storage
from meshfeed.pipeline.plan.errors import DataError


def write_jsonl(path: Path, records: list[Any]) -> Path:
    path.write_bytes(b"".join(json.dumps(r).encode() + b"\n" for r in records))
    return path


lines = st.lists(
    st.one_of(
        st.text(alphabet="aé\u2028 \t😀", max_size=30).map(lambda t: {"x": 1, "text": t}),
        st.just(None),
    ),
    max_size=30,
)


@given(lines, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.integers(1, 200))
def test_every_line_is_in_exactly_one_chunk_whatever_its_size(
    tmp_path_factory: pytest.TempPathFactory, lines: list[Any], end: str, last: bool, size: int
) -> None:
    path = tmp_path_factory.mktemp("d") / "a.jsonl"
    rows = ["" if r is None else json.dumps(r, ensure_ascii=False) for r in lines]
    raw = end.join(rows) + (end if last else "")
    path.write_bytes(raw.encode())
    chunks = chunks_of(source_of(path), chunk_size=size)
    assert values_of(chunks) == [r["text"] for r in lines if r is not None]
    data = raw.encode()
    for (_, place), text in zip(places_of(chunks), values_of(chunks), strict=True):
        assert json.loads(data[place:].split(b"\n")[0])["text"] == text
    for ref, chunk in chunks:
        assert all(ref.begin <= p < ref.end for p in chunk.places)
    assert not bad_of(chunks)


# What each line is, alone and between good ones: text, or a part of the reason why it is bad.
JUDGED: list[tuple[bytes, str | None, str]] = [
    (b'{"text": "a"}', "a", ""),
    (b'  {"text": "a"} ', "a", ""),
    (b'{"text": "a", "x": NaN}', "a", ""),
    (b'{"text": "a", "x": 1e999}', "a", ""),
    (b'{"text": "a", "x": 123456789012345678901234567890}', "a", ""),
    (b'{"text": "a", "text": "b"}', "b", ""),
    (b'{"text": "a", "x": "\\ud800"}', "a", ""),
    (b'{"text": "a", "x": "\xff"}', "a", ""),
    (b'{"text": "\\u0000\\n"}', "\0\n", ""),
    (b'{"text": ""}', "", ""),
    (b'{"text": "a"}{"text": "b"}', None, "not JSON"),
    (b'{"text": "a"} x', None, "not JSON"),
    (b'{"text": "a",}', None, "not JSON"),
    (b'{"text": ', None, "not JSON"),
    (b'"a"}', None, "not JSON"),
    (b"{}", None, "null or missing"),
    (b'{"text": null}', None, "null or missing"),
    (b'{"text": 5}', None, "is int, not text"),
    (b'{"text": {"a": 1}}', None, "is dict, not text"),
    (b'{"text": ["a"]}', None, "is list, not text"),
    (b"[1, 2]", None, "must be a JSON object"),
    (b'"text"', None, "must be a JSON object"),
    (b'{"text": "\xff"}', None, "UTF-8"),
    (b'{"text": "\\ud800"}', None, "surrogates"),
    (b'{"text": "a\tb"}', None, "not JSON"),
]


@pytest.mark.parametrize("neighbours", [0, 1, 7])
@pytest.mark.parametrize(("line", "text", "reason"), JUDGED)
def test_a_line_is_judged_by_itself(
    tmp_path: Path, line: bytes, text: str | None, reason: str, neighbours: int
) -> None:
    path = tmp_path / "a.jsonl"
    good = [json.dumps({"text": f"n{i}"}).encode() for i in range(neighbours)]
    path.write_bytes(b"\n".join([b'{"text": "first"}', *good, line, *good]) + b"\n")
    chunks = chunks_of(source_of(path))
    around = [f"n{i}" for i in range(neighbours)]
    middle = [] if text is None else [text]
    assert values_of(chunks) == ["first", *around, *middle, *around]
    bad = bad_of(chunks)
    assert len(bad) == (text is None)
    if bad:
        assert reason in bad[0].reason
        assert path.read_bytes()[bad[0].place :].startswith(line)
        error = bad[0].error(str(path))
        assert str(path) in str(error)
        assert f"byte {bad[0].place}" in str(error)


def test_many_bad_lines_leave_the_good_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [b'{"text": "%d"}' % i if i % 3 else b'{"text": %d' % i for i in range(3000)]
    path.write_bytes(b"\n".join(rows))
    chunks = chunks_of(source_of(path))
    assert values_of(chunks) == [str(i) for i in range(3000) if i % 3]
    assert len(bad_of(chunks)) == 1000


def test_token_ids_pass_through_as_integers(tmp_path: Path) -> None:
    rows = [[1, 2, 3], [], [2**40, -1], [1.5], ["1"], [1, None], None, "text", [7]]
    path = write_jsonl(tmp_path / "a.jsonl", [{"ids": r} for r in rows])
    chunks = chunks_of(source_of(path, column="ids"))
    assert values_of(chunks) == [[1, 2, 3], [], [2**40, -1], [7]]
    assert len(bad_of(chunks)) == 5


def test_a_loss_mask_column_is_read_with_the_ids(tmp_path: Path) -> None:
    rows = [{"ids": [1, 2], "mask": [0, 1]}, {"ids": [3], "mask": [True]}, {"ids": [4]}]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    chunks = chunks_of(source_of(path, column="ids", loss_mask_column="mask"))
    assert values_of(chunks, 1) == [[0, 1], [1]]
    assert [b.reason for b in bad_of(chunks)] == ["column 'mask' is null or missing"]


def test_a_byte_order_mark_is_no_part_of_the_first_record(tmp_path: Path) -> None:
    for name, raw in (("a.jsonl", b'{"text": "a"}'), ("b.txt", b"a")):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + raw)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + raw))
        assert values_of(chunks_of(source_of(tmp_path / name))) == ["a"]
        assert values_of(chunks_of(source_of(tmp_path / f"{name}.gz"))) == ["a"]


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_case_26_a_column_of_nulls_fixes_no_type(tmp_path: Path, ending: str) -> None:
    pack = {"jsonl": bytes, "jsonl.gz": gzip.compress, "jsonl.zst": zstandard.compress}[ending]
    first = b"".join(b'{"m": null, "text": "a%d"}\n' % i for i in range(20_000))
    second = b'{"m": "s", "text": "b"}\n{"m": {"deep": [1]}, "text": "c"}\n'
    (tmp_path / f"0.{ending}").write_bytes(pack(first))
    (tmp_path / f"1.{ending}").write_bytes(pack(second))
    chunks = chunks_of(source_of(tmp_path))
    assert values_of(chunks) == [f"a{i}" for i in range(20_000)] + ["b", "c"]
    assert not bad_of(chunks)


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_case_28_a_record_above_any_block_is_read_up_to_the_cap(
    tmp_path: Path, ending: str
) -> None:
    pack = {"jsonl": bytes, "jsonl.gz": gzip.compress, "jsonl.zst": zstandard.compress}[ending]
    large = "x" * (5 << 20)
    raw = b"".join(json.dumps({"text": t}).encode() + b"\n" for t in ("a", large, "b"))
    path = tmp_path / f"a.{ending}"
    path.write_bytes(pack(raw))
    for size in (1 << 16, 1 << 30):
        chunks = chunks_of(source_of(path), chunk_size=size)
        assert values_of(chunks) == ["a", large, "b"]
        capped = chunks_of(source_of(path, max_record_bytes=1 << 20), chunk_size=size)
        assert values_of(capped) == ["a", "b"]
        (bad,) = bad_of(capped)
        place = "byte 14" if ending == "jsonl" else "line 2"
        with pytest.raises(DataError, match=f"a.{ending}, {place}: longer than max_record_bytes"):
            raise bad.error(str(path))


def test_case_28_a_record_over_the_cap_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "' + b"x" * (8 << 20) + b'"}\n{"text": "b"}\n')
    storage = Storage(QUICK)
    chunks = chunks_of(
        source_of(path, max_record_bytes=1 << 16), chunk_size=1 << 20, storage=storage
    )
    assert values_of(chunks) == ["a", "b"]
    assert storage.counters.bytes_read < 1.1 * path.stat().st_size


def test_a_record_of_exactly_the_cap_is_good(tmp_path: Path) -> None:
    row = b'{"text": "12345"}'
    path = tmp_path / "a.jsonl"
    for end in (b"\n", b"\r\n"):
        path.write_bytes((row + end) * 3)
        for size in (5, 1000):
            fits = source_of(path, max_record_bytes=len(row))
            assert len(values_of(chunks_of(fits, chunk_size=size))) == 3
            above = source_of(path, max_record_bytes=len(row) - 1)
            assert len(bad_of(chunks_of(above, chunk_size=size))) == 3


@given(st.lists(st.text(alphabet="ab \té\r", max_size=20), max_size=20), st.integers(1, 60))
def test_text_lines(tmp_path_factory: pytest.TempPathFactory, rows: list[str], size: int) -> None:
    path = tmp_path_factory.mktemp("d") / "a.txt"
    path.write_bytes("\n".join(rows).encode())
    expected = [r.removesuffix("\r") for r in rows if r.strip()]
    assert values_of(chunks_of(source_of(path), chunk_size=size)) == expected
    packed = path.with_suffix(".txt.zst")
    packed.write_bytes(zstandard.compress(path.read_bytes()))
    chunks = chunks_of(source_of(packed))
    assert values_of(chunks) == expected
    assert [p - 1 for _, p in places_of(chunks)] == [i for i, r in enumerate(rows) if r.strip()]


def test_text_that_is_not_utf8_is_bad_by_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\n\xff\xfe\nb\n")
    chunks = chunks_of(source_of(path))
    assert values_of(chunks) == ["a", "b"]
    assert bad_of(chunks)[0].place == 2


def test_a_source_without_the_column_is_refused_at_once(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"body": "a", "id": 1}])
    with pytest.raises(DataError, match=r"a.jsonl: no column 'text'.*body, id"):
        chunks_of(source_of(path))


def test_chunks_read_little_more_than_their_records(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "word " * (i % 400)} for i in range(20_000)])
    chunks = chunks_of(source_of(path), chunk_size=1 << 20)
    assert len(chunks) > 10
    read = sum(c.storage_bytes for _, c in chunks)
    used = sum(c.used_bytes for _, c in chunks)
    assert used == path.stat().st_size
    assert read <= 1.05 * used
