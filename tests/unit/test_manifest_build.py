"""Manifests: from one listing and a bounded look, whatever the number of shards."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather
from reading import QUICK, chunks_of, manifest_of, source_of, values_of

from meshfeed.pipeline.data.formats import format_of, read_chunk
from meshfeed.pipeline.data.formats.base import Sample
from meshfeed.pipeline.data.formats.records import RecordSpec
from meshfeed.pipeline.data.sources import manifest_build
from meshfeed.pipeline.data.sources.manifest_build import build_source_manifest
from meshfeed.pipeline.data.sources.sizes import choose_sizes, window_tokens
from meshfeed.pipeline.data.storage import Storage
from meshfeed.pipeline.plan.config import Shuffle
from meshfeed.pipeline.plan.errors import ConfigError, DataError
from meshfeed.pipeline.plan.manifest import SourceManifest, Unit


def write_shards(folder: Path, count: int, kind: str, records: int = 40) -> Path:
    """``count`` shards of exactly the same size."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        texts = [f"{i:06d} {j:06d} " + "word " * 200 for j in range(records)]
        path = folder / f"{i:06d}.{kind}"
        if kind == "parquet":
            table = pa.table({"text": texts})
            pq.write_table(table, path, row_group_size=10, compression="none", use_dictionary=False)
        else:
            path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    return folder


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_case_13_bytes_before_the_first_chunk_do_not_grow_with_the_shards(
    tmp_path: Path, kind: str
) -> None:
    read = {}
    for count in (10, 1000):
        source = source_of(write_shards(tmp_path / str(count), count, kind))
        storage = Storage(QUICK)
        manifest = manifest_of(source, storage)
        first = read_chunk(storage, manifest, manifest.chunk(count // 2), RecordSpec.of(source))
        assert len(first) == 40
        read[count] = storage.counters.bytes_read
        assert storage.counters.listings == 1
    assert read[10] == read[1000]


def test_case_30_thousands_of_files_are_listed_once_and_opened_when_needed(tmp_path: Path) -> None:
    for i in range(5000):
        (tmp_path / f"{i:05d}.txt").write_text(f"record {i}\n")
    storage = Storage(QUICK)
    source = source_of(tmp_path)
    manifest = manifest_of(source, storage)
    assert manifest.num_chunks == 5000
    assert storage.counters.listings == 1
    assert storage.counters.reads < 30
    reads = storage.counters.reads
    chunk = read_chunk(storage, manifest, manifest.chunk(4321), RecordSpec.of(source))
    assert chunk.table.column(0).to_pylist() == ["record 4321"]
    assert storage.counters.reads == reads + 1
    assert storage.counters.listings == 1


@pytest.mark.parametrize("order", [(0, 2, 1), (2, 0, 1), (2, 1, 0)])
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_case_19_an_empty_source_is_a_source_without_chunks(
    tmp_path: Path, kind: str, order: tuple[int, ...]
) -> None:
    found = []
    for place, count in enumerate(order):
        folder = tmp_path / str(place)
        folder.mkdir()
        path = folder / f"a.{kind}"
        if count == 0:
            path.touch()
        elif kind == "parquet":
            pq.write_table(pa.table({"text": [f"{place}.{i}" for i in range(count)]}), path)
        else:
            rows = [json.dumps({"text": f"{place}.{i}"}) + "\n" for i in range(count)]
            path.write_text("".join(rows))
        found += values_of(chunks_of(source_of(folder)))
    assert len(found) == len(set(found)) == 3


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_case_27_empty_shards_come_first(tmp_path: Path, kind: str) -> None:
    write_shards(tmp_path, 3, kind, records=3)
    (tmp_path / f"000000.{kind}").write_bytes(b"")
    if kind == "parquet":
        pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "000001.parquet")
    else:
        (tmp_path / "000001.jsonl").write_text("\n\n")
    assert len(values_of(chunks_of(source_of(tmp_path)))) == 3


def test_a_source_of_empty_shards_alone_has_no_chunk(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()
    assert manifest_of(source_of(tmp_path)).num_chunks == 0


NAMES = {
    "a.parquet": "parquet",
    "a.PQ": "parquet",
    "x/a.arrow": "arrow",
    "a.feather": "arrow",
    "a.jsonl": "jsonl",
    "a.json.gz": "jsonl",
    "a.jsonl.zst": "jsonl",
    "a.txt": "text",
    "a.txt.gz": "text",
    "train.array_record-00000-of-00010": "arrayrecord",
    "a.arrayrecord": "arrayrecord",
    "a.parquet.gz": None,
    "a.csv": None,
    "README": None,
    "a.gz": None,
}


@pytest.mark.parametrize("name", NAMES)
def test_a_format_is_told_by_the_name(name: str) -> None:
    assert format_of(name) == NAMES[name]


def test_mixed_formats_are_refused_by_name(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.parquet", "c.jsonl.gz", "d.csv"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ConfigError, match=r"a.jsonl is jsonl, b.parquet is parquet"):
        manifest_of(source_of(tmp_path))
    with pytest.raises(ConfigError, match=r"c.jsonl.gz is compressed and a.jsonl is not"):
        manifest_of(source_of(f"{tmp_path}/*.jsonl*"))
    with pytest.raises(ConfigError, match=r"d.csv does not say its format"):
        manifest_of(source_of(f"{tmp_path}/d.csv"))
    with pytest.raises(ConfigError, match=r"'csv' is not a format.*parquet"):
        manifest_of(source_of(tmp_path, format="csv"))
    assert len(manifest_of(source_of(tmp_path, format="parquet")).shards) == 1


def test_files_of_no_known_format_in_a_folder_are_left_out_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    (tmp_path / "README").write_text("about\n")
    assert [s.path for s in manifest_of(source_of(tmp_path)).shards] == ["a.txt"]
    assert "README" in caplog.text


def test_a_moved_folder_is_no_change_and_changed_content_is(tmp_path: Path) -> None:
    write_shards(tmp_path / "here", 5, "jsonl")
    before = manifest_of(source_of(tmp_path / "here"))
    (tmp_path / "here").rename(tmp_path / "there")
    moved = manifest_of(source_of(tmp_path / "there"))
    assert moved.root != before.root
    assert moved.fingerprint() == before.fingerprint()
    path = tmp_path / "there" / "000004.jsonl"
    path.write_bytes(path.read_bytes().replace(b"000004 000000", b"000004 999999"))
    assert manifest_of(source_of(tmp_path / "there")).fingerprint() != before.fingerprint()


def test_all_of_the_content_can_be_fingerprinted(tmp_path: Path) -> None:
    write_shards(tmp_path, 20, "jsonl")
    source = source_of(tmp_path)

    def full() -> SourceManifest:
        return build_source_manifest(
            source, Storage(QUICK), seq_len=128, shuffle=Shuffle.CHUNK, digest_all=True
        )

    before = full()
    assert len({s.etag for s in before.shards}) == 20
    path = tmp_path / "000013.jsonl"
    path.write_bytes(path.read_bytes().replace(b"000013 000020", b"000013 999999"))
    assert [a == b for a, b in zip(before.shards, full().shards, strict=True)].count(False) == 1


def test_a_large_compressed_shard_is_refused_for_shuffling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "".join(json.dumps({"text": os.urandom(30).hex()}) + "\n" for _ in range(1000))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    monkeypatch.setattr(manifest_build, "LARGEST_WHOLE_SHARD", 10_000)
    source, storage = source_of(tmp_path), Storage(QUICK)
    with pytest.raises(ConfigError, match=r"a.jsonl.gz has \d+ compressed bytes.*10000"):
        build_source_manifest(source, storage, seq_len=128, shuffle=Shuffle.CHUNK)
    manifest = build_source_manifest(source, storage, seq_len=128, shuffle=Shuffle.NONE)
    assert (manifest.splittable, manifest.num_chunks) == (False, 1)


def test_a_missing_column_is_told_before_anything_runs(tmp_path: Path) -> None:
    write_shards(tmp_path, 3, "parquet")
    with pytest.raises(DataError, match=r"no column 'body'; the columns there are: text"):
        manifest_of(source_of(tmp_path, column="body"))


@pytest.mark.parametrize("shuffle", Shuffle)
@pytest.mark.parametrize("seq_len", [128, 2048, 131_072])
def test_a_window_is_128_rows_or_more(tmp_path: Path, seq_len: int, shuffle: Shuffle) -> None:
    source = source_of(write_shards(tmp_path, 2, "jsonl", records=400))
    manifest = build_source_manifest(source, Storage(QUICK), seq_len=seq_len, shuffle=shuffle)
    tokens = window_tokens(seq_len, stored=False)
    assert tokens >= 128 * seq_len
    assert manifest.window_size == pytest.approx(tokens * 4, rel=0.1)  # nearly all of it is text
    assert manifest.group_size > 3.99 * manifest.window_size
    assert manifest.chunk_size <= (manifest.window_size if shuffle != "record" else 1 << 20)


def test_densities_of_token_ids_and_of_text_beside_other_columns(tmp_path: Path) -> None:
    ids = pa.array([list(range(1000))] * 50, pa.list_(pa.int32()))
    noise = pa.array([os.urandom(4000) for _ in range(50)])
    table = pa.table({"ids": ids, "noise": noise})
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10, **options)
    feather.write_feather(table, str(tmp_path / "b.arrow"), compression="uncompressed")
    rows = [json.dumps({"ids": [10_000] * 1000, "noise": "x" * 7000}) for _ in range(50)]
    (tmp_path / "c.jsonl").write_text("\n".join(rows))
    tokens = window_tokens(128, stored=True)
    for name, per_token in (("a.parquet", 8), ("b.arrow", 8), ("c.jsonl", 14)):
        manifest = manifest_of(source_of(tmp_path / name, column="ids"))
        assert manifest.window_size == pytest.approx(tokens * per_token, rel=0.1)


def sample(**changes: float) -> Sample:
    return dataclasses.replace(Sample(text_bytes=1.0, tokens=0.0, record=1000.0), **changes)


def sizes(
    found: Sample, shuffle: Shuffle = Shuffle.CHUNK, unit: Unit = Unit.BYTES
) -> tuple[int, ...]:
    chosen = choose_sizes(found, unit=unit, shuffle=shuffle, seq_len=2048, tokens_per_byte=0.25)
    return chosen.chunk, chosen.window, chosen.group


def test_chunks_are_large_beside_records_row_groups_and_footers() -> None:
    window = window_tokens(2048, stored=False) * 4
    assert sizes(sample())[:2] == (window, window)
    assert sizes(sample(record=1e6))[:2] == (64_000_000, window)
    assert sizes(sample(piece=5e6))[:2] == (5_000_000, window)
    assert sizes(sample(index_bytes=100_000))[0] == 5_000_000
    assert sizes(sample(index_bytes=10**9))[0] == 8 * window


def test_a_group_of_record_shuffling_has_thousands_of_chunks() -> None:
    chunk, window, group = sizes(sample(), Shuffle.RECORD)
    assert group // chunk >= 4000
    assert group >= 4 * window
    chunk, _, group = sizes(sample(piece=1 << 20), Shuffle.RECORD)
    assert chunk == 1 << 20
    chunk, _, group = sizes(sample(record=2000.0), Shuffle.RECORD)
    mixed = 256 * 2048 * 4 / 2000  # records in so many rows, of 0.25 tokens a byte
    assert group / chunk >= 5.99 * mixed
    by_record = sample(text_bytes=4000.0, record=1.0, piece=100.0)
    chunk, window, _ = sizes(by_record, unit=Unit.RECORDS)
    assert chunk % 100 == 0
    assert window == -(-window_tokens(2048, stored=False) // 1000)


def test_a_filter_that_is_told_of_makes_windows_larger() -> None:
    def window(kept: float) -> int:
        return choose_sizes(
            sample(), unit=Unit.BYTES, shuffle=Shuffle.CHUNK, seq_len=2048, tokens_per_byte=0.25,
            kept=kept,
        ).window  # fmt: skip

    assert window(0.1) == pytest.approx(10 * window(1.0))
    for wrong in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(ConfigError, match=r"sources\.s\.kept"):
            source_of("x.jsonl", kept=wrong)
