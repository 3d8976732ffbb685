"""``meshfeed check CONFIG``: what would go wrong, before a cluster is paid for."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from meshfeed.launch.checks import Finding, Level, check_run
from meshfeed.launch.progress import Progress
from meshfeed.launch.settings import add_config_flags, config_from
from meshfeed.launch.words import plural
from meshfeed.pipeline.plan.errors import ConfigError

_MARKS = {
    Level.OK: ("ok", "green"),
    Level.NOTE: ("note", "cyan"),
    Level.WARNING: ("warn", "yellow"),
    Level.PROBLEM: ("FAIL", "bold red"),
}


def add_check_command(commands: Any) -> None:
    """Adds ``check`` to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "check",
        help="run one window of each source and say what would go wrong",
        description="Does in this process what a run would do first: lists the sources, chooses "
        "the tokenizer's engine, runs one window of each source of each feed. Needs neither Ray "
        "nor a device and writes nothing. Ends with 1 if a run would fail.",
    )
    add_config_flags(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    parser.set_defaults(run=run_check)


def run_check(args: argparse.Namespace) -> int:
    """Prints findings and a verdict; 1 if a run would fail."""
    progress = Progress(quiet=args.json)
    findings: list[Finding] = []
    try:
        config = config_from(args)
        findings += check_run(config, progress.stage)
    except ConfigError as error:
        findings.append(Finding(Level.PROBLEM, "", "settings", str(error)))
    progress.close()
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    if args.json:
        plain = {"ready": not problems, "findings": [dataclasses.asdict(f) for f in findings]}
        json.dump(plain, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        _show(Console(highlight=False), findings)
    return 1 if problems else 0


def _show(console: Console, findings: list[Finding]) -> None:
    """Findings by what they are about, then the verdict."""
    for about in dict.fromkeys(finding.about for finding in findings):
        console.print(Text(about or "run", "bold"))
        grid = Table.grid(padding=(0, 2))
        grid.add_column(width=4)
        grid.add_column(style="dim", no_wrap=True, min_width=9)
        grid.add_column(overflow="fold")
        for finding in findings:
            if finding.about == about:
                grid.add_row(Text(*_MARKS[finding.level]), finding.topic, Text(finding.text))
        console.print(grid)
        console.print()
    console.print(_verdict(findings))


def _verdict(findings: list[Finding]) -> Text:
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    warnings = sum(finding.level is Level.WARNING for finding in findings)
    also = f", {plural(warnings, 'warning')}" if warnings else ""
    if problems:
        return Text(f"A run would fail: {plural(problems, 'problem')}{also}.", "bold red")
    if warnings:
        return Text(f"A run would start, with {plural(warnings, 'warning')}.", "bold yellow")
    return Text("Ready: a run would start.", "bold green")
