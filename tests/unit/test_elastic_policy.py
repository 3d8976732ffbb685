"""Values of an elastic policy that cannot be are refused with what would do."""

from __future__ import annotations

import dataclasses

import pytest

from meshfeed.pipeline.plan.elastic.policy import ElasticPolicy
from meshfeed.pipeline.plan.errors import ConfigError


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"min_hosts": 0}, "min_hosts: 0 is below 1"),
        ({"hosts_per_group": 0}, "hosts_per_group: 0 is below 1"),
        ({"snapshot_every": -1}, "snapshot_every: -1 is below 0"),
        ({"min_hosts": 4, "max_hosts": 2}, "max_hosts: 2 is below min_hosts, which is 4"),
        (
            {"min_hosts": 3, "hosts_per_group": 2},
            "min_hosts: 3 is no multiple of hosts_per_group, which is 2. 2 or 4 would do",
        ),
        ({"cool_down_s": -1.0}, "cool_down_s: -1.0 is not a time"),
        ({"replacement_wait_s": float("nan")}, "replacement_wait_s: nan is not a time"),
        ({"join_limit_s": 0.0}, "join_limit_s: 0.0 is not a positive time"),
        ({"hosts_wait_s": float("inf")}, "hosts_wait_s: inf is not a time"),
        (
            {"heartbeat_every_s": 5.0, "heartbeat_limit_s": 10.0},
            "heartbeat_limit_s: 10 is less than three times heartbeat_every_s, which is 5",
        ),
    ],
)
def test_wrong_values_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(ElasticPolicy(), **values)


def test_no_wait_is_a_wait() -> None:
    assert ElasticPolicy(replacement_wait_s=0, cool_down_s=0).takes_snapshots is False
    assert ElasticPolicy(snapshot_every=5).takes_snapshots
