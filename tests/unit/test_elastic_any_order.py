"""The elastic state machine under any order of events: invariants hold, and it always gets on.

Joins, losses, hangs, drains, wishes, late and repeated messages and coordinators that start again
come in any order. When they stop and what is wanted is done, the run trains again, has finished, or
has failed with a stated error.
"""

from __future__ import annotations

from typing import Any

from elastic_cluster import Cluster
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from meshfeed.pipeline.plan.elastic import events as ev
from meshfeed.pipeline.plan.elastic.mesh_rule import MeshRule
from meshfeed.pipeline.plan.elastic.policy import ElasticPolicy
from meshfeed.pipeline.plan.elastic.records import ResizeKind
from meshfeed.pipeline.plan.elastic.states import State

POLICIES = st.builds(
    ElasticPolicy,
    min_hosts=st.sampled_from([1, 2]),
    max_hosts=st.sampled_from([None, 4, 6]),
    replacement_wait_s=st.sampled_from([0.0, 20.0]),
    cool_down_s=st.sampled_from([0.0, 15.0]),
    snapshot_every=st.sampled_from([0, 2, 5]),
    hosts_wait_s=st.just(60.0),
    most_broken_worlds=st.sampled_from([3, 100]),
)

MOST = 10_000
"""Of seconds that may pass until the run trains or has ended: the longest limits are 1,800 s."""


