"""256 MiB along known hard routes: direct, by pathways-utils' intermediate, and as planned.

Timings are interleaved: every round runs each way once, and the quickest round is shown, the one
that other work on the machine disturbed least. The peak of one process is argument, result and
temporary memory of a device as compiled, with a source that is kept until the end; that of several
processes is the most memory that a process has had, JAX itself included, each way in processes of
its own, since an allocator keeps what another way has used.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import meshfeed
from benchmarks import machine, reshard_pathways
from benchmarks.reshard_world import run_processes
from meshfeed.pipeline.assemble.hlo import read_program
from meshfeed.pipeline.assemble.resharding.hops import program
from meshfeed.pipeline.assemble.resharding.placements import (
    DeviceTable,
    placement_of,
    sharding_of,
)
from meshfeed.pipeline.plan.reshard.planner import plan_reshard

P = PartitionSpec
MIB = 1 << 20
DEVICES = 8
PROCESSES = 4
OURS = "meshfeed"
Shape = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A route by its ends: mesh sizes by axis, and spec."""

    name: str
    before: tuple[dict[str, int], PartitionSpec]
    after: tuple[dict[str, int], PartitionSpec]

    def ends(self) -> tuple[NamedSharding, NamedSharding]:
        """The shardings, on the first eight devices."""
        return _sharding(*self.before), _sharding(*self.after)


CASES = (
    Case(
        name="P('fsdp', 'tp') on 8x1 to P(None, 'tp') on 2x1x4",
        before=({"fsdp": 8, "tp": 1}, P("fsdp", "tp")),
        after=({"rep": 2, "fsdp": 1, "tp": 4}, P("fsdp", "tp")),
    ),
    Case(
        name="P('a', None) to P(None, 'b') on 4x2",
        before=({"a": 4, "b": 2}, P("a", None)),
        after=({"a": 4, "b": 2}, P(None, "b")),
    ),
    Case(
        name="P('x', None) to P(None, 'x') on 8",
        before=({"x": 8}, P("x", None)),
        after=({"x": 8}, P(None, "x")),
    ),
    Case(
        name="P('a') to P('b') on 4x2",
        before=({"a": 4, "b": 2}, P("a", None)),
        after=({"a": 4, "b": 2}, P("b", None)),
    ),
    Case(
        name="P('x') to P() on 8", before=({"x": 8}, P("x", None)), after=({"x": 8}, P(None, None))
    ),
)


def _sharding(axes: dict[str, int], spec: PartitionSpec) -> NamedSharding:
    devices = np.array(jax.devices()[: math.prod(axes.values())], dtype=object)
    return NamedSharding(Mesh(devices.reshape(tuple(axes.values())), tuple(axes)), spec)


Ways = dict[str, list[NamedSharding]]
"""By name, the shardings that an array is brought to one after the other."""


def ways_of(case: Case, shape: Shape, pathways: Path | None) -> Ways:
    """Direct, pathways-utils' where it has an answer, and planned."""
    source, target = case.ends()
    ways = {"direct": [target]}
    between = reshard_pathways.intermediate(pathways, source, target) if pathways else None
    if between is not None:
        ways["pathways-utils"] = [between, target]
    plan = plan_reshard(shape, "float32", placement_of(source), placement_of(target))
    table = DeviceTable(source, target)
    ways[OURS] = [*(sharding_of(hop.target, table) for hop in plan.hops[:-1]), target]
    return ways


def carry(array: jax.Array, name: str, way: list[NamedSharding]) -> jax.Array:
    """The array along a way; what lies between is freed on the way."""
    if name == OURS:
        moved: jax.Array = meshfeed.reshard(array, way[-1])
        return moved
    source = array
    for sharding in way:
        before, array = array, program(sharding)(array)
        if before is not source:
            before.delete()
    return array.block_until_ready()


