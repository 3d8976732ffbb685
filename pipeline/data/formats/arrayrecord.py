"""ArrayRecord: a record is UTF-8 text, or a serialized ``tf.train.Example`` with the used columns.

Read through the ``array_record`` package, which takes local files only and starts a pool of idle
threads, once for the process. Open readers are kept in the storage's bounded cache.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshfeed.pipeline.data.formats.records import Ints
from meshfeed.pipeline.data.formats.tf_example import parse_example
from meshfeed.pipeline.data.storage import Storage
from meshfeed.pipeline.data.storage.backends import split_scheme
from meshfeed.pipeline.plan.errors import ConfigError, DataError, ReadError

# One record at a time, without reading ahead: the reader decides itself what it reads.
_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_CONTENT = re.compile(r"Corrupted|hash mismatch|Invalid|Decompressi|DATA_LOSS|out of bound", re.I)


class ArrayRecordShard:
    """See ``RecordShard``."""

    def __init__(self, storage: Storage, address: str) -> None:
        self.address = address
        self._storage = storage
        entry = storage.stat(address)
        if entry is None:
            raise ReadError(address, 1, "there is no such file")
        self._bytes = entry.size
        self._reader = _open(address) if entry.size else None
        self._count = self._reader.num_records() if self._reader else 0
        options = self._reader.writer_options_string() if self._reader else ""
        found = re.search(r"group_size:(\d+)", options)
        self.group = int(found.group(1)) if found else 1

    def __len__(self) -> int:
        return self._count

    def values(self, indices: Sequence[int]) -> tuple[list[Any], Ints, int]:
        """See ``RecordShard``."""
        reader = self._reader
        if reader is None or not len(indices):
            return [], np.empty(0, np.int64), 0

        def read() -> list[bytes]:
            try:
                return list(reader.read(list(indices)))
            except RuntimeError as error:
                if _CONTENT.search(str(error)):
                    raise DataError(
                        self.address,
                        f"cannot be decoded: {error}",
                        place=f"records {min(indices)}..{max(indices)}",
                    ) from error
                raise

        raw = self._storage.retry(self.address, read)
        share = self._bytes * len(indices) // max(self._count, 1)
        return [_value(record) for record in raw], np.array(indices, np.int64), share

    def close(self) -> None:
        """See ``RecordShard``."""
        if self._reader is not None:
            self._reader.close()


def open_shard(storage: Storage, address: str) -> ArrayRecordShard:
    """A shard, kept open in the storage's bounded cache.

    Raises:
        ConfigError: the package is not installed, or the shard is not a local file.
        DataError: not an ArrayRecord file.
        ReadError: there is no such file.
    """
    key = ("arrayrecord", address)
    return storage.handles.get(key, lambda: ArrayRecordShard(storage, address))  # type: ignore[no-any-return]


def _open(address: str) -> Any:
    scheme, path = split_scheme(address)
    if scheme:
        raise ConfigError(
            "sources.data",
            f"{address}: ArrayRecord is read from local files only",
            "Mount the bucket or copy the files, or use Parquet",
        )
    try:
        from array_record.python.array_record_module import ArrayRecordReader
    except ImportError as error:
        raise ConfigError(
            "sources.format",
            "arrayrecord needs the array_record package",
            "pip install 'meshfeed[arrayrecord]'",
        ) from error
    reader = ArrayRecordReader(path, _OPTIONS)
    if not reader.ok():
        raise DataError(
            address,
            "not a whole ArrayRecord file",
            hint="It may be cut short or be of another format",
        )
    return reader


def _value(record: bytes) -> Any:
    example = parse_example(record)
    return record if example is None else example
