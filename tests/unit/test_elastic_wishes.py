"""Wishes, drains and hosts that appear: each ends in a stated outcome."""

from __future__ import annotations

import pytest
from elastic_cluster import Cluster
from elastic_fixture import Make, bring_to, make, names, outcomes

from meshfeed.pipeline.plan.elastic import actions as act
from meshfeed.pipeline.plan.elastic import events as ev
from meshfeed.pipeline.plan.elastic.machine import ElasticMachine
from meshfeed.pipeline.plan.elastic.mesh_rule import MeshRule
from meshfeed.pipeline.plan.elastic.policy import ElasticPolicy
from meshfeed.pipeline.plan.elastic.states import State
from meshfeed.pipeline.plan.errors import ConfigError

__all__ = ["make"]

DURING = [
    State.NOTICE,
    State.DRAINING,
    State.LEAVING,
    State.JOINING,
    State.MOVING,
    State.STARTING,
]


def running(cluster: Cluster, steps: int = 10) -> Cluster:
    cluster.start()
    cluster.train(steps)
    cluster.settle()
    assert cluster.machine.state is State.RUNNING
    return cluster


def ask(cluster: Cluster, hosts: int) -> None:
    cluster.tell(ev.ResizeAsked(now=0, hosts=hosts))


def drain(cluster: Cluster, host: str, within: float | None = None) -> None:
    deadline = None if within is None else cluster.now + within
    cluster.tell(ev.DrainAsked(now=0, host=host, reason="test", deadline=deadline))


@pytest.mark.parametrize("state", DURING)
@pytest.mark.parametrize("second", [1, 3, 4])
def test_of_two_wishes_the_last_one_wins_whenever_it_comes(
    make: Make, state: State, second: int
) -> None:
    cluster = running(make(4))
    ask(cluster, 2)
    bring_to(cluster, state)
    ask(cluster, second)
    cluster.settle()
    assert cluster.machine.state is State.RUNNING
    assert len(names(cluster)) == second
    assert outcomes(cluster) == [("2 hosts", "superseded"), (f"{second} hosts", "done")]
    assert all(record.steps_repeated == 0 for record in cluster.machine.resizes)


@pytest.mark.parametrize(
    ("hosts", "values", "message"),
    [
        (5, {}, "5: the 12 rows of a batch do not divide into 5 on mesh data=5. 1, 2, 3, 4, 6"),
        (0, {}, "0 hosts are fewer than min_hosts, which is 1"),
        (1, {"min_hosts": 2}, "1 hosts are fewer than min_hosts, which is 2"),
        (6, {"max_hosts": 4}, "6 hosts are more than max_hosts, which is 4"),
    ],
)
def test_a_wish_that_cannot_be_is_refused_and_changes_nothing(
    make: Make, hosts: int, values: dict[str, int], message: str
) -> None:
    cluster = running(make(3, **values))
    world = cluster.machine.world
    before = cluster.machine.to_plain()
    ask(cluster, hosts)
    after = cluster.machine.to_plain()
    (wish,) = cluster.machine.wishes
    assert message in wish.detail
    assert wish.detail.endswith("The run goes on as it was")
    assert after.pop("wishes") != before.pop("wishes")
    assert after == before
    assert cluster.machine.world == world


def test_a_wish_for_what_is_there_is_done_at_once(make: Make) -> None:
    cluster = running(make(3))
    ask(cluster, 3)
    cluster.settle()
    assert outcomes(cluster) == [("3 hosts", "done")]
    assert cluster.machine.generation == 1


def test_with_fewer_hosts_than_wished_for_the_run_takes_those_that_come(make: Make) -> None:
    cluster = make(2, starts_hosts=False, hosts_wait_s=100.0)
    cluster.start(hosts=2)
    ask(cluster, 4)
    cluster.settle()
    assert cluster.wanted(act.StartHosts)[-1].hosts == 2
    cluster.add_host()
    cluster.pass_time(99.0)
    assert cluster.machine.state is State.RUNNING
    assert len(names(cluster)) == 2, "training goes on while hosts start"
    assert cluster.machine.wish == 4
    cluster.pass_time(2.0)
    assert len(names(cluster)) == 3
    assert outcomes(cluster) == [("4 hosts", "partly")]
    assert "only 3 of 4 hosts came within hosts_wait_s" in cluster.machine.wishes[0].detail
    cluster.add_host()
    cluster.settle()
    assert len(names(cluster)) == 4, "one that comes later is taken in"


