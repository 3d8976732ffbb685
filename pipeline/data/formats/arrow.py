"""Arrow IPC: a chunk owns the record batches whose first byte lies in its range.

Files (Feather V2) list their batches in a footer. Streams (as Hugging Face datasets keeps its
``.arrow`` files) do not: the heads of their batches are followed once for each shard. Of both,
only the used columns' bytes are read. A place is ``batch << 32 | record in the batch``, since the
records of the batches before are not counted anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from meshfeed.pipeline.data.formats.arrow_layout import (
    DICTIONARY,
    RECORD_BATCH,
    SCHEMA,
    Block,
    Message,
    buffer_range,
    footer_blocks,
    head_length,
    parse_message,
)
from meshfeed.pipeline.data.formats.base import Sample
from meshfeed.pipeline.data.formats.pieces import PieceFile, Span, merge_spans, total
from meshfeed.pipeline.data.formats.records import (
    ChunkRecords,
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

PLACE_UNIT = "batch"
_MAGIC = b"ARROW1"
_HEAD_STEP = 2048
_SAMPLE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ArrowIndex:
    """Where the batches of a shard lie.

    Attributes:
        schema: of the shard.
        preamble: the schema's message and those of the dictionaries, as they are stored.
        batches: in file order.
    """

    schema: pa.Schema
    preamble: bytes
    batches: tuple[Block, ...]


def read_chunk(file: ShardFile, ref: ChunkRef, spec: RecordSpec) -> ChunkRecords:
    """The records of the record batches that start in ``ref``'s bytes.

    Raises:
        DataError: not Arrow, a column is missing, or its content cannot be decoded.
        ReadError: storage failed.
    """
    before = file.storage.counters.bytes_read
    index = _index(file)
    fields = _fields(index, file, spec)
    owned = [i for i, b in enumerate(index.batches) if ref.begin <= b.offset < ref.end]
    parts, places, used = [], [np.empty(0, np.int64)], 0
    for number in owned:
        table, nbytes = _read_batch(file, index, number, fields, spec)
        parts.append(table)
        places.append((number << 32) + np.arange(table.num_rows))
        used += nbytes
    return make_records(
        pa.concat_tables(parts) if parts else empty_table(spec),
        shard=file.address,
        shard_index=ref.shard_index,
        places=np.concatenate(places),
        place_unit=PLACE_UNIT,
        spec=spec,
        storage_bytes=file.storage.counters.bytes_read - before,
        used_bytes=used,
    )


def sample(file: ShardFile, spec: RecordSpec) -> Sample:
    """Sizes from the first record batch; its used column is read where it has at most 4 MiB."""
    before = file.storage.counters.bytes_read
    index = _index(file)
    index_bytes = file.storage.counters.bytes_read - before
    fields = _fields(index, file, spec)[:1]
    if not index.batches:
        return Sample(text_bytes=1.0, tokens=0.0, record=1.0, index_bytes=index_bytes)
    block = index.batches[0]
    message = _message(file, block, 0)
    stored = total(_used_spans(index, message, fields)) if len(fields) else message.body
    values = nbytes = stored
    kind = index.schema.field(fields[0]).type
    if stored <= _SAMPLE_BYTES:
        one = RecordSpec(columns=spec.columns[:1], max_record_bytes=spec.max_record_bytes)
        column = _read_batch(file, index, 0, fields, one)[0].column(0)
        nbytes = column.nbytes
        if not is_text(kind) and column.type.num_fields:
            values = sum(len(part.flatten()) for part in column.chunks)
    units = block.head + block.body
    return Sample(
        text_bytes=nbytes / units if is_text(kind) else 0.0,
        tokens=0.0 if is_text(kind) else values / units,
        record=units / max(message.rows, 1),
        piece=float(units),
        used_fraction=(stored + block.head) / units,
        index_bytes=index_bytes,
    )


def _index(file: ShardFile) -> ArrowIndex:
    return file.index(
        "arrow", lambda: _read_index(file), lambda i: len(i.preamble) + 100 * len(i.batches)
    )


def _read_index(file: ShardFile) -> ArrowIndex:
    start = file.read(0, _HEAD_STEP).to_pybytes()
    if start.startswith(b"FEA1"):
        raise DataError(file.address, "Feather V1 is not read", hint="Write it again as Feather V2")
    is_file = start.startswith(_MAGIC)
    first = _message(file, Block(8 if is_file else 0, 0, 0), -1)
    if first.kind != SCHEMA:
        raise DataError(
            file.address, "not an Arrow file or stream: it does not begin with a schema"
        )
    schema_end = (8 if is_file else 0) + first.head + first.body
    if is_file:
        tail, length = read_footer(file, magic=_MAGIC, name="Arrow")
        footer = tail.slice(tail.size - length - 10, length).to_pybytes()
        dictionaries, batches = footer_blocks(footer)
    else:
        dictionaries, batches = _follow(file, schema_end)
    preamble = file.read(8 if is_file else 0, schema_end).to_pybytes()
    try:
        schema = ipc.read_schema(pa.py_buffer(preamble))
    except (pa.ArrowException, OSError) as error:
        raise DataError(file.address, f"its Arrow schema cannot be read: {error}") from error
    for block in dictionaries:
        preamble += file.read(block.offset, block.offset + block.head + block.body).to_pybytes()
    return ArrowIndex(schema, preamble, tuple(sorted(batches)))


def _follow(file: ShardFile, at: int) -> tuple[list[Block], list[Block]]:
    """The dictionaries and batches of a stream, message by message from ``at`` on."""
    dictionaries: list[Block] = []
    batches: list[Block] = []
    while at < file.size:
        if head_length(file.read(at, at + 8).to_pybytes()) == (0, 0):
            break
        message = _message(file, Block(at, 0, 0), len(batches))
        block = Block(at, message.head, message.body)
        if message.kind == RECORD_BATCH:
            batches.append(block)
        elif message.kind == DICTIONARY and not batches:
            dictionaries.append(block)
        else:
            raise DataError(
                file.address,
                f"message of kind {message.kind} in mid-stream",
                place=f"byte {at}",
                hint="Streams that change their dictionaries are not read: write an Arrow file",
            )
        at += message.head + message.body
    return dictionaries, batches


def _message(file: ShardFile, block: Block, number: int) -> Message:
    """The head of the message at ``block.offset``; ``block.head`` is its length, 0: not known."""
    head = file.read(block.offset, block.offset + (block.head or _HEAD_STEP)).to_pybytes()
    needed = sum(head_length(head))
    if needed > len(head):
        head += file.read(block.offset + len(head), block.offset + needed).to_pybytes()
    try:
        return parse_message(head)
    except ValueError as error:
        place = f"byte {block.offset}" + (f", batch {number}" if number >= 0 else "")
        raise DataError(file.address, f"not Arrow, or cut short: {error}", place=place) from error


def _fields(index: ArrowIndex, file: ShardFile, spec: RecordSpec) -> list[int]:
    names = index.schema.names
    for name in spec.columns:
        if name not in names:
            raise missing_column(file.address, name, names)
    return [names.index(name) for name in spec.columns]


def _used_spans(index: ArrowIndex, message: Message, fields: list[int]) -> list[Span]:
    """The bytes of the body [0, body) that hold some columns."""
    spans = []
    for field in fields:
        buffers = buffer_range(index.schema, field)
        if buffers is None or buffers[1] > len(message.buffers):
            return [(0, message.body)]
        spans += [(at, at + length) for at, length in message.buffers[slice(*buffers)]]
    return merge_spans(spans, gap=64)


def _read_batch(
    file: ShardFile, index: ArrowIndex, number: int, fields: list[int], spec: RecordSpec
) -> tuple[pa.Table, int]:
    """The used columns of a batch, and the bytes that they take up as stored, head included."""
    block = index.batches[number]
    body_at = block.offset + block.head
    if body_at + block.body > file.size:
        raise DataError(file.address, f"cut short: {file.size} bytes", place=f"batch {number}")
    if set(fields) == set(range(len(index.schema))):
        whole = file.read(block.offset, body_at + block.body)
        head, body, used = whole.slice(0, block.head), whole.slice(block.head), block.body
    else:
        head = file.read(block.offset, body_at)
        spans = _used_spans(index, parse_message(head.to_pybytes()), fields)
        body, used = pa.allocate_buffer(block.body), total(spans)
        target = np.frombuffer(body, np.uint8)
        for begin, end in spans:
            target[begin:end] = np.frombuffer(file.read(body_at + begin, body_at + end), np.uint8)
    stream = _stream([pa.py_buffer(index.preamble), head, body])
    options = ipc.IpcReadOptions(included_fields=sorted(fields), use_threads=False)
    try:
        table = ipc.open_stream(stream, options=options).read_all()
        table.validate()
    except (pa.ArrowException, OSError, ValueError) as error:
        place = f"batch {number}"
        raise DataError(file.address, f"cannot be decoded: {error}", place=place) from error
    return table.select(list(spec.columns)), used + block.head


def _stream(parts: list[pa.Buffer]) -> pa.PythonFile:
    ends = np.cumsum([0] + [part.size for part in parts])
    pieces = [(int(at), part) for at, part in zip(ends[:-1], parts, strict=True)]
    return pa.PythonFile(PieceFile(int(ends[-1]), pieces, lambda *_: pa.py_buffer(b"")), mode="r")