class AnyOrder(RuleBasedStateMachine):
    """Draws what happens to a cluster."""

    cluster: Cluster

    @initialize(
        policy=POLICIES,
        hosts=st.sampled_from([2, 3, 4]),
        there=st.integers(0, 4),
        steps=st.sampled_from([5, 40, 1000]),
        starts=st.booleans(),
    )
    def begin(
        self, policy: ElasticPolicy, hosts: int, there: int, steps: int, starts: bool
    ) -> None:
        rule_of_mesh = MeshRule(axes={"data": -1}, batch_size=12, seq_len=4)
        self.cluster = Cluster(hosts, policy, rule_of_mesh, steps=steps, starts_hosts=starts)
        self.cluster.tell(ev.RunStarted(now=0))
        for _ in range(there):
            self.cluster.add_host()

    def pick(self, data: st.DataObject, items: Any, what: str) -> Any:
        return data.draw(st.sampled_from(sorted(items, key=str)), label=what)

    @precondition(lambda self: self.cluster.inbox)
    @rule(data=st.data())
    def a_message_arrives(self, data: st.DataObject) -> None:
        self.cluster.deliver(data.draw(st.integers(0, len(self.cluster.inbox) - 1)))

    @precondition(lambda self: self.cluster.todo)
    @rule(most=st.integers(1, 4))
    def actions_are_carried_out(self, most: int) -> None:
        for _ in range(min(most, len(self.cluster.todo))):
            self.cluster.carry_out(self.cluster.todo.pop(0))

    @rule()
    def all_is_carried_out(self) -> None:
        self.cluster.settle()

    @precondition(lambda self: self.cluster.history)
    @rule(data=st.data())
    def a_message_comes_again(self, data: st.DataObject) -> None:
        again = data.draw(st.integers(0, len(self.cluster.history) - 1))
        event = self.cluster.history[again]
        asks = ev.ResizeAsked | ev.DrainAsked | ev.RunStarted | ev.CoordinatorRestarted
        if not isinstance(event, asks | ev.VaultLost):
            self.cluster.tell(event)

    @rule(seconds=st.sampled_from([0.5, 5.0, 30.0, 130.0]))
    def time_passes(self, seconds: float) -> None:
        self.cluster.now += seconds
        self.cluster.beat()
        self.cluster.tell(ev.Tick(now=0))

    @rule(steps=st.integers(1, 12))
    def they_train(self, steps: int) -> None:
        self.cluster.train(steps)

    @rule()
    def a_host_comes(self) -> None:
        self.cluster.add_host()

    @precondition(lambda self: self.cluster.hosts)
    @rule(data=st.data(), with_vault=st.booleans(), is_seen=st.booleans())
    def a_host_dies(self, data: st.DataObject, with_vault: bool, is_seen: bool) -> None:
        name = self.pick(data, self.cluster.hosts, "host")
        self.cluster.kill(name, with_vault=with_vault, is_seen=is_seen)

    @precondition(lambda self: self.cluster.hosts)
    @rule(data=st.data())
    def a_host_starts_again(self, data: st.DataObject) -> None:
        name = self.pick(data, self.cluster.hosts, "host")
        self.cluster.kill(name, with_vault=False, is_seen=False)
        self.cluster.add_host(name)

    @precondition(lambda self: self.cluster.hosts)
    @rule(data=st.data())
    def a_host_hangs_or_wakes(self, data: st.DataObject) -> None:
        host = self.cluster.hosts[self.pick(data, self.cluster.hosts, "host")]
        host.is_hung = not host.is_hung

    @precondition(lambda self: self.cluster.hosts)
    @rule(data=st.data(), within=st.sampled_from([None, 5.0, 60.0]))
    def a_host_is_drained(self, data: st.DataObject, within: float | None) -> None:
        name = self.pick(data, self.cluster.hosts, "host")
        deadline = None if within is None else self.cluster.now + within
        self.cluster.tell(ev.DrainAsked(now=0, host=name, reason="test", deadline=deadline))

    @rule(hosts=st.integers(0, 7))
    def a_resize_is_asked_for(self, hosts: int) -> None:
        self.cluster.tell(ev.ResizeAsked(now=0, hosts=hosts))

    @precondition(lambda self: self.cluster.hosts)
    @rule(data=st.data())
    def a_connection_breaks(self, data: st.DataObject) -> None:
        host = self.cluster.hosts[self.pick(data, self.cluster.hosts, "host")]
        if host.world is not None:
            self.cluster.tell(
                ev.WorldBroken(
                    now=0, host=host.id, generation=host.world.generation, error="connection reset"
                )
            )

    @precondition(lambda self: self.cluster.machine.world is not None)
    @rule(step=st.integers(0, 30))
    def a_checkpoint_is_stored(self, step: int) -> None:
        world = self.cluster.machine.world
        reached = min((h.step for h in self.cluster.hosts.values() if h.world == world), default=0)
        if world is not None:
            self.cluster.tell(
                ev.CheckpointStored(now=0, generation=world.generation, step=min(step, reached))
            )

    @rule(keeps=st.booleans())
    def the_coordinator_starts_again(self, keeps: bool) -> None:
        self.cluster.restart_coordinator(keeps_messages=keeps)

    def teardown(self) -> None:
        if not hasattr(self, "cluster"):
            return
        cluster = self.cluster
        machine = cluster.machine
        waited = 0.0
        cluster.settle()
        while not is_at_rest(cluster) and waited < MOST:
            cluster.pass_time(50.0, every=10.0)
            cluster.train(1)
            cluster.settle()
            machine = cluster.machine
            waited += 50.0
        assert is_at_rest(cluster), f"{machine.state}, waits for {machine.waits_for()}"
        if machine.state is State.RUNNING:
            cluster.train(20_000)
            cluster.settle()
            cluster.pass_time(100.0, every=10.0)
            assert cluster.machine.has_ended or cluster.machine.state in (
                State.RUNNING,
                State.GATHERING,
            )
        for record in cluster.machine.resizes:
            assert record.kind is ResizeKind.UNPLANNED or record.steps_repeated == 0
            assert min(record.seconds.values()) >= 0


def is_at_rest(cluster: Cluster) -> bool:
    machine = cluster.machine
    if machine.has_ended:
        failed = [a for a in cluster.done if type(a).__name__ in ("Fail", "Finish")]
        return bool(failed)
    return machine.state is State.RUNNING and machine.wish is None and not machine.draining


AnyOrder.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestAnyOrder = AnyOrder.TestCase