def test_a_wish_ends_with_the_training(make: Make) -> None:
    cluster = make(2, starts_hosts=False, steps=30)
    cluster.start(hosts=2)
    ask(cluster, 4)
    cluster.train(40)
    cluster.settle()
    assert cluster.machine.state is State.FINISHED
    assert outcomes(cluster) == [("4 hosts", "ended")]
    ask(cluster, 3)
    drain(cluster, "h0")
    assert outcomes(cluster)[1:] == [("3 hosts", "ended"), ("drain of h0", "ended")]


@pytest.mark.parametrize("state", [State.NOTICE, State.DRAINING])
def test_training_that_ends_before_the_barrier_finishes(make: Make, state: State) -> None:
    cluster = make(3, steps=12)
    cluster.start()
    cluster.train(20)
    cluster.granted = 12
    ended = [e for e in cluster.inbox if isinstance(e, ev.TrainingEnded)]
    cluster.inbox = [e for e in cluster.inbox if e not in ended]
    cluster.settle()
    ask(cluster, 2)
    bring_to(cluster, state)
    cluster.inbox += ended
    cluster.settle()
    assert cluster.machine.state is State.FINISHED
    assert outcomes(cluster) == [("2 hosts", "ended")]
    assert cluster.machine.resizes == ()
    assert len(cluster.wanted(act.Finish)) == 1


def test_a_wish_is_met_by_a_world_that_ends_its_training_at_once(make: Make) -> None:
    cluster = running(make(3))
    ask(cluster, 2)
    bring_to(cluster, State.STARTING)
    world = cluster.machine.world
    assert world is not None
    for host in world.members:
        cluster.tell(ev.TrainingEnded(now=0, host=host, generation=world.generation))
    assert cluster.machine.state is State.FINISHED
    assert len(world.members) == 2
    assert outcomes(cluster) == [("2 hosts", "done")]
    assert [resize.hosts_to for resize in cluster.machine.resizes] == [2]


def test_a_drained_host_is_left_out_and_released(make: Make) -> None:
    cluster = running(make(3))
    drain(cluster, "h1")
    cluster.settle()
    assert names(cluster) == ("h0", "h2")
    assert outcomes(cluster) == [("drain of h1", "done")]
    assert "h1" not in cluster.hosts
    assert cluster.machine.resizes[0].reasons == ["drain of h1: test"]


def test_a_drained_host_is_gone_when_training_ends_before_a_snapshot(make: Make) -> None:
    cluster = running(make(3, snapshot_every=500, steps=40))
    drain(cluster, "h1")
    cluster.settle()
    assert names(cluster) == ("h0", "h2")
    assert outcomes(cluster) == [], "its vault is still needed"
    cluster.train(60)
    cluster.settle()
    assert cluster.machine.state is State.FINISHED
    assert outcomes(cluster) == [("drain of h1", "done")]


def test_a_drain_ends_with_the_training(make: Make) -> None:
    cluster = make(3, replacement_wait_s=60.0, starts_hosts=False, steps=40)
    cluster.start(hosts=3)
    cluster.train(5)
    cluster.settle()
    drain(cluster, "h1")
    cluster.train(60)
    cluster.settle()
    assert cluster.machine.state is State.FINISHED
    assert outcomes(cluster) == [("drain of h1", "ended")]


def test_a_draining_host_that_is_lost_is_gone(make: Make) -> None:
    cluster = make(3, replacement_wait_s=60.0, snapshot_every=5, starts_hosts=False)
    cluster.start(hosts=3)
    cluster.train(10)
    cluster.settle()
    drain(cluster, "h1")
    cluster.kill("h1")
    cluster.settle()
    assert outcomes(cluster) == [("drain of h1", "done")]


def test_a_draining_host_is_kept_until_a_snapshot_lies_on_the_others(make: Make) -> None:
    cluster = running(make(3, snapshot_every=5), steps=13)
    drain(cluster, "h1")
    cluster.settle()
    assert names(cluster) == ("h0", "h2")
    assert "h1" in cluster.hosts
    cluster.train(8)
    cluster.settle()
    assert "h1" not in cluster.hosts
    assert outcomes(cluster) == [("drain of h1", "done")]


