"""Ranged reads: from local files, a real S3 server and fsspec, with retries that have a limit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from reading import QUICK, chunks_of, manifest_of, source_of, values_of

from meshfeed.pipeline.data.storage import ReadLimits, Storage
from meshfeed.pipeline.data.storage.cache import BoundedCache
from meshfeed.pipeline.plan.errors import ChangedError, ConfigError, ReadError
from s3_server import FailingServer, put, serving


@pytest.fixture(scope="module")
def server() -> Iterator[FailingServer]:
    with serving() as server:
        yield server


@pytest.fixture
def s3(server: FailingServer, monkeypatch: pytest.MonkeyPatch) -> FailingServer:
    """The server, named by the environment as a user would."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server.fail_gets = 0
    server.requests.clear()
    return server


class FlakyFileSystem(LocalFileSystem):
    """Local files under ``flaky://`` of which so many reads fail."""

    protocol = "flaky"
    failures = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return LocalFileSystem._strip_protocol(path.removeprefix("flaky://"))

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:
        if FlakyFileSystem.failures > 0:
            FlakyFileSystem.failures -= 1
            raise TimeoutError("told to fail")
        return super().cat_file(path, start, end, **options)


fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)


def parquet_bytes(texts: list[str], rows: int = 100) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table({"text": texts, "x": list(range(len(texts)))}), sink, row_group_size=rows
    )
    return sink.getvalue().to_pybytes()


def test_ranges_are_clipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(range(100)))
    storage = Storage(QUICK)
    file = storage.file(str(path))
    assert file.size == 100
    assert file.read(10, 20).to_pybytes() == bytes(range(10, 20))
    assert file.read(90, 200).to_pybytes() == bytes(range(90, 100))
    assert file.read(-5, 3).to_pybytes() == bytes(range(3))
    assert file.read(50, 50).size == 0
    assert (storage.counters.bytes_read, storage.counters.reads) == (23, 3)


def test_a_file_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    storage = Storage(QUICK)
    with pytest.raises(ReadError, match="there is no such file"):
        storage.file(str(tmp_path / "a"))
    with pytest.raises(ReadError, match=r"in 1 attempts"):
        storage.file(str(tmp_path / "a"), 10).read(0, 10)
    assert storage.counters.retries == 0


def test_a_file_that_became_shorter_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100)
    file = Storage(QUICK).file(str(path))
    path.write_bytes(b"x" * 50)
    with pytest.raises(ChangedError, match="50 bytes, but 100"):
        file.read(0, 100)


