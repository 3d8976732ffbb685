"""``meshfeed explain-partition`` as a user runs it; what it counts is known beforehand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from explain_program import BAD
from explain_steps import LOOPS, WIDTH

from meshfeed.pipeline.data.batches.regions import region_nbytes
from meshfeed.pipeline.data.packing.blocks import BlockFormat

HERE = Path(__file__).parent
LIMIT_S = 300.0
SMALL = ["--batch-size", "8", "--seq-len", "32", "--vocab-size", "64"]
NARROW = ["--width", "32", "--heads", "4", "--blocks", "1"]


def run(*words: str, cwd: Path = HERE, columns: int = 100) -> subprocess.CompletedProcess[str]:
    """Runs Python without what this process says of devices; the command chooses CPU by itself."""
    dropped = ("JAX_PLATFORMS", "XLA_FLAGS")
    environment = {key: value for key, value in os.environ.items() if key not in dropped}
    return subprocess.run(
        [sys.executable, *words],
        env=environment | {"COLUMNS": str(columns)},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


def explain(*words: str) -> subprocess.CompletedProcess[str]:
    return run("-m", "meshfeed.launch.cli", "explain-partition", *SMALL, *words)


def explained(*words: str) -> dict[str, Any]:
    done = explain("--json", *words)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_the_transformer_is_explained_on_a_data_x_model_mesh() -> None:
    said = explained("--mesh", "data=2,model=2", "--rounds", "3", *NARROW)
    types = said["types"]
    assert list(types) == ["FULL", "DATA", "BATCH", "REPLICATED"]
    assert types["BATCH"] == types["DATA"]  # no sequence axis
    wire = BlockFormat.for_vocab(32, 64)
    rows = {"FULL": 2, "DATA": 4, "REPLICATED": 8}
    for kind, own in rows.items():
        one = types[kind]
        assert one["host_bytes"] == region_nbytes(wire, own, 32)
        assert one["all_hosts_bytes"] == 4 * one["host_bytes"]
        assert one["batch_bytes"] == own * 32 * 5 * 4
        assert one["argument_bytes"] == said["state_bytes"] + one["batch_bytes"]
        assert one["temporary_bytes"] > 0
        assert len(one["step_seconds"]) == 3
        counted = sum(c["received_bytes"] for c in one["collectives"].values())
        assert one["received_bytes"] == counted > 0
    # Tensor parallelism needs every row on every device of a model group, so that FULL has them
    # brought together again; REPLICATED moves nothing more but has rows cut out on each device.
    assert types["FULL"]["collectives"]["all-gather"]["count"] > 0
    assert "all-gather" not in types["DATA"]["collectives"]
    assert types["FULL"]["received_bytes"] > 1.2 * types["DATA"]["received_bytes"]
    assert types["REPLICATED"]["dynamic_slices"] > types["DATA"]["dynamic_slices"]
    assert said["recommended"] == "DATA"
    assert said["findings"]["BATCH"] == "is DATA on this mesh"
    assert "times as much" in said["findings"]["FULL"]


def test_a_sequence_axis_makes_batch_cheaper_to_fetch() -> None:
    words = ["--mesh", "data=2,seq=2,model=2", "--rounds", "0", "--hosts", "8", *NARROW]
    said = explained(*words)
    types = said["types"]
    assert types["BATCH"]["spec"] == "P('data', 'seq')"
    assert types["BATCH"]["host_bytes"] < types["DATA"]["host_bytes"]
    assert types["BATCH"]["dynamic_slices"] < types["DATA"]["dynamic_slices"]
    assert said["recommended"] == "BATCH"
    assert types["DATA"]["step_seconds"] == []


def test_collectives_of_a_users_step_are_counted_with_their_bytes() -> None:
    words = ["explain_steps:one_gradient", "--mesh", "data=4", "--leaf-names", "maxtext"]
    types = explained(*words, "--rounds", "1")["types"]
    gradient = 4 * WIDTH
    assert types["DATA"]["collectives"] == {
        "all-reduce": {"count": 1, "received_bytes": 2 * gradient * 3 / 4}
    }
    assert types["FULL"] == types["DATA"]  # the mesh has no other axis
    assert types["REPLICATED"]["collectives"] == {}
    assert types["REPLICATED"]["received_bytes"] == 0


def test_a_collective_in_a_loop_counts_as_often_as_it_runs() -> None:
    words = ["explain_steps:in_a_loop", "--mesh", "data=2,model=2", "--rounds", "1"]
    types = explained(*words)["types"]
    sums = types["DATA"]["collectives"]["all-reduce"]
    assert sums["count"] == LOOPS
    assert sums["received_bytes"] == LOOPS * 2 * 4 * WIDTH / 2


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_the_table_fits_the_terminal(columns: int) -> None:
    words = ["explain_steps:in_a_loop", "--mesh", "data=2,seq=2,model=2", "--rounds", "1"]
    command = ["-m", "meshfeed.launch.cli", "explain-partition", *SMALL]
    done = run(*command, *words, columns=columns)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    (head,) = [line for line in lines if line.strip().startswith("each device")]
    assert head.split()[2:] == ["FULL", "DATA", "BATCH", "REPLICATED"]
    (sums,) = [line for line in lines if line.strip().startswith("all-reduce")]
    assert f"in {LOOPS} " in sums
    assert any(line.startswith("Use ") for line in lines)


def test_a_type_that_does_not_divide_is_refused_beside_those_that_do() -> None:
    words = ["--batch-size", "6", "--mesh", "data=2,model=2", "--rounds", "0"]
    said = explained("explain_steps:in_a_loop", *words)
    assert "6 rows do not divide into 4 equal parts" in said["types"]["FULL"]["refused"]
    assert said["findings"]["FULL"].startswith("is refused: batch_size")
    assert said["recommended"] in ("DATA", "REPLICATED")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mesh", "data=4,model"], "mesh: 'model' in 'data=4,model' is no axis"),
        (["--mesh", "data=-1,model=2"], "mesh: axis 'data' of data=-1,model=2 has size -1"),
        (["--mesh", "data=1000"], "mesh: 1,000 devices are needed; 128 are the most"),
        (["--hosts", "3"], "hosts: 3 do not divide the 8 devices of data=4,model=2. One of 1, 2"),
        (["--batch-size", "0"], "batch_size: 0 is below 1"),
        (["--heads", "3"], "width: 128 is no even multiple of 3 heads. 126 would do"),
        (["--mesh", "model=3"], "heads: 8 does not divide over the 3 parts of the model axes"),
        (["m:f", "--width", "8"], "width: describes the default transformer, and the step is m:f"),
        (["--rounds", "-1"], "rounds: -1 is below 0"),
        (["--leaf-names", "maxtext"], "leaf_names: maxtext is for a step of your own"),
        (["--leaf-names", "torch"], "leaf_names: 'torch' is not known"),
        (["--model-axes", "data"], "data"),
    ],
)
def test_bad_settings_end_with_one_line_that_names_them(words: list[str], said: str) -> None:
    done = explain("--rounds", "0", *words)
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line.startswith("meshfeed: ")
    assert said in line
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_the_step_of_the_documentation_is_one(tmp_path: Path) -> None:
    page = (HERE.parents[1] / "docs" / "partition-cost.md").read_text()
    (example,) = re.findall(r"```python\n# my_train\.py\n(.*?)```", page, re.DOTALL)
    (tmp_path / "my_train.py").write_text(example)
    words = ["explain-partition", "my_train:make", "--mesh", "data=2,model=2", "--rounds", "1"]
    done = run("-m", "meshfeed.launch.cli", *words, *SMALL, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["types"]["DATA"]["received_bytes"] > 0


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("explain") / "said.json"
    (out.parent / "explain_broken.py").write_text("import explain_no_such_module\n")
    path = os.pathsep.join([str(HERE), str(out.parent)])
    done = run("-c", _PROGRAM.format(path=path.split(os.pathsep), out=str(out)), cwd=out.parent)
    assert done.returncode == 0, done.stderr
    said: dict[str, str] = json.loads(out.read_text())
    return said


_PROGRAM = """
import sys
sys.path[:0] = {path!r}
sys.argv = ["", {out!r}]
import explain_program
explain_program.main()
"""


def test_each_bad_step_is_refused_in_a_line(refusals: dict[str, str]) -> None:
    assert [name for name in BAD if name not in refusals] == []
    for said in refusals.values():
        assert "\n" not in said
    for name, words in {
        "raises": "explain_steps:raises raised KeyError: 'heads' (",
        "returns_no_pair": "explain_steps:returns_no_pair returned int. Return (step, state)",
        "returns_no_step": "returned (dict, function). Return (step, state)",
        "has_no_state": "returned a state without an array",
        "step_raises": "the step of explain_steps:step_raises raised TypeError: ",
        "step_gives_no_pair": "gives no pair back",
        "changes_shape": "takes state['w'] as float32[4] and gives float32[2] back",
        "changes_structure": "gives a state of another structure back than it takes",
        "does_not_divide": "placing state['w'] of explain_steps:does_not_divide raised",
        "on_another_mesh": "returned state on 2 devices, the mesh has 4",
        "holds_text": "placing state['a'] of explain_steps:holds_text raised TypeError",
        "no_function": "module 'explain_steps' holds no function 'no_function'",
        "nothing": "module 'explain_steps' has no 'nothing'",
    }.items():
        said = refusals[f"explain_steps:{name}"]
        assert said.startswith("MODULE:FUNCTION: ")
        assert words in said
    assert "there is no module 'explain_nowhere'" in refusals["explain_nowhere:step"]
    broken = refusals["explain_broken:step"]
    assert "importing explain_broken raised ModuleNotFoundError" in broken
    assert "explain_broken.py, line 1)" in broken
    assert "explain_steps.py, line" in refusals["explain_steps:step_raises"]
    assert "'explain_steps' is no module:function" in refusals["explain_steps"]
    assert "needs 8 CPU devices, JAX has started with 4" in refusals["too late"]
