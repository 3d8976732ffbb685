"""Runs cases in turns and compares them: ``python -m benchmarks.throughput``.

A processor drifts by tens of per cent within minutes, so only what ran side by side is compared:
each round runs every case once, a ratio is taken within each round, and what is reported is the
median of the rounds with the lowest and highest. ``others`` says how many processors were kept
busy by something else meanwhile: a round with much of that says little.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import meter

_SETTLE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A process that measures one thing and prints one JSON line.

    Attributes:
        name: of the case.
        command: module of this package and its arguments.
        timeout_s: after which it has failed.
    """

    name: str
    command: tuple[str, ...]
    timeout_s: float = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A case, the limit it is held against, and what is aimed at.

    Attributes:
        title: what the ratio says.
        measured, limit: names of cases.
        figure: which of their figures is compared; more is better.
        aim: the ratio that is aimed at; None: it is for information.
    """

    title: str
    measured: str
    limit: str
    figure: str = "tokens_per_s"
    aim: float | None = None


class CaseError(Exception):
    """A case printed no figures; the message is the end of what it did print."""


def run_case(case: Case) -> dict[str, Any]:
    """Run a case in a process of its own, with the peak memory of all that it starts.

    Whatever the case leaves behind is ended.

    Raises:
        CaseError: it ended without its line, or ran out of time.
    """
    command = [sys.executable, "-m", *case.command]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    memory = meter.PeakMemory(process.pid)
    try:
        output, errors = process.communicate(timeout=case.timeout_s)
    except subprocess.TimeoutExpired:
        raise CaseError(f"{case.name}: not done after {case.timeout_s:.0f} s") from None
    finally:
        memory.stop()
        _end_descendants()
        process.poll()
    for line in reversed(output.splitlines()):
        if line.startswith('{"case"'):
            figures: dict[str, Any] = json.loads(line)
            return figures | {
                "peak_memory_mb": round(memory.bytes / 1e6),
                "peak_shm_mb": round(memory.shm_bytes / 1e6),
            }
    raise CaseError(
        f"{case.name}: status {process.returncode}, {(errors or output)[-1500:].strip()}"
    )


def _end_descendants() -> None:
    """Ask everything that is below this process to end, then make it; they are all ours."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for _ in range(20):
            left = [pid for pid in meter.tree(os.getpid()) if pid != os.getpid()]
            _reap()
            if not left:
                return
            for pid in left:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
            time.sleep(0.1)


def _reap() -> None:
    """Collect ended processes that fell to this one when their parents ended."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def run_rounds(cases: Sequence[Case], rounds: int) -> dict[str, list[dict[str, Any] | None]]:
    """Figures of each case for each round, None where it failed; cases run in turns."""
    meter.adopt_orphans()
    results: dict[str, list[dict[str, Any] | None]] = {case.name: [] for case in cases}
    for number in range(rounds):
        for case in cases:
            began = time.monotonic()
            figures: dict[str, Any] | None = None
            try:
                figures = run_case(case)
                shown = describe(figures)
            except CaseError as failure:
                shown = f"FAILED: {failure}"
            took = time.monotonic() - began
            print(f"round {number + 1}/{rounds}  {case.name:12} {took:4.0f} s  {shown}", flush=True)
            results[case.name].append(figures)
            time.sleep(_SETTLE_S)
    return results


def describe(figures: dict[str, Any]) -> str:
    """The figures that every case has, for a person."""
    parts = []
    if "tokens_per_s" in figures:
        parts.append(f"{figures['tokens_per_s'] / 1e6:8.2f} million tokens/s")
    if "cpu_s_per_mtok" in figures:
        parts += [
            f"{figures['cpu_s_per_mtok']:.4f} CPU s per million",
            f"{figures['cores_busy']:.2f} cores",
            f"others {figures.get('others_cores', 0):.2f}",
        ]
    if "first_batch_s" in figures:
        parts.append(f"first batch after {figures['first_batch_s']:.1f} s")
    parts.append(f"{figures['peak_memory_mb']} MB")
    return ", ".join(parts)


def compare(
    comparisons: Iterable[Comparison], results: dict[str, list[dict[str, Any] | None]]
) -> list[dict[str, Any]]:
    """The ratio of each comparison: median, lowest and highest of the rounds that have both.

    ``cpu_ratio`` is that of their processor time for a token, which other load on the machine
    changes little; ``others_cores`` is how much of that there was at most.
    """
    table = []
    for comparison in comparisons:
        if not {comparison.measured, comparison.limit} <= set(results):
            continue
        both = [
            (measured, limit)
            for measured, limit in zip(
                results[comparison.measured], results[comparison.limit], strict=True
            )
            if measured and limit
        ]
        if not both:
            continue
        pairs = [
            (measured[comparison.figure], limit[comparison.figure]) for measured, limit in both
        ]
        ratios = [measured / limit for measured, limit in pairs]
        costs = [limit["cpu_s_per_mtok"] / measured["cpu_s_per_mtok"] for measured, limit in both]
        table.append(
            asdict(comparison)
            | {
                "ratio": round(statistics.median(ratios), 3),
                "lowest": round(min(ratios), 3),
                "highest": round(max(ratios), 3),
                "cpu_ratio": round(statistics.median(costs), 3),
                "others_cores": max(max(m["others_cores"], n["others_cores"]) for m, n in both),
                "rounds": len(ratios),
                "measured_value": statistics.median(measured for measured, _ in pairs),
                "limit_value": statistics.median(limit for _, limit in pairs),
            }
        )
    return table


def medians(results: dict[str, list[dict[str, Any] | None]]) -> dict[str, dict[str, float]]:
    """The median of every number that a case reports."""
    summary = {}
    for case, rounds in results.items():
        done = [figures for figures in rounds if figures]
        if done:
            numbers = [key for key, value in done[0].items() if isinstance(value, int | float)]
            summary[case] = {
                key: statistics.median(figures[key] for figures in done if key in figures)
                for key in numbers
            }
    return summary


def select(cases: Sequence[Case], pattern: str) -> list[Case]:
    """Cases whose name the pattern finds."""
    return [case for case in cases if re.search(pattern, case.name)]
