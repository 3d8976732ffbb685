"""A global batch of made-up documents, packed and derived as those of a run are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.data.batches.leaves import derive
from meshfeed.pipeline.data.batches.regions import cut_region, view_region
from meshfeed.pipeline.data.packing.blocks import BlockFormat
from meshfeed.pipeline.data.packing.pack import pack
from meshfeed.pipeline.plan.config import Packing

_DOCUMENTS_A_ROW = 3


def made_up_batch(
    rows: int, seq_len: int, vocab_size: int, seed: int = 0
) -> dict[str, npt.NDArray[Any]]:
    """Leaves [rows, seq_len] by meshfeed's names, about three documents to a row.

    Args:
        rows: of the global batch.
        seq_len: tokens in a row.
        vocab_size: ids are below it.
        seed: of lengths and ids.
    """
    random = np.random.default_rng(seed)
    tokens = rows * seq_len + 1
    mean = max(seq_len // _DOCUMENTS_A_ROW, 1)
    lengths = random.integers(1, 2 * mean + 1, size=2 * (tokens // mean + 1))
    ends = np.minimum(np.cumsum(lengths), tokens)
    offsets = np.unique(np.concatenate([[0], ends, [tokens]]))
    format = BlockFormat(seq_len=seq_len)
    ids = random.integers(0, vocab_size, size=tokens, dtype=np.int32)
    block = pack(ids, offsets, format=format, packing=Packing.CONCAT).block
    region = cut_region([block], np.zeros(rows, int), np.arange(rows), 0, seq_len, format=format)
    return derive(view_region(region, format, rows, seq_len))