def timed(array: jax.Array, ways: Ways, rounds: int) -> dict[str, float]:
    """Seconds of each way, the least of interleaved rounds; a first round only compiles."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            moved = carry(array, name, way)
            if turn:
                seconds[name].append(time.perf_counter() - began)
            moved.delete()
    return {name: min(each) for name, each in seconds.items()}


def compiled_figures(
    shape: Shape, source: NamedSharding, way: list[NamedSharding]
) -> dict[str, Any]:
    """Bytes, temporary memory and peak of a way, as compiled."""
    received, temporary, peak, words = 0.0, 0, 0, []
    at = source
    kept = 0
    for sharding in way:
        argument = jax.ShapeDtypeStruct(shape, np.float32, sharding=at)
        compiled = program(sharding).lower(argument).compile()
        read, memory = read_program(compiled.as_text()), compiled.memory_analysis()
        own = memory.argument_size_in_bytes + memory.output_size_in_bytes
        received += float(read.received_bytes)
        temporary = max(temporary, memory.temp_size_in_bytes)
        peak = max(peak, kept + own + memory.temp_size_in_bytes)
        kept = kept or memory.argument_size_in_bytes
        words += [
            one.kind if one.kind == "collective-permute" else f"{one.kind} of {one.group_size}"
            for one in read.collectives
        ] or ["local slice"]
        at = sharding
    return {"received": received, "temporary": temporary, "peak": peak, "words": ", ".join(words)}


def measure_alone(shape: Shape, rounds: int, pathways: Path | None) -> list[dict[str, Any]]:
    """A row for each case and way, in this process."""
    values = np.random.default_rng(0).random(shape, dtype=np.float32)
    rows = []
    for case in CASES:
        source, target = case.ends()
        ways = ways_of(case, shape, pathways)
        array = jax.device_put(values, source)
        plan = plan_reshard(shape, "float32", placement_of(source), placement_of(target))
        for name, way in ways.items():
            _check(carry(array, name, way), values)
        seconds = timed(array, ways, rounds)
        for name, way in ways.items():
            figures = compiled_figures(shape, source, way)
            bound = plan.bound_bytes
            rows.append(
                {"case": case.name, "way": name, "bound": bound, "s": seconds[name], **figures}
            )
        array.delete()
    return rows


def _check(moved: jax.Array, values: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    for shard in moved.addressable_shards:
        if not np.array_equal(np.asarray(shard.data), values[shard.index]):
            raise SystemExit(f"wrong values on {shard.device}")


def table(mib: int, rounds: int) -> str:
    """The figures as Markdown, with one JSON line below."""
    side = math.isqrt(mib * MIB // 4 // 64) * 8
    shape = (side, side)
    pathways = reshard_pathways.install()
    (rows,) = run_processes("alone", 1, shape, rounds, pathways)
    world = run_processes("together", PROCESSES, shape, rounds, pathways)
    ways = list(world[0])
    seconds = {way: max(one[way] for one in world) for way in ways}
    memory = {way: max(run_processes(way, PROCESSES, shape, 1, pathways)) for way in ways}
    lines = [
        f"{shape[0]} x {shape[1]} float32, {shape[0] * shape[1] * 4 / MIB:.0f} MiB, {DEVICES} CPU "
        f"devices; MiB of one device; {_where()}",
        "",
        "| case | way | collectives | received (bound) | temporary | peak | s |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    last = ""
    for row in rows:
        name = row["case"] if row["case"] != last else ""
        last = row["case"]
        lines.append(
            f"| {name} | {row['way']} | {row['words']} | {row['received'] / MIB:.0f} "
            f"({row['bound'] / MIB:.0f}) | {row['temporary'] / MIB:.0f} | {row['peak'] / MIB:.0f} "
            f"| {row['s']:.2f} |"
        )
    lines += [
        "",
        f"The first case in {PROCESSES} processes of {DEVICES // PROCESSES} devices, over gloo:",
        "",
        "| way | s | most memory of a process, MiB |",
        "| --- | ---: | ---: |",
    ]
    lines += [f"| {way} | {seconds[way]:.2f} | {memory[way]:.0f} |" for way in ways]
    first = {row["way"]: row for row in rows if row["case"] == CASES[0].name}
    ratios = {
        way: {
            "times_faster": round(first[way]["s"] / first[OURS]["s"], 2),
            "peak_of_theirs": round(first[OURS]["peak"] / first[way]["peak"], 2),
            "times_faster_in_processes": round(seconds[way] / seconds[OURS], 2),
            "peak_of_theirs_in_processes": round(memory[OURS] / memory[way], 2),
        }
        for way in first
        if way != OURS
    }
    return "\n".join([*lines, "", json.dumps({"first_case": ratios})])


def _where() -> str:
    here, made = machine.describe(), machine.versions()
    return f"{here['cores']} cores of {here['processor']}, jax {made['jax']}, {made['commit']}"
