"""``meshfeed simulate``: the whole pipeline on one machine, with the code that a cluster runs.

Every host is a Ray actor with a JAX process of its own; together they are one ``jax.distributed``
world on CPU devices. Each step is read back from the devices of every host and digested; the run
succeeds only if all hosts agree on every step.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from rich.markup import escape

from meshfeed.actors.host.feed_limits import cause_of, what_is_missing
from meshfeed.actors.run import NAMESPACE, Run, python_path, start
from meshfeed.launch.demo import prepare_demo
from meshfeed.launch.progress import Progress
from meshfeed.launch.report import Report, StepDigest
from meshfeed.launch.settings import add_config_flags, config_from
from meshfeed.launch.sim_host import HostSummary, SimHost, StepRecord
from meshfeed.launch.simulate_train import TrainingPlan, simulate_training
from meshfeed.launch.training_flags import add_training_flags, training_plan
from meshfeed.launch.words import plural
from meshfeed.pipeline.data.batches.agreement import agreed_digest
from meshfeed.pipeline.plan.batch_plan import plan_batch
from meshfeed.pipeline.plan.config import LEAF_PRESETS
from meshfeed.pipeline.plan.errors import MeshfeedError, StallError
from meshfeed.pipeline.plan.mesh import MeshLayout
from meshfeed.pipeline.plan.partition import AxisRoles, resolve
from meshfeed.pipeline.plan.run_config import TRAIN, RunConfig

_CHUNK_SECONDS = 1.0
"""Hosts report about this often."""


def add_simulate_command(commands: Any) -> None:
    """Adds ``simulate`` to the command line."""
    parser = commands.add_parser(
        "simulate",
        help="run the pipeline on this machine, several hosts and devices simulated",
        description="Runs a feed to its end with real Ray readers and with hosts that are JAX "
        "processes of simulated CPU devices, compares what lies on the devices at every step, and "
        "writes report.json into the run directory. Without CONFIG.yaml and --data it takes the "
        "Python standard library's sources, 4 hosts x 2 devices. Ends with 0 only if every step "
        "agreed on every host.",
    )
    add_config_flags(parser)
    parser.add_argument("--feed", default=TRAIN, help="feed of the file to run (default: train)")
    parser.add_argument(
        "--dump",
        metavar="DIR",
        help="write the global arrays of every step there as step-000000.npz",
    )
    add_training_flags(parser)
    parser.set_defaults(run=run_simulate)


def run_simulate(args: argparse.Namespace) -> int:
    """Runs it; 0 only if every step agreed on every host."""
    progress = Progress()
    demo = not args.config and not args.data
    defaults = _demo_settings(progress) if demo else {}
    config = config_from(args, **defaults)
    if args.train:
        report = simulate_with_ray(config, args.feed, training_plan(args), progress)
    else:
        report = simulate(config, feed=args.feed, dump=args.dump, progress=progress)
    path = report.write(Path(config.run_dir))
    progress.close()
    report.show(path)
    return 0 if report.agreed else 1


def simulate_with_ray(
    config: RunConfig, feed: str, plan: TrainingPlan, progress: Progress
) -> Report:
    """Trains on simulated hosts, in a Ray of its own.

    Raises:
        MeshfeedError: whatever ended the run.
    """
    _start_ray(config)
    try:
        return simulate_training(config, feed, plan, progress)
    finally:
        ray.shutdown()


def simulate(
    config: RunConfig,
    *,
    feed: str = TRAIN,
    dump: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Runs a feed to its end, or for ``config.steps`` steps, on simulated hosts.

    Raises:
        MeshfeedError: whatever ended the run.
    """
    progress = progress or Progress(quiet=True)
    began = time.monotonic()
    layout = MeshLayout.build(
        config.mesh,
        hosts=config.hosts,
        devices_per_host=config.devices_per_host,
        order=config.device_order,
    )
    _refuse_uneven(config, feed, layout)
    _start_ray(config)
    hosts = [
        ray.remote(SimHost).options(num_cpus=0, max_concurrency=2).remote(i)
        for i in range(config.hosts)
    ]
    run = None
    try:
        port = ray.get(hosts[0].free_port.remote(), timeout=config.timeout_seconds)
        forming = [
            h.form.remote(
                config.hosts, config.devices_per_host, port, layout, config.timeout_seconds
            )
            for h in hosts
        ]
        run = start(config, progress.stage)
        progress.stage(f"forming {config.hosts} hosts x {config.devices_per_host} devices")
        ray.get(forming, timeout=config.timeout_seconds)
        progress.stage("waiting for the first batch")
        ray.get([h.connect.remote(run, feed) for h in hosts], timeout=config.timeout_seconds)
        report = Report(config, feed)
        for records in _chunks(hosts, run, feed, dump, progress):
            _judge(report, records, config, feed)
            progress.steps(report, run.status() if progress.wants_status() else None)
        summaries: list[HostSummary] = ray.get(
            [h.summary.remote() for h in hosts], timeout=config.timeout_seconds
        )
        ray.get([h.close.remote() for h in hosts], timeout=config.timeout_seconds)
        report.finish(run.status(), summaries, time.monotonic() - began)
        return report
    except ray.exceptions.RayTaskError as error:
        raise cause_of(error) from error
    finally:
        for host in hosts:
            ray.kill(host)
        if run is not None:
            run.stop()
        ray.shutdown()


