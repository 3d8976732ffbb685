"""meshfeed itself, as a trainer uses it: ``python -m benchmarks.feed --mode text-fast``.

Starts a run and connects to it in one process, takes batches ``[16, 2048]`` as fast as they come,
waits until each lies on the devices, and drops it: a trainer without a model. After the start-up
and what was prepared during it have been used up, tokens and processor time of this process and
all of Ray's are counted; padding is not a token.

=============  ===================================================================
text-hf        Parquet text, Hugging Face tokenizer, chunk shuffle, concat packing
text-fast      the same with the fast engine, twice around the text before counting, so that
               the engine has seen all words
text-fast-new  the same on words that it has not seen: most of the first time around
pretok         Arrow rows of 2,048 ids, record shuffle
pretok-tokens  the same, for a trainer that wants the leaf ``tokens`` alone
=============  ===================================================================
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import corpus, meter, shards
from benchmarks.baselines import BATCH

_STEP_TOKENS = BATCH * shards.SEQ_LEN
_WARM_UP_TOKENS = {
    "text-hf": 5_000_000,
    "text-fast": 185_000_000,
    "text-fast-new": 5_000_000,
    "pretok": 300_000_000,
}
_NEW_SHARE = 0.8
"""Of the text, counted on its first time around: what comes before and after is left out."""

_WARM_UP_S = 20.0
"""At most, where a machine is too slow or too busy to go around in this time."""

_SETTINGS: dict[str, dict[str, Any]] = {
    "text-hf": {"engine": "reference", "shuffle": "chunk"},
    "text-fast": {"engine": "fast", "shuffle": "chunk"},
    "pretok": {
        "shuffle": "record",
        "eos": False,
        "column": "tokens",
        "vocab_size": shards.VOCAB_SIZE,
    },
}
_SETTINGS["text-fast-new"] = _SETTINGS["text-fast"]
_SETTINGS["pretok-tokens"] = _SETTINGS["pretok"]
_WARM_UP_TOKENS["pretok-tokens"] = _WARM_UP_TOKENS["pretok"]
_LEAVES = {"pretok-tokens": ("tokens",)}


def settings(mode: str, prepared: corpus.Corpus, run_dir: str, args: Any) -> dict[str, Any]:
    """The run's settings as a configuration file would give them."""
    part = "rows" if mode.startswith("pretok") else "parquet"
    own = {
        "data": [str(path) for path in prepared.files(part)],
        "tokenizer": str(prepared.tokenizer),
        "seq_len": shards.SEQ_LEN,
        "batch_size": BATCH,
        "packing": "concat",
        "epochs": 0,
        "memory_budget": args.memory_budget,
        "run_dir": run_dir,
    }
    if args.readers:
        own["readers"] = args.readers
    return own | _SETTINGS[mode]


def measure(mode: str, prepared: corpus.Corpus, args: Any) -> dict[str, Any]:
    """Tokens/s, processor time, time to the first batch, and how evenly the rate held."""
    started = meter.process_started()
    import jax
    import numpy as np
    from jax.sharding import Mesh

    import meshfeed

    jax.config.update("jax_num_cpu_devices", args.devices)
    with tempfile.TemporaryDirectory(prefix="meshfeed-bench-") as run_dir:
        config = meshfeed.RunConfig.from_mapping(settings(mode, prepared, run_dir, args))
        began = time.time()
        run = meshfeed.start(config)
        mesh = Mesh(np.array(jax.devices()), ("data",))
        more = {"leaves": _LEAVES[mode]} if mode in _LEAVES else {}
        feed = meshfeed.connect(run, feed="train", mesh=mesh, **more)
        batches = iter(feed)
        wait: Any = jax.block_until_ready
        wait(next(batches))
        first = {
            "first_batch_s": round(time.time() - started, 2),
            "first_batch_after_start_s": round(time.time() - began, 2),
        }
        _take(batches, wait, _WARM_UP_S, _WARM_UP_TOKENS[mode] // _STEP_TOKENS)
        seconds, most = args.seconds / 2, math.inf
        if mode == "text-fast-new":
            seconds, most = math.inf, _NEW_SHARE / 2 * prepared.tokens // _STEP_TOKENS
        window, by_name = meter.Window(), meter.cpu_seconds_by_name()
        steps = [_take(batches, wait, seconds, most) for _ in range(2)]
        done = sum(count for count, _ in steps)
        figures = window.figures(done * _STEP_TOKENS, steps=done)
        windows = _windows(run)
        padding = windows["padding_fraction"]
        for rate, real in (("tokens_per_s", 1 - padding), ("cpu_s_per_mtok", 1 / (1 - padding))):
            figures[rate] = round(figures[rate] * real, 5)
        figures |= {
            "cpu_s_per_mtok_by_process": {
                name: round((seconds - by_name.get(name, 0)) / figures["tokens"] * 1e6, 5)
                for name, seconds in meter.cpu_seconds_by_name().items()
            },
            "waited_for": feed.metrics()["waited_for"],
        } | windows
        halves = [round(count * _STEP_TOKENS / took) for count, took in steps]
        feed.close()
        run.stop()
    return figures | first | {"first_half": halves[0], "second_half": halves[1]}


def _take(batches: Any, wait: Any, seconds: float, most: float = math.inf) -> tuple[int, float]:
    """Steps taken in about so many seconds, ``most`` of them at most, and the seconds it took."""
    began, steps = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < seconds and steps < most:
        wait(next(batches))
        steps += 1
    return steps, took


def _windows(run: Any) -> dict[str, Any]:
    """Of all windows that have run: padding, and seconds of each stage per million tokens."""
    sources = list(run.status()["feeds"]["train"]["sources"].values())
    tokens = max(1, sum(source["tokens"] for source in sources))
    padding = sum(source["padding"] for source in sources)
    stages: dict[str, float] = {}
    for source in sources:
        for stage, seconds in source["seconds"].items():
            stages[stage] = stages.get(stage, 0.0) + seconds / tokens * 1e6
    return {
        "padding_fraction": round(padding / (padding + tokens), 5),
        "stage_s_per_mtok": {stage: round(seconds, 5) for stage, seconds in stages.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=list(_SETTINGS), required=True)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--readers", type=int, help="default: one for each core")
    parser.add_argument("--memory-budget", default="256MB")
    parser.add_argument("--cache", type=Path)
    args = parser.parse_args()
    meter.adopt_orphans()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    meter.report(args.mode, measure(args.mode, corpus.load(args.cache), args))


if __name__ == "__main__":
    main()
