"""What a measurement was made on and with."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    *("meshfeed", "ray", "jax", "jaxlib", "numpy", "pyarrow", "grain", "tokenizers", "fastokens"),
)


def describe() -> dict[str, str | int | float]:
    """Processor, cores that may be used, memory and system."""
    return {
        "processor": _first(r"model name\s*:\s*(.+)", "/proc/cpuinfo") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(int(_first(r"MemTotal:\s*(\d+)", "/proc/meminfo") or 0) / 1024**2, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


def versions() -> dict[str, str]:
    """Python, the packages that matter, and the commit of this repository."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    found["commit"] = _commit()
    return found


def _first(pattern: str, path: str) -> str:
    try:
        found = re.search(pattern, Path(path).read_text())
    except OSError:
        return ""
    return found.group(1).strip() if found else ""


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    here = Path(__file__).parent
    try:
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