def _refuse_uneven(config: RunConfig, feed: str, layout: MeshLayout) -> None:
    """Plans a batch before anything is started.

    Raises:
        ConfigError: it does not divide over the mesh, or the partition does not fit it.
    """
    roles = AxisRoles(data=config.data_axes, sequence=config.sequence_axes, model=config.model_axes)
    names = LEAF_PRESETS[config.leaf_names]
    settings = config.feed(feed)
    plan_batch(
        layout,
        resolve(config.partition, layout, roles, leaf_names=names),
        batch_size=settings.batch_size,
        seq_len=settings.seq_len,
        uneven_batch=config.uneven_batch,
    )


def _chunks(
    hosts: list[Any], run: Run, feed: str, dump: str | None, progress: Progress
) -> Iterator[list[list[StepRecord]]]:
    """The steps of all hosts, some at a time, until the feed ends."""
    count = 1
    while True:
        began = time.monotonic()
        calls = [h.steps.remote(count, dump) for h in hosts]
        records: list[list[StepRecord]] = _answers(calls, run, feed, progress)
        if any(records):
            yield records
        if any(len(own) < count for own in records):
            return
        seconds = max(time.monotonic() - began, 1e-3)
        count = max(1, min(2 * count, round(count * _CHUNK_SECONDS / seconds)))


def _answers(calls: list[Any], run: Run, feed: str, progress: Progress) -> list[Any]:
    """What all hosts answer. What one fails with comes at once; long waiting is explained."""
    began = said = time.monotonic()
    waiting = calls
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=1.0)
        ray.get(done)
        now = time.monotonic()
        if waiting and now - began > run.config.timeout_seconds + 60:
            raise StallError(f"answer of {plural(len(waiting), 'host')}", now - began, stage="step")
        if waiting and now - said > run.config.stall_seconds:
            said = now
            late = ", ".join(str(i) for i, call in enumerate(calls) if call in waiting)
            missing = what_is_missing(run.coordinator, feed)
            line = f"stall: host {late}, no step for {now - began:.1f} s; {missing}"
            progress.stage(escape(line))
    return list(ray.get(calls))


def _judge(report: Report, records: list[list[StepRecord]], config: RunConfig, feed: str) -> None:
    """Adds each step's digest, or how the hosts disagree."""
    names = LEAF_PRESETS[config.leaf_names]
    settings = config.feed(feed)
    for own in zip(*records, strict=False):
        rows = own[0].rows
        try:
            digest = agreed_digest(
                {host: record.boxes for host, record in enumerate(own)},
                leaves=list(names.values()),
                shape=(rows, settings.seq_len),
            )
            report.add(StepDigest(own[0].step, rows, f"{digest:016x}", max(r.waited for r in own)))
        except MeshfeedError as error:
            report.disagree(own[0].step, str(error))
    lengths = {len(own) for own in records}
    if len(lengths) > 1:
        report.disagree(len(report.steps), f"hosts took different numbers of steps: {lengths}")


def _start_ray(config: RunConfig) -> None:
    """A local Ray with a core for each reader, whatever the machine has."""
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    readers = config.readers or os.cpu_count() or 1
    store = max(256 << 20, min(2 << 30, config.memory_budget))
    ray.init(
        address="local",
        _node_ip_address="127.0.0.1",
        namespace=NAMESPACE,
        num_cpus=readers,
        object_store_memory=store,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env=python_path(),
    )


def _demo_settings(progress: Progress) -> dict[str, Any]:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "meshfeed"
    demo = prepare_demo(cache, progress=lambda stage, _done, _total: progress.stage(stage))
    progress.stage("demo data: the Python standard library's sources")
    sources = [
        {"name": s.name, "data": list(s.data), "column": s.column, "weight": s.weight}
        for s in demo.sources
    ]
    return {
        "sources": sources,
        "tokenizer": str(demo.tokenizer),
        "seq_len": 512,
        "batch_size": 32,
        "epochs": 3,
        "hosts": 4,
        "devices_per_host": 2,
        "mesh": {"data": -1, "model": 2},
        "run_dir": "runs/demo",
    }
