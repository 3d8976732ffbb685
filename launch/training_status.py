"""What ``meshfeed status`` says of a run that trains: its world, its hosts, its resizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from meshfeed.launch.words import seconds, table
from meshfeed.pipeline.plan.errors import ConfigError, StallError
from meshfeed.pipeline.plan.mesh import describe_axes


def training_of(run_dir: str) -> dict[str, Any]:
    """``training``: what the elastic coordinator tells; empty where nothing trains."""
    from meshfeed.actors.elastic.run import ElasticRun

    try:
        return {"training": ElasticRun.find(run_dir).status()}
    except ConfigError:
        return {}
    except StallError as error:
        return {"training": {"state": "unknown", "error": str(error)}}


def training_table(training: Mapping[str, Any]) -> RenderableType:
    """World, hosts and the last resizes, for a person."""
    if "hosts" not in training:
        return Text(f"training: {training['state']}, {training['error']}", "bold red")
    mesh = describe_axes(training["mesh"]) if training["mesh"] else "no world"
    head = f"training: {training['state']}, world {training['generation']} ({mesh})"
    head += f", step {training['step']}"
    if training["snapshot"] >= 0:
        head += f", last snapshot of step {training['snapshot']}"
    if training["waits_for"]:
        head += f", waits for {', '.join(training['waits_for'][:8])}"
    made = table(head, "host", "place", "phase", "step", right=("place", "step"))
    for host in training["hosts"]:
        place, step = host["place"], host["step"]
        made.add_row(
            host["host"],
            "-" if place is None else str(place),
            host["phase"],
            "-" if step is None else f"{step:,}",
        )
    parts: list[RenderableType] = [made]
    for resize in training["resizes"][-4:]:
        slowest = max(resize["seconds"], key=resize["seconds"].get)
        parts.append(
            Text(
                f"step {resize['step']:,}: {resize['kind']}, {resize['hosts_from']} to "
                f"{resize['hosts_to']} hosts in {seconds(sum(resize['seconds'].values()))}, "
                f"mostly {slowest}; {'; '.join(resize['reasons'])}",
                "dim",
            )
        )
    return Group(*parts)