def test_a_draining_host_is_not_kept_for_ever(make: Make) -> None:
    cluster = running(make(3, snapshot_every=500, release_wait_s=30.0))
    drain(cluster, "h1")
    cluster.settle()
    cluster.pass_time(29.0)
    assert "h1" in cluster.hosts
    cluster.pass_time(2.0)
    assert "h1" not in cluster.hosts


def test_a_replacement_comes_before_the_drained_host_goes(make: Make) -> None:
    cluster = running(make(3, replacement_wait_s=60.0, starts_hosts=True))
    drain(cluster, "h1")
    assert isinstance(cluster.todo[0], act.StartHosts)
    cluster.settle()
    assert names(cluster) == ("h0", "h2", "h3")
    (record,) = cluster.machine.resizes
    assert (record.hosts_from, record.hosts_to, record.steps_repeated) == (3, 3, 0)


def test_a_deadline_cuts_the_wait_for_a_replacement_short(make: Make) -> None:
    cluster = make(3, replacement_wait_s=60.0, drain_margin_s=10.0, starts_hosts=False)
    cluster.start(hosts=3)
    cluster.train(5)
    cluster.settle()
    drain(cluster, "h1", within=40.0)
    cluster.pass_time(29.0)
    assert cluster.machine.generation == 1
    cluster.pass_time(2.0)
    assert names(cluster) == ("h0", "h2")


def test_an_earlier_deadline_counts(make: Make) -> None:
    cluster = make(3, replacement_wait_s=60.0, drain_margin_s=10.0, starts_hosts=False)
    cluster.start(hosts=3)
    cluster.train(5)
    cluster.settle()
    drain(cluster, "h1")
    drain(cluster, "h1", within=15.0)
    drain(cluster, "h1", within=50.0)
    cluster.pass_time(6.0)
    assert names(cluster) == ("h0", "h2")


def test_a_drain_that_leaves_too_few_is_refused(make: Make) -> None:
    cluster = running(make(2, min_hosts=2))
    drain(cluster, "h1")
    cluster.settle()
    assert outcomes(cluster) == [("drain of h1", "refused")]
    assert "1 hosts would be left; at least 2 are needed" in cluster.machine.wishes[0].detail
    assert cluster.machine.generation == 1
    assert cluster.machine.draining == ()


def test_before_a_deadline_the_state_is_saved_even_if_too_few_are_left(make: Make) -> None:
    cluster = make(2, min_hosts=2, starts_hosts=False, hosts_wait_s=100.0)
    cluster.start(hosts=2)
    cluster.train(5)
    cluster.settle()
    drain(cluster, "h1", within=30.0)
    cluster.settle()
    assert cluster.machine.state is State.GATHERING
    cluster.add_host()
    cluster.settle()
    assert names(cluster) == ("h0", "h2")
    assert cluster.machine.resizes[0].steps_repeated == 0


def test_a_drain_of_nobody_is_refused(make: Make) -> None:
    cluster = running(make(2))
    drain(cluster, "h9")
    assert outcomes(cluster) == [("drain of h9", "refused")]
    assert "there are h0, h1" in cluster.machine.wishes[0].detail


def test_hosts_that_appear_are_taken_in_after_the_cool_down(make: Make) -> None:
    cluster = make(3, starts_hosts=False, cool_down_s=50.0, hosts_wait_s=20.0)
    cluster.start(hosts=2)
    cluster.pass_time(21.0)
    assert len(names(cluster)) == 2
    cluster.add_host()
    cluster.pass_time(48.0)
    assert len(names(cluster)) == 2
    cluster.pass_time(3.0)
    assert len(names(cluster)) == 3
    assert cluster.machine.resizes[0].reasons == ["1 hosts have come"]


def test_no_more_hosts_are_taken_in_than_are_wanted(make: Make) -> None:
    cluster = running(make(2))
    cluster.add_host()
    cluster.settle()
    assert names(cluster) == ("h0", "h1")
    assert [str(host) for host in cluster.machine.ready_hosts] == ["h2"]


def test_a_number_that_does_not_fit_cannot_be_started_with() -> None:
    rule = MeshRule(axes={"data": -1}, batch_size=12, seq_len=4)
    with pytest.raises(ConfigError, match=r"hosts: 5: the 12 rows .* 1, 2, 3, 4, 6"):
        ElasticMachine(5, policy=ElasticPolicy(), rule=rule)
    with pytest.raises(ConfigError, match="hosts_per_group: 1 for the mesh, 2 in the policy"):
        ElasticMachine(2, policy=ElasticPolicy(hosts_per_group=2), rule=rule)