def test_open_files_stay_below_their_limit(tmp_path: Path) -> None:
    for i in range(50):
        (tmp_path / f"{i}.txt").write_text(f"line {i}\n")
    storage = Storage(ReadLimits(max_open_files=4))
    before = len(os.listdir("/proc/self/fd"))
    chunks = chunks_of(source_of(tmp_path), storage=storage)
    assert sorted(values_of(chunks)) == sorted(f"line {i}" for i in range(50))
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    storage.close()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_case_29_two_failures_then_success_give_the_same_records(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n' * 1000)
    quiet = values_of(chunks_of(source_of(tmp_path / "a.jsonl"), chunk_size=5000))
    storage = Storage(ReadLimits(read_attempts=3, backoff_s=0.0))
    manifest_of(source_of(f"flaky://{tmp_path}/a.jsonl"), storage)
    FlakyFileSystem.failures = 2
    flaky = chunks_of(source_of(f"flaky://{tmp_path}/a.jsonl"), chunk_size=5000, storage=storage)
    assert values_of(flaky) == quiet
    assert storage.counters.retries == 2


def test_case_29_a_failure_that_lasts_is_an_error_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    storage = Storage(ReadLimits(read_attempts=3, backoff_s=0.0))
    FlakyFileSystem.failures = 100
    with pytest.raises(ReadError, match=r"a.jsonl: .*3 attempts.*TimeoutError: told to fail"):
        chunks_of(source_of(f"flaky://{tmp_path}/a.jsonl"), storage=storage)
    assert FlakyFileSystem.failures == 97
    FlakyFileSystem.failures = 0


def test_case_29_an_s3_server_that_fails_twice(s3: FailingServer) -> None:
    texts = [f"document {i}" for i in range(1000)]
    put(s3, {"retries/a.parquet": parquet_bytes(texts)})
    storage = Storage(ReadLimits(read_attempts=3, backoff_s=0.0))
    s3.fail_gets = 2
    chunks = chunks_of(source_of("s3://retries/a.parquet"), chunk_size=2000, storage=storage)
    assert values_of(chunks) == texts
    assert storage.counters.retries == 2
    s3.fail_gets = 100
    with pytest.raises(ReadError, match=r"s3://retries/a\.parquet: .*3 attempts"):
        chunks_of(source_of("s3://retries/a.parquet"), storage=Storage(QUICK_THREE))
    assert s3.fail_gets == 97


def test_case_29_a_read_that_hangs_is_given_up_and_tried_again(s3: FailingServer) -> None:
    put(s3, {"hanging/a.txt": b"a\nb\n"})
    storage = Storage(ReadLimits(read_attempts=2, backoff_s=0.0, read_timeout_s=1.0))
    s3.hold_gets = 1
    try:
        chunks = chunks_of(source_of("s3://hanging/a.txt"), storage=storage)
    finally:
        s3.release.set()
    assert values_of(chunks) == ["a", "b"]
    assert storage.counters.retries == 1


QUICK_THREE = ReadLimits(read_attempts=3, backoff_s=0.0)


@pytest.mark.parametrize("data", ["s3://lake/set", "s3://lake/set/**/*.parquet"])
def test_s3_globs_and_folders(s3: FailingServer, data: str) -> None:
    shards = {f"lake/set/{'ab'[i % 2]}/{i}.parquet": parquet_bytes([f"t{i}"]) for i in range(6)}
    put(s3, {**shards, "lake/other/x.parquet": parquet_bytes(["no"]), "lake/set/_SUCCESS": b""})
    s3.requests.clear()
    storage = Storage(QUICK)
    source = source_of(data)
    manifest = manifest_of(source, storage)
    assert manifest.root == "s3://lake/set"
    assert [s.path for s in manifest.shards] == sorted(n.removeprefix("lake/set/") for n in shards)
    assert all(s.etag.startswith("etag:") for s in manifest.shards)
    assert len([r for r in s3.requests if "list-type=2" in r[2] and "delimiter" not in r[2]]) == 1
    assert sorted(values_of(chunks_of(source, storage=storage))) == [f"t{i}" for i in range(6)]


def test_an_endpoint_can_be_a_setting(server: FailingServer, monkeypatch: Any) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    put(server, {"byname/a.txt": b"hello\n"})
    storage = Storage(ReadLimits(s3_endpoint=server.url))
    assert values_of(chunks_of(source_of("s3://byname/a.txt"), storage=storage)) == ["hello"]
    with pytest.raises(ConfigError, match="s3_endpoint"):
        Storage(ReadLimits(s3_endpoint="localhost:9000")).file("s3://byname/a.txt")


def test_only_the_used_columns_of_a_parquet_shard_come_over_the_net(s3: FailingServer) -> None:
    noise = [os.urandom(300).hex() for _ in range(4000)]
    texts = [f"document {i} " + noise[i][:200] for i in range(4000)]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"noise": noise, "text": texts}), sink, row_group_size=1000)
    put(s3, {"wide/a.parquet": sink.getvalue().to_pybytes()})
    storage = Storage(QUICK)
    chunks = chunks_of(source_of("s3://wide/a.parquet"), chunk_size=1 << 19, storage=storage)
    assert values_of(chunks) == texts
    read = sum(c.storage_bytes for _, c in chunks)
    assert read <= 1.05 * sum(c.used_bytes for _, c in chunks)


def test_other_schemes_go_through_fsspec() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe({"/box/a.jsonl": b'{"text": "a"}\n', "/box/b.jsonl": b'{"text": "b"}\n'})
    assert values_of(chunks_of(source_of("memory://box/*.jsonl"))) == ["a", "b"]
    assert values_of(chunks_of(source_of("memory://box"))) == ["a", "b"]
    with pytest.raises(ConfigError, match="nosuch://"):
        Storage(QUICK).file("nosuch://a/b")


def test_a_file_uri_is_a_local_path(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    assert values_of(chunks_of(source_of(f"file://{tmp_path}/a.txt"))) == ["a"]


def test_the_cache_keeps_to_its_limits_and_the_newest() -> None:
    gone: list[int] = []
    cache: BoundedCache[int, int] = BoundedCache(max_items=3, max_cost=10, on_evict=gone.append)
    for i in range(4):
        cache.get(i, lambda i=i: i, lambda _: 2)
    assert (len(cache), cache.cost, gone) == (3, 6, [0])
    assert cache.get(1, lambda: 99) == 1
    cache.get(9, lambda: 9, lambda _: 9)
    assert (len(cache), cache.cost) == (1, 9)
    cache.get(10, lambda: 10, lambda _: 100)
    assert len(cache) == 1
    assert gone[-1] == 9
    cache.clear()
    assert gone[-1] == 10
