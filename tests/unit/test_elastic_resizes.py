"""The elastic state machine, planned and unplanned resizes from end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from elastic_cluster import Cluster

from meshfeed.pipeline.plan.elastic import actions as act
from meshfeed.pipeline.plan.elastic import events as ev
from meshfeed.pipeline.plan.elastic.mesh_rule import MeshRule
from meshfeed.pipeline.plan.elastic.policy import ElasticPolicy
from meshfeed.pipeline.plan.elastic.records import Outcome, ResizeKind
from meshfeed.pipeline.plan.elastic.states import State
from meshfeed.pipeline.plan.elastic.worlds import RestoreKind

Make = Callable[..., Cluster]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes clusters; at the end the invariants hold in each."""
    made: list[Cluster] = []

    def one(hosts: int, *, batch: int = 12, steps: int = 1000, **values: Any) -> Cluster:
        kept = {k: values.pop(k) for k in ("capacity", "starts_hosts") if k in values}
        policy = ElasticPolicy(**{"cool_down_s": 0.0, **values})
        rule = MeshRule(
            axes={"data": -1},
            batch_size=batch,
            seq_len=4,
            hosts_per_group=policy.hosts_per_group,
        )
        made.append(Cluster(hosts, policy, rule, steps=steps, **kept))
        return made[-1]

    yield one
    for cluster in made:
        assert cluster.machine.invariants() == ()


def names(cluster: Cluster) -> tuple[str, ...]:
    world = cluster.machine.world
    return world.names if world is not None else ()


def test_a_run_starts_with_the_hosts_that_it_wants(make: Make) -> None:
    cluster = make(3)
    cluster.start()
    assert [action.hosts for action in cluster.wanted(act.StartHosts)] == [3]
    assert cluster.machine.state is State.RUNNING
    assert names(cluster) == ("h0", "h1", "h2")
    world = cluster.machine.world
    assert world is not None
    assert dict(world.mesh) == {"data": 3}
    assert world.restore.kind is RestoreKind.INIT
    assert cluster.wanted(act.MoveState) == []
    assert cluster.machine.resizes == ()


def test_planned_resizes_repeat_nothing(make: Make) -> None:
    cluster = make(4)
    cluster.start()
    for hosts in (2, 3, 4, 1):
        cluster.train(10)
        cluster.settle()
        cluster.tell(ev.ResizeAsked(now=0, hosts=hosts))
        cluster.settle()
        assert cluster.machine.state is State.RUNNING
        assert len(names(cluster)) == hosts
    assert [(r.hosts_from, r.hosts_to, r.kind) for r in cluster.machine.resizes] == [
        (4, 2, ResizeKind.PLANNED),
        (2, 3, ResizeKind.PLANNED),
        (3, 4, ResizeKind.PLANNED),
        (4, 1, ResizeKind.PLANNED),
    ]
    assert [r.steps_repeated for r in cluster.machine.resizes] == [0] * 4
    barriers = [action.step for action in cluster.wanted(act.AnnounceBarrier)]
    assert [r.step for r in cluster.machine.resizes] == barriers
    assert [w.outcome for w in cluster.machine.wishes] == [Outcome.DONE] * 4
    assert len(cluster.hosts) == 1, "hosts that are not wanted any more are released"


@pytest.mark.parametrize("lost", ["h0", "h1", "h2", "h3"])
@pytest.mark.parametrize("with_vault", [True, False])
def test_a_lost_host_costs_the_steps_since_the_snapshot(
    make: Make, lost: str, with_vault: bool
) -> None:
    cluster = make(4, snapshot_every=5)
    cluster.start()
    cluster.train(12)
    cluster.settle()
    cluster.beat()
    reached = cluster.hosts["h1"].step
    cluster.kill(lost, with_vault=with_vault)
    cluster.settle()
    assert cluster.machine.state is State.RUNNING
    assert len(names(cluster)) == 3
    assert lost not in names(cluster)
    (record,) = cluster.machine.resizes
    assert (record.kind, record.restored) == (ResizeKind.UNPLANNED, RestoreKind.SNAPSHOT)
    assert record.step == reached // 5 * 5
    assert record.steps_repeated == reached - record.step <= 5
    assert [action.host.name for action in cluster.wanted(act.FenceHost)] == [lost]
