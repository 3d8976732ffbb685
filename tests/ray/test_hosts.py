"""Hosts of a run that trains: what is being started when the run ends goes as well."""

from __future__ import annotations

import asyncio

import pytest
import ray

from meshfeed.actors.elastic.hosts import Hosts
from meshfeed.actors.reading.shared_memory import ROOT

RUN_ID = "hosts-that-end"


def test_a_host_that_is_only_being_started_leaves_nothing(ray_address: str) -> None:
    async def start_and_give_up() -> None:
        hosts = Hosts(RUN_ID, 1 << 20, 60.0)
        node = ray.get_runtime_context().get_node_id()
        starting = asyncio.create_task(hosts.add("host-0", node))
        while not list(ROOT.glob(f"meshfeed-{RUN_ID}-*")):  # it has made its folder
            await asyncio.sleep(0.001)
            assert not starting.done() or starting.result()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert hosts.names == ()

    assert ray_address
    asyncio.run(start_and_give_up())
    assert not list(ROOT.glob(f"meshfeed-{RUN_ID}-*"))
