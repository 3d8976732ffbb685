"""What a file system must answer: list, stat, read a range. One class for each way to reach it.

``ArrowBackend`` goes through ``pyarrow.fs`` (local files, S3, Google Cloud Storage);
``FsspecBackend`` through fsspec, for every other scheme (``memory://``, ``hf://``, ``https://``).
Neither retries: that is done in one place, ``meshfeed.pipeline.data.storage``.
"""

from __future__ import annotations

import os
import posixpath
import re
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from meshfeed.pipeline.data.storage.cache import BoundedCache
from meshfeed.pipeline.plan.errors import ConfigError

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.\-]*)://")


class Entry(NamedTuple):
    """A file as a listing gives it; ``path`` as its backend takes it, ``size`` in bytes."""

    path: str
    size: int
    etag: str = ""


class Backend(Protocol):
    """A file system: paths without scheme in, entries and bytes out."""

    def stat(self, path: str) -> Entry | None:
        """The file at ``path``; None where there is no file (also for a folder)."""

    def files_in(self, folder: str, *, recursive: bool) -> list[Entry]:
        """The files in ``folder``, in any order; empty where there is no such folder."""
        ...

    def read(self, path: str, begin: int, end: int) -> pa.Buffer:
        """Bytes [begin, end) of a file, fewer where it ends before."""

    def etag(self, path: str) -> str:
        """Version or ETag of a file where the store gives one, else ""."""
        ...

    def close(self) -> None:
        """Close all files that are still open."""

    def forget(self, path: str) -> None:
        """Close one file, so that the next read opens it again."""


class ArrowBackend:
    """A ``pyarrow.fs`` file system with a bounded number of open files."""

    def __init__(self, filesystem: pafs.FileSystem, max_open_files: int) -> None:
        self._fs = filesystem
        self._files: BoundedCache[str, Any] = BoundedCache(
            max_items=max_open_files, on_evict=lambda file: file.close()
        )

    def stat(self, path: str) -> Entry | None:
        """See ``Backend``."""
        info = self._fs.get_file_info(path)
        return Entry(path, info.size) if info.type == pafs.FileType.File else None

    def files_in(self, folder: str, *, recursive: bool) -> list[Entry]:
        """See ``Backend``."""
        selector = pafs.FileSelector(folder, allow_not_found=True, recursive=recursive)
        found = self._fs.get_file_info(selector)
        return [Entry(i.path, i.size) for i in found if i.type == pafs.FileType.File]

    def read(self, path: str, begin: int, end: int) -> pa.Buffer:
        """See ``Backend``."""
        file = self._open(path)
        file.seek(begin)
        return file.read_buffer(end - begin)

    def etag(self, path: str) -> str:
        """See ``Backend``."""
        if isinstance(self._fs, pafs.LocalFileSystem):
            return ""
        metadata = self._open(path).metadata() or {}
        for key in ("ETag", "generation", "etag"):
            if key in metadata:
                return str(metadata[key].decode()).strip('"')
        return ""

    def close(self) -> None:
        """See ``Backend``."""
        self._files.clear()

    def forget(self, path: str) -> None:
        """See ``Backend``."""
        self._files.drop(path)

    def _open(self, path: str) -> Any:
        return self._files.get(path, lambda: self._fs.open_input_file(path))


class FsspecBackend:
    """An fsspec file system, asked for single ranges: its own read-ahead would read more."""

    def __init__(self, filesystem: Any) -> None:
        self._fs = filesystem

    def stat(self, path: str) -> Entry | None:
        """See ``Backend``."""
        try:
            info = self._fs.info(path)
        except FileNotFoundError:
            return None
        return _entry(info) if info["type"] == "file" else None

    def files_in(self, folder: str, *, recursive: bool) -> list[Entry]:
        """See ``Backend``."""
        depth = None if recursive else 1
        found = self._fs.find(folder, maxdepth=depth, detail=True)
        return [_entry(info) for info in found.values() if info["type"] == "file"]

    def read(self, path: str, begin: int, end: int) -> pa.Buffer:
        """See ``Backend``."""
        return pa.py_buffer(self._fs.cat_file(path, start=begin, end=end))

    def etag(self, path: str) -> str:
        """See ``Backend``."""
        entry = self.stat(path)
        return entry.etag if entry else ""

    def close(self) -> None:
        """See ``Backend``."""

    def forget(self, path: str) -> None:
        """See ``Backend``."""
        self._fs.invalidate_cache(posixpath.dirname(path))


def _entry(info: dict[str, Any]) -> Entry:
    tag = next((info[k] for k in ("ETag", "etag", "generation", "version_id") if info.get(k)), "")
    return Entry(info["name"], int(info["size"] or 0), str(tag).strip('"'))


def split_scheme(address: str) -> tuple[str, str]:
    """``s3://bucket/key`` -> ("s3", "bucket/key"); a local path -> ("", absolute path)."""
    match = _SCHEME.match(address)
    if match is None:
        return "", os.path.abspath(os.path.expanduser(address))
    scheme, rest = match.group(1).lower(), address[match.end() :]
    if scheme == "file":
        return "", os.path.abspath("/" + rest.lstrip("/"))
    return {"s3a": "s3", "gcs": "gs"}.get(scheme, scheme), rest


def s3_filesystem(
    *, endpoint: str, region: str, anonymous: bool, timeout_s: float
) -> pafs.S3FileSystem:
    """An S3 file system that leaves retries to its caller.

    Args:
        endpoint: ``http(s)://host[:port]``; "" takes ``AWS_ENDPOINT_URL_S3``, then
            ``AWS_ENDPOINT_URL``, then Amazon's own.
        region: "" takes ``AWS_REGION``, then ``AWS_DEFAULT_REGION``, then ``us-east-1`` where an
            endpoint is given (such servers ask for any), else what the SDK finds.
        anonymous: do not sign requests (public buckets).
        timeout_s: for connecting and for a request.
    """
    given = [endpoint, os.environ.get("AWS_ENDPOINT_URL_S3"), os.environ.get("AWS_ENDPOINT_URL")]
    where = next((e for e in given if e), "")
    regions = [region, os.environ.get("AWS_REGION"), os.environ.get("AWS_DEFAULT_REGION")]
    options: dict[str, Any] = {
        "region": next((r for r in regions if r), "us-east-1" if where else None),
        "anonymous": anonymous,
        "request_timeout": timeout_s,
        "connect_timeout": min(timeout_s, 10.0),
        "retry_strategy": pafs.AwsStandardS3RetryStrategy(max_attempts=1),
    }
    if where:
        scheme, separator, host = where.partition("://")
        if not separator or scheme not in ("http", "https"):
            raise ConfigError(
                "s3_endpoint",
                f"{where!r} is not an address",
                "Write http://host:port or https://host",
            )
        options |= {"endpoint_override": host.rstrip("/"), "scheme": scheme}
    return pafs.S3FileSystem(**options)
