"""When a world that runs is resized: drains, wishes, and hosts that have appeared."""

from __future__ import annotations

import math

from meshfeed.pipeline.plan.elastic.host_book import HostRecord
from meshfeed.pipeline.plan.elastic.records import Outcome
from meshfeed.pipeline.plan.elastic.steering import Steering


def refusal(c: Steering, hosts: int) -> str:
    """Why a wish for so many hosts is refused at once; empty where it is not."""
    policy = c.policy
    if hosts < policy.min_hosts:
        return f"{hosts} hosts are fewer than min_hosts, which is {policy.min_hosts}"
    if policy.max_hosts is not None and hosts > policy.max_hosts:
        return f"{hosts} hosts are more than max_hosts, which is {policy.max_hosts}"
    problem = c.rule.problem(hosts, most=policy.max_hosts)
    return "" if problem is None else str(problem)


def due(c: Steering) -> str | None:
    """Why the running world is to be resized now; None: it is not."""
    s = c.state
    members = {host.name for host in s.members}
    names = c.candidates()
    drains = s.hosts.draining([host.name for host in s.members])
    if drains:
        reason = _drain_due(c, drains, names)
        if reason is not None:
            return reason
        drains = s.hosts.draining([host.name for host in s.members])
        if drains:
            return None  # a replacement is waited for
        names = c.candidates()
    if s.wish is not None:
        return _wish_due(c, names, members)
    if len(names) > len(members) and s.now - s.running_since >= c.policy.cool_down_s:
        return f"{len(names) - len(members)} hosts have come"
    return None


def _drain_due(c: Steering, drains: list[HostRecord], names: tuple[str, ...]) -> str | None:
    """Goes when a replacement is there or has been waited for long enough."""
    s, policy = c.state, c.policy
    go_at = min(
        min(
            drain.asked + policy.replacement_wait_s,
            math.inf if drain.deadline is None else drain.deadline - policy.drain_margin_s,
        )
        for record in drains
        if (drain := record.drain) is not None
    )
    as_many = c.largest(len(s.members))
    is_replaced = as_many is not None and len(names) >= as_many
    if not is_replaced and s.now < go_at:
        return None
    reason = "; ".join(
        f"drain of {record.host.name}: {record.drain.reason}" for record in drains if record.drain
    )
    has_deadline = any(record.drain and record.drain.deadline is not None for record in drains)
    if names or has_deadline:
        return reason
    left = len(s.members) - len(drains)
    sizes = c.rule.sizes(len(s.members))
    for record in drains:
        record.drain = None
        c.answer(
            f"drain of {record.host.name}",
            Outcome.REFUSED,
            f"{left} hosts would be left; at least {policy.min_hosts} are needed, and of up to "
            f"{len(s.members)} hosts {', '.join(map(str, sizes)) or 'none'} fit. The run goes on "
            "as it was",
        )
    return None


def _wish_due(c: Steering, names: tuple[str, ...], members: set[str]) -> str | None:
    """Goes when as many hosts are there as are wished for; with fewer after a stated wait."""
    s, policy = c.state, c.policy
    wish = s.wish
    if wish is None:
        return None
    is_full = len(names) == wish.hosts
    if not is_full:
        if s.now - wish.asked < policy.hosts_wait_s:
            return None
        c.answer_wish(
            Outcome.PARTLY,
            f"only {len(names)} of {wish.hosts} hosts came within hosts_wait_s, which is "
            f"{policy.hosts_wait_s:g} s; those that come later are taken in",
        )
    if set(names) == members:
        c.answer_wish(Outcome.DONE, "the run has as many already")
        return None
    return f"resize to {wish.hosts} hosts asked for"
