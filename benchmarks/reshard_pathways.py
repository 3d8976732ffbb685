"""pathways-utils' own function for an intermediate sharding, to compare with.

Its package is installed into a folder by itself and only the module with the function is loaded:
what else the package imports runs on Google Cloud alone.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import types
from functools import lru_cache
from pathlib import Path
from typing import Any

PACKAGE = "pathwaysutils==0.1.13"
BESIDE = (
    "pathwaysutils",
    "pathwaysutils.experimental",
    "pathwaysutils.experimental.split_by_mesh_axis",
    "pathwaysutils.jax",
)


def install() -> Path | None:
    """Where the package lies; None where it cannot be had."""
    folder = Path(tempfile.gettempdir()) / f"meshfeed-{PACKAGE.replace('==', '-')}"
    module = folder / "pathwaysutils" / "reshard.py"
    if not module.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", PACKAGE]
        done = subprocess.run([*command, "--target", str(folder)], check=False)
        if done.returncode:
            print(f"{PACKAGE} could not be installed: compared with direct alone")
            return None
    return module


def intermediate(module: Path, source: Any, target: Any) -> Any:
    """Its intermediate sharding; None where it has none."""
    loaded = _load(module)
    try:
        found, _ = loaded.find_intermediate_sharding(source, target)
    except (loaded.NoIntermediateShardingError, loaded.NoIntermediateShardingNeededError):
        return None
    return found


@lru_cache(maxsize=1)
def _load(module: Path) -> Any:
    for name in BESIDE:
        parent, _, child = name.rpartition(".")
        sys.modules[name] = types.ModuleType(name)
        if parent:
            setattr(sys.modules[parent], child, sys.modules[name])
    spec = importlib.util.spec_from_file_location("pathwaysutils.reshard", module)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{module} cannot be loaded")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
