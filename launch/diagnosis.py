"""Why training waits for data: read from what a run says of itself. Pure: status in, lines out.

A host that waits says for which stage of its own (see ``actors.host.waiting``). Where that is
``grant``, rows are missing, and the stages of readers say why: which takes the time, for which
source, and whether one reader is slower than the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from meshfeed.launch.words import seconds, share, tail

LITTLE_WAITING = 0.02
"""A smaller share of the time is not worth a word."""

SLOW_FACTOR = 2.0
"""A reader is slow in a stage where it takes so many times as long as the others..."""

SLOW_SECONDS = 0.01
"""... and so many seconds a window more."""

LEAST_WINDOWS = 3

STUCK_SECONDS = 5.0
STUCK_FACTOR = 10.0

STAGES = ("read", "transform", "tokenize", "pack")

_WAITS = {
    "opening": "for the feed to be opened",
    "grant": "for rows that readers have not made yet",
    "fetch": "for rows on their way from the nodes",
    "assemble": "for leaves on their way to the devices",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """How long the host that waits most has waited for a feed.

    Attributes:
        process: its index.
        share: of the time since its first batch, 0..1.
        stage: that it waited for most, "" where it did not wait.
        starting: it has no batch yet.
    """

    process: int
    share: float
    stage: str
    starting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowReader:
    """A reader that takes longer in a stage than the others.

    Attributes:
        reader: its name.
        stage: in which it is slow.
        seconds: a window there.
        others: seconds a window of the median of the others.
    """

    reader: str
    stage: str
    seconds: float
    others: float


def most_waiting(feed: Mapping[str, Any]) -> Waits | None:
    """The host that waits most, None where no host has said anything yet."""
    found: Waits | None = None
    for process, times in feed.get("waiting", {}).items():
        part = times["seconds"] / max(times["of_seconds"], 1e-9)
        stages = times["by_stage"]
        stage = max(stages, key=stages.get) if stages else times["waiting_for"]
        waits = Waits(
            process=int(process),
            share=min(part, 1.0),
            stage=stage,
            starting=not times["batches"],
        )
        if found is None or waits.share > found.share:
            found = waits
    return found


def slow_readers(feed: Mapping[str, Any]) -> list[SlowReader]:
    """Readers that stand out, the slowest first."""
    means = {
        name: {stage: times["seconds"].get(stage, 0.0) / times["windows"] for stage in STAGES}
        for name, times in feed.get("readers", {}).items()
        if times["windows"] >= LEAST_WINDOWS
    }
    found = []
    for stage in STAGES:
        for name, own in means.items():
            rest = [other[stage] for which, other in means.items() if which != name]
            if not rest:
                continue
            usual = median(rest)
            if own[stage] > SLOW_FACTOR * usual and own[stage] - usual > SLOW_SECONDS:
                slow = SlowReader(reader=name, stage=stage, seconds=own[stage], others=usual)
                found.append(slow)
    return sorted(found, key=lambda slow: slow.others - slow.seconds)


def stuck_readers(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Readers that have been in one stage far longer than stages take, the longest first."""
    found = []
    for reader in status["readers"]:
        if not reader.get("stage"):
            continue
        feed = status["feeds"].get(reader.get("feed"), {})
        windows = sum(times["windows"] for times in feed.get("readers", {}).values())
        taken = sum(
            t["seconds"].get(reader["stage"], 0.0) for t in feed.get("readers", {}).values()
        )
        usual = taken / windows if windows else 0.0
        if reader["seconds"] > max(STUCK_SECONDS, STUCK_FACTOR * usual):
            found.append(reader)
    return sorted(found, key=lambda reader: -reader["seconds"])


def stage_shares(source: Mapping[str, Any]) -> dict[str, float]:
    """What part of a source's time each stage took, the largest first."""
    taken = {stage: source["seconds"].get(stage, 0.0) for stage in STAGES}
    total = sum(taken.values())
    shares = {stage: part / total for stage, part in taken.items() if total and part}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def diagnose(status: Mapping[str, Any]) -> list[str]:
    """What holds a run up, in words, the most telling first; one line where nothing does."""
    if status.get("error"):
        return [f"The run has failed: {status['error']}"]
    hosts = {reader["reader"]: reader.get("host", "") for reader in status["readers"]}
    lines = []
    for name, feed in status["feeds"].items():
        if "granted" in feed:
            lines += _feed_lines(name, feed, hosts)
    for reader in stuck_readers(status):
        lines.append(
            f"{_reader(reader['reader'], hosts)} (pid {reader.get('pid')}) has been in "
            f"{reader['stage']} for {seconds(reader['seconds'])}"
            + (f", {tail(reader['what'], width=70)}" if reader.get("what") else "")
        )
    return lines or ["Nothing has been asked of the run yet"]


def _feed_lines(name: str, feed: Mapping[str, Any], hosts: Mapping[str, str]) -> list[str]:
    waits = most_waiting(feed)
    ended = feed["total_steps"] is not None and feed["taken"] >= feed["total_steps"]
    lines = [f"{name} has been taken to its end"] if ended else []
    if waits is None:
        return lines or [f"{name} is open; no host has taken a batch yet"]
    verb = "waited" if ended else "waits"
    if waits.starting:
        what = _WAITS.get(waits.stage, "and has not asked for it lately")
        lines.append(f"{name}: host {waits.process} waits for its first batch, {what}")
    elif waits.share < LITTLE_WAITING:
        lines.append(
            f"{name}: training {verb} {share(waits.share, 1.0)} of the time: data are no limit"
        )
    else:
        lines.append(
            f"{name}: host {waits.process} {verb} {share(waits.share, 1.0)} of the time, mostly "
            f"{_WAITS.get(waits.stage, waits.stage)}"
        )
    if waits.stage == "grant" and (waits.starting or waits.share >= LITTLE_WAITING):
        lines += _why_no_rows(feed)
    for slow in slow_readers(feed):
        lines.append(
            f"{name}: {_reader(slow.reader, hosts)} takes {seconds(slow.seconds)} a window in "
            f"{slow.stage}, the others {seconds(slow.others)}"
        )
    return lines


def _why_no_rows(feed: Mapping[str, Any]) -> list[str]:
    limiting = feed.get("limiting_window")
    if limiting is None:
        return []
    name = limiting["source"]
    shares = stage_shares(feed["sources"][name])
    if not shares:
        return [f"the next rows come from {name}, of which no window has run yet"]
    stage = next(iter(shares))
    hint = {
        "read": "storage is slow, or chunks are small",
        "transform": "@vectorized transforms cost less",
        "tokenize": "the fast engine or more readers help",
        "pack": "packing: concat costs least",
    }[stage]
    return [
        f"the next rows come from {name}, whose windows spend {share(shares[stage], 1.0)} of their "
        f"time in {stage}: {hint}"
    ]


def _reader(name: str, hosts: Mapping[str, str]) -> str:
    host = hosts.get(name, "")
    return f"{name} on {host}" if host else name
