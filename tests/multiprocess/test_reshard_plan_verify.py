"""``meshfeed reshard-plan --verify``: the plan beside what XLA compiles on CPU devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

LIMIT_S = 300.0
TREE = """
src_mesh: fsdp=8
dst_mesh: {replica: 2, tensor: 4}
arrays:
  columns: {shape: [64, 32], src_spec: "fsdp,-", dst_spec: "-,tensor"}
  rows: {shape: [64, 32], src_spec: "fsdp,-", dst_spec: "tensor,-"}
  half: {shape: [64, 32], dtype: bfloat16, src_spec: "fsdp,-", dst_spec: "-,tensor", count: 3}
  cube: {shape: [8, 16, 8], dtype: int8, src_spec: "-,-,fsdp", dst_spec: "tensor,-,replica"}
  scale: {shape: [7], src_spec: "-", dst_spec: "-"}
"""


def verify(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    dropped = ("JAX_PLATFORMS", "XLA_FLAGS")
    environment = {key: value for key, value in os.environ.items() if key not in dropped}
    return subprocess.run(
        [sys.executable, "-m", "meshfeed.launch.cli", "reshard-plan", "--verify", *words],
        env=environment | {"COLUMNS": "80"},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


def test_xla_compiles_what_was_planned(tmp_path: Path) -> None:
    (tmp_path / "tree.yaml").write_text(TREE)
    done = verify("tree.yaml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    arrays = {array["name"]: array for array in json.loads(done.stdout)["arrays"]}
    assert list(arrays) == ["columns", "rows", "half", "cube", "scale"]
    for array in arrays.values():
        assert len(array["compiled"]) == len(array["hops"])
        for planned, compiled in zip(array["hops"], array["compiled"], strict=True):
            assert compiled["agrees"]
            assert compiled["received_bytes"] == planned["received_bytes"]
            if planned["received_bytes"]:
                assert " + ".join(compiled["collectives"]) == planned["does"]
            else:
                assert compiled["collectives"] == ["no collective"]
    assert [hop["does"] for hop in arrays["columns"]["hops"]] == [
        "all-to-all of 4",
        "all-gather of 2",
    ]
    assert arrays["half"]["received_bytes"] == arrays["columns"]["received_bytes"] / 2
    assert not (tmp_path / "reshard.svg").exists()


def test_the_table_has_both_and_hops_that_xla_has_no_part_in(tmp_path: Path) -> None:
    words = ["--shape", "48,8", "--src-mesh", "x=8", "--src-spec", "x,-"]
    done = verify(*words, "--dst-mesh", "x=6", "--dst-spec", "x,-", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 hop not compiled by XLA" in " ".join(done.stdout.split())
    done = verify(*words, "--dst-mesh", "x=4,y=2", "--dst-spec", "-,y", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Compiled by XLA" in done.stdout
    assert "XLA moves just the planned bytes in 3 programs." in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert (tmp_path / "reshard.svg").exists()


def test_what_cannot_be_compiled_here_is_said_in_a_line(tmp_path: Path) -> None:
    words = ["--shape", "512", "--src-mesh", "x=256", "--src-spec", "x"]
    done = verify(*words, "--dst-mesh", "x=256", "--dst-spec", "-", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("meshfeed: verify: 256 devices are needed; 128 are the most")
    words = ["--shape", "8", "--src-mesh", "x=2", "--src-spec", "x", "--dtype", "int64"]
    done = verify(*words, "--dst-mesh", "x=2", "--dst-spec", "-", cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("meshfeed: dtype: int64 would become another type in JAX")
