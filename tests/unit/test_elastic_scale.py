"""The elastic state machine with a thousand hosts: what an event costs does not grow with them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from elastic_fixture import Make, make, names

from meshfeed.pipeline.plan.elastic import events as ev
from meshfeed.pipeline.plan.elastic.states import State

__all__ = ["make"]


def lines_run(work: Callable[[], Any]) -> int:
    """Lines of Python that are run: a measure of work that no other process disturbs."""
    count = 0

    def trace(_frame: Any, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_a_heartbeat_costs_as_little_with_many_hosts(make: Make) -> None:
    costs = []
    for hosts in (2, 12):
        cluster = make(hosts, capacity=16)
        cluster.start()
        assert len(names(cluster)) == hosts
        host = cluster.hosts["h0"].id
        beat = ev.Heartbeat(now=cluster.now, host=host, generation=1, step=1)
        costs.append(lines_run(lambda c=cluster, b=beat: c.machine.handle(b)))
    assert costs[0] == costs[1] < 100


def test_a_thousand_hosts_are_resized(make: Make) -> None:
    cluster = make(1000, capacity=1000, batch=3000, snapshot_every=5)
    cluster.looks_every = 100
    cluster.start()
    cluster.train(14)
    cluster.settle()
    cluster.kill("h7")
    cluster.settle()
    assert cluster.machine.state is State.RUNNING
    assert len(names(cluster)) == 750
    assert cluster.machine.resizes[0].steps_repeated <= 5
