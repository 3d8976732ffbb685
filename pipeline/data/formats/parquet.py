"""Parquet: a chunk owns the row groups whose first byte lies in its range.

Only the used columns' byte ranges are read, each once, neighbours together. The footer is kept in
the storage's bounded cache. Places are record indices in the shard.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from meshfeed.pipeline.data.formats.base import Sample
from meshfeed.pipeline.data.formats.pieces import PieceFile, Span, merge_spans, total
from meshfeed.pipeline.data.formats.records import (
    ChunkRecords,
    Ints,
    RecordSpec,
    empty_table,
    is_text,
    make_records,
    missing_column,
)
from meshfeed.pipeline.data.formats.tail import read_footer
from meshfeed.pipeline.data.storage import ShardFile
from meshfeed.pipeline.plan.errors import DataError
from meshfeed.pipeline.plan.manifest import ChunkRef

PLACE_UNIT = "record"


@dataclass(frozen=True, slots=True)
class ParquetIndex:
    """What a footer says.

    Attributes:
        metadata: pyarrow's.
        names: top-level columns.
        begins: int64 [row_groups], first byte of each row group.
        records: int64 [row_groups + 1], index of the first record of each row group.
    """

    metadata: pq.FileMetaData
    names: tuple[str, ...]
    begins: Ints
    records: Ints


def read_chunk(file: ShardFile, ref: ChunkRef, spec: RecordSpec) -> ChunkRecords:
    """The records of the row groups that start in ``ref``'s bytes.

    Raises:
        DataError: not Parquet, a column is missing, or its content cannot be decoded.
        ReadError: storage failed.
    """
    before = file.storage.counters.bytes_read
    index = _index(file)
    groups = np.flatnonzero((index.begins >= ref.begin) & (index.begins < ref.end))
    spans = _spans(index, groups, _leaves(index, file, spec.columns))
    table = _read_groups(file, index, groups, spans, spec)
    ranges = [np.arange(index.records[g], index.records[g + 1]) for g in groups]
    return make_records(
        table,
        shard=file.address,
        shard_index=ref.shard_index,
        places=np.concatenate([np.empty(0, np.int64), *ranges]),
        place_unit=PLACE_UNIT,
        spec=spec,
        storage_bytes=file.storage.counters.bytes_read - before,
        used_bytes=total(merge_spans(spans)),
    )


def sample(file: ShardFile, spec: RecordSpec) -> Sample:
    """What the footer says of sizes; no record is read."""
    before = file.storage.counters.bytes_read
    index = _index(file)
    footer = file.storage.counters.bytes_read - before
    values = stored = plain = 0
    leaves = _leaves(index, file, spec.columns[:1])
    for group in range(index.metadata.num_row_groups):
        for column in (index.metadata.row_group(group).column(leaf) for leaf in leaves):
            values += column.num_values
            stored += column.total_compressed_size
            plain += column.total_uncompressed_size
    kind = index.metadata.schema.to_arrow_schema().field(spec.columns[0]).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    text = is_text(kind)
    size, groups = max(file.size, 1), max(index.metadata.num_row_groups, 1)
    return Sample(
        text_bytes=plain / size if text else 0.0,
        tokens=0.0 if text else values / size,
        record=size / max(index.metadata.num_rows, 1),
        piece=size / groups,
        used_fraction=stored / size,
        index_bytes=footer,
    )


def _index(file: ShardFile) -> ParquetIndex:
    return file.index(
        "parquet", lambda: _read_index(file), lambda index: index.metadata.serialized_size * 4
    )


def _read_index(file: ShardFile) -> ParquetIndex:
    tail, _ = read_footer(file, magic=b"PAR1", name="Parquet")
    try:
        metadata = pq.read_metadata(pa.BufferReader(tail))
        names = tuple(metadata.schema.to_arrow_schema().names)
    except (pa.ArrowException, OSError) as error:
        raise DataError(file.address, f"its Parquet footer cannot be read: {error}") from error
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    begins = np.array([_begin(g.column(0)) for g in groups], np.int64)
    if len(begins) and not (begins.min() >= 0 and begins.max() < file.size):
        raise DataError(file.address, "its footer places a row group outside of the file")
    counts = np.array([0] + [g.num_rows for g in groups], np.int64)
    return ParquetIndex(metadata, names, begins, np.cumsum(counts))


def _begin(column: pq.ColumnChunkMetaData) -> int:
    """First byte of a column chunk: that of its dictionary, where it has one."""
    dictionary, data = column.dictionary_page_offset, column.data_page_offset
    return int(data if dictionary is None or not 0 < dictionary < data else dictionary)


def _leaves(index: ParquetIndex, file: ShardFile, columns: tuple[str, ...]) -> list[int]:
    """Numbers of the stored columns that make up the named ones, as pyarrow selects them."""
    for name in columns:
        if name not in index.names:
            raise missing_column(file.address, name, index.names)
    schema = index.metadata.schema
    paths = [schema.column(i).path for i in range(len(schema))]
    return [i for i, p in enumerate(paths) if any(p == c or p.startswith(c + ".") for c in columns)]


def _spans(index: ParquetIndex, groups: Ints, leaves: list[int]) -> list[Span]:
    """Bytes of the stored columns ``leaves`` in some row groups."""
    spans = []
    for group in groups:
        row_group = index.metadata.row_group(int(group))
        for leaf in leaves:
            column = row_group.column(leaf)
            begin = _begin(column)
            spans.append((begin, begin + column.total_compressed_size))
    return spans


def _read_groups(
    file: ShardFile, index: ParquetIndex, groups: Ints, spans: list[Span], spec: RecordSpec
) -> pa.Table:
    if not len(groups):
        return empty_table(spec)
    pieces = [(begin, file.read(begin, end)) for begin, end in merge_spans(spans)]
    source = pa.PythonFile(PieceFile(file.size, pieces, file.read), mode="r")
    try:
        reader = pq.ParquetFile(source, metadata=index.metadata, pre_buffer=False, buffer_size=0)
        parts = [
            reader.read_row_group(int(g), columns=list(spec.columns), use_threads=False)
            for g in groups
        ]
        return pa.concat_tables(parts).select(list(spec.columns))
    except (pa.ArrowException, OSError) as error:
        first, last = index.records[groups[0]], index.records[groups[-1] + 1]
        raise DataError(
            file.address, f"cannot be decoded: {error}", place=f"records {first}..{last - 1}"
        ) from error
