"""Every node hears once of each window that it is to run or to forget."""

from meshfeed.actors.control.node_desk import NodeDesk
from meshfeed.actors.messages import WindowReport
from meshfeed.pipeline.plan.feed_state import WindowKey
from meshfeed.pipeline.plan.leasing import Lease

KEY = WindowKey(0, 0, 3)


def report(number: int) -> WindowReport:
    return WindowReport(feed="train", key=KEY, lease=number)


def test_a_node_hears_of_the_feeds_first_and_of_each_window_once() -> None:
    desk = NodeDesk({"train": None})  # type: ignore[dict-item]
    desk.add(0)
    assert desk.has_work(0)
    assert desk.take(0).specs == {"train": None}
    assert not desk.has_work(0)
    desk.lease(Lease(0, "train", KEY))
    update = desk.take(0)
    assert [(lease.feed, lease.key) for lease in update.leases] == [("train", KEY)]
    assert desk.is_current(report(update.leases[0].number))
    desk.release(0, "train", KEY)
    assert not desk.has_work(0), "what it may forget can wait"
    assert desk.take(0).releases == (("train", KEY),)
    assert desk.take(0).releases == desk.take(0).leases == ()


def test_a_window_released_before_its_node_heard_of_it_is_not_run() -> None:
    desk = NodeDesk({})
    desk.add(0)
    desk.lease(Lease(0, "train", KEY))
    desk.release(0, "train", KEY)
    update = desk.take(0)
    assert (update.leases, update.releases) == ((), (("train", KEY),))


def test_only_the_report_of_the_last_lease_counts() -> None:
    """The window is leased again, elsewhere, while the first run is still under way."""
    desk = NodeDesk({})
    desk.add(0)
    desk.add(1)
    desk.lease(Lease(0, "train", KEY))
    first = desk.take(0).leases[0].number
    desk.lease(Lease(1, "train", KEY))
    second = desk.take(1).leases[0].number
    assert not desk.is_current(report(first))
    assert desk.is_current(report(second))
    desk.release(1, "train", KEY)
    assert not desk.is_current(report(second))


def test_each_node_can_tell_the_order_in_which_it_was_told() -> None:
    desk = NodeDesk({})
    desk.add(0)
    desk.add(1)
    assert [desk.take(node).number for node in (0, 0, 1, 0)] == [0, 1, 0, 2]
