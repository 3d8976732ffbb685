"""Compressed files: whole ones, several members, and what is left of damaged ones."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from reading import QUICK, bad_of, chunks_of, places_of, source_of, values_of

from meshfeed.pipeline.data.storage import Storage
from meshfeed.pipeline.plan.errors import DataError

PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": lambda raw: zstandard.ZstdCompressor(level=3).compress(raw),
}


def texts(count: int) -> list[str]:
    rng = random.Random(0)
    return [" ".join(str(rng.randrange(10**6)) for _ in range(200)) for _ in range(count)]


def raw_lines(rows: list[str]) -> bytes:
    return b"".join(json.dumps({"text": t}).encode() + b"\n" for t in rows)


@pytest.mark.parametrize("kind", PACK)
def test_a_whole_file(tmp_path: Path, kind: str) -> None:
    rows = texts(3000)
    path = tmp_path / f"a.jsonl.{kind}"
    path.write_bytes(PACK[kind](raw_lines(rows)))
    chunks = chunks_of(source_of(path), chunk_size=100)
    assert len(chunks) == 1
    assert values_of(chunks) == rows
    assert [p for _, p in places_of(chunks)] == list(range(1, 3001))
    assert chunks[0][1].place_unit == "line"
    assert chunks[0][1].storage_bytes == chunks[0][1].used_bytes == path.stat().st_size
    assert not bad_of(chunks)


@pytest.mark.parametrize("kind", PACK)
def test_members_one_after_another_with_padding(tmp_path: Path, kind: str) -> None:
    rows = texts(60)
    pieces = [raw_lines(rows[i : i + 7]) for i in range(0, 60, 7)]
    packed = b"".join(PACK[kind](p) for p in pieces)
    padding = b"\0" * 1000 if kind == "gz" else b""
    path = tmp_path / f"a.jsonl.{kind}"
    path.write_bytes(packed + padding)
    chunks = chunks_of(source_of(path))
    assert values_of(chunks) == rows
    assert not bad_of(chunks)


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("share", [0.0001, 0.3, 0.6, 0.9999])
def test_case_24_of_a_file_cut_short_the_records_before_the_cut_are_read(
    tmp_path: Path, kind: str, share: float
) -> None:
    rows = texts(3000)
    whole = PACK[kind](raw_lines(rows))
    cut = max(int(len(whole) * share), 1)
    path = tmp_path / f"a.jsonl.{kind}"
    path.write_bytes(whole[:cut])
    chunks = chunks_of(source_of(path))
    read = values_of(chunks)
    assert read == rows[: len(read)]
    # A compressor holds back a block of at most 128 KiB (zstd) or a few KiB (gzip).
    assert len(raw_lines(rows[: len(read) + 1])) > share * len(raw_lines(rows)) - (150 << 10)
    (bad,) = bad_of(chunks)
    assert bad.place == len(read) + 1
    with pytest.raises(DataError, match=rf"a.jsonl.{kind}, line {bad.place}: .*byte {cut}"):
        raise bad.error(str(path))
    again = chunks_of(source_of(path))
    assert values_of(again) == read
    assert bad_of(again) == [bad]


@pytest.mark.parametrize("kind", PACK)
def test_damage_in_the_middle(tmp_path: Path, kind: str) -> None:
    rows = texts(3000)
    whole = bytearray(PACK[kind](raw_lines(rows)))
    middle = len(whole) // 2
    whole[middle : middle + 64] = bytes(64)
    path = tmp_path / f"a.jsonl.{kind}"
    path.write_bytes(whole)
    chunks = chunks_of(source_of(path))
    read = values_of(chunks)
    # gzip may decode some damaged bytes before it notices: what those make is bad or is text.
    assert read[:1000] == rows[:1000]
    assert len(read) < 2000
    assert "damaged" in bad_of(chunks)[-1].reason


def test_a_gzip_file_with_a_wrong_checksum_is_told(tmp_path: Path) -> None:
    rows = texts(10)
    whole = bytearray(gzip.compress(raw_lines(rows)))
    whole[-8] ^= 1
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(whole)
    chunks = chunks_of(source_of(path))
    assert values_of(chunks) == rows
    assert "damaged" in bad_of(chunks)[0].reason


@pytest.mark.parametrize("kind", PACK)
def test_what_is_not_compressed_at_all(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.jsonl.{kind}"
    path.write_bytes(raw_lines(["a", "b"]))
    chunks = chunks_of(source_of(path))
    assert values_of(chunks) == []
    assert bad_of(chunks)[0].place == 1


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("raw", [b"", b"\n", b"\n\r\n  \n"])
def test_case_27_without_records(tmp_path: Path, kind: str, raw: bytes) -> None:
    (tmp_path / f"0.jsonl.{kind}").write_bytes(PACK[kind](raw))
    (tmp_path / f"1.jsonl.{kind}").touch()
    (tmp_path / f"2.jsonl.{kind}").write_bytes(PACK[kind](raw_lines(["a", "b", "c"])))
    chunks = chunks_of(source_of(tmp_path))
    assert values_of(chunks) == ["a", "b", "c"]
    assert not bad_of(chunks)


def test_a_long_line_across_many_blocks_is_one_bad_record(tmp_path: Path) -> None:
    long = random.Random(1).randbytes(30 << 20).hex()
    path = tmp_path / "a.txt.zst"
    path.write_bytes(zstandard.compress(f"a\n{long}\n\nb\n".encode()))
    storage = Storage(QUICK)
    source = source_of(path, max_record_bytes=1 << 20)
    chunks = chunks_of(source, storage=storage)
    assert values_of(chunks) == ["a", "b"]
    assert [p for _, p in places_of(chunks)] == [1, 4]
    assert [b.place for b in bad_of(chunks)] == [2]


def test_a_file_written_with_a_long_window(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(
        1, window_log=28, enable_ldm=True, write_content_size=False
    )
    path = tmp_path / "a.txt.zst"
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    path.write_bytes(packer.compress(b"a\nb\n") + packer.flush())
    assert values_of(chunks_of(source_of(path))) == ["a", "b"]
