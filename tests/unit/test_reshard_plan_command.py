from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from meshfeed.launch.cli import main
from meshfeed.launch.resharding.arrays import arrays_of
from meshfeed.launch.resharding.picture import HEIGHT, WIDTH, draw_reshard
from meshfeed.launch.resharding.table import Planned, verdict
from meshfeed.launch.resharding.tiles import drawn_dimensions, tile_grid
from meshfeed.launch.resharding.verify import Checked, CheckedHop
from meshfeed.pipeline.plan.reshard.placement import Placement
from meshfeed.pipeline.plan.reshard.planner import plan_reshard

SVG = "{http://www.w3.org/2000/svg}"
MIB = 1 << 20
FSDP_TO_TENSOR = [
    *("--shape", "8192,8192", "--src-mesh", "fsdp=8", "--src-spec", "fsdp,-"),
    *("--dst-mesh", "rep=2,tp=4", "--dst-spec", "-,tp"),
]
TREE = """
src_mesh: fsdp=8
dst_mesh: {replica: 2, tensor: 4}
dtype: bfloat16
arrays:
  embedding: {shape: [32768, 4096], src_spec: "-,fsdp", dst_spec: "tensor,-"}
  layers:
    query: {shape: [4096, 4096], src_spec: [fsdp, null], dst_spec: "P(None, 'tensor')", count: 32}
    expand: {shape: [4096, 16384], src_spec: "fsdp,-", dst_spec: "-,tensor", count: 32}
    scale: {shape: [4096], dtype: float32, src_spec: "-", dst_spec: "-"}
"""


