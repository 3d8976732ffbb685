"""Finds what a test left behind: processes, threads and shared-memory files.

A process counts as ours when it descends from this one or carries this session's variable in its
environment (which finds orphans too). A process below one that was there before the test, such as
a worker of a Ray that a whole module shares, belongs to that one and is not counted; likewise a
file in a folder that was there before.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

SESSION_VARIABLE = "MESHFEED_TEST_SESSION"
SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_PREFIX = "meshfeed"

LASTING_PROCESSES = ("multiprocessing.resource_tracker",)
"""Started once by the standard library and kept for the life of the process."""

LASTING_THREADS = (
    "fsspecIO",
    "ray_",
    "pydevd",
    "Thread-auto-import",
    "tqdm_monitor",
    "pytest_timeout",
)
"""Started once by libraries and kept; by the start of their names."""


@dataclass(frozen=True)
class Process:
    """One line of the process table."""

    pid: int
    parent: int
    started: str
    command: str

    @property
    def key(self) -> tuple[int, str]:
        """Process ids are used again; with the start time they are not."""
        return self.pid, self.started


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended, or is another user's
        return b""


def running_processes() -> dict[int, Process]:
    """All processes that run (zombies do not) by their id."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        # The second field, the name in brackets, may hold blanks and brackets of its own.
        fields = _read(folder / "stat").rpartition(b") ")[2].split()
        if len(fields) < 20 or fields[0] in (b"Z", b"X"):
            continue
        command = _read(folder / "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
        pid = int(folder.name)
        found[pid] = Process(pid, int(fields[1]), fields[19].decode(), command)
    return found


def _ancestors(pid: int, table: dict[int, Process]) -> list[int]:
    found: list[int] = []
    while pid in table and table[pid].parent not in (0, *found):
        pid = table[pid].parent
        found.append(pid)
    return found


def our_processes(table: dict[int, Process]) -> dict[int, Process]:
    """Of ``table``, those that this session started, orphans included."""
    mark = f"{SESSION_VARIABLE}={os.environ.get(SESSION_VARIABLE, '')}".encode()
    return {
        pid: process
        for pid, process in table.items()
        if pid != os.getpid()
        and not any(name in process.command for name in LASTING_PROCESSES)
        and (
            os.getpid() in _ancestors(pid, table)
            or mark in _read(Path(f"/proc/{pid}/environ")).split(b"\0")
        )
    }


def shared_memory_files() -> set[str]:
    """Our files in shared memory, those in folders of ours included."""
    found = set()
    for entry in SHARED_MEMORY.glob(f"{SHARED_MEMORY_PREFIX}*"):
        found.add(str(entry))
        # Another session's folder may vanish meanwhile, which os.walk does not mind.
        for folder, folders, files in os.walk(entry):
            found.update(str(Path(folder) / name) for name in (*folders, *files))
    return found


def _own_entry(path: str) -> str:
    """The entry of the shared-memory folder itself that a file is, or lies in."""
    return str(SHARED_MEMORY / Path(path).relative_to(SHARED_MEMORY).parts[0])


def _held_elsewhere(path: str, ours: set[int]) -> bool:
    """Whether a process of another session has the file, or one below it, open or mapped."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) in ours:
            continue
        if path.encode() in _read(folder / "maps"):
            return True
        try:
            links = [os.readlink(link) for link in (folder / "fd").iterdir()]
        except OSError:
            continue
        if any(link.startswith(path) for link in links):
            return True
    return False


@dataclass(frozen=True)
class Leftovers:
    """What was there before a test."""

    processes: frozenset[tuple[int, str]]
    threads: frozenset[threading.Thread]
    files: frozenset[str]

    @classmethod
    def now(cls) -> Leftovers:
        """What is there now."""
        return cls(
            frozenset(p.key for p in running_processes().values()),
            frozenset(threading.enumerate()),
            frozenset(shared_memory_files()),
        )

    def left(self) -> list[str]:
        """What is there now and was not before, in words."""
        table = running_processes()
        ours = our_processes(table)
        words = [
            f"process {p.pid} ({p.command[:120]})"
            for p in ours.values()
            if p.key not in self.processes
            and not any(
                table[a].key in self.processes and a in ours
                for a in _ancestors(p.pid, table)
                if a in table
            )
        ]
        words += [
            f"thread {t.name}"
            for t in threading.enumerate()
            if t not in self.threads and not t.name.startswith(LASTING_THREADS)
        ]
        held_by_us = {os.getpid(), *ours}
        words += [
            f"file {path}"
            for path in sorted(shared_memory_files() - self.files)
            if not any(str(folder) in self.files for folder in Path(path).parents)
            and not _held_elsewhere(_own_entry(path), held_by_us)
        ]
        return words

    def wait_until_gone(self, limit_s: float) -> list[str]:
        """What is left after up to ``limit_s`` seconds; empty as soon as nothing is."""
        end = time.monotonic() + limit_s
        while (left := self.left()) and time.monotonic() < end:
            time.sleep(0.05)
        return left
