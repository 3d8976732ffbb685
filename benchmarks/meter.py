"""Processor time and memory of a process and all that it starts, and the line that a case prints.

Ray's daemons leave their parent, so a process that is measured first makes itself the one that
orphans of its descendants fall to (``adopt_orphans``); after that its tree is all that it started.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_TICK = 1 / os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def adopt_orphans() -> None:
    """From now on a descendant whose parent ends becomes a child of this process (Linux)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Process:
    """A line of the process table: parent, and seconds of processor time with ended children."""

    parent: int
    cpu_seconds: float


def _table() -> dict[int, Process]:
    table = {}
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # the name, in brackets, may hold spaces and brackets itself
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue  # it has just ended
        ticks = sum(int(field) for field in fields[11:15])
        table[int(entry.name)] = Process(int(fields[1]), ticks * _TICK)
    return table


def tree(root: int) -> dict[int, Process]:
    """The process ``root`` and all its descendants, by process id."""
    table = _table()
    children = defaultdict(list)
    for pid, process in table.items():
        children[process.parent].append(pid)
    found, waiting = {}, [root]
    while waiting:
        pid = waiting.pop()
        if pid in table and pid not in found:
            found[pid] = table[pid]
            waiting += children[pid]
    return found


def tree_cpu_seconds(root: int | None = None) -> float:
    """User and system time of this process (or ``root``) and its descendants, ended ones too."""
    return sum(process.cpu_seconds for process in tree(root or os.getpid()).values())


def cpu_seconds_by_name(root: int | None = None) -> dict[str, float]:
    """Processor seconds of the tree by what its processes call themselves (``ray::Reader``)."""
    seconds: dict[str, float] = defaultdict(float)
    for pid, process in tree(root or os.getpid()).items():
        seconds[_name(pid)] += process.cpu_seconds
    return dict(seconds)


def _name(pid: int) -> str:
    try:
        command = (_PROC / str(pid) / "cmdline").read_text().split("\0")
    except OSError:
        return "ended"
    program = Path(command[0]).name if command[0] else "ended"
    return re.split(r"[ .(]", program)[0] if program.startswith("ray") else program


def machine_busy_seconds() -> float:
    """Processor time that everything on this machine has taken since it was started."""
    fields = [int(f) for f in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:]]
    idle, waiting_for_disk = fields[3], fields[4]
    return (sum(fields[:8]) - idle - waiting_for_disk) * _TICK


def process_started() -> float:
    """Wall time, as ``time.time`` gives it, at which this process began."""
    started = int((_PROC / "self/stat").read_text().rsplit(")", 1)[1].split()[19]) * _TICK
    uptime = float((_PROC / "uptime").read_text().split()[0])
    return time.time() - (uptime - started)


class Window:
    """A stretch of work: seconds, processor seconds of the tree, processors that others kept busy.

    Args:
        root: process at the root of the tree; None: this one.
    """

    def __init__(self, root: int | None = None) -> None:
        self._root = root
        self._cpu = tree_cpu_seconds(root)
        self._busy = machine_busy_seconds()
        self._began = time.perf_counter()

    def figures(self, tokens: int, **more: Any) -> dict[str, Any]:
        """What a case reports of ``tokens`` tokens that took this long."""
        seconds = time.perf_counter() - self._began
        cpu = tree_cpu_seconds(self._root) - self._cpu
        others = max(0.0, machine_busy_seconds() - self._busy - cpu)
        return rates(tokens, seconds, cpu) | {"others_cores": round(others / seconds, 2)} | more


def rates(tokens: float, seconds: float, cpu_seconds: float) -> dict[str, Any]:
    """Tokens/s, processor seconds per million tokens, and processors kept busy."""
    return {
        "tokens": round(tokens),
        "seconds": round(seconds, 3),
        "tokens_per_s": round(tokens / seconds),
        "cpu_s_per_mtok": round(cpu_seconds / tokens * 1e6, 5),
        "cores_busy": round(cpu_seconds / seconds, 2),
    }


def report(case: str, figures: dict[str, Any]) -> None:
    """Print a case's one JSON line."""
    print(json.dumps({"case": case} | figures), flush=True)


class PeakMemory:
    """Samples the memory of a tree from beside it until ``stop``.

    Memory shared by several processes is counted once (PSS); files in /dev/shm that nobody maps
    at the moment are in ``shm_bytes`` alone.
    """

    def __init__(self, root: int, period_s: float = 2.0) -> None:
        self._root = root
        self._period = period_s
        self._done = threading.Event()
        self._shm_before = _shm_bytes()
        self.bytes = 0
        self.shm_bytes = 0
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End sampling."""
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(self._period):
            self.bytes = max(self.bytes, sum(_pss(pid) for pid in tree(self._root)))
            self.shm_bytes = max(self.shm_bytes, _shm_bytes() - self._shm_before)


def _pss(pid: int) -> int:
    try:
        for line in _lines(_PROC / str(pid) / "smaps_rollup"):
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # it has just ended, or is not ours
    return 0


def _lines(path: Path) -> Iterator[str]:
    yield from path.read_text().splitlines()


def _shm_bytes() -> int:
    try:
        shm = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return (shm.f_blocks - shm.f_bfree) * shm.f_frsize
