"""Ranged reads with retries, from local files, S3, Google Cloud Storage and what fsspec reaches.

All I/O of a reader goes through one ``Storage``. It counts what it reads, keeps a bounded number
of files open and of shard indexes in memory, and repeats a failed read up to ``read_attempts``
times. I/O errors come out as ``ReadError``; content is parsed from bytes that were already read, so
that a parser's error is always one of content and never of the network.

Environment: ``AWS_ENDPOINT_URL_S3`` or ``AWS_ENDPOINT_URL`` names an S3-compatible server,
``AWS_REGION`` and the usual ``AWS_`` credentials are those of the AWS SDK.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from meshfeed.pipeline.data.storage.backends import (
    ArrowBackend,
    Backend,
    Entry,
    FsspecBackend,
    s3_filesystem,
    split_scheme,
)
from meshfeed.pipeline.data.storage.cache import BoundedCache
from meshfeed.pipeline.plan.errors import ChangedError, ConfigError, MeshfeedError, ReadError

T = TypeVar("T")
_LONGEST_WAIT_S = 10.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """How storage is reached. Changes no row.

    Attributes:
        read_attempts: tries of one read before it is an error.
        backoff_s: wait before the second try; doubles with each further one, up to 10 s.
        read_timeout_s: connection and request limit where the store's client has one.
        max_open_files: open files of each kind at most, for this process.
        index_cache_bytes: footers and other shard indexes kept in memory.
        s3_endpoint: ``http(s)://host:port`` of an S3-compatible server; "": from the environment.
        s3_region: "": from the environment.
        anonymous: ask S3 and Google Cloud Storage without credentials (public buckets).
    """

    read_attempts: int = 5
    backoff_s: float = 0.25
    read_timeout_s: float = 60.0
    max_open_files: int = 32
    index_cache_bytes: int = 64 << 20
    s3_endpoint: str = ""
    s3_region: str = ""
    anonymous: bool = False

    def __post_init__(self) -> None:
        for setting in ("read_attempts", "max_open_files"):
            if getattr(self, setting) < 1:
                raise ConfigError(setting, f"{getattr(self, setting)} is below 1")
        if self.read_timeout_s <= 0 or self.backoff_s < 0:
            raise ConfigError("read_timeout_s", "times must be positive")


@dataclass(slots=True)
class StorageCounters:
    """What a ``Storage`` has done so far.

    Attributes:
        bytes_read: bytes that came from storage, read ahead and read twice included.
        reads: ranged reads that succeeded.
        retries: tries that failed and were repeated.
        listings: calls that list a folder.
    """

    bytes_read: int = 0
    reads: int = 0
    retries: int = 0
    listings: int = 0


class Storage:
    """The one way to storage of a process. Not for use from several threads at once."""

    def __init__(self, settings: ReadLimits | None = None) -> None:
        self.settings = settings or ReadLimits()
        self.counters = StorageCounters()
        self.indexes: BoundedCache[tuple[str, str], Any] = BoundedCache(
            max_items=4096, max_cost=self.settings.index_cache_bytes
        )
        self.handles: BoundedCache[tuple[str, str], Any] = BoundedCache(
            max_items=self.settings.max_open_files, on_evict=lambda handle: handle.close()
        )
        self._backends: dict[str, Backend] = {}

    def backend(self, address: str) -> tuple[Backend, str]:
        """The file system that holds ``address``, and the path as that file system takes it.

        Raises:
            ConfigError: no file system is known for the scheme, or its package is missing.
        """
        scheme, path = split_scheme(address)
        if scheme not in self._backends:
            self._backends[scheme] = self._make_backend(scheme)
        if isinstance(self._backends[scheme], FsspecBackend):
            import fsspec

            path = fsspec.get_filesystem_class(scheme)._strip_protocol(address)
        return self._backends[scheme], path

    def file(self, address: str, size: int | None = None) -> ShardFile:
        """A file to read ranges of; ``size`` in bytes saves a call where it is known.

        Raises:
            ReadError: ``size`` is None and the file is not there or cannot be reached.
        """
        backend, path = self.backend(address)
        if size is None:
            entry = self.retry(address, lambda: backend.stat(path))
            if entry is None:
                raise ReadError(address, 1, "there is no such file")
            size = entry.size
        return ShardFile(self, backend, address, path, size)

    def stat(self, address: str) -> Entry | None:
        """The file at an address, its path being its address; None where there is none."""
        backend, path = self.backend(address)
        entry = self.retry(address, lambda: backend.stat(path))
        return entry._replace(path=_readdress(address, entry.path)) if entry else None

    def files_in(self, folder: str, *, recursive: bool) -> list[Entry]:
        """The files in a folder, sorted by path; their paths are addresses."""
        backend, path = self.backend(folder)
        self.counters.listings += 1
        found = self.retry(
            folder, lambda: backend.files_in(path.rstrip("/") or path, recursive=recursive)
        )
        return sorted(e._replace(path=_readdress(folder, e.path)) for e in found)

    def retry(
        self, address: str, call: Callable[[], T], forget: Callable[[], None] | None = None
    ) -> T:
        """``call()``, repeated up to ``read_attempts`` times while it fails.

        Args:
            address: named in the error.
            call: what may fail.
            forget: called before a repetition, to drop what may be broken (an open file).

        Raises:
            ReadError: after the last try, or at once where the file is not there or not allowed.
        """
        attempts = self.settings.read_attempts
        for attempt in range(1, attempts + 1):
            try:
                return call()
            except MeshfeedError:
                raise
            except (FileNotFoundError, PermissionError) as error:
                raise ReadError(address, attempt, str(error)) from error
            except Exception as error:  # stores fail with classes of their own
                if forget is not None:
                    forget()
                if attempt == attempts:
                    raise ReadError(
                        address, attempts, f"{type(error).__name__}: {error}"
                    ) from error
                self.counters.retries += 1
                logger.warning(
                    "read %s failed, try %d of %d: %s", address, attempt, attempts, error
                )
                wait = min(self.settings.backoff_s * 2 ** (attempt - 1), _LONGEST_WAIT_S)
                time.sleep(wait * random.uniform(0.5, 1.0))
        raise AssertionError("unreachable: the last attempt returns or raises")

    def close(self) -> None:
        """Close all files and forget all indexes."""
        self.handles.clear()
        self.indexes.clear()
        for backend in self._backends.values():
            backend.close()

    def _make_backend(self, scheme: str) -> Backend:
        settings = self.settings
        if scheme == "":
            return ArrowBackend(pafs.LocalFileSystem(), settings.max_open_files)
        if scheme == "s3":
            s3 = s3_filesystem(
                endpoint=settings.s3_endpoint,
                region=settings.s3_region,
                anonymous=settings.anonymous,
                timeout_s=settings.read_timeout_s,
            )
            return ArrowBackend(s3, settings.max_open_files)
        if scheme == "gs":
            limit = timedelta(seconds=settings.read_timeout_s)
            gcs = pafs.GcsFileSystem(anonymous=settings.anonymous, retry_time_limit=limit)
            return ArrowBackend(gcs, settings.max_open_files)
        import fsspec

        try:
            return FsspecBackend(fsspec.filesystem(scheme))
        except (ImportError, ValueError) as error:
            raise ConfigError(
                "sources.data",
                f"no file system is known for {scheme}:// ({error})",
                "Install the fsspec package that it names, or use a local path, s3:// or gs://",
            ) from error


class ShardFile:
    """One file of a known size, read by ranges.

    Attributes:
        storage: where it comes from, with counters and caches.
        address: path or URI, as errors name it.
        path: as its backend takes it.
        size: bytes, as listed.
    """

    __slots__ = ("_backend", "address", "path", "size", "storage")

    def __init__(
        self, storage: Storage, backend: Backend, address: str, path: str, size: int
    ) -> None:
        self.storage = storage
        self._backend = backend
        self.address = address
        self.path = path
        self.size = size

    def read(self, begin: int, end: int) -> pa.Buffer:
        """Bytes [begin, end), clipped to the file's size.

        Raises:
            ReadError: storage failed in every try.
            ChangedError: the file has become shorter since it was listed.
        """
        begin, end = max(begin, 0), min(end, self.size)
        if end <= begin:
            return pa.py_buffer(b"")
        data = self.storage.retry(
            self.address,
            lambda: self._read_whole_range(begin, end),
            lambda: self._backend.forget(self.path),
        )
        self.storage.counters.reads += 1
        return data

    def etag(self) -> str:
        """Version or ETag where the store gives one, else ""."""
        return self.storage.retry(self.address, lambda: self._backend.etag(self.path))

    def index(self, kind: str, make: Callable[[], T], cost: Callable[[T], int]) -> T:
        """What ``make`` returns, kept in the storage's bounded cache of indexes."""
        return self.storage.indexes.get((kind, self.address), make, cost)  # type: ignore[no-any-return]

    def _read_whole_range(self, begin: int, end: int) -> pa.Buffer:
        data = self._backend.read(self.path, begin, end)
        self.storage.counters.bytes_read += data.size
        if data.size == end - begin:
            return data
        now = self._backend.stat(self.path)
        if now is not None and now.size < end:
            raise ChangedError(
                f"{self.address}: {now.size} bytes, but {self.size} when it was listed. "
                "The data set must not change during a run; start a new run for the new data"
            )
        raise OSError(f"{data.size} of {end - begin} bytes came at byte {begin}")


def _readdress(address: str, path: str) -> str:
    """The address of ``path``, a path of the backend that ``address`` belongs to."""
    scheme, separator, rest = address.partition("://")
    if not separator or scheme == "file" or path.startswith(scheme + "://"):
        return path
    return f"{scheme}://{path if rest.startswith('/') else path.lstrip('/')}"
