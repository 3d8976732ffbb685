"""``meshfeed.start``: brings a run up on a Ray cluster; ``Run``: how everyone reaches it."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle

from meshfeed.actors.control.coordinator import Coordinator
from meshfeed.actors.control.feed_needs import feed_need
from meshfeed.pipeline.data.runs.prepare import prepare_feeds
from meshfeed.pipeline.data.runs.run_folder import RunFolder
from meshfeed.pipeline.plan.budget import check_budget, smallest_budget
from meshfeed.pipeline.plan.errors import ConfigError, StallError
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.grants import GrantLimits
from meshfeed.pipeline.plan.run_config import RunConfig

NAMESPACE = "meshfeed"
"""Ray namespace of all named actors; their names carry the run's id."""

START_TIMEOUT_S = 120.0

MOST_CALLS = 50_000
"""Calls that wait in the coordinator at a time: two a host and feed, one a node."""

MOST_RESTARTS = 100
"""Of the coordinator's process, by Ray. One that cannot begin fails each of them quickly."""

AGAIN_S = 0.5

ANSWER_TIMEOUT_S = 5.0
"""A cluster whose port does not answer for so long is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that is up.

    Attributes:
        config: its settings.
        specs: of its feeds, by name.
        coordinator: its actor.
    """

    config: RunConfig
    specs: dict[str, FeedSpec]
    coordinator: ActorHandle

    @classmethod
    def find(cls, run_dir: str) -> Run:
        """The run that is up with this run directory, from any process of its Ray cluster.

        Where this process is in no Ray cluster yet, it joins the one that ``RAY_ADDRESS`` names, or
        else the one that the run was started in last.

        Raises:
            ConfigError: no run is up there, or its cluster does not answer.
        """
        folder = RunFolder(run_dir)
        config = folder.load_config()
        if not ray.is_initialized():
            _join_cluster(run_dir, folder.cluster())
        try:
            coordinator = ray.get_actor(_name(config), namespace=NAMESPACE)
        except ValueError:
            raise ConfigError(
                "run", f"no run is up in {run_dir}", "Start it first, in the same Ray cluster"
            ) from None
        return cls(config=config, specs=folder.load_specs(), coordinator=coordinator)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Calls the coordinator; errors come as they were raised there."""
        limit_s = self.config.timeout_seconds + 30
        return ask(self.coordinator, "coordinator", limit_s, method, *args, **kwargs)

    def status(self) -> dict[str, Any]:
        """What every feed, node and reader is doing."""
        status: dict[str, Any] = self.call("status")
        return status

    def stop(self) -> None:
        """Ends readers, node servers and the coordinator. The run directory stays."""
        try:
            self.call("stop")
        finally:
            ray.kill(self.coordinator)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def ask(
    actor: ActorHandle, name: str, limit_s: float, method: str, *args: Any, **kwargs: Any
) -> Any:
    """Calls an actor, again where it is being restarted; errors come as they were raised there.

    Raises:
        StallError: no answer came within ``limit_s``.
    """
    end = time.monotonic() + limit_s
    try:
        while True:
            try:
                return ray.get(getattr(actor, method).remote(*args, **kwargs), timeout=limit_s)
            except ray.exceptions.ActorUnavailableError:
                if time.monotonic() > end:
                    raise
                time.sleep(AGAIN_S)
    except ray.exceptions.RayTaskError as error:
        if error.cause is None:
            raise
        raise error.cause from error
    except ray.exceptions.GetTimeoutError as error:
        raise StallError(f"answer of the {name} to {method}", limit_s) from error


def start(config: RunConfig, progress: Callable[[str], None] = lambda _: None) -> Run:
    """Prepares the run directory and starts coordinator, node servers and readers.

    Uses the Ray cluster that this process is connected to or that ``RAY_ADDRESS`` names; else
    starts a local one.

    Args:
        config: of the run.
        progress: told a line for every stage and choice.

    Raises:
        ConfigError: a setting is wrong; DataError, ReadError: the data cannot be listed or read.
        BudgetError: ``memory_budget`` is below the smallest that works.
        ChangedError: the run directory holds a run with other data or settings.
    """
    specs = prepare_feeds(config, progress)
    _connect_to_ray()
    placement = _placement(config)
    limits = GrantLimits(prefetch=config.prefetch, seconds=config.grant_seconds)
    needs = [feed_need(spec, limits) for spec in specs.values()]
    check_budget(config.memory_budget, smallest_budget(needs, len(placement)))
    coordinator = (
        ray.remote(Coordinator)
        .options(
            num_cpus=0,
            name=_name(config),
            namespace=NAMESPACE,
            max_concurrency=MOST_CALLS,
            max_restarts=MOST_RESTARTS,
            max_task_retries=0,  # who calls knows what to do when it is another one
        )
        .remote(config, specs)
    )
    run = Run(config=config, specs=specs, coordinator=coordinator)
    run.call("start", placement)
    RunFolder(config.run_dir).save_cluster(
        ray.get_runtime_context().gcs_address, os.environ.get("RAY_AUTH_MODE", "")
    )
    return run


def _placement(config: RunConfig) -> dict[str, int]:
    """Readers of each Ray node: one a free core, or as many in all as the run says."""
    alive = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    cores = {node["NodeID"]: int(node["Resources"]["CPU"]) for node in alive}
    if not cores:
        raise ConfigError("readers", "no Ray node has a CPU for a reader")
    wanted = config.readers or sum(cores.values())
    if wanted > sum(cores.values()):
        raise ConfigError(
            "readers",
            f"{wanted} readers do not fit on the {sum(cores.values())} CPUs that Ray has",
            "Start Ray with more --num-cpus or ask for fewer readers",
        )
    placement = dict.fromkeys(cores, 0)
    while sum(placement.values()) < wanted:
        node = max(cores, key=lambda n: cores[n] - placement[n])
        placement[node] += 1
    return {node: count for node, count in placement.items() if count}


def _join_cluster(run_dir: str, cluster: dict[str, str]) -> None:
    """Connects to the cluster of a run, and never starts one.

    Raises:
        ConfigError: there is none, or it does not answer.
    """
    hint = "Start the run, or set RAY_ADDRESS to the cluster that it is in"
    address = os.environ.get("RAY_ADDRESS") or cluster.get("ray_address")
    if not address:
        raise ConfigError("run", f"no run was started in {run_dir}", hint)
    host, _, port = address.rpartition(":")
    if "://" not in address and port.isdigit():
        try:
            socket.create_connection(
                (host.strip("[]"), int(port)), timeout=ANSWER_TIMEOUT_S
            ).close()
        except OSError as error:
            problem = f"the Ray cluster of the run in {run_dir}, {address}, is gone ({error})"
            raise ConfigError("run", problem, hint) from None
    mode = cluster.get("auth_mode", "")
    if mode == "token" and os.environ.get("RAY_AUTH_MODE", "").lower() != mode:
        raise ConfigError(
            "RAY_AUTH_MODE",
            f"the Ray cluster of the run in {run_dir} asks for its token",
            "Import meshfeed before ray, or set RAY_AUTH_MODE=token before this process starts",
        )
    try:
        ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
    except (ConnectionError, ValueError) as error:
        raise ConfigError("run", f"the Ray cluster {address} refuses: {error}", hint) from error


def _connect_to_ray() -> None:
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(
        namespace=NAMESPACE,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.WARNING,
        runtime_env=python_path(),
    )


def python_path() -> dict[str, Any]:
    """Ray's ``runtime_env`` with which readers find the transforms that this process finds."""
    return {"env_vars": {"PYTHONPATH": os.pathsep.join([str(Path.cwd()), *filter(None, sys.path)])}}


def _name(config: RunConfig) -> str:
    return f"coordinator-{config.run_id}"
