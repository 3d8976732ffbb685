"""Chunks that several windows of a node draw from, kept decoded in shared memory.

With ``record`` shuffle all windows of a group draw from all of its chunks, and a chunk larger
than a window is cut into several: each chunk is then read from storage and decoded once a node,
by whichever reader comes first, and mapped by the others.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from meshfeed.pipeline.data.records import BadRecord, ChunkRecords

_SHARD, _PLACE = "__shard", "__place"


class ChunkCache:
    """Decoded chunks in one folder, shared by the processes of a node.

    Args:
        folder: in shared memory; made when it is not there.
        budget_bytes: the least recently made chunks go when this is passed.
        wait_s: how long to wait for another process that is reading the same chunk; then it is
            read without the cache.
    """

    def __init__(self, folder: Path, budget_bytes: int, wait_s: float = 60.0) -> None:
        self._folder = folder
        self._budget = budget_bytes
        self._wait_s = wait_s
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str, make: Callable[[], ChunkRecords]) -> ChunkRecords:
        """The chunk called ``name``, from the cache or made now.

        ``storage_bytes`` and ``used_bytes`` are 0 where nothing had to be read.
        """
        stem = hashlib.blake2b(name.encode(), digest_size=12).hexdigest()
        path = self._folder / f"{stem}.arrow"
        if (found := _load(path)) is not None:
            return found
        with (self._folder / f"{stem}.lock").open("w") as lock:
            if not _acquire(lock.fileno(), self._wait_s):
                return make()
            if (found := _load(path)) is not None:
                return found
            records = make()
            self._store(path, records)
            return records

    def _store(self, path: Path, records: ChunkRecords) -> None:
        if records.table.nbytes > self._budget:
            return
        partial = path.with_suffix(f".{os.getpid()}.partial")
        table = records.table.append_column(_SHARD, pa.array(records.shards))
        table = table.append_column(_PLACE, pa.array(records.places))
        notes = {"unit": records.place_unit, "bad": records.bad}
        table = table.replace_schema_metadata({"meshfeed": json.dumps(notes)})
        with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        partial.rename(path)
        self._evict()

    def _evict(self) -> None:
        files = sorted(self._folder.glob("*.arrow"), key=_age)
        sizes = [_size(file) for file in files]
        total = sum(sizes)
        for file, size in zip(files[:-1], sizes[:-1], strict=True):
            if total <= self._budget:
                return
            file.unlink(missing_ok=True)
            file.with_suffix(".lock").unlink(missing_ok=True)
            total -= size


def _load(path: Path) -> ChunkRecords | None:
    try:
        source = pa.memory_map(str(path))
    except FileNotFoundError:
        return None
    table = pa.ipc.open_file(source).read_all()
    notes = json.loads(table.schema.metadata[b"meshfeed"])
    return ChunkRecords(
        table=table.drop_columns([_SHARD, _PLACE]).replace_schema_metadata(None),
        shards=table.column(_SHARD).to_numpy().astype(np.int32, copy=False),
        places=table.column(_PLACE).to_numpy().astype(np.int64, copy=False),
        place_unit=notes["unit"],
        bad=tuple(BadRecord(*bad) for bad in notes["bad"]),
    )


def _acquire(descriptor: int, wait_s: float) -> bool:
    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.002)


def _age(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
