"""``report.json``: what a simulated run did, for scripts; and the same for a person to read."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from meshfeed import __version__
from meshfeed.actors.elastic.messages import Resize
from meshfeed.launch.sim_host import HostSummary
from meshfeed.pipeline.data.runs.run_folder import write_whole
from meshfeed.pipeline.plan.run_config import RunConfig


@dataclass(frozen=True, slots=True)
class StepDigest:
    """A step on which all hosts agreed.

    Attributes:
        step: its number.
        rows: that are not padding.
        digest: of the global batch as it lies on the devices; independent of hosts, mesh and
            partition.
        waited: seconds that the slowest host waited for it.
    """

    step: int
    rows: int
    digest: str
    waited: float


class Report:
    """Grows with the run.

    Args:
        config: of the run.
        feed: that was run.
    """

    def __init__(self, config: RunConfig, feed: str) -> None:
        self.feed = feed
        self.steps: list[StepDigest] = []
        self.disagreements: list[dict[str, Any]] = []
        self.losses: dict[int, float] = {}
        self.resizes: list[Resize] = []
        self._config = config
        self._places: dict[int, int] = {}
        self._began = time.monotonic()
        self._first: float | None = None
        self._rest: dict[str, Any] = {}

    @property
    def agreed(self) -> bool:
        """All hosts had the same batch at every step, and there was one."""
        return bool(self.steps) and not self.disagreements

    def add(self, step: StepDigest) -> None:
        """All hosts agreed on a step; one that is taken again must be the same again."""
        if self._first is None:
            self._first = time.monotonic()
        before = self._places.setdefault(step.step, len(self.steps))
        if before == len(self.steps):
            self.steps.append(step)
        elif self.steps[before].digest != step.digest:
            self.disagree(step.step, "taken again, it had another digest")

    def trained(self, step: int, metrics: Mapping[str, float]) -> None:
        """What the trainer reported of a step; one that was taken again counts as it was last."""
        if "loss" in metrics:
            self.losses[step] = metrics["loss"]

    def disagree(self, step: int, how: str) -> None:
        """Hosts did not have the same batch."""
        self.disagreements.append({"step": step, "how": how})

    def tokens_per_second(self) -> float:
        """Since the first batch."""
        if self._first is None or len(self.steps) < 2:
            return 0.0
        rows = sum(step.rows for step in self.steps[1:])
        seconds = max(time.monotonic() - self._first, 1e-9)
        return rows * self._config.feed(self.feed).seq_len / seconds

    def waiting_share(self) -> float:
        """Share of the time since the first batch that the slowest host waited for data."""
        if self._first is None:
            return 0.0
        waited = sum(step.waited for step in self.steps[1:])
        return min(1.0, waited / max(time.monotonic() - self._first, 1e-9))

    def finish(self, status: dict[str, Any], hosts: list[HostSummary], seconds: float) -> None:
        """The run has ended."""
        feed = status["feeds"][self.feed]
        sources = {name: _source(tally) for name, tally in feed["sources"].items()}
        self._rest = {
            "agreed": self.agreed,
            "feed": self.feed,
            "seconds": seconds,
            "tokens_per_second": self.tokens_per_second(),
            "waiting_share": self.waiting_share(),
            "hosts": [_host(summary) for summary in hosts],
            "sources": sources,
            "dropped_rows": feed.get("dropped_rows", 0),
            "windows_run": sum(s["windows"] for s in sources.values()),
            "windows_run_again": sum(s["windows_again"] for s in sources.values()),
            "node_servers_died": status["nodes"]["died"],
            "coordinator_calls": status["calls"],
            "state": hosts[0].state if hosts else None,
            "meshfeed": __version__,
            "python": platform.python_version(),
        }

    def write(self, run_dir: Path) -> Path:
        """Writes ``report.json``; gives its path."""
        path = run_dir / "report.json"
        plain = {"steps": [asdict(step) for step in self.steps]} | self._rest
        plain["disagreements"] = self.disagreements
        plain["resizes"] = [asdict(resize) for resize in self.resizes]
        plain["losses"] = [self.losses.get(step.step) for step in self.steps]
        write_whole(path, json.dumps(plain, indent=1))
        return path

    def show(self, path: Path) -> None:
        """Prints it for a person."""
        console = Console()
        config = self._config
        rest = self._rest
        verdict = "[green]every step agreed on every host[/green]"
        if not self.agreed:
            verdict = f"[red]{len(self.disagreements)} steps disagreed[/red]"
            for entry in self.disagreements[:5]:
                console.print(f"step {entry['step']}: {entry['how']}", markup=False)
        console.print(
            f"\n{len(self.steps)} steps on {config.hosts} hosts x {config.devices_per_host} "
            f"devices, partition {config.partition}: {verdict}"
        )
        console.print(
            f"{rest['tokens_per_second']:,.0f} tokens/s, waiting for data "
            f"{rest['waiting_share']:.0%} of the time, {rest['seconds']:.1f} s in all"
        )
        console.print(_source_table(rest["sources"]))
        console.print(_host_table(rest["hosts"]))
        if rest["dropped_rows"]:
            console.print(f"{rest['dropped_rows']} rows at the end filled no step: dropped")
        calls = ", ".join(f"{count} {name}" for name, count in rest["coordinator_calls"].items())
        console.print(f"calls to the coordinator: {calls}")
        console.print(f"report: {path}")


def _source(tally: dict[str, Any]) -> dict[str, Any]:
    cells = tally["tokens"] + tally["padding"]
    return tally | {
        "padding_fraction": tally["padding"] / cells if cells else 0.0,
        "read_amplification": (
            tally["storage_bytes"] / tally["used_bytes"] if tally["used_bytes"] else 0.0
        ),
    }


def _host(summary: HostSummary) -> dict[str, Any]:
    fetched = summary.metrics["bytes_fetched"]
    return {
        "host": summary.host,
        "local_shapes": summary.shapes,
        "bytes_needed": summary.bytes_needed,
        "bytes_fetched": fetched,
        "waiting_seconds": summary.metrics["waiting_seconds"],
        "waited_for": summary.metrics["waited_for"],
        "first_batch_seconds": summary.metrics["first_batch_seconds"],
        "fetches": summary.metrics["fetches"],
        "polls": summary.metrics["polls"],
    }


def _source_table(sources: dict[str, Any]) -> Table:
    table = Table("source", title=None)
    for name in ("rows", "tokens", "padding", "windows", "run again", "read / used", "skipped"):
        table.add_column(name, justify="right")
    for name, source in sources.items():
        table.add_row(
            name,
            f"{source['rows']:,}",
            f"{source['tokens']:,}",
            f"{source['padding_fraction']:.2%}",
            f"{source['windows']:,}",
            f"{source['windows_again']:,}",
            f"{source['read_amplification']:.3f}",
            f"{source['skipped']:,}",
        )
    return table


def _host_table(hosts: list[dict[str, Any]]) -> Table:
    table = Table("host")
    for name in (
        "first shard of each leaf",
        "fetched MB",
        "fetched / needed",
        "waited s",
        "mostly for",
    ):
        table.add_column(name, justify="right")
    for host in hosts:
        waited = host["waited_for"]
        shapes = {str(shards[0]) for shards in host["local_shapes"].values()}
        table.add_row(
            str(host["host"]),
            " ".join(sorted(shapes)),
            f"{host['bytes_fetched'] / 1e6:,.2f}",
            f"{host['bytes_fetched'] / max(host['bytes_needed'], 1):.3f}",
            f"{host['waiting_seconds']:.2f}",
            max(waited, key=waited.get) if waited else "-",
        )
    return table
