"""The elastic state machine, planned and unplanned resizes from end to end."""

from __future__ import annotations

import pytest
from elastic_fixture import Make, bring_to, make, names, outcomes

from meshfeed.pipeline.plan.elastic import actions as act
from meshfeed.pipeline.plan.elastic import events as ev
from meshfeed.pipeline.plan.elastic.records import Outcome, ResizeKind
from meshfeed.pipeline.plan.elastic.states import State
from meshfeed.pipeline.plan.elastic.worlds import RestoreKind

__all__ = ["make"]

PHASES_OF_A_RESIZE = [
    State.NOTICE,
    State.DRAINING,
    State.LEAVING,
    State.JOINING,
    State.MOVING,
    State.STARTING,
]


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
    cluster.train(14)
    cluster.settle()
    reached = cluster.hosts["h1"].step
    cluster.kill(lost, with_vault=with_vault)
    cluster.settle()
    assert cluster.machine.state is State.RUNNING
    assert len(names(cluster)) == 3
    assert lost not in names(cluster)
    (record,) = cluster.machine.resizes
    assert (record.kind, record.restored) == (ResizeKind.UNPLANNED, RestoreKind.SNAPSHOT)
    assert record.step == reached // 5 * 5
    assert 0 < record.steps_repeated == reached - record.step <= 5
    assert [action.host.name for action in cluster.wanted(act.FenceHost)] == [lost]


def test_without_a_snapshot_the_checkpoint_is_the_answer_and_else_step_0(make: Make) -> None:
    cluster = make(3)
    cluster.start()
    cluster.train(9)
    cluster.settle()
    reached = cluster.hosts["h0"].step
    cluster.kill("h2")
    cluster.settle()
    cluster.train(9)
    cluster.settle()
    generation = cluster.machine.generation
    cluster.tell(ev.CheckpointStored(now=0, generation=generation, step=4))
    cluster.kill("h1")
    cluster.settle()
    first, second = cluster.machine.resizes
    assert (first.restored, first.step, first.steps_repeated) == (RestoreKind.INIT, 0, reached)
    assert (second.restored, second.step) == (RestoreKind.CHECKPOINT, 4)
    assert second.steps_repeated > 0


def test_a_snapshot_counts_once_it_lies_on_two_nodes(make: Make) -> None:
    cluster = make(3, snapshot_every=5, snapshot_copies=2)
    cluster.start()
    cluster.train(6)
    cluster.settle()
    world = cluster.machine.world
    assert world is not None
    for host in world.members:
        cluster.tell(ev.SnapshotStored(now=0, host=host, generation=1, step=6, vaults=(host.name,)))
    cluster.kill("h0", with_vault=False)
    cluster.settle()
    assert cluster.machine.resizes[0].step == 5


def test_what_is_lost_with_two_nodes_is_read_from_the_checkpoint(make: Make) -> None:
    cluster = make(4, snapshot_every=5)
    cluster.start()
    cluster.train(14)
    cluster.settle()
    cluster.tell(ev.CheckpointStored(now=0, generation=1, step=7))
    cluster.kill("h1")
    cluster.kill("h2")
    cluster.settle()
    (record,) = cluster.machine.resizes
    assert (record.hosts_to, record.restored, record.step) == (2, RestoreKind.CHECKPOINT, 7)


def test_a_replacement_is_waited_for_before_the_run_shrinks(make: Make) -> None:
    cluster = make(3, replacement_wait_s=30.0, snapshot_every=5, starts_hosts=False)
    cluster.start(hosts=3)
    cluster.train(8)
    cluster.settle()
    cluster.kill("h1")
    cluster.settle()
    assert cluster.machine.state is State.GATHERING
    assert cluster.wanted(act.StartHosts)[-1].hosts == 1
    cluster.pass_time(29.0)
    assert cluster.machine.state is State.GATHERING
    cluster.pass_time(2.0)
    assert cluster.machine.state is State.RUNNING
    assert len(names(cluster)) == 2
    assert cluster.machine.resizes[0].seconds["plan"] == pytest.approx(30.0)

    cluster.add_host()
    cluster.settle()
    assert len(names(cluster)) == 3, "the host that came late is taken in"


def test_a_replacement_in_time_keeps_the_size(make: Make) -> None:
    cluster = make(3, replacement_wait_s=30.0, snapshot_every=5)
    cluster.start()
    cluster.train(8)
    cluster.settle()
    cluster.kill("h1")
    cluster.settle()
    assert cluster.machine.state is State.RUNNING
    (record,) = cluster.machine.resizes
    assert (record.hosts_from, record.hosts_to) == (3, 3)


