"""The bare tokenizers: a list of strings in, flat ids and offsets out, on one thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int64]
Encode = Callable[[list[str]], tuple[Ids, Offsets]]


def reference(path: Path) -> Encode:
    """Hugging Face tokenizers; ids are taken out of its objects, which a feed has to do too."""
    bare = reference_objects(path)

    def encode(texts: list[str]) -> tuple[Ids, Offsets]:
        each = [np.array(encoding.ids, np.int32) for encoding in bare(texts)]
        lengths = [len(ids) for ids in each]
        return np.concatenate(each), np.cumsum([0, *lengths], dtype=np.int64)

    return encode


def reference_objects(path: Path) -> Callable[[list[str]], list[Any]]:
    """Hugging Face tokenizers as it is: the list of its encodings."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    return lambda texts: tokenizer.encode_batch_fast(texts, add_special_tokens=False)


def fast(path: Path) -> Encode:
    """fastokens, whose thread pool is as large as the processors it may use when it starts."""
    import fastokens

    with _one_processor():
        tokenizer = fastokens.Tokenizer.from_file(str(path))
        tokenizer.encode_batch_flat(["start", "the", "pool"])

    def encode(texts: list[str]) -> tuple[Ids, Offsets]:
        ids, offsets = tokenizer.encode_batch_flat(texts)
        return np.frombuffer(ids, np.int32), np.frombuffer(offsets, np.int64)

    return encode


def quickest(path: Path) -> Encode:
    """The fast engine where it is installed, else the reference."""
    return fast(path) if find_spec("fastokens") else reference(path)


@contextmanager
def _one_processor() -> Iterator[None]:
    """Threads that are started within see one processor, and may use all of them afterwards."""
    os.environ["RAYON_NUM_THREADS"] = "1"
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), allowed)
