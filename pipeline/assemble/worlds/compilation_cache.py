"""JAX's persistent compilation cache, so that every process of every world can use and fill it.

An executable does not survive the end of its world, and compiling again is most of what a resize
costs. JAX's own cache is written by process 0 alone, only for programs that took a second to
compile, and in place, so that a reader may find half a file. On CPU that helps no one but process
0: the key of a program depends on the process that it is compiled for. Here every process writes
what it has compiled, whatever its size, and a file is there as a whole or not at all. Who takes a
place in a world as large as an earlier one finds what was compiled for that place.

What is in the cache is code that will be run: the folder must be writable by its owner alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.monitoring

from meshfeed.pipeline.assemble.worlds import private_jax
from meshfeed.pipeline.assemble.worlds.environment import limit_collectives
from meshfeed.pipeline.plan.errors import ConfigError

logger = logging.getLogger(__name__)

REQUESTS = "/jax/compilation_cache/compile_requests_use_cache"
HITS = "/jax/compilation_cache/cache_hits"

_totals = {REQUESTS: 0, HITS: 0}
_lock = threading.Lock()
_enabled: Path | None = None


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """What this process asked of the cache since it was enabled.

    Attributes:
        hits: programs that were found.
        misses: programs that were compiled.
    """

    hits: int
    misses: int

    def since(self, earlier: CacheCounts) -> CacheCounts:
        """What came after ``earlier``."""
        return CacheCounts(self.hits - earlier.hits, self.misses - earlier.misses)


def cache_counts() -> CacheCounts:
    """The counts of now."""
    with _lock:
        return CacheCounts(_totals[HITS], _totals[REQUESTS] - _totals[HITS])


def enable_compilation_cache(folder: str | os.PathLike[str]) -> None:
    """Uses the cache in ``folder`` from now on, in all worlds of this process.

    Args:
        folder: one for all processes of a node, or of the run where the file system is shared. It
            is made if it is not there.

    Raises:
        ConfigError: others may write to the folder, or this version of JAX cannot.
    """
    global _enabled
    if (reason := private_jax.missing()) is not None:
        raise ConfigError("compilation cache", reason)
    limit_collectives()  # the flags are part of the keys
    path = Path(folder).resolve()
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = path.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            "compilation cache",
            f"{path} belongs to user {found.st_uid}, mode {stat.filemode(found.st_mode)}, so that "
            "others could let this process run their code",
            "Give a folder that only its owner may write to",
        )
    if _enabled is None:
        jax.monitoring.register_event_listener(_count)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    private_jax.use_cache(WholeFiles(path))
    _enabled = path
    logger.info("compiled programs are kept in %s", path)


class WholeFiles:
    """A cache of files that appear as a whole. What JAX asks of a cache is ``get`` and ``put``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> bytes | None:
        """What was put under the key."""
        try:
            return self._file(key).read_bytes()
        except FileNotFoundError:
            return None

    def put(self, key: str, value: bytes) -> None:
        """Keeps the value; the first one for a key stays."""
        file = self._file(key)
        if file.exists():
            return
        partial = file.with_name(f".{os.getpid()}-{secrets.token_hex(4)}.partial")
        try:
            partial.write_bytes(value)
            partial.replace(file)
        finally:
            partial.unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        return self._folder / f"{key}-cache"


@contextlib.contextmanager
def foreseen_devices(process_count: int, process_index: int, devices: int) -> Iterator[list[Any]]:
    """The devices of a world that does not exist yet, as one of its processes sees them.

    ::

        with foreseen_devices(process_count=3, process_index=0, devices=2) as future:
            mesh = Mesh(np.array(future).reshape(3, 2), ("data", "model"))
            train_step.lower(*shapes_on(mesh)).compile()   # now in the compilation cache

    Nothing can be run on them; they take about 0.1 s to make. JAX's key of a program on CPU depends
    on the process for which it is compiled, so each process compiles for the place that it will
    have. One that trains may do so in another thread.

    Args:
        process_count: of the world.
        process_index: the place that this process will have in it.
        devices: CPU devices of each process.

    Raises:
        ConfigError: no compilation cache is enabled, or this version of JAX cannot.
    """
    if _enabled is None:
        raise ConfigError(
            "compilation cache", "none is enabled", "Call enable_compilation_cache first"
        )
    with private_jax.pretended_world(process_count, process_index, devices) as future:
        yield future


def _count(event: str, **_: Any) -> None:
    if event in _totals:
        with _lock:
            _totals[event] += 1
