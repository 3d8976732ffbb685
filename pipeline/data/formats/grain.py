"""A Grain ``MapDataset`` or ``RandomAccessDataSource``, named as ``module:function``.

The function takes no arguments; its elements are mappings by column, text, bytes, or arrays of
integers. ``None`` is an element that the data set has filtered out. What the data set reads is not
seen here: bytes are those of its values.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from meshfeed.pipeline.data.formats.records import Ints
from meshfeed.pipeline.data.storage import Storage
from meshfeed.pipeline.plan.errors import ConfigError, DataError, MeshfeedError

_NAME = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")


def is_function_name(text: str) -> bool:
    """Whether this is ``module:function`` and not a path or an address."""
    return bool(_NAME.match(text))


class GrainShard:
    """See ``RecordShard``. The whole data set is one shard."""

    group = 1

    def __init__(self, storage: Storage, address: str) -> None:
        self.address = address
        self._storage = storage
        self._dataset = _load(address)
        try:
            self._count = len(self._dataset)
        except OverflowError:
            self._count = sys.maxsize
        if self._count >= 1 << 62:
            raise ConfigError(
                "sources.data",
                f"{address} repeats without end",
                "Leave .repeat() to the epochs setting",
            )

    def __len__(self) -> int:
        return self._count

    def values(self, indices: Sequence[int]) -> tuple[list[Any], Ints, int]:
        """See ``RecordShard``."""
        values, places, nbytes = [], [], 0
        for index in indices:
            value = self._storage.retry(self.address, partial(self._value, index))
            if value is not None:
                values.append(value)
                places.append(index)
                nbytes += _nbytes(value)
        return values, np.array(places, np.int64), nbytes

    def close(self) -> None:
        """See ``RecordShard``."""

    def _value(self, index: int) -> Any:
        """An element; I/O errors go to the caller, which repeats, any other is one of content."""
        try:
            return self._dataset[index]
        except (OSError, MeshfeedError):
            raise
        except Exception as error:
            raise DataError(
                self.address, f"{type(error).__name__}: {error}", place=f"record {index}"
            ) from error


def open_shard(storage: Storage, address: str) -> GrainShard:
    """The data set, made once and kept in the storage's bounded cache.

    Raises:
        ConfigError: the name does not lead to a data set with a length and elements by index.
    """
    key = ("grain", address)
    return storage.handles.get(key, lambda: GrainShard(storage, address))  # type: ignore[no-any-return]


def _load(name: str) -> Any:
    module, _, function = name.partition(":")
    try:
        made = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(
            "sources.data",
            f"{name!r} cannot be loaded: {error}",
            "Write module:function, with the module on PYTHONPATH of every node",
        ) from error
    if not (hasattr(made, "__len__") and hasattr(made, "__getitem__")):
        raise ConfigError(
            "sources.data",
            f"{name} returned {type(made).__name__}, which has no length or no elements by index",
            "Return a grain.MapDataset or a RandomAccessDataSource",
        )
    return made


def _nbytes(value: Any) -> int:
    if isinstance(value, dict):
        return sum(_nbytes(v) for v in value.values())
    if isinstance(value, str):
        return len(value.encode(errors="replace"))
    if isinstance(value, bytes):
        return len(value)
    return int(getattr(value, "nbytes", 8))
