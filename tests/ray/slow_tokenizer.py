"""A tokenizer that is slow in one process: for tests that ask whether a run says which."""

from __future__ import annotations

import os
import time
from typing import Any

import pyarrow as pa

from meshfeed.pipeline.data.tokenizers import TokenBatch
from meshfeed.pipeline.data.tokenizers.raw_bytes import ByteTokenizer
from meshfeed.pipeline.data.transforms import vectorized

SECONDS = 0.05

_decided: list[bool] = []


@vectorized
def slow_in_one_process(table: pa.Table) -> pa.Table:
    """Changes no record. The first process to come here, for a path that the records begin with,
    leaves its id there and tokenizes 50 ms slower from then on."""
    if not _decided:
        path = str(table["text"][0]).split(" ", 1)[0]
        try:
            with open(path, "x") as file:
                file.write(str(os.getpid()))
            _decided.append(True)
            _make_slow()
        except FileExistsError:
            _decided.append(False)
    return table


def _make_slow() -> None:
    encode = ByteTokenizer.encode

    def slower(self: ByteTokenizer, texts: Any) -> TokenBatch:
        time.sleep(SECONDS)
        return encode(self, texts)

    ByteTokenizer.encode = slower  # type: ignore[method-assign]
