"""What the tests of the elastic state machine share: clusters whose invariants are looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pytest
from elastic_cluster import Cluster

from meshfeed.pipeline.plan.elastic.mesh_rule import MeshRule
from meshfeed.pipeline.plan.elastic.policy import ElasticPolicy
from meshfeed.pipeline.plan.elastic.states import State


class Make(Protocol):
    """Makes a cluster; the values are those of its policy, but for some."""

    def __call__(self, hosts: int, **values: Any) -> Cluster: ...


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes clusters; at the end the invariants hold in each."""
    made: list[Cluster] = []

    def one(hosts: int, **values: Any) -> Cluster:
        own = {k: values.pop(k) for k in ("capacity", "starts_hosts", "steps") if k in values}
        batch = values.pop("batch", 12)
        policy = ElasticPolicy(**{"cool_down_s": 0.0, **values})
        rule = MeshRule(
            axes={"data": -1},
            batch_size=batch,
            seq_len=4,
            hosts_per_group=policy.hosts_per_group,
        )
        made.append(Cluster(hosts, policy, rule, **own))
        return made[-1]

    yield one
    for cluster in made:
        assert cluster.machine.invariants() == ()


def names(cluster: Cluster) -> tuple[str, ...]:
    """Names of the members of the present world."""
    world = cluster.machine.world
    return world.names if world is not None else ()


def bring_to(cluster: Cluster, state: State) -> None:
    """Lets everything happen until the machine comes to a state."""
    cluster.settle(until=lambda: cluster.machine.state is state)
    assert cluster.machine.state is state


def outcomes(cluster: Cluster) -> list[tuple[str, str]]:
    """Wishes and what became of them."""
    return [(str(w.wish), str(w.outcome)) for w in cluster.machine.wishes]
