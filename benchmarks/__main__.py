"""All benchmarks: ``python -m benchmarks`` prepares the corpus, measures, and prints ratios.

Writes ``results.json`` (every figure of every round) and ``results.md`` (the table) beside itself,
or where ``--out`` says.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from benchmarks import corpus, machine, throughput
from benchmarks.throughput import Case, Comparison

SECONDS = 10.0
QUIET_CORES = 0.25
"""Other work that keeps more of the processors busy makes a round worth little."""

COMPARISONS = (
    Comparison(
        title="text, Hugging Face tokenizer, to the bare tokenizer",
        measured="text-hf",
        limit="hf",
        aim=0.95,
    ),
    Comparison(
        title="text, fast engine, to the bare engine: words that it has not seen",
        measured="text-fast-new",
        limit="fast-new",
        aim=0.75,
    ),
    Comparison(
        title="text, fast engine, to the bare engine: words that it has seen",
        measured="text-fast",
        limit="fast",
        aim=0.75,
    ),
    Comparison(
        title="pre-tokenized, to a shuffled gather: tokens alone",
        measured="pretok-tokens",
        limit="gather",
        aim=0.95,
    ),
    Comparison(
        title="pre-tokenized, to a gather that makes as many arrays: all five leaves",
        measured="pretok",
        limit="gather5",
    ),
)


def cases(seconds: float, cache: Path) -> list[Case]:
    """Every case next to the limit that it is held against."""
    limits = ["hf", "fast-new", "fast", "gather", "gather5", "memcpy"]
    modes = ["text-hf", "text-fast-new", "text-fast", "pretok-tokens", "pretok"]
    common = ("--seconds", str(seconds), "--cache", str(cache))
    by_name = {
        name: Case(name=name, command=("benchmarks.baselines", name, *common)) for name in limits
    } | {
        mode: Case(name=mode, command=("benchmarks.feed", "--mode", mode, *common))
        for mode in modes
    }
    by_name["assembly"] = Case(name="assembly", command=("benchmarks.assembly", *common))
    by_name["coordinator"] = Case(
        name="coordinator", command=("benchmarks.coordinator_scale",), timeout_s=900.0
    )
    order = ["hf", "text-hf", "fast-new", "text-fast-new", "fast", "text-fast"]
    order += ["gather", "pretok-tokens", "gather5", "pretok"]
    return [by_name[name] for name in [*order, "memcpy", "assembly", "coordinator"]]


def markdown(summary: dict[str, Any]) -> str:
    """The results for a person to read, with what they were measured on."""
    ratios = [
        "| | measured, million tokens/s | limit | ratio | of rounds | aim | of CPU time |",
        "| --- | ---: | ---: | ---: | :---: | ---: | ---: |",
    ]
    for row in summary["ratios"]:
        aim = "" if row["aim"] is None else f"{row['aim']:.2f}"
        ratios.append(
            f"| {row['title']} | {row['measured_value'] / 1e6:.2f} "
            f"| {row['limit_value'] / 1e6:.2f} | **{row['ratio']:.2f}** "
            f"| {row['lowest']:.2f} to {row['highest']:.2f} | {aim} | {row['cpu_ratio']:.2f} |"
        )
    figures = [
        "| case | million tokens/s | CPU s per million | cores | first batch, s | memory, MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, case in summary["cases"].items():
        if "cpu_s_per_mtok" in case:
            first = f"{case['first_batch_s']:.1f}" if "first_batch_s" in case else ""
            figures.append(
                f"| {name} | {case['tokens_per_s'] / 1e6:.2f} | {case['cpu_s_per_mtok']:.4f} "
                f"| {case['cores_busy']:.2f} | {first} | {case['peak_memory_mb']:.0f} |"
            )
    disturbed = [row["title"] for row in summary["ratios"] if row["others_cores"] > QUIET_CORES]
    if disturbed:
        ratios.insert(0, f"Other work ran on the machine meanwhile: {'; '.join(disturbed)}.\n")
    tables = [*ratios, *_assembly(summary), "", *figures, *_coordinator(summary), ""]
    return "\n".join([*_measured_on(summary), "", *tables])


def _measured_on(summary: dict[str, Any]) -> list[str]:
    where, made, text = summary["machine"], summary["versions"], summary["corpus"]
    packages = ", ".join(f"{name} {version}" for name, version in made.items())
    return [
        f"{where['cores']} cores of {where['processor']}, {where['memory_gb']} GiB, "
        f"{where['system']}; {packages}.",
        f"{text['text_bytes'] / 1e6:.0f} MB of text, {text['tokens'] / 1e6:.1f} million tokens of "
        f"a 32,768-id BPE; medians of {summary['rounds']} interleaved rounds, {summary['date']}.",
    ]


def _assembly(summary: dict[str, Any]) -> list[str]:
    case = summary["cases"].get("assembly")
    if not case:
        return []
    return [
        f"| local slice to memcpy of the bytes written | {case['slice_gb_per_s']:.1f} GB/s "
        f"| {case['copy_slice_gb_per_s']:.1f} GB/s | **{case['slice_to_memcpy']:.2f}** | | | |",
        f"| of that, cutting the region | {case['cut_gb_per_s']:.1f} GB/s "
        f"| {case['copy_cut_gb_per_s']:.1f} GB/s | {case['cut_to_memcpy']:.2f} | | | |",
    ]


def _coordinator(summary: dict[str, Any]) -> list[str]:
    case = summary["cases"].get("coordinator")
    if not case:
        return []
    return [
        "",
        f"Simulated coordinator of {case['hosts']:,.0f} hosts and {case['readers']:,.0f} readers, "
        f"{case['steps_per_s']:.1f} steps and {case['windows_per_s']:,.0f} windows a second: "
        f"{case['coordinator_cpu_s_per_s']:.2f} CPU seconds a second, {case['late_steps']:.0f} "
        f"late steps, {case['sent_mb_per_s']:.0f} MB/s sent, {case['peak_rss_mb']:.0f} MB.",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="measured in each case")
    parser.add_argument("--only", default=".", help="run only cases whose name this finds")
    parser.add_argument("--cache", type=Path, help="folder of the corpus")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="for the results")
    args = parser.parse_args()
    prepared = corpus.prepare(args.cache)
    chosen = throughput.select(cases(args.seconds, prepared.root), args.only)
    results = throughput.run_rounds(chosen, args.rounds)
    summary = {
        "date": time.strftime("%Y-%m-%d"),
        "rounds": args.rounds,
        "machine": machine.describe(),
        "versions": machine.versions(),
        "corpus": {
            "documents": prepared.documents,
            "text_bytes": prepared.text_bytes,
            "tokens": prepared.tokens,
            "digest": prepared.digest,
        },
        "ratios": throughput.compare(COMPARISONS, results),
        "cases": throughput.medians(results),
        "runs": results,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "results.json").write_text(json.dumps(summary, indent=1) + "\n")
    table = markdown(summary)
    (args.out / "results.md").write_text(table)
    print(f"\n{table}")
    print(
        json.dumps(
            {
                "ratios": {
                    row["measured"] + "/" + row["limit"]: row["ratio"] for row in summary["ratios"]
                }
            }
        )
    )
    failed = [name for name, rounds in results.items() if None in rounds]
    if failed:
        print(f"failed in some round: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