def plan_json(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main(["reshard-plan", "--json", *map(str, words)]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def test_one_array_is_planned_from_flags(capsys: pytest.CaptureFixture[str]) -> None:
    said = plan_json(capsys, *FSDP_TO_TENSOR)
    (array,) = said["arrays"]
    assert array["route"] == "intermediate"
    assert [hop["does"] for hop in array["hops"]] == ["all-to-all of 4", "all-gather of 2"]
    assert array["received_bytes"] == array["bound_bytes"] == 56 * MIB
    assert array["direct_bytes"] == 224 * MIB
    assert sum(hop["received_bytes"] for hop in array["hops"]) == 56 * MIB
    assert array["source"] == "P('fsdp', None) on fsdp=8"


def test_flags_are_those_of_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    kept = plan_json(capsys, *FSDP_TO_TENSOR)
    freed = plan_json(capsys, *FSDP_TO_TENSOR, "--donate")
    assert freed["peak_bytes"] < kept["peak_bytes"]
    words = [*FSDP_TO_TENSOR, "--dtype", "int8"]
    assert plan_json(capsys, *words)["received_bytes"] == 14 * MIB
    words = [*FSDP_TO_TENSOR[:-4], "--dst-mesh", "tp=4", "--dst-spec=-,tp", "--dst-devices", "4-7"]
    (array,) = plan_json(capsys, *words)["arrays"]
    assert array["direct_bytes"] is None
    assert array["hops"][-1]["kind"] in ("copy", "boxes")


def test_a_tree_is_planned_array_by_array_with_totals(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "tree.yaml"
    path.write_text(TREE)
    said = plan_json(capsys, path)
    names = ["embedding", "layers/query", "layers/expand", "layers/scale"]
    assert [array["name"] for array in said["arrays"]] == names
    assert said["arrays"][3]["route"] == "none"
    total = sum(array["count"] * array["received_bytes"] for array in said["arrays"])
    assert said["received_bytes"] == total > 0
    overruled = plan_json(capsys, path, "--dst-mesh", "replica=4,tensor=2")
    assert overruled["received_bytes"] != total
    picture = tmp_path / "deep" / "a.svg"
    assert main(["reshard-plan", str(path), "--picture", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert "66 arrays in all" in printed
    assert "layers/query x 32, layers/expand x 32" in printed
    assert f"{picture} (embedding)" in printed
    drawn = ["--picture", str(picture), "--array", "layers/query"]
    assert main(["reshard-plan", str(path), *drawn]) == 0
    assert "layers/query" in picture.read_text()


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_it_fits_the_terminal(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    columns: int,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    path = tmp_path / "tree.yaml"
    path.write_text(TREE)
    assert main(["reshard-plan", str(path), "--picture", "none"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    (row,) = [line.split() for line in lines if line.strip().startswith("embedding  ")][:1]
    assert row[1] == "intermediate"
    assert row[2:] == ["58.7", "MB", "58.7", "MB", "235", "MB", "134", "MB"]
    assert any("all-to-all of 4  25.2 MB  P('fsdp_1', 'fsdp_0')" in line for line in lines)


SMALL = ["--src-mesh", "a=4", "--dst-mesh", "a=2,b=2"]
FULL = [*SMALL, "--shape", "8,8", "--src-spec", "a,-", "--dst-spec", "-,a"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "shape: is missing. Give shape, or --shape"),
        ([*SMALL, "--shape", "8,8"], "src_spec: is missing. Give src_spec, or --src-spec"),
        (FULL[2:], "src_mesh: is missing. Give src_mesh, or --src-mesh"),
        ([*FULL, "--src-mesh", "a=4,b"], "src_mesh: 'b' in 'a=4,b' is no axis"),
        ([*FULL, "--dst-mesh", "a=0"], "dst_mesh: 'a=0' has an axis below 1"),
        ([*FULL, "--src-spec", "c,-"], "src_spec: axis 'c' is not in the mesh. Its axes are a"),
        ([*FULL, "--src-spec", "a,a"], "src_spec: an axis stands twice in P('a', 'a')"),
        ([*FULL, "--src-spec", "-,-,a"], "src_spec: 3 entries for the 2 dimensions of (8, 8)"),
        ([*FULL, "--dst-spec", "P('b', 3)"], "dst_spec: entry 3 is no axis"),
        ([*FULL, "--dst-spec", "P('b'"], "dst_spec: \"P('b'\" is no spec"),
        ([*FULL, "--shape", "8,x"], "shape: '8,x' is no shape. Write 8192,8192"),
        ([*FULL, "--shape", "6,8"], "src_spec: dimension 0 of [6, 8] is not a multiple of the 4"),
        ([*FULL, "--dtype", "text"], "dtype: 'text' has no fixed size"),
        ([*FULL, "--src-devices", "0-2"], "src_devices: 3 devices are given for the 4 of a=4"),
        ([*FULL, "--dst-devices", "0,0,1,2"], "dst_devices: 3 different devices are given"),
        ([*FULL, "--src-devices", "a"], "src_devices: 'a' is no device. Write 0-3,6"),
        ([*FULL, "--memory-limit", "10"], "memory_limit: 10 bytes is too small; the smallest"),
        ([*FULL, "--memory-limit", "ten"], "memory_limit: 'ten' is not a size"),
        ([*FULL, "--picture", "a.png"], "picture: a.png is no .svg file"),
        ([*FULL, "--array", "b"], "array: there is no 'b'. There are array"),
        (["nowhere.yaml"], "FILE.yaml: there is no file nowhere.yaml"),
        (["."], "FILE.yaml: . cannot be read"),
    ],
)
def test_bad_flags_end_with_one_line_that_names_them(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    picture = [] if "--picture" in words else ["--picture", "none"]
    assert main(["reshard-plan", *words, *picture]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"meshfeed: {said}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "FILE.yaml: "),
        ("[1]", "FILE.yaml: "),
        ("src_mesh: a=2", "arrays: is missing in "),
        ("{arrays: {}}", "arrays: {} is no mapping of arrays"),
        ("{arrays: {l: 3}}", "arrays.l: 3 is no array"),
        ("{arrays: {l: {m: {}}}}", "arrays.l/m: {} is no array"),
        ("{arrays: {l: {m: {shap: [2]}}}}", "arrays.l/m.shap: is unknown. Did you mean shape?"),
        ("{array: {}, arrays: {l: 3}}", "array: is unknown. Did you mean arrays?"),
        ("{arrays: {l: {shape: [2]}}}", "src_mesh: is missing"),
        ("{src_mesh: a=2, arrays: {l: {shape: [2]}}}", "arrays.l.src_spec: is missing"),
        ("{src_mesh: [a], arrays: {l: {shape: [2], src_spec: a}}}", "src_mesh: ['a'] is no mesh"),
        ("{arrays: {l: {shape: [2], count: 0}}}", "arrays.l.count: 0 is no number of arrays"),
        ("{arrays: {l: {shape: [2], dtype: 7}}}", "arrays.l.dtype: '7' has no fixed size"),
        ("{shape: [2], arrays: {l: {shape: [2]}}}", "shape: describes one array"),
        (
            "{src_mesh: a=2, dst_mesh: a=2, arrays: {l: {shape: [3], src_spec: a, dst_spec: a}}}",
            "arrays.l.src_spec: dimension 0 of [3] is not a multiple of the 2 parts",
        ),
    ],
)
def test_bad_files_end_with_one_line_that_names_the_key(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "arrays.yaml"
    path.write_text(text)
    assert main(["reshard-plan", str(path), "--picture", "none"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"meshfeed: {said}")


def test_tiles_are_the_boxes_of_the_devices() -> None:
    placement = Placement.build({"a": 2, "b": 3, "c": 2}, ["b", None, "a"])
    shape = (6, 5, 4)
    drawn = drawn_dimensions([placement], 3)
    assert drawn == (0, 2)
    grid = tile_grid(placement, shape, drawn)
    assert grid.counts == grid.drawn == (3, 2)
    boxes = placement.boxes(shape)
    for row, col in itertools.product(range(3), range(2)):
        held = {
            device
            for device in range(12)
            if boxes[device, 0, 0] == 2 * row and boxes[device, 2, 0] == 2 * col
        }
        assert set(grid.holders[row][col]) == held
        assert len(held) == 2


SHARDINGS = [
    ((8192, 8192), ({"f": 8}, ["f"]), ({"r": 2, "t": 4}, [None, "t"])),
    ((48, 96), ({"x": 8}, ["x"]), ({"x": 6}, ["x"])),
    ((64,), ({"x": 4}, ["x"]), ({"x": 8}, [])),
    ((4096, 4096, 64), ({"d": 64, "m": 8}, ["d", None, "m"]), ({"d": 64, "m": 8}, ["m", "d"])),
    ((4096, 64), ({"d": 1024}, ["d"]), ({"d": 64, "m": 16}, ["m", "d"])),
    ((8, 8), ({"x": 8}, ["x"]), ({"x": 8}, [None, "x"])),
    ((8, 8), ({"x": 8}, []), ({"x": 8}, ["x"])),
    ((4, 4, 4, 4), ({"x": 4}, [None, None, None, "x"]), ({"x": 2}, [None, "x"])),
]


@pytest.mark.parametrize(("shape", "before", "after"), SHARDINGS)
def test_the_picture_shows_every_sharding_within_its_borders(
    shape: tuple[int, ...], before: tuple[Any, Any], after: tuple[Any, Any]
) -> None:
    plan = plan_reshard(shape, "float32", Placement.build(*before), Placement.build(*after))
    svg = draw_reshard(plan, "a <name> & more")
    assert len(svg) < 1_500_000
    root = ElementTree.fromstring(svg)
    words = [element.text or "" for element in root.iter(f"{SVG}text")]
    assert words[0].startswith("a <name> & more: ")
    assert words.count("source") == words.count("target") == 1
    assert words.count("intermediate") == len(plan.hops) - 1
    for hop in plan.hops:
        first = hop.describe().removesuffix(" (full rematerialization)").split(" + ")[0]
        assert first in words
    names = {element.get("id") for element in root.iter() if element.get("id")}
    assert set(re.findall(r"url\(#([\w-]+)\)", svg)) <= names
    for rect in root.iter(f"{SVG}rect"):
        x, y = float(rect.get("x", 0)), float(rect.get("y", 0))
        width, height = float(rect.get("width", 0)), float(rect.get("height", 0))
        assert width > 0
        assert height > 0
        assert x >= 0
        assert y >= 0
        assert x + width <= WIDTH
        assert y + height <= HEIGHT


def hop(received: float | None, planned: float = 8.0) -> CheckedHop:
    return CheckedHop(
        collectives="all-gather of 2",
        planned_received=planned,
        received=received,
        planned_temporary=0.0,
        temporary=None if received is None else 0,
    )


def test_what_xla_does_otherwise_is_said() -> None:
    settings = {
        "src_mesh": "a=2",
        "dst_mesh": "a=2",
        "shape": "4",
        "src_spec": "a",
        "dtype": "int8",
    }
    (array,) = arrays_of(settings | {"dst_spec": "-"})
    plan = plan_reshard(array.shape, array.dtype, array.source, array.target)

    def said(*hops: CheckedHop) -> list[str]:
        return verdict([Planned(array=array, plan=plan, checked=Checked(hops=hops, direct=None))])

    assert said(hop(8.0)) == ["XLA moves just the planned bytes in 1 program."]
    assert said(hop(8.0), hop(9.0)) == ["1 program of 2 move other bytes (in red)."]
    assert said(hop(None)) == [
        "1 hop not compiled by XLA: devices change, or lie in another order."
    ]
