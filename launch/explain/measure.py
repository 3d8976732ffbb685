"""A training step under each partition type: compiled, its program read, timed in turns."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy.typing as npt
from jax.sharding import Mesh

from meshfeed.launch.explain.steps import SETTING, TrainingStep
from meshfeed.pipeline.assemble.hlo import Traffic, read_program
from meshfeed.pipeline.assemble.shardings import named_sharding
from meshfeed.pipeline.data.batches.leaves import DEFAULT_DTYPES
from meshfeed.pipeline.data.batches.regions import region_nbytes
from meshfeed.pipeline.data.packing.blocks import BlockFormat
from meshfeed.pipeline.plan.batch_plan import PartitionCost, compare_partitions
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mesh import MeshLayout
from meshfeed.pipeline.plan.partition import AxisRoles, DataPartitionType, Spec

Leaves = Mapping[str, npt.NDArray[Any]]
"""A global batch [rows, seq_len] by the user's names of the leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A training step under one partition type.

    Attributes:
        spec: of every leaf.
        host_bytes: that the host with the most fetches for a step.
        all_hosts_bytes: that all hosts fetch.
        batch_bytes: of the leaves on a device.
        collectives: by kind: how many run in a step, and the bytes that a device receives.
        dynamic_slices: that run in a step: pieces cut out of what a device holds.
        argument_bytes: of state and batch on a device.
        temporary_bytes: on a device, beside arguments and results.
        step_seconds: of each step that was timed.
    """

    spec: Spec
    host_bytes: int
    all_hosts_bytes: int
    batch_bytes: int
    collectives: Mapping[str, Traffic]
    dynamic_slices: int
    argument_bytes: int
    temporary_bytes: int
    step_seconds: tuple[float, ...]

    @property
    def received_bytes(self) -> float:
        """Bytes that a device receives from others in a step."""
        return sum(traffic.received_bytes for traffic in self.collectives.values())

    @property
    def seconds(self) -> float | None:
        """Median time of a step; None: not timed."""
        return statistics.median(self.step_seconds) if self.step_seconds else None


Outcome = dict[DataPartitionType, Measured | ConfigError]


def plan_costs(
    layout: MeshLayout, roles: AxisRoles, *, rows: int, seq_len: int, vocab_size: int
) -> dict[DataPartitionType, PartitionCost | ConfigError]:
    """What hosts fetch and devices hold of a batch under each type, or why it is refused."""
    wire = functools.partial(region_nbytes, BlockFormat.for_vocab(seq_len, vocab_size))
    return compare_partitions(
        layout,
        batch_size=rows,
        seq_len=seq_len,
        wire=wire,
        leaf_bytes={leaf: dtype.itemsize for leaf, dtype in DEFAULT_DTYPES.items()},
        roles=roles,
    )


def measure(
    step: TrainingStep,
    mesh: Mesh,
    costs: Mapping[DataPartitionType, PartitionCost | ConfigError],
    batch: Leaves,
    *,
    rounds: int,
    progress: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Compiles the step under every type that fits, and times the programs in turns.

    Types with the same spec are one program: they are compiled and timed once.

    Args:
        step: what is compiled.
        mesh: of CPU devices.
        costs: of the batch, from ``plan_costs``.
        batch: its values.
        rounds: steps that are timed of each program; 0: only compile.
        progress: told what is being done.

    Raises:
        ConfigError: the step cannot be compiled or fails.
    """
    fits = {kind: cost for kind, cost in costs.items() if isinstance(cost, PartitionCost)}
    specs = {kind: next(iter(cost.specs.values())) for kind, cost in fits.items()}
    programs: dict[Spec, jax.stages.Compiled] = {}
    for kind, spec in specs.items():
        if spec not in programs:
            progress(f"compiling under {kind}")
            programs[spec] = _compile(step, mesh, spec, batch, kind)
    times = _time(step, mesh, programs, batch, rounds=rounds, progress=progress)
    outcome: Outcome = {}
    for kind, cost in costs.items():
        if isinstance(cost, ConfigError):
            outcome[kind] = cost
        else:
            outcome[kind] = _read(programs[specs[kind]], cost, specs[kind], times[specs[kind]])
    return outcome


def _compile(
    step: TrainingStep, mesh: Mesh, spec: Spec, batch: Leaves, kind: str
) -> jax.stages.Compiled:
    sharding = named_sharding(mesh, spec)
    abstract = {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        for name, leaf in batch.items()
    }
    jitted = jax.jit(step.step, donate_argnums=0, out_shardings=(step.shardings, None))
    try:
        return jitted.lower(step.state, abstract).compile()
    except (ValueError, TypeError, RuntimeError) as error:
        said = " ".join(str(error).split())[:300]
        raise ConfigError(
            SETTING, f"{step.name} cannot be compiled with the batch under {kind}: {said}"
        ) from error


def _time(
    step: TrainingStep,
    mesh: Mesh,
    programs: Mapping[Spec, jax.stages.Compiled],
    batch: Leaves,
    *,
    rounds: int,
    progress: Callable[[str], None],
) -> dict[Spec, tuple[float, ...]]:
    """Seconds of each program's steps; one state goes through all of them, in turns."""
    times: dict[Spec, list[float]] = {spec: [] for spec in programs}
    placed = {
        spec: {
            name: jax.device_put(leaf, named_sharding(mesh, spec)) for name, leaf in batch.items()
        }
        for spec in (programs if rounds else ())
    }
    state = step.state
    for turn in range(rounds + 1 if rounds else 0):  # the first is not counted
        progress(f"step {turn} of {rounds}, {len(programs)} programs in turns")
        for spec in _turned(programs, turn):
            began = time.perf_counter()
            state, rest = programs[spec](state, placed[spec])
            jax.block_until_ready((state, rest))
            if turn:
                times[spec].append(time.perf_counter() - began)
    return {spec: tuple(taken) for spec, taken in times.items()}


def _turned(programs: Iterable[Spec], turn: int) -> list[Spec]:
    """Each turn begins with another program, so that none always follows the same one."""
    order = list(programs)
    first = turn % len(order) if order else 0
    return order[first:] + order[:first]


def _read(
    program: jax.stages.Compiled, cost: PartitionCost, spec: Spec, seconds: tuple[float, ...]
) -> Measured:
    text, memory = program.as_text(), program.memory_analysis()
    if text is None or memory is None:
        raise ConfigError(
            "jax", f"{jax.__version__} shows neither HLO nor memory of a compiled program on CPU"
        )
    read = read_program(text)
    return Measured(
        spec=spec,
        host_bytes=cost.wire_bytes,
        all_hosts_bytes=cost.wire_bytes_all,
        batch_bytes=cost.device_bytes,
        collectives=read.by_kind(),
        dynamic_slices=read.counts.get("dynamic-slice", 0),
        argument_bytes=memory.argument_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        step_seconds=seconds,
    )
