"""The measurements as a table for people, and as plain values for scripts."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshfeed.launch.explain.findings import findings, recommend, same_programs
from meshfeed.launch.explain.measure import Measured, Outcome
from meshfeed.launch.words import format_bytes, seconds, table
from meshfeed.pipeline.assemble.hlo import KINDS
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.partition import describe_spec


def render(outcome: Outcome) -> RenderableType:
    """The table and what it comes to."""
    programs = same_programs(outcome)
    headings = [" = ".join(kinds) for kinds, _ in programs]
    best, _ = recommend(outcome)
    made = table("", "each device", *headings, right=tuple(headings))
    made.columns[0].no_wrap = True
    for (kinds, _), column in zip(programs, made.columns[1:], strict=True):
        column.header_style = "bold green" if best in kinds else ""
    for kind in KINDS:
        if any(kind in measured.collectives for _, measured in programs):
            made.add_row(kind, *(_traffic(measured, kind) for _, measured in programs))
    rows: dict[str, Callable[[Measured], str]] = {
        "received in all": lambda m: format_bytes(round(m.received_bytes)),
        "dynamic-slice": lambda m: f"{m.dynamic_slices:,}",
        "arguments": lambda m: format_bytes(m.argument_bytes),
        "temporary": lambda m: format_bytes(m.temporary_bytes),
        "batch": lambda m: format_bytes(m.batch_bytes),
        "a host fetches": lambda m: format_bytes(m.host_bytes),
        "all hosts fetch": lambda m: format_bytes(m.all_hosts_bytes),
    }
    if any(measured.step_seconds for _, measured in programs):
        rows |= {
            "step, median": lambda m: seconds(statistics.median(m.step_seconds)),
            "fastest": lambda m: seconds(min(m.step_seconds)),
            "slowest": lambda m: seconds(max(m.step_seconds)),
        }
    for name, cell in rows.items():
        style = "bold" if name == "received in all" else ""
        made.add_row(name, *(cell(measured) for _, measured in programs), style=style)
    specs, width = Text(), max(map(len, headings))
    for (_, measured), heading in zip(programs, headings, strict=True):
        specs.append(f"{heading:<{width}}", "dim").append(f"  {describe_spec(measured.spec)}\n")
    said = Table.grid(padding=(0, 2))
    said.add_column(no_wrap=True, style="bold")
    said.add_column(overflow="fold")
    for types, words in findings(outcome):
        said.add_row(types, Text(words))
    return Group(specs, made, said)


def _traffic(measured: Measured, kind: str) -> str:
    """How many, and what they bring."""
    traffic = measured.collectives.get(kind)
    if traffic is None:
        return "-"
    return f"{format_bytes(round(traffic.received_bytes))} in {traffic.count:,}"


def plain(outcome: Outcome) -> dict[str, Any]:
    """What ``--json`` prints of the measurements."""
    types: dict[str, Any] = {}
    for kind, one in outcome.items():
        if isinstance(one, ConfigError):
            types[kind] = {"refused": str(one)}
            continue
        types[kind] = {
            "spec": describe_spec(one.spec),
            "collectives": {
                name: {"count": traffic.count, "received_bytes": traffic.received_bytes}
                for name, traffic in one.collectives.items()
            },
            "received_bytes": one.received_bytes,
            "dynamic_slices": one.dynamic_slices,
            "argument_bytes": one.argument_bytes,
            "temporary_bytes": one.temporary_bytes,
            "batch_bytes": one.batch_bytes,
            "host_bytes": one.host_bytes,
            "all_hosts_bytes": one.all_hosts_bytes,
            "step_seconds": list(one.step_seconds),
            "median_step_seconds": one.seconds,
        }
    said = dict(findings(outcome))
    return {"types": types, "recommended": recommend(outcome)[0], "findings": said}
