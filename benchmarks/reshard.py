"""How many bytes resharding moves, direct and planned: ``python -m benchmarks.reshard``.

``--scan`` compiles every pair of the 49 distinct shardings of a matrix on a 2 x 2 x 2 mesh, and
samples of other meshes, and prints one JSON line. ``--cases`` moves 256 MiB along known hard routes
and prints a table: direct, by pathways-utils' intermediate, and planned.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEVICES = 12
"""CPU devices of the scan: as many as its largest mesh has."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--scan", action="store_true", help="every pair on 2 x 2 x 2, and samples")
    what.add_argument("--cases", action="store_true", help="a table of known hard routes")
    parser.add_argument("--pairs", type=int, help="of the scan, only so many, picked at random")
    parser.add_argument("--sample", type=int, default=110, help="most pairs of each sample")
    parser.add_argument("--python", type=Path, help="scan by this interpreter's jax instead")
    parser.add_argument("--mib", type=int, default=256, help="of the array that the cases move")
    parser.add_argument("--rounds", type=int, default=5, help="of the cases, interleaved")
    args = parser.parse_args()
    if args.python is not None:
        return _run_by(args.python)
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # XLA warns of every full rematerialization
    if args.scan:
        # The collectives are settled before the code of each device is, which nobody runs here.
        os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
        from benchmarks import reshard_scan

        print(json.dumps(reshard_scan.scan(args.pairs, args.sample, DEVICES)))
    else:
        from benchmarks import reshard_cases

        print(reshard_cases.table(args.mib, args.rounds))
    return 0


def _run_by(python: Path) -> int:
    """The same command by another interpreter, one that has jax and numpy."""
    arguments = [word for word in sys.argv[1:] if word != f"--python={python}"]
    if "--python" in arguments:
        at = arguments.index("--python")
        del arguments[at : at + 2]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [str(python), "-m", "benchmarks.reshard", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
