"""The scan of all pairs, on a few of them: plan and compiler agree, and the plan is never worse.

XLA's choices may change with its version, so another interpreter's jax is asked as well where
there is one: ``MESHFEED_OTHER_PYTHON`` names it, else the other Pythons on the path are tried.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSION = "import jax, sys; print(jax.__version__, sys.version_info[:2])"


def scan(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.reshard", "--scan", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check(found: dict[str, Any]) -> None:
    for part in (found, *found["samples"].values()):
        assert part["prediction_mismatches"] == 0, part
        assert part["worse_than_direct"] == 0, part
        assert part["full_rematerializations"] == 0, part
        assert part["bound_total"] <= part["planned_total"] <= part["direct_total"]
    assert found["planned_total"] < 0.8 * found["direct_total"]


def test_plan_and_compiler_agree() -> None:
    found = scan("--pairs", "80", "--sample", "8")
    assert found["pairs"] == 80
    check(found)


def other_python() -> Path | None:
    """An interpreter whose jax or Python is not ours."""
    ours = _version(Path(sys.executable))
    named = os.environ.get("MESHFEED_OTHER_PYTHON")
    names = [named] if named else [f"python3.{minor}" for minor in range(11, 15)]
    for name in names:
        path = shutil.which(name)
        if path is not None and _version(Path(path)) not in (None, ours):
            return Path(path)
    return None


def _version(python: Path) -> str | None:
    done = subprocess.run(
        [str(python), "-c", VERSION], capture_output=True, text=True, check=False, timeout=120
    )
    return done.stdout.strip() if done.returncode == 0 else None


def test_plan_and_the_compiler_of_another_python_agree() -> None:
    python = other_python()
    if python is None:
        pytest.skip("no other Python with jax is at hand; MESHFEED_OTHER_PYTHON names one")
    check(scan("--pairs", "60", "--sample", "6", "--python", str(python)))
