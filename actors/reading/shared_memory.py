"""Row blocks in shared memory: one file a window, in one folder a node server.

Each folder is locked while its node server lives, so that two runs never touch each other, and what
a killed server left behind is recognised by its free lock and removed at the next start of any run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from meshfeed.pipeline.data.packing.blocks import RowBlock
from meshfeed.pipeline.plan.feed_state import WindowKey

ROOT = Path("/dev/shm")
STAGE_BYTES = 512
SPARE = "spare"


class NodeFolder:
    """The shared-memory folder of one node server, held by a lock."""

    def __init__(self, run_id: str, root: Path = ROOT) -> None:
        remove_leftovers(root)
        name = f"meshfeed-{run_id}-{os.getpid()}-{time.monotonic_ns()}"
        made = root / f".{name}"  # until it is locked, so that nobody takes it for a leftover
        made.mkdir(mode=0o700)
        self._lock = (made / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = made.rename(root / name)

    def close(self) -> None:
        """Removes the folder and everything in it.

        Under another name, so that a reader which is only just ending cannot add to it meanwhile.
        """
        gone = self.path.with_name(f"{self.path.name}-gone")
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
        self._lock.close()


def remove_leftovers(root: Path = ROOT) -> list[Path]:
    """Removes folders whose node server is gone, of whichever run; gives what it removed."""
    removed = []
    for folder in root.glob("meshfeed-*"):
        try:
            with (folder / "lock").open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            continue  # its server lives, or it is another user's
        except FileNotFoundError:
            pass  # a removal that was cut short
        shutil.rmtree(folder, ignore_errors=True)
        removed.append(folder)
    return removed


def block_path(folder: Path, feed: str, key: WindowKey) -> Path:
    """Where the block of a window lies."""
    name = feed.replace("/", "~")
    return folder / f"{name}.{key.source}.{key.epoch}.{key.window}.rows"


class BlockFile:
    """A block being written: laid where other processes will map it, there whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.nbytes = 0
        self.digest = 0
        self._view = memoryview(b"")
        self._path = path
        self._partial = path.with_suffix(f".{os.getpid()}.partial")

    def allocate(self, nbytes: int) -> memoryview:
        """Writable memory of the file."""
        self.nbytes = nbytes
        _take_spare(self._path.parent, self._partial)
        with self._partial.open("ab+") as file:
            file.truncate(nbytes)
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            self._view = memoryview(mmap.mmap(file.fileno(), nbytes, flags))
        return self._view

    def commit(self) -> None:
        """The block is whole."""
        self.digest = xxhash.xxh3_64_intdigest(self._view)
        self._partial.rename(self._path)

    def discard(self) -> None:
        """The block failed."""
        self._partial.unlink(missing_ok=True)


def spare_block(path: Path, keep: int) -> None:
    """A block that nobody needs: its memory serves another, unless ``keep`` spares are there.

    Memory that was touched before costs a tenth of what new memory does.
    """
    folder = path.parent / SPARE
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if len(os.listdir(folder)) < keep:
            path.rename(folder / path.name)
        else:
            path.unlink()


def _take_spare(folder: Path, target: Path) -> None:
    """Moves some spare block to ``target``, if there is one; readers race for them."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(folder / SPARE):
            with contextlib.suppress(FileNotFoundError):
                (folder / SPARE / name).rename(target)
                return


def open_block(path: Path) -> RowBlock:
    """A block as another process wrote it, without copying.

    Mapped by pyarrow, which keeps no file open for it as ``mmap`` does: a node may hold thousands.
    """
    with pa.memory_map(str(path)) as file:
        view = file.read_buffer()
    return RowBlock.from_buffer(np.frombuffer(view, np.uint8))


class StageFile:
    """What a reader is doing right now, readable even while it is stopped or stuck."""

    def __init__(self, view: mmap.mmap, name: str) -> None:
        self._view = view
        self._name = name

    @classmethod
    def create(cls, path: Path) -> StageFile:
        """A new file, idle."""
        path.write_bytes(b"\0" * STAGE_BYTES)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> StageFile:
        """The file of a running reader."""
        with path.open("r+b") as file:
            return cls(mmap.mmap(file.fileno(), STAGE_BYTES), path.stem)

    def set(self, stage: str, feed: str, what: Any) -> None:
        """The reader has entered a stage."""
        entry = {"stage": stage, "feed": feed, "what": str(what), "since": time.time()}
        self._write(entry | {"pid": os.getpid()})

    def idle(self) -> None:
        """The reader waits for a window."""
        self._write({"pid": os.getpid()})

    def get(self) -> dict[str, Any]:
        """``pid``, and unless idle ``stage``, ``feed``, ``what`` (the shard) and ``since``."""
        text = self._view[:].split(b"\0", 1)[0]
        try:
            return dict(json.loads(text)) if text else {}
        except ValueError:
            return {}

    def _write(self, entry: dict[str, Any]) -> None:
        if "what" in entry:
            entry["what"] = entry["what"][-300:]
        text = json.dumps(entry).encode()[: STAGE_BYTES - 1]
        self._view[: len(text) + 1] = text + b"\0"
