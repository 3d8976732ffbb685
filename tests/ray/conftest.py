"""One real Ray for all of these tests, runs on it, and worlds of plain processes beside them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray
from plain_world import PlainWorld

import meshfeed
import s3_server
from meshfeed.actors.run import NAMESPACE, Run
from meshfeed.pipeline.plan.run_config import RunConfig

HERE = Path(__file__).parent

StartRun = Callable[..., "contextmanager[Run]"]
GetWorld = Callable[[int, int], PlainWorld]


@pytest.fixture(scope="session")
def s3() -> Iterator[s3_server.FailingServer]:
    """An S3 server, named to all processes by the environment."""
    with s3_server.serving() as server:
        yield server
        server.release.set()


@pytest.fixture(scope="session")
def ray_environment(s3: s3_server.FailingServer) -> dict[str, str]:
    """Variables of everything that these tests start: no token file of this machine matters, and
    readers find the transforms that lie here."""
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "RAY_AUTH_MODE": "disabled",
        "RAY_worker_niceness": "0",
        "PYTHONPATH": os.pathsep.join(paths),
        "AWS_ENDPOINT_URL_S3": s3.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }


@pytest.fixture(scope="session")
def ray_address(ray_environment: dict[str, str]) -> Iterator[str]:
    """A local Ray, to which this process is connected."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ray_environment.items():
            patch.setenv(name, value)
        with warnings.catch_warnings():
            # Ray forks to start its processes, which go on to run other programs at once.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            ray.init(
                address="local",
                namespace=NAMESPACE,
                num_cpus=4,
                object_store_memory=256 << 20,
                include_dashboard=False,
                log_to_driver=False,
            )
        try:
            yield ray.get_runtime_context().gcs_address
        finally:
            ray.shutdown()


@pytest.fixture(scope="session")
def start_run(ray_address: str) -> Callable[..., Any]:
    """``with start_run(run_dir=..., ...) as run``: settings as in a file."""

    @contextmanager
    def start(**settings: Any) -> Iterator[Run]:
        mapping = {"timeout_seconds": 120, "run_dir": str(settings.pop("run_dir")), **settings}
        with meshfeed.start(RunConfig.from_mapping(mapping)) as run:
            yield run

    return start


@pytest.fixture(scope="session")
def world(
    ray_address: str, ray_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GetWorld]:
    """``world(hosts, devices)``: a world of plain processes, up until the session ends."""
    worlds: dict[tuple[int, int], PlainWorld] = {}
    logs = tmp_path_factory.mktemp("worlds")
    with ExitStack() as stack:

        def get(hosts: int, devices: int) -> PlainWorld:
            if (hosts, devices) not in worlds:
                environment = ray_environment | {"RAY_ADDRESS": ray_address}
                made = PlainWorld(hosts, devices, logs, environment)
                stack.callback(made.stop)
                made.wait_until_up()
                worlds[hosts, devices] = made
            return worlds[hosts, devices]

        yield get


@pytest.fixture(scope="session")
def world_1x8(world: GetWorld) -> PlainWorld:
    """One host with eight devices."""
    return world(1, 8)


@pytest.fixture(scope="session")
def world_2x2(world: GetWorld) -> PlainWorld:
    """Two hosts with two devices each."""
    return world(2, 2)


@pytest.fixture(scope="session")
def world_3x2(world: GetWorld) -> PlainWorld:
    """Three hosts with two devices each."""
    return world(3, 2)


@pytest.fixture(scope="session")
def world_2x4(world: GetWorld) -> PlainWorld:
    """Two hosts with four devices each."""
    return world(2, 4)


@pytest.fixture(scope="session")
def world_4x1(world: GetWorld) -> PlainWorld:
    """Four hosts with a device each."""
    return world(4, 1)


@pytest.fixture(scope="session")
def plain_worlds(world: GetWorld) -> dict[tuple[int, int], PlainWorld]:
    """Eight devices on one, two, four and eight hosts."""
    return {shape: world(*shape) for shape in ((1, 8), (2, 4), (4, 2), (8, 1))}
