"""What a compiled program moves between devices, read off its HLO text.

``compiled.as_text()`` of a ``jax.stages.Compiled`` is one program that every device runs. Its
collectives are the only place where bytes cross from one device to another, so their operands,
groups and pairs say what is received:

==================  =====================================================================
kind                bytes that a device receives, R the bytes of its result, g its group
==================  =====================================================================
all-gather          R (g - 1) / g
all-to-all          R (g - 1) / g
reduce-scatter      R (g - 1)
all-reduce          2 R (g - 1) / g: reduce-scatter, then all-gather
collective-permute  R where its pair's source is another device, else 0
==================  =====================================================================

A collective in the body of a loop counts as often as the loop runs, where XLA knows how often;
else once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from meshfeed.pipeline.plan.errors import DisagreementError

KINDS = (
    "all-gather",
    "all-to-all",
    "all-reduce",
    "reduce-scatter",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
)

_HEADER = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{\s*$")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][a-z0-9\-]*)\((.*)$")
_CALLED = re.compile(r"(calls|to_apply|body|condition)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"(?:branch_computations|called_computations)=\{(.*?)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"?(\d+)"?\}')
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+[a-z0-9]*)\[([\d,<=]*)\]")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_LISTED = re.compile(r"replica_groups=\{(\{[\d,]*\})?")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=")
_MESH = re.compile(r"replica_groups=mesh\[(.*?)\].*? \{(.*?)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective of a program.

    Attributes:
        kind: one of ``KINDS``.
        group_size: devices that take part together; of a permutation 2.
        times: how often it runs.
        received_bytes: that a device receives each time, the mean over all devices.
    """

    kind: str
    group_size: int
    times: int
    received_bytes: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """All collectives of one kind: how many run, and the mean bytes that a device receives."""

    count: int = 0
    received_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a compiled program does.

    Attributes:
        devices: that run it.
        collectives: in the order of the text.
        counts: how often each operation runs, inside fusions too.
    """

    devices: int
    collectives: tuple[Collective, ...]
    counts: dict[str, int]

    @property
    def received_bytes(self) -> Fraction:
        """Bytes that a device receives in all, the mean over the devices."""
        return sum((c.times * c.received_bytes for c in self.collectives), Fraction(0))

    def by_kind(self) -> dict[str, Traffic]:
        """Traffic of each kind of collective that there is, in the order of ``KINDS``."""
        table = {}
        for kind in KINDS:
            mine = [c for c in self.collectives if c.kind == kind]
            if mine:
                received = sum(c.times * c.received_bytes for c in mine)
                table[kind] = Traffic(
                    count=sum(c.times for c in mine), received_bytes=float(received)
                )
        return table


@dataclass(slots=True)
class _Computation:
    lines: list[re.Match[str]] = field(default_factory=list)
    calls: list[tuple[str, int]] = field(default_factory=list)


def read_program(text: str) -> Program:
    """Reads ``compiled.as_text()``.

    Args:
        text: HLO after all passes of the compiler.

    Returns:
        Its collectives with the bytes they move, and counts of all operations.

    Raises:
        DisagreementError: the text is no HLO module, or one in a form that is not known here.
    """
    if not text.startswith("HloModule"):
        raise DisagreementError(f"no HLO module: it begins with {text[:40]!r}")
    header = text.splitlines()[0]
    devices = math.prod(
        int(found[1])
        for name in ("num_partitions", "replica_count")
        if (found := re.search(rf"{name}=(\d+)", header))
    )
    entry, computations = _split(text)
    counts: dict[str, int] = {}
    collectives = []
    for name, times in _times(entry, computations).items():
        for line in computations[name].lines:
            operation = line[3]
            counts[operation] = counts.get(operation, 0) + times
            kind = operation.removesuffix("-start")
            if kind in KINDS:
                collectives.append(_collective(kind, line, times, devices))
    return Program(devices=devices, collectives=tuple(collectives), counts=counts)


def _split(text: str) -> tuple[str, dict[str, _Computation]]:
    """The name of the entry, and every computation by name."""
    computations: dict[str, _Computation] = {}
    entry = ""
    for line in text.splitlines():
        if header := _HEADER.match(line):
            current = computations.setdefault(header[1], _Computation())
            if line.startswith("ENTRY"):
                entry = header[1]
        elif found := _INSTRUCTION.match(line):
            current.lines.append(found)
            current.calls += _calls(line, found[3])
    if not entry:
        raise DisagreementError("an HLO module without an entry")
    return entry, computations


def _calls(line: str, operation: str) -> Iterator[tuple[str, int]]:
    """(computation, how often) that an instruction calls; a reduction's own is no work of ours."""
    trips = _TRIPS.search(line)
    for role, name in _CALLED.findall(line):
        if role != "to_apply" or operation in ("call", "async-start"):
            yield name, int(trips[1]) if trips and role in ("body", "condition") else 1
    for branches in _BRANCHES.findall(line):
        for name in branches.split(","):
            yield name.strip().lstrip("%"), 1


def _times(entry: str, computations: dict[str, _Computation]) -> dict[str, int]:
    """How often each computation runs that runs at all, callers first."""
    order: list[str] = []
    seen: set[str] = set()

    def visit(name: str) -> None:
        if name in seen or name not in computations:
            return
        seen.add(name)
        for callee, _ in computations[name].calls:
            visit(callee)
        order.append(name)

    visit(entry)
    times = dict.fromkeys(reversed(order), 0)
    times[entry] = 1
    for name in times:
        for callee, trips in computations[name].calls:
            if callee in times:
                times[callee] += times[name] * trips
    return times


def _collective(kind: str, line: re.Match[str], times: int, devices: int) -> Collective:
    arrays = [_array_bytes(*array) for array in _ARRAY.findall(line[2])]
    if line[3].endswith("-start") and kind != "all-reduce":
        arrays = arrays[1:2] if kind == "collective-permute" else arrays[len(arrays) // 2 :]
    result = sum(arrays, Fraction(0))
    if kind == "collective-permute":
        pairs = _PAIRS.search(line[4])
        if pairs is None:
            raise DisagreementError(f"a collective-permute without pairs: {line[0]}")
        ends = re.findall(r"(\d+),(\d+)", pairs[1])
        moved = sum(source != target for source, target in ends)
        return Collective(
            kind=kind, group_size=2, times=times, received_bytes=result * moved / devices
        )
    group = _group_size(line, devices)
    share = Fraction(group - 1, group)
    factors = {
        "all-reduce": 2 * share,
        "reduce-scatter": Fraction(group - 1),
        "collective-broadcast": Fraction(1),
    }
    received = result * factors.get(kind, share)
    return Collective(kind=kind, group_size=group, times=times, received_bytes=received)


def _group_size(line: re.Match[str], devices: int) -> int:
    """Devices in one group of a collective, from any of the forms in which XLA writes groups."""
    rest = line[4]
    if found := _IOTA.search(rest):
        return int(found[2])
    if found := _MESH.search(rest):
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", found[1]))
        axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", found[2])
        return math.prod(int(part or sizes[name]) for name, part in axes)
    if found := _LISTED.search(rest):
        return found[1].count(",") + 1 if found[1] else devices
    raise DisagreementError(f"a collective whose groups are in no known form: {line[0]}")


def _array_bytes(dtype: str, shape: str) -> Fraction:
    """Bytes of an array; types below a byte count as the bits they are."""
    bits = 8 if dtype == "pred" else int(re.findall(r"\d+", dtype)[0])
    return Fraction(bits, 8) * math.prod(int(d) for d in re.findall(r"\d+", shape))
