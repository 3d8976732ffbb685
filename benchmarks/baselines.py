"""The limits: what this machine does when nothing but the work itself is done.

``python -m benchmarks.baselines CASE``, one case a process, one JSON line each:

========  =========================================================================
hf        bare Hugging Face tokenizer: strings in memory, encoded, ids thrown away;
          one process for each core
fast      the same with fastokens, which remembers words: on text that it has seen
fast-new  the same on text that it has not seen, which is what a training corpus is
gather    shuffled rows: one numpy gather of ``[16, 2048]`` int32 for each step, one
          jax.Array made of it, by the call that costs least
gather5   the same with as many arrays as a batch has leaves (five)
memcpy    one thread copying memory
========  =========================================================================
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import time
from collections.abc import Callable, Iterable
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import corpus, encoders, meter, shards

BATCH = 16
_CALL = 64
"""Documents in a call: both engines are quickest around it."""

_REFERENCE_WARM_UP_BYTES = 4_000_000
_COPY_BYTES = 64 << 20


def encode_rate(case: str, prepared: corpus.Corpus, seconds: float) -> dict[str, Any]:
    """Tokens/s of a bare tokenizer on as many processes as this one may use processors.

    Every process holds the whole text and goes around in it, from a place of its own: the fast
    engine once before it is measured. For ``fast-new`` each encodes its own part of the text, once.
    """
    context = get_context("spawn")
    workers = []
    for number in range(cores := len(os.sched_getaffinity(0))):
        here, there = Pipe()
        job = (case, prepared.root, (number / cores, (number + 1) / cores), seconds, there)
        process = context.Process(target=_encode_worker, args=job)
        process.start()
        workers.append((process, here))
    for _, connection in workers:
        connection.recv()
    busy = meter.machine_busy_seconds()
    for _, connection in workers:
        connection.send("start")
    results = [connection.recv() for _, connection in workers]
    busy = meter.machine_busy_seconds() - busy
    for process, _ in workers:
        process.join()
    rate = sum(tokens / wall for tokens, wall, _ in results)
    wall = sum(wall for _, wall, _ in results) / cores
    cpu = sum(cpu for _, _, cpu in results)
    others = max(0.0, busy - cpu) / wall
    return meter.rates(rate * wall, wall, cpu) | {"others_cores": round(others, 2)}


def _encode_worker(
    case: str, root: Path, part: tuple[float, float], seconds: float, connection: Connection
) -> None:
    import pyarrow.parquet as pq

    prepared = corpus.load(root)
    texts: list[str] = []
    for path in prepared.files("parquet"):
        texts += pq.read_table(str(path), use_threads=False)["text"].to_pylist()
    start, end = (int(len(texts) * share) for share in part)
    calls = [
        texts[at : at + _CALL]
        for first, last in ((start, len(texts)), (0, start))
        for at in range(first, last, _CALL)
    ]
    del texts
    endless = case != "fast-new"
    if case == "fast-new":
        count = _count_flat(encoders.fast(prepared.tokenizer))
        calls, warm_up = calls[: (end - start) // _CALL], 0
    elif case == "fast":
        count = _count_flat(encoders.fast(prepared.tokenizer))
        warm_up = len(calls)
    else:
        objects = encoders.reference_objects(prepared.tokenizer)
        count = _count_objects(objects)
        bytes_a_call = prepared.text_bytes / len(calls)
        warm_up = int(_REFERENCE_WARM_UP_BYTES / bytes_a_call) + 1
    for call in calls[:warm_up]:
        count(call)
    connection.send("ready")
    connection.recv()
    rest = calls[warm_up:] + calls[:warm_up]
    if endless:
        connection.send(_timed(count, itertools.cycle(rest), until=seconds))
    else:
        connection.send(_timed(count, rest, until=math.inf))


def _timed(
    count: Callable[[list[str]], int], calls: Iterable[list[str]], *, until: float
) -> tuple[int, float, float]:
    """Tokens, seconds and processor seconds of these calls, as far as the time allows."""
    tokens = 0
    began, cpu = time.perf_counter(), time.process_time()
    for call in calls:
        tokens += count(call)
        if time.perf_counter() - began >= until:
            break
    return tokens, time.perf_counter() - began, time.process_time() - cpu


def _count_flat(encode: encoders.Encode) -> Any:
    return lambda texts: len(encode(texts)[0])


def _count_objects(encode: Any) -> Any:
    return lambda texts: sum(map(len, encode(texts)))


def gather_rate(prepared: corpus.Corpus, seconds: float, *, leaves: int, devices: int) -> Any:
    """Tokens/s of shuffled rows out of memory, as ready arrays ``[16, 2048]`` on the devices."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.config.update("jax_num_cpu_devices", devices)
    rows = shards.read_rows(prepared.root / "rows")
    mesh = Mesh(np.array(jax.devices()), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    shape = (BATCH, shards.SEQ_LEN)
    others = [np.full(shape, leaf, np.int32) for leaf in range(leaves - 1)]
    generator = np.random.default_rng(0)

    def steps(until: float) -> int:
        done = 0
        while True:
            order = generator.permutation(len(rows))
            for at in range(0, len(order) - BATCH + 1, BATCH):
                tokens = np.take(rows, order[at : at + BATCH], axis=0, mode="clip")
                jax.block_until_ready(
                    [
                        jax.make_array_from_callback(shape, sharding, leaf.__getitem__)
                        for leaf in (tokens, *others)
                    ]
                )
                done += 1
                if time.perf_counter() >= until:
                    return done

    steps(time.perf_counter() + min(1.0, seconds))
    window = meter.Window()
    done = steps(time.perf_counter() + seconds)
    return window.figures(done * BATCH * shards.SEQ_LEN, steps=done)


def memcpy_rate(seconds: float) -> dict[str, Any]:
    """Bytes/s of one thread copying 64 MiB; a token is counted as four bytes."""
    source = np.ones(_COPY_BYTES, np.uint8)
    target = np.empty_like(source)
    np.copyto(target, source)
    window = meter.Window()
    began, copies = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        np.copyto(target, source)
        copies += 1
    figures = window.figures(copies * _COPY_BYTES // 4)
    return figures | {"gb_per_s": round(figures["tokens_per_s"] * 4 / 1e9, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=["hf", "fast", "fast-new", "gather", "gather5", "memcpy"])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--cache", type=Path)
    args = parser.parse_args()
    if args.case == "memcpy":
        figures = memcpy_rate(args.seconds)
    elif args.case.startswith("gather"):
        leaves = 5 if args.case == "gather5" else 1
        prepared = corpus.load(args.cache)
        figures = gather_rate(prepared, args.seconds, leaves=leaves, devices=args.devices)
    else:
        figures = encode_rate(args.case, corpus.load(args.cache), args.seconds)
    meter.report(args.case, figures)


if __name__ == "__main__":
    main()
