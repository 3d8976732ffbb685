"""Plain text: a record is a line, without its line end; blank lines are none."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from meshfeed.pipeline.data.formats.base import Sample
from meshfeed.pipeline.data.formats.lines import Lines, place_unit, read_lines, sample_lines
from meshfeed.pipeline.data.formats.records import (
    BadRecord,
    ChunkRecords,
    RecordSpec,
    make_records,
    missing_column,
)
from meshfeed.pipeline.data.storage import ShardFile
from meshfeed.pipeline.plan.manifest import ChunkRef


def read_chunk(file: ShardFile, ref: ChunkRef, spec: RecordSpec) -> ChunkRecords:
    """The lines that start in ``ref``'s bytes, or all of a compressed file.

    Raises:
        DataError: more than one column is wanted.
        ReadError: storage failed.
    """
    _check_columns(file, spec)
    before, unit = file.storage.counters.bytes_read, place_unit(file)
    parts, places, used = list[pa.Array](), [np.empty(0, np.int64)], 0
    bad: list[BadRecord] = []
    for lines in read_lines(file, ref, spec.max_record_bytes):
        parts.append(line_array(lines))
        places.append(lines.places)
        bad += lines.bad
        used += lines.data.size
    column = pa.chunked_array(parts, type=pa.large_binary())
    return make_records(
        pa.table([column], names=list(spec.columns)),
        shard=file.address,
        shard_index=ref.shard_index,
        places=np.concatenate(places),
        place_unit=unit,
        spec=spec,
        bad=bad,
        storage_bytes=file.storage.counters.bytes_read - before,
        used_bytes=file.size if unit == "line" else used,
    )


def sample(file: ShardFile, spec: RecordSpec) -> Sample:
    """Densities from the first lines."""
    _check_columns(file, spec)
    lines, stored = sample_lines(file)
    if not len(lines):
        return Sample(text_bytes=1.0, tokens=0.0, record=float(max(file.size, 1)))
    text = float((lines.ends - lines.begins).sum())
    return Sample(text_bytes=text / stored, tokens=0.0, record=stored / len(lines))


def line_array(lines: Lines) -> pa.LargeBinaryArray:
    """The lines' bytes without what lies between them: large_binary [n]."""
    count = len(lines)
    # Lines and what lies between them alternate, so that nothing is copied before the lines are.
    offsets = np.empty(2 * count, np.int64)
    offsets[0::2], offsets[1::2] = lines.begins, lines.ends
    buffers = [None, pa.py_buffer(offsets), lines.data]
    both = pa.LargeBinaryArray.from_buffers(pa.large_binary(), max(2 * count - 1, 0), buffers)
    return both.take(pa.array(np.arange(0, 2 * count, 2)))


def _check_columns(file: ShardFile, spec: RecordSpec) -> None:
    if len(spec.columns) > 1:
        raise missing_column(file.address, spec.columns[1], spec.columns[:1])
