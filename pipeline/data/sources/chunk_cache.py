"""Records that several windows of a node draw from, kept decoded in shared memory.

With ``record`` shuffle all windows of a group draw from all of its chunks, and a chunk larger
than a window is cut into several. What they share is kept in some *stripes*: each is read from
storage and decoded once a node, by whichever reader comes first, and mapped by the others; readers
that come at the same time take different stripes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from meshfeed.pipeline.data.formats.records import BadRecord, ChunkRecords

_SHARD, _PLACE = "__shard", "__place"

_LARGE_PIECE = 1 << 18
"""Bytes; smaller ones are joined, since each costs its share of a file's head."""

Make = Callable[[], ChunkRecords]


class ChunkCache:
    """Decoded records in one folder, shared by the processes of a node.

    Args:
        folder: in shared memory; made when it is not there.
        budget_bytes: the least recently made stripes go when this is passed.
        wait_s: how long to wait for other processes that read the same; then it is read again.
    """

    def __init__(self, folder: Path, budget_bytes: int, wait_s: float = 60.0) -> None:
        self._folder = folder
        self._budget = budget_bytes
        self._wait_s = wait_s
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, stripes: Sequence[tuple[str, Make]], first: int = 0) -> list[ChunkRecords]:
        """All stripes, given as (name, how to make it), from the cache or made now.

        Args:
            stripes: in order.
            first: with which to begin; readers that come at the same time begin apart.

        Returns:
            In the order of ``stripes``. ``storage_bytes`` and ``used_bytes`` are 0 where this
            process had nothing to read.
        """
        found: dict[int, ChunkRecords] = {}
        until = time.monotonic() + self._wait_s
        order = [(first + i) % len(stripes) for i in range(len(stripes))]
        while len(found) < len(stripes):
            before = len(found)
            for index in order:
                if index not in found:
                    name, make = stripes[index]
                    records = self._take(name, make, alone=time.monotonic() > until)
                    if records is not None:
                        found[index] = records
            if len(found) == before:
                time.sleep(0.002)
        return [found[index] for index in range(len(stripes))]

    def _take(self, name: str, make: Make, *, alone: bool) -> ChunkRecords | None:
        """One stripe; None while another process is making it, unless ``alone``."""
        stem = hashlib.blake2b(name.encode(), digest_size=12).hexdigest()
        path = self._folder / f"{stem}.arrow"
        if (records := _load(path)) is not None:
            return records
        with (self._folder / f"{stem}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return make() if alone else None
            if (records := _load(path)) is not None:
                return records
            records = make()
            if records.table.nbytes > self._budget:
                return records
            self._store(path, records)
            kept = _load(path)  # not a second copy of it, in memory of this process alone
            if kept is None:
                return records
            return replace(kept, storage_bytes=records.storage_bytes, used_bytes=records.used_bytes)

    def _store(self, path: Path, records: ChunkRecords) -> None:
        partial = path.with_suffix(f".{os.getpid()}.partial")
        table = records.table.append_column(_SHARD, pa.array(records.shards))
        table = table.append_column(_PLACE, pa.array(records.places))
        pieces = max((column.num_chunks for column in table.columns), default=0)
        if table.nbytes < _LARGE_PIECE * pieces:
            table = table.combine_chunks()
        notes = {"unit": records.place_unit, "bad": records.bad}
        table = table.replace_schema_metadata({"meshfeed": json.dumps(notes)})
        with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        partial.rename(path)
        self._evict()

    def _evict(self) -> None:
        files = []
        for entry in os.scandir(self._folder):
            if entry.name.endswith(".arrow"):
                with contextlib.suppress(FileNotFoundError):  # another process was quicker
                    facts = entry.stat()
                    files.append((facts.st_mtime_ns, facts.st_size, entry.path))
        files.sort()
        total = sum(size for _, size, _ in files)
        for _, size, path in files[:-1]:
            if total <= self._budget:
                return
            Path(path).unlink(missing_ok=True)
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
