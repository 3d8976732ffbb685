"""Local-slice assembly against memcpy: ``python -m benchmarks.assembly``.

Real rows of 2,048 tokens lie in blocks, as windows leave them. A host fetches a stretch of steps at
once: *cut* makes the flat region that travels, *leaves* the five arrays of each of its batches
``[16, 2048]``, and *slice* is both. Each is held against copying as many bytes as it writes, from
memory that is not in the cache either, in turns of a few milliseconds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks import corpus, meter, shards
from benchmarks.baselines import BATCH
from meshfeed.pipeline.data.batches.leaves import derive
from meshfeed.pipeline.data.batches.regions import cut_region, region_nbytes, view_region
from meshfeed.pipeline.data.packing.blocks import BlockFormat, RowBlock
from meshfeed.pipeline.data.packing.pack import pack
from meshfeed.pipeline.plan.config import LEAVES, Packing

STEPS = 64
"""In a stretch: 4 MB of two-byte tokens."""

_ROWS = STEPS * BATCH


def load_blocks(prepared: corpus.Corpus, format: BlockFormat) -> list[RowBlock]:
    """A block for each row group of the tokenized documents."""
    blocks = []
    for path in prepared.files("tokens"):
        file = pq.ParquetFile(str(path))
        for group in range(file.num_row_groups):
            lists = file.read_row_group(group)["tokens"].combine_chunks()
            ids, offsets = lists.values.to_numpy(), lists.offsets.to_numpy()
            blocks.append(pack(ids, offsets, format=format, packing=Packing.CONCAT).block)
    return blocks


class Assembly:
    """Stretch after stretch over all blocks; each method does one stretch's work.

    They return bytes written.
    """

    def __init__(self, blocks: list[RowBlock], format: BlockFormat) -> None:
        self._format = format
        self._blocks = blocks
        self._block_of_row = np.repeat(np.arange(len(blocks)), [block.rows for block in blocks])
        self._row = np.concatenate([np.arange(block.rows) for block in blocks])
        self._at = 0
        self._region = np.empty(region_nbytes(format, _ROWS, format.seq_len), np.uint8)
        shape = (BATCH, format.seq_len)
        self._leaves = {
            name: np.empty(shape, np.float32 if name == "loss_weights" else np.int32)
            for name in LEAVES
        }
        self._memory = np.concatenate([block.buffer for block in blocks])
        self._memory_at = 0
        self._leaf_bytes = sum(leaf.nbytes for leaf in self._leaves.values())
        self._copied = np.empty(max(self._region.nbytes, self._leaf_bytes), np.uint8)
        self.cut()

    def cut(self) -> int:
        """The region of the next stretch out of its blocks."""
        if self._at + _ROWS > len(self._row):
            self._at = 0
        rows = slice(self._at, self._at + _ROWS)
        self._at += _ROWS
        which = self._block_of_row[rows]
        first = which[0]
        cut_region(
            self._blocks[first : which[-1] + 1],
            which - first,
            self._row[rows],
            0,
            self._format.seq_len,
            out=self._region,
            format=self._format,
        )
        return self._region.nbytes

    def leaves(self) -> int:
        """The five leaves of each step of the stretch that was cut last."""
        whole = view_region(self._region, self._format, _ROWS, self._format.seq_len)
        for begin in range(0, _ROWS, BATCH):
            rows = slice(begin, begin + BATCH)
            derive(
                replace(
                    whole,
                    header=whole.header[rows],
                    tokens=whole.tokens[rows],
                    starts=whole.starts[rows],
                ),
                out=self._leaves,
            )
        return self._leaf_bytes * STEPS

    def copy_cut(self) -> int:
        """As many bytes as a region has."""
        return self._copy(self._region.nbytes)

    def copy_leaves(self) -> int:
        """As many bytes as the leaves of a stretch have, step by step."""
        return sum(self._copy(self._leaf_bytes) for _ in range(STEPS))

    def slice(self) -> int:
        """Cut and leaves: all that happens between blocks and the arrays of batches."""
        return self.cut() + self.leaves()

    def copy_slice(self) -> int:
        """As many bytes as both."""
        return self.copy_cut() + self.copy_leaves()

    def _copy(self, nbytes: int) -> int:
        if self._memory_at + nbytes > len(self._memory):
            self._memory_at = 0
        source = self._memory[self._memory_at : self._memory_at + nbytes]
        self._memory_at += nbytes
        np.copyto(self._copied[:nbytes], source)
        return nbytes


def _turns(
    work: dict[str, Callable[[], int]], seconds: float
) -> dict[str, list[tuple[int, float]]]:
    """(bytes written, seconds) of each piece of work, in turns that follow each other."""
    turns: dict[str, list[tuple[int, float]]] = {name: [] for name in work}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for name, do in work.items():
            began = time.perf_counter()
            written = do()
            turns[name].append((written, time.perf_counter() - began))
    return turns


def measure(prepared: corpus.Corpus, seconds: float) -> dict[str, Any]:
    """Bytes/s, microseconds a step and ratios of cutting, of deriving leaves, and of both."""
    format = BlockFormat.for_vocab(shards.SEQ_LEN, shards.VOCAB_SIZE)
    assembly = Assembly(load_blocks(prepared, format), format)
    work: dict[str, Callable[[], int]] = {
        "cut": assembly.cut,
        "copy_cut": assembly.copy_cut,
        "leaves": assembly.leaves,
        "copy_leaves": assembly.copy_leaves,
        "slice": assembly.slice,
        "copy_slice": assembly.copy_slice,
    }
    done = _turns(work, seconds)
    figures: dict[str, Any] = {}
    for name, turns in done.items():
        step = statistics.median(took for _, took in turns) / STEPS
        figures[f"{name}_us"] = round(step * 1e6, 1)
        figures[f"{name}_gb_per_s"] = round(turns[0][0] / STEPS / step / 1e9, 2)
    for name in ("cut", "leaves", "slice"):
        pairs = zip(done[name], done[f"copy_{name}"], strict=True)
        figures[f"{name}_to_memcpy"] = round(
            statistics.median(copied[1] / took[1] for took, copied in pairs), 3
        )
    tokens = STEPS * BATCH * shards.SEQ_LEN
    took = statistics.median(took for _, took in done["slice"])
    return figures | {"tokens_per_s": round(tokens / took)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--cache", type=Path)
    args = parser.parse_args()
    meter.report("assembly", measure(corpus.load(args.cache), args.seconds))


if __name__ == "__main__":
    main()