@pytest.mark.parametrize("state", PHASES_OF_A_RESIZE)
@pytest.mark.parametrize("lost", ["h0", "h2", "h3"])
def test_a_host_lost_during_a_resize_is_dealt_with_in_every_phase(
    make: Make, state: State, lost: str
) -> None:
    """h0 stays, h2 leaves in the resize to 2 hosts, h3 is a spare that was never a member."""
    cluster = make(3, snapshot_every=5)
    cluster.start()
    cluster.add_host("h3")
    cluster.train(12)
    cluster.settle()
    cluster.tell(ev.ResizeAsked(now=0, hosts=2))
    bring_to(cluster, state)
    cluster.kill(lost)
    cluster.inbox.insert(0, cluster.inbox.pop())
    cluster.settle()
    assert cluster.machine.state is State.RUNNING
    assert len(names(cluster)) == 2
    assert lost not in names(cluster)
    assert outcomes(cluster) == [("2 hosts", "done")]
    (record,) = cluster.machine.resizes
    if lost == "h3":
        assert record.kind is ResizeKind.PLANNED
        assert record.steps_repeated == 0
    assert record.steps_repeated <= 5
    assert (record.hosts_from, record.hosts_to) == (3, 2)


@pytest.mark.parametrize("state", [State.JOINING, State.MOVING])
def test_a_vault_lost_while_state_is_taken_from_it_starts_the_world_anew(
    make: Make, state: State
) -> None:
    cluster = make(3, snapshot_every=5)
    cluster.start()
    cluster.train(12)
    cluster.settle()
    cluster.tell(ev.ResizeAsked(now=0, hosts=2))
    bring_to(cluster, state)
    del cluster.vaults["h2"]
    cluster.tell(ev.VaultLost(now=0, host="h2"))
    assert cluster.machine.state is State.LEAVING
    cluster.settle()
    assert cluster.machine.state is State.RUNNING
    (record,) = cluster.machine.resizes
    assert (record.restored, record.broken_worlds) == (RestoreKind.SNAPSHOT, 1)
    assert record.reasons[-1].startswith("the vault of h2 is lost")


def test_phases_have_their_seconds(make: Make) -> None:
    cluster = make(2)
    cluster.start()
    cluster.train(5)
    cluster.settle()
    cluster.tell(ev.ResizeAsked(now=0, hosts=1))
    for seconds, state in enumerate([*PHASES_OF_A_RESIZE, State.RUNNING], start=0):
        bring_to(cluster, state)
        cluster.now += seconds + 1
    (record,) = cluster.machine.resizes
    assert record.seconds == {
        "notice": 1.0,
        "drain": 2.0,
        "leave": 3.0,
        "plan": 0.0,
        "join": 4.0,
        "move": 5.0,
        "compile": 6.0,
        "first_step": 0.0,
    }
    report = record.as_report()
    assert report["kind"] == "planned"
    assert report["restored"] == "live"
    assert sum(report["seconds"].values()) == 21.0


def test_the_first_step_is_told_from_compiling(make: Make) -> None:
    cluster = make(2)
    cluster.start()
    cluster.train(5)
    cluster.settle()
    cluster.tell(ev.ResizeAsked(now=0, hosts=1))
    bring_to(cluster, State.STARTING)
    cluster.now += 7
    cluster.settle(until=lambda: isinstance(cluster.inbox[0], ev.FirstStep))
    cluster.now += 2
    cluster.settle()
    assert cluster.machine.resizes[0].seconds["compile"] == 7.0
    assert cluster.machine.resizes[0].seconds["first_step"] == 2.0


def test_groups_join_and_leave_together(make: Make) -> None:
    cluster = make(4, hosts_per_group=2, min_hosts=2, snapshot_every=5)
    cluster.start()
    cluster.train(8)
    cluster.settle()
    cluster.kill("h1")
    cluster.settle()
    assert len(names(cluster)) == 2
    cluster.tell(ev.ResizeAsked(now=0, hosts=3))
    assert outcomes(cluster) == [("3 hosts", "refused")]
    assert "groups of 2. 2, 4, 6, 12 hosts would do" in cluster.machine.wishes[0].detail


def test_named_groups_are_broken_by_the_loss_of_one(make: Make) -> None:
    cluster = make(4, hosts_per_group=2, min_hosts=2, snapshot_every=5, starts_hosts=False)
    cluster.start()
    for name, group in (("a0", "a"), ("b0", "b"), ("a1", "a"), ("b1", "b")):
        host = cluster.add_host(name)
        assert host is not None
        cluster.inbox[-1] = ev.HostReady(now=0, host=host.id, group=group)
    cluster.settle()
    assert names(cluster) == ("a0", "a1", "b0", "b1")
    cluster.train(8)
    cluster.settle()
    cluster.kill("a1")
    cluster.settle()
    assert names(cluster) == ("b0", "b1")
    assert [str(host) for host in cluster.machine.ready_hosts] == ["a0"]


def test_places_are_given_by_the_function_that_was_handed_in(make: Make) -> None:
    cluster = make(3)
    cluster.machine._arrange = lambda last, members, restore: members[::-1]
    cluster.start()
    assert names(cluster) == ("h2", "h1", "h0")
    cluster.machine._arrange = lambda last, members, restore: members[:1]
    cluster.tell(ev.ResizeAsked(now=0, hosts=2))
    with pytest.raises(ValueError, match="in another order"):
        cluster.settle()
