"""Starts a program as the processes of one JAX world on this machine, and waits for all of them."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

LIMIT_S = 240.0


def run_world(program: Path, *, hosts: int, devices: int, out: Path) -> list[Path]:
    """Runs ``python program PROCESS HOSTS DEVICES PORT FILE`` once for each host.

    Returns:
        The file of each process.

    Raises:
        RuntimeError: a process failed or ran too long; with what it printed. None is left behind.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    files = [out / f"{hosts}x{devices}-{process}.json" for process in range(hosts)]
    logs = [path.with_suffix(".log") for path in files]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for process, (path, log) in enumerate(zip(files, logs, strict=True)):
            arguments = [process, hosts, devices, port, path]
            with log.open("wb") as sink:
                command = [sys.executable, str(program), *map(str, arguments)]
                running.append(subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT))
        end = time.monotonic() + LIMIT_S
        codes = [one.wait(timeout=max(0.1, end - time.monotonic())) for one in running]
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"a process ran too long:\n{_tails(logs)}") from error
    finally:
        for one in running:
            one.kill()
            one.wait()
    if any(codes):
        raise RuntimeError(f"exit codes {codes}:\n{_tails(logs)}")
    return files


def _tails(logs: list[Path]) -> str:
    return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)
