"""Limits, old messages, coordinators that start again, and errors of the user's code."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from elastic_cluster import Cluster
from elastic_fixture import Make, bring_to, make, names, outcomes

from meshfeed.pipeline.plan.elastic import actions as act
from meshfeed.pipeline.plan.elastic import events as ev
from meshfeed.pipeline.plan.elastic.machine import ElasticMachine
from meshfeed.pipeline.plan.elastic.records import ResizeKind
from meshfeed.pipeline.plan.elastic.states import State
from meshfeed.pipeline.plan.elastic.worlds import HostId
from meshfeed.pipeline.plan.errors import ChangedError

__all__ = ["make"]

DURING = [
    State.NOTICE,
    State.DRAINING,
    State.LEAVING,
    State.JOINING,
    State.MOVING,
    State.STARTING,
]


def resizing(cluster: Cluster, state: State) -> Cluster:
    """A run of 3 hosts in a state of its resize to 2."""
    cluster.start()
    cluster.train(14)
    cluster.settle()
    cluster.tell(ev.ResizeAsked(now=0, hosts=2))
    bring_to(cluster, state)
    return cluster


def fail_of(cluster: Cluster) -> act.Fail:
    assert cluster.machine.state is State.FAILED
    (fail,) = cluster.wanted(act.Fail)
    assert isinstance(fail, act.Fail)
    return fail


@pytest.mark.parametrize("state", [*DURING, State.RUNNING])
@pytest.mark.parametrize("hung", ["h0", "h2"])
def test_a_hung_host_is_found_by_its_silence(make: Make, state: State, hung: str) -> None:
    cluster = make(3, snapshot_every=5, heartbeat_limit_s=20.0)
    resizing(cluster, state)
    cluster.hosts[hung].is_hung = True
    cluster.inbox = [e for e in cluster.inbox if getattr(e, "host", HostId("")).name != hung]
    for _ in range(40):
        cluster.pass_time(1.0)
        cluster.train(2)
    cluster.settle()
    assert cluster.machine.state is State.RUNNING
    assert hung not in names(cluster)
    fenced = [action.host.name for action in cluster.wanted(act.FenceHost)]
    assert fenced == ([hung] if hung in fenced else [])
    assert fenced or hung == "h2", "one that had left may have been released before"
    assert outcomes(cluster) == [("2 hosts", "done")]


def test_a_host_that_wakes_after_it_was_replaced_changes_nothing(make: Make) -> None:
    cluster = make(3, snapshot_every=5, replacement_wait_s=30.0)
    cluster.start()
    cluster.train(14)
    cluster.settle()
    old = cluster.hosts["h1"]
    about: dict[str, Any] = {"now": 0.0, "host": old.id, "generation": 1}
    old.is_hung = True
    cluster.pass_time(60.0)
    cluster.add_host("h1")
    cluster.settle()
    assert cluster.machine.generation > 1
    before = cluster.machine.to_plain()
    for late in (
        ev.Heartbeat(**about, step=99),
        ev.FirstStep(**about),
        ev.HostAtBarrier(**about, step=12),
        ev.StateStored(**about, step=12),
        ev.SnapshotStored(**about, step=99, vaults=("h0", "h1")),
        ev.WorldLeft(**about, step=99),
        ev.WorldBroken(**about, error="connection reset"),
        ev.Failed(**about, error="late"),
        ev.TrainingEnded(**about),
        ev.HostReady(now=0, host=old.id),
        ev.HostLost(now=0, host=old.id, reason="late", with_vault=False),
    ):
        assert cluster.tell(late) == ()
        assert cluster.machine.to_plain() == before, late


def test_messages_of_an_older_generation_change_nothing(make: Make) -> None:
    cluster = make(3, snapshot_every=5)
    cluster.start()
    cluster.train(14)
    cluster.settle()
    cluster.tell(ev.ResizeAsked(now=0, hosts=2))
    cluster.settle()
    before = cluster.machine.to_plain()
    host = cluster.hosts["h0"].id
    about: dict[str, Any] = {"now": 0.0, "host": host, "generation": 1}
    for late in (
        ev.WorldJoined(**about),
        ev.FirstStep(**about),
        ev.StateStored(**about, step=12),
        ev.SnapshotStored(**about, step=10, vaults=("h1",)),
        ev.WorldLeft(**about, step=13),
        ev.WorldBroken(**about, error="connection reset"),
        ev.Failed(**about, error="late"),
        ev.TrainingEnded(**about),
        ev.BarrierKnown(now=0, generation=1, step=500),
        ev.CheckpointStored(now=0, generation=1, step=500),
        ev.Heartbeat(**about, step=500),
    ):
        assert cluster.tell(late) == ()
        assert cluster.machine.to_plain() == before, late


def test_every_message_may_come_twice(make: Make) -> None:
    once, twice = make(3, snapshot_every=5), make(3, snapshot_every=5)
    tell = twice.tell

    def tell_twice(event: ev.Event) -> tuple[act.Action, ...]:
        wanted = tell(event)
        assert tell(event) == (), event
        return wanted

    twice.tell = tell_twice  # type: ignore[method-assign]
    for cluster in (once, twice):
        cluster.start()
        cluster.train(14)
        cluster.settle()
        cluster.tell(ev.ResizeAsked(now=0, hosts=2))
        cluster.settle()
        cluster.train(14)
        cluster.kill("h0")
        cluster.settle()
    assert twice.machine.to_plain() == once.machine.to_plain()


@pytest.mark.parametrize("state", DURING)
def test_a_coordinator_that_starts_again_asks_again(make: Make, state: State) -> None:
    cluster = resizing(make(3, snapshot_every=5), state)
    cluster.now += 500
    cluster.restart_coordinator()
    cluster.tell(ev.Tick(now=0))
    cluster.settle()
    assert cluster.machine.state is State.RUNNING
    (record,) = cluster.machine.resizes
    assert (record.kind, record.steps_repeated) == (ResizeKind.PLANNED, 0)
    assert cluster.wanted(act.FenceHost) == [], "nobody was silent: nobody listened"


def test_fences_and_errors_are_asked_for_again(make: Make) -> None:
    cluster = make(3, snapshot_every=5)
    cluster.start()
    cluster.train(14)
    cluster.settle()
    cluster.kill("h1")
    bring_to(cluster, State.LEAVING)
    cluster.restart_coordinator()
    kinds = [type(action) for action in cluster.todo]
    assert kinds == [act.FenceHost, act.AbortWorld]
    host = cluster.hosts["h0"].id
    cluster.settle()
    about: dict[str, Any] = {"now": 0.0, "host": host, "generation": cluster.machine.generation}
    cluster.tell(ev.Failed(**about, error="ValueError: x"))
    cluster.restart_coordinator()
    assert [type(action) for action in cluster.todo] == [act.AbortWorld, act.Fail]


def test_what_another_version_has_kept_is_refused(make: Make) -> None:
    cluster = make(2)
    cluster.start()
    plain = cluster.machine.to_plain()
    for wrong in (
        {**plain, "colour": 1},
        {**plain, "state": "dreaming"},
        {**plain, "generation": "two"},
        {**plain, "generation": True},
        {**plain, "hosts": None},
    ):
        with pytest.raises(ChangedError, match="MachineState cannot be read"):
            ElasticMachine.from_plain(wrong, policy=cluster.policy, rule=cluster.rule)
    assert json.loads(json.dumps(plain)) == plain


def test_user_code_that_fails_ends_the_others_with_its_error(make: Make) -> None:
    cluster = make(4)
    cluster.start()
    cluster.train(3)
    cluster.settle()
    host = cluster.hosts["h1"].id
    cluster.tell(ev.Failed(now=0, host=host, generation=1, error="ValueError: loss is nan"))
    abort = next(action for action in cluster.todo if isinstance(action, act.AbortWorld))
    assert {h.name for h in abort.hosts} >= {"h0", "h2", "h3"}
    assert abort.reason == "h1 failed in generation 1: ValueError: loss is nan"
    cluster.settle()
    fail = fail_of(cluster)
    assert (fail.host, fail.stage) == ("h1", "running")
    assert fail.error == abort.reason
    before = cluster.machine.to_plain()
    cluster.add_host()
    cluster.settle()
    cluster.pass_time(1000.0)
    assert {**cluster.machine.to_plain(), "now": 0} == {**before, "now": 0}


def test_code_that_fails_because_its_world_was_given_up_is_no_failure(make: Make) -> None:
    cluster = make(3, snapshot_every=5)
    cluster.start()
    cluster.train(14)
    cluster.settle()
    cluster.kill("h1")
    bring_to(cluster, State.LEAVING)
    host = cluster.hosts["h0"].id
    cluster.tell(ev.Failed(now=0, host=host, generation=1, error="RuntimeError: step failed"))
    cluster.settle()
    assert cluster.machine.state is State.RUNNING


@pytest.mark.parametrize("first", ["broken", "lost"])
def test_a_broken_connection_and_the_loss_behind_it_are_one_resize(make: Make, first: str) -> None:
    cluster = make(3, snapshot_every=5)
    cluster.start()
    cluster.train(14)
    cluster.settle()
    cluster.kill("h1")
    host = cluster.hosts["h0"].id
    broken = ev.WorldBroken(now=0, host=host, generation=1, error="connection reset")
    cluster.inbox.insert(0 if first == "broken" else 1, broken)
    cluster.deliver()
    cluster.deliver()
    cluster.settle()
    assert cluster.machine.state is State.RUNNING
    assert names(cluster) == ("h0", "h2")
    assert len(cluster.machine.resizes) == 1


def test_with_too_few_hosts_the_run_ends_after_a_stated_wait(make: Make) -> None:
    cluster = make(3, min_hosts=2, snapshot_every=5, starts_hosts=False, hosts_wait_s=100.0)
    cluster.start(hosts=3)
    cluster.train(14)
    cluster.settle()
    cluster.kill("h0")
    cluster.kill("h2")
    cluster.settle()
    cluster.pass_time(99.0)
    assert cluster.machine.state is State.GATHERING
    cluster.pass_time(2.0)
    fail = fail_of(cluster)
    assert "hosts_wait_s is 100): of at least 2 hosts these are there: h1" in fail.error
    assert fail.stage == "gathering"


@pytest.mark.parametrize(
    ("state", "limit"),
    [
        (State.DRAINING, "drain_limit_s"),
        (State.JOINING, "join_limit_s"),
        (State.MOVING, "move_limit_s"),
        (State.STARTING, "start_limit_s"),
    ],
)
def test_what_takes_too_long_is_given_up_and_named(make: Make, state: State, limit: str) -> None:
    cluster = resizing(make(3, snapshot_every=5, **{limit: 50.0}), state)
    kept, cluster.inbox, cluster.todo = cluster.inbox, [], []
    cluster.now += 49
    cluster.beat()
    cluster.tell(ev.Tick(now=0))
    assert cluster.machine.state is state
    awaited = cluster.machine.waits_for()
    cluster.now += 2
    cluster.beat()
    cluster.tell(ev.Tick(now=0))
    assert cluster.machine.state is State.LEAVING
    cluster.inbox += kept
    cluster.settle()
    assert cluster.machine.state is State.RUNNING
    reason = cluster.machine.resizes[0].reasons[-1]
    assert f"within {limit}, which is 50 s" in reason
    assert all(str(host) in reason for host in awaited)


def test_who_does_not_leave_in_time_is_fenced(make: Make) -> None:
    cluster = resizing(make(3, snapshot_every=5, leave_limit_s=50.0), State.LEAVING)
    cluster.todo = [
        dataclasses.replace(action, hosts=action.hosts[1:])
        for action in cluster.todo
        if isinstance(action, act.LeaveWorld)
    ]
    cluster.pass_time(51.0)
    cluster.settle()
    assert [action.host.name for action in cluster.wanted(act.FenceHost)] == ["h0"]
    assert cluster.machine.state is State.RUNNING
    assert names(cluster) == ("h1", "h2")


def test_without_a_barrier_the_run_ends(make: Make) -> None:
    cluster = resizing(make(3, notice_limit_s=50.0), State.NOTICE)
    cluster.todo = []
    cluster.pass_time(51.0)
    assert "no barrier was fixed within notice_limit_s, which is 50 s" in fail_of(cluster).error


def test_a_barrier_behind_a_step_that_was_taken_ends_the_run(make: Make) -> None:
    cluster = resizing(make(3), State.NOTICE)
    cluster.beat()
    cluster.tell(ev.BarrierKnown(now=0, generation=1, step=3))
    cluster.settle()
    assert "the barrier is step 3, but the steps before" in fail_of(cluster).error


def test_a_host_beyond_the_barrier_ends_the_run(make: Make) -> None:
    cluster = resizing(make(3), State.DRAINING)
    host = cluster.hosts["h1"].id
    cluster.tell(ev.HostAtBarrier(now=0, host=host, generation=1, step=500))
    cluster.settle()
    fail = fail_of(cluster)
    assert fail.host == "h1"
    assert "has stopped before step 500, beyond the barrier" in fail.error


def test_worlds_that_keep_breaking_end_the_run(make: Make) -> None:
    cluster = make(2, most_broken_worlds=3)
    cluster.start()
    cluster.train(5)
    cluster.settle()
    for _ in range(10):
        world = cluster.machine.world
        if world is None:
            break
        cluster.tell(
            ev.WorldBroken(
                now=0, host=world.members[0], generation=world.generation, error="refused"
            )
        )
        cluster.settle()
    fail = fail_of(cluster)
    assert "4 worlds in a row broke before" in fail.error
    assert "most_broken_worlds, which is 3. The last time: h0: refused" in fail.error


def test_losses_of_a_run_that_gets_on_are_no_end(make: Make) -> None:
    cluster = make(2, most_broken_worlds=3, replacement_wait_s=30.0, snapshot_every=5)
    cluster.start()
    for _ in range(15):
        cluster.train(30)
        cluster.settle()
        cluster.kill(names(cluster)[0])
        cluster.settle()
        assert cluster.machine.state is State.RUNNING
    assert len(cluster.machine.resizes) == 15


def test_hosts_that_do_not_end_are_named(make: Make) -> None:
    cluster = make(3, finish_limit_s=50.0)
    cluster.start()
    world = cluster.machine.world
    assert world is not None
    for host in world.members[:2]:
        cluster.tell(ev.TrainingEnded(now=0, host=host, generation=1))
    assert cluster.machine.state is State.FINISHING
    assert [str(host) for host in cluster.machine.waits_for()] == ["h2"]
    cluster.pass_time(51.0)
    assert "but not on h2 within finish_limit_s, which is 50 s" in fail_of(cluster).error


def test_a_host_lost_after_others_have_ended_does_not_bring_them_back(make: Make) -> None:
    cluster = make(3)
    cluster.start()
    world = cluster.machine.world
    assert world is not None
    for host in world.members[:2]:
        cluster.tell(ev.TrainingEnded(now=0, host=host, generation=1))
    cluster.kill("h2")
    cluster.settle()
    assert cluster.machine.state is State.FINISHED


def test_released_hosts_that_are_still_heard_are_released_again(make: Make) -> None:
    cluster = make(3)
    cluster.start()
    cluster.train(5)
    cluster.settle()
    host = cluster.hosts["h2"].id
    cluster.tell(ev.ResizeAsked(now=0, hosts=2))
    cluster.settle()
    assert cluster.wanted(act.ReleaseHosts) == [act.ReleaseHosts(hosts=(host,))]
    again = cluster.tell(ev.Heartbeat(now=0, host=host))
    assert again == (act.ReleaseHosts(hosts=(host,)),)
