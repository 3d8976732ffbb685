"""What a run of 1,000 hosts and 64,000 readers costs its coordinator, in CPU seconds a second.

``python -m benchmarks.coordinator_scale`` prints one JSON line.

The coordinator's own desks (``FeedDesk``, ``NodeDesk``, ``LeaseBook``, a ledger that is synced to
storage) serve simulated nodes and hosts. Time is simulated too: every reader runs a window in
about a minute, so that 1,000 windows a second keep 64,000 of them busy, and every host takes a
step a second. Counted are the CPU seconds that the coordinator's code takes for a second of that,
with every message packed and unpacked; not counted is what Ray itself takes to carry them.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.simulated_cluster import FEED, Cluster, Coordinator
from meshfeed.pipeline.plan.config import FeedConfig, Shuffle, SourceConfig
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.manifest import Shard, SourceManifest, Unit

SOURCES = {"web": 0.6, "code": 0.25, "books": 0.1, "maths": 0.05}
WINDOW_ROWS = 128
WARM_STEPS = 100
"""Readers have two windows each, so this long only what was leased at the start comes in."""


def spec_of(windows_in_step: int) -> FeedSpec:
    """A feed of four large sources, shuffled by record."""
    sources = tuple(SourceConfig(name=n, data=(n,), weight=w) for n, w in SOURCES.items())
    config = FeedConfig(
        name=FEED,
        sources=sources,
        seq_len=8192,
        batch_size=windows_in_step * WINDOW_ROWS,
        shuffle=Shuffle.RECORD,
        epochs=0,
    )
    shards = tuple(Shard(f"part-{i:05}.parquet", 512 << 20) for i in range(2_000))
    manifests = tuple(
        SourceManifest(
            name=name,
            root="s3://bucket",
            format="parquet",
            unit=Unit.BYTES,
            shards=shards,
            splittable=True,
            random_access=False,
            chunk_size=1 << 20,
            window_size=4 << 20,
            group_size=128 << 20,
        )
        for name in SOURCES
    )
    return FeedSpec(
        config=config,
        manifests=manifests,
        token_dtype="uint16",
        loss_mask=False,
        window_rows=WINDOW_ROWS,
        engine="fast",
        tokenizer_fingerprint="scale",
        fingerprint="scale",
    )


def measure(hosts: int, readers: int, windows: int, seconds: int, folder: Path) -> dict[str, Any]:
    """Figures of a run of that size, once its pipeline is full."""
    began = time.process_time()
    coordinator = Coordinator(folder, spec_of(windows), hosts, readers, hosts)
    cluster = Cluster(coordinator, hosts, readers, hosts)
    start_s = time.process_time() - began
    grants = coordinator.state.grants
    cluster.run_until(lambda: grants.floor >= WARM_STEPS)
    first, cpu_s, calls = cluster.now, coordinator.cpu_s, dict(coordinator.calls)
    entries, sent = coordinator.ledger.num_entries, coordinator.bytes_sent
    late = cluster.late_steps
    cluster.run_until(lambda: cluster.now >= first + seconds)
    passed = cluster.now - first
    made = {name: (coordinator.calls[name] - calls[name]) / passed for name in calls}
    return {
        "case": "coordinator",
        "hosts": hosts,
        "readers": hosts * readers,
        "seconds": round(passed, 1),
        "steps_per_s": round(grants.steps_per_second, 3),
        "late_steps": cluster.late_steps - late,
        "windows_per_s": round((coordinator.ledger.num_entries - entries) / passed),
        "windows_held": len(coordinator.state.held()),
        "calls_per_s": {name: round(count, 1) for name, count in made.items()},
        "sent_mb_per_s": round((coordinator.bytes_sent - sent) / passed / 1e6, 1),
        "coordinator_cpu_s_per_s": round((coordinator.cpu_s - cpu_s) / passed, 3),
        "start_cpu_s": round(start_s, 1),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=1000, help="and as many reader nodes")
    parser.add_argument("--readers", type=int, default=64, help="of each node")
    parser.add_argument("--windows", type=int, default=1000, help="in a step")
    parser.add_argument("--seconds", type=int, default=30, help="of simulated time measured")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(args.hosts, args.readers, args.windows, args.seconds, Path(folder))
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
