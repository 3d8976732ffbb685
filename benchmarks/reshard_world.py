"""The processes in which the cases run: ``python -m benchmarks.reshard_world SETTINGS.json``."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LIMIT_S = 900.0


def run_processes(
    what: str, processes: int, shape: tuple[int, int], rounds: int, pathways: Path | None
) -> list[Any]:
    """Starts the processes, waits for them, and returns what each found.

    Args:
        what: ``alone`` in one process, ``together``, or one way, for its memory.
        processes: that share the eight devices.
        shape: of the array.
        rounds: of each way.
        pathways: where pathways-utils lies, if it could be had.

    Raises:
        SystemExit: a process failed or ran too long; none is left behind.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="meshfeed-reshard-") as folder:
        running, files, quiet = [], [], subprocess.DEVNULL  # XLA and gloo talk
        try:
            for process in range(processes):
                files.append(Path(folder) / f"{process}.json")
                settings = {
                    **{"what": what, "process": process, "processes": processes, "port": port},
                    **{"shape": shape, "rounds": rounds, "out": str(files[-1])},
                    "pathways": str(pathways) if pathways else None,
                }
                command = [sys.executable, "-m", "benchmarks.reshard_world", json.dumps(settings)]
                running.append(subprocess.Popen(command, stdout=quiet, stderr=quiet))
            end = time.monotonic() + LIMIT_S
            codes = [one.wait(timeout=max(0.1, end - time.monotonic())) for one in running]
        finally:
            for one in running:
                one.kill()
                one.wait()
        if any(codes):
            raise SystemExit(f"{what}: exit codes {codes}")
        return [json.loads(path.read_text()) for path in files]


def most_memory_mib() -> float:
    """The most resident memory that this process has had since ``forget_memory``."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def forget_memory() -> None:
    """Counts the most memory from here on."""
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    settings = json.loads(sys.argv[1])
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import numpy as np

    from benchmarks import reshard_cases as cases

    processes, shape = settings["processes"], tuple(settings["shape"])
    jax.config.update("jax_num_cpu_devices", cases.DEVICES // processes)
    pathways = Path(settings["pathways"]) if settings["pathways"] else None
    found: Any
    if settings["what"] == "alone":
        found = cases.measure_alone(shape, settings["rounds"], pathways)
    else:
        address = f"127.0.0.1:{settings['port']}"
        jax.distributed.initialize(address, processes, settings["process"])
        source, _ = cases.CASES[0].ends()
        ways = cases.ways_of(cases.CASES[0], shape, pathways)

        def tile(index: tuple[slice, ...]) -> Any:
            sizes = [len(range(*part.indices(n))) for part, n in zip(index, shape, strict=True)]
            return np.random.default_rng(0).random(sizes, dtype=np.float32)

        array = jax.make_array_from_callback(shape, source, tile)
        if settings["what"] == "together":
            found = cases.timed(array, ways, settings["rounds"])
        else:
            forget_memory()
            name = settings["what"]
            cases.carry(array, name, ways[name]).block_until_ready()
            found = most_memory_mib()
    Path(settings["out"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
