"""The corpus as files: Parquet, JSONL, a tokenizer, token ids by document and in packed rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import zstandard
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks import encoders

ROW_GROUP_BYTES = 2 << 20
VOCAB_SIZE = 32_768
END_TOKEN = "<|endoftext|>"
SEQ_LEN = 2048
ROWS_A_BATCH = 256
_TRAINING_BYTES = 24 << 20
_ZSTD_LEVEL = 3
_DOCUMENTS_A_CALL = 64


def _pieces(texts: pa.ChunkedArray, size: int) -> Iterator[pa.ChunkedArray]:
    """Consecutive documents of about ``size`` bytes of UTF-8."""
    ends = np.cumsum(pc.binary_length(texts).to_numpy())
    begin = 0
    for end in [*np.flatnonzero(np.diff(ends // size)) + 1, len(texts)]:
        if end > begin:
            yield texts.slice(begin, end - begin)
        begin = end


def _shards(texts: pa.ChunkedArray, num_shards: int) -> Iterator[pa.ChunkedArray]:
    total = int(pc.sum(pc.binary_length(texts)).as_py())
    yield from _pieces(texts, -(-total // num_shards))


def write_parquet(texts: pa.ChunkedArray, folder: Path, num_shards: int) -> None:
    """One column ``text``, zstd, row groups of about ``ROW_GROUP_BYTES``."""
    folder.mkdir()
    schema = pa.schema([("text", pa.string())])
    for number, shard in enumerate(_shards(texts, num_shards)):
        path = str(folder / f"{number:05d}.parquet")
        with pq.ParquetWriter(
            path, schema, compression="zstd", compression_level=_ZSTD_LEVEL, use_dictionary=False
        ) as writer:
            for group in _pieces(shard, ROW_GROUP_BYTES):
                writer.write_table(pa.table([group], schema), row_group_size=len(group))


def write_jsonl(texts: pa.ChunkedArray, folder: Path, num_shards: int) -> None:
    """The same documents as ``{"text": ...}`` lines in ``.jsonl.zst`` files."""
    folder.mkdir()
    for number, shard in enumerate(_shards(texts, num_shards)):
        compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, threads=os.cpu_count() or 1)
        with (
            open(folder / f"{number:05d}.jsonl.zst", "wb") as file,
            compressor.stream_writer(file) as writer,
        ):
            for text in shard.to_pylist():
                writer.write(orjson.dumps({"text": text}) + b"\n")


def train_tokenizer(texts: pa.ChunkedArray, path: Path) -> None:
    """A byte-level BPE with GPT-2's pattern and no normalizer; every n-th document is read."""
    total = int(pc.sum(pc.binary_length(texts)).as_py())
    every = max(1, total // _TRAINING_BYTES)
    sample = texts.take(pa.array(np.arange(0, len(texts), every))).to_pylist()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample, trainer, length=len(sample))
    tokenizer.save(str(path))


def write_tokens(text_folder: Path, folder: Path, root: Path) -> None:
    """``list<int32>`` for every document of every Parquet shard, with its end token."""
    folder.mkdir()
    jobs = [
        (path, root / "tokenizer.json", folder / path.name)
        for path in sorted(text_folder.iterdir())
    ]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for _ in pool.map(_tokenize_shard, jobs):
            pass


def _tokenize_shard(job: tuple[Path, Path, Path]) -> None:
    text_path, tokenizer, path = job
    encode = encoders.quickest(tokenizer)
    schema = pa.schema([("tokens", pa.list_(pa.int32()))])
    with pq.ParquetWriter(str(path), schema, compression="zstd", use_dictionary=False) as writer:
        file = pq.ParquetFile(str(text_path))
        for group in range(file.num_row_groups):
            texts = file.read_row_group(group).column(0).to_pylist()
            calls = [
                encode(texts[at : at + _DOCUMENTS_A_CALL])
                for at in range(0, len(texts), _DOCUMENTS_A_CALL)
            ]
            lengths = np.concatenate([np.diff(offsets) for _, offsets in calls])
            ids = _with_end(np.concatenate([ids for ids, _ in calls]), lengths)
            offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths + 1)])
            lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(ids))
            writer.write_table(pa.table([lists], schema), row_group_size=len(lists))


def _with_end(ids: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """End token (id 0) after each document: int32[ids] -> int32[ids + documents]."""
    out = np.zeros(len(ids) + len(lengths), np.int32)
    is_id = np.ones(len(out), bool)
    is_id[np.cumsum(lengths + 1) - 1] = False
    out[is_id] = ids
    return out


def write_rows(token_folder: Path, folder: Path) -> None:
    """The token ids of each shard cut into rows ``[2048]``; the last, short row is left out."""
    folder.mkdir()
    schema = pa.schema([("tokens", pa.list_(pa.int32(), SEQ_LEN))])
    for path in sorted(token_folder.iterdir()):
        ids = pq.read_table(str(path))["tokens"].combine_chunks().flatten()
        whole = len(ids) // SEQ_LEN * SEQ_LEN
        rows = pa.FixedSizeListArray.from_arrays(ids.slice(0, whole), SEQ_LEN)
        with pa.ipc.new_file(str(folder / f"{path.stem}.arrow"), schema) as writer:
            writer.write_table(pa.table([rows], schema), max_chunksize=ROWS_A_BATCH)


def read_rows(folder: Path) -> npt.NDArray[np.int32]:
    """All packed rows in memory: int32 ``[rows, 2048]``."""
    parts = []
    for path in sorted(folder.iterdir()):
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        for chunk in table["tokens"].chunks:
            parts.append(chunk.flatten().to_numpy().reshape(-1, SEQ_LEN))
    return np.concatenate(parts)


def count_tokens(folder: Path) -> int:
    """Token ids in the files that ``write_tokens`` made."""
    tables = (pq.read_table(str(path))["tokens"] for path in sorted(folder.iterdir()))
    return sum(int(pc.sum(pc.list_value_length(lists)).as_py() or 0) for lists in tables)
