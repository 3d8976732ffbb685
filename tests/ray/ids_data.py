"""The ``ids`` data set: every record has its own id and tokens ``[id] * length``.

So the multiset of unmasked ids in the global batches says which records were delivered, and how
often.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Lengths = Sequence[Sequence[int]]
"""Of each shard, the token count of each of its records."""


def write_ids(
    folder: Path, shards: Lengths, *, kind: str = "parquet", first_id: int = 0, group: int = 0
) -> Path:
    """Writes shards of records with columns ``ids`` (their tokens) and ``n`` (the record's id).

    Args:
        folder: made when it is not there.
        shards: token counts of the records of each shard; ids count up through all of them.
        kind: ``parquet``, ``arrow``, ``jsonl`` or ``jsonl.gz``.
        first_id: of the first record.
        group: records of a Parquet row group or Arrow record batch; 0: all of a shard.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for index, lengths in enumerate(shards):
        path = folder / f"part-{index:05d}.{kind}"
        ids = np.arange(first_id, first_id + len(lengths))
        first_id += len(lengths)
        table = _table(ids, lengths)
        if kind == "parquet":
            pq.write_table(table, path, row_group_size=group or None)
        elif kind == "arrow":
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=group or None)
        else:
            text = "".join(json.dumps(record) + "\n" for record in table.to_pylist())
            path.write_bytes(gzip.compress(text.encode()) if kind.endswith("gz") else text.encode())
    return folder


def write_texts(folder: Path, texts: Iterable[Iterable[str]]) -> Path:
    """Writes JSONL shards with a column ``text``."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, shard in enumerate(texts):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in shard)
        (folder / f"part-{index:05d}.jsonl").write_text(lines)
    return folder


def write_many(folder: Path, count: int, length: int) -> Path:
    """Writes ``count`` JSONL shards of one record each, quickly."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        line = json.dumps({"ids": [index] * length, "n": index}) + "\n"
        (folder / f"part-{index:05d}.jsonl").write_text(line)
    return folder


def _table(ids: np.ndarray, lengths: Sequence[int]) -> pa.Table:
    counts = np.array(lengths, np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    values = np.repeat(ids, counts).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
    return pa.table({"ids": lists, "n": pa.array(ids, pa.int64())})
