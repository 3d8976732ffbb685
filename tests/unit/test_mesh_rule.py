"""Numbers of hosts that a mesh rule and the global batch allow, and refusals that name them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from meshfeed.pipeline.plan.elastic.mesh_rule import MeshRule
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.run_config import RunConfig, UnevenBatch


def rule(
    axes: Mapping[str, int] | None,
    *,
    devices: int = 2,
    batch: int = 12,
    group: int = 1,
    uneven: UnevenBatch = UnevenBatch.REFUSE,
) -> MeshRule:
    return MeshRule(
        axes=axes,
        devices_per_host=devices,
        batch_size=batch,
        seq_len=16,
        uneven_batch=uneven,
        hosts_per_group=group,
    )


@pytest.mark.parametrize(
    ("axes", "devices", "batch", "group", "sizes"),
    [
        ({"data": -1, "model": 2}, 2, 12, 1, (1, 2, 3, 4, 6, 12)),
        ({"data": -1, "model": 2}, 1, 12, 1, (2, 4, 6, 8, 12)),
        ({"data": -1, "model": 4}, 2, 12, 1, (2, 4, 6, 8, 12)),
        ({"data": -1, "model": 2}, 2, 12, 2, (2, 4, 6, 12)),
        ({"data": 4, "model": -1}, 2, 12, 1, (2, 4, 6, 8, 10, 12)),
        ({"data": 2, "model": 4}, 2, 12, 1, (4,)),
        ({"data": 5}, 1, 12, 1, ()),
        (None, 1, 12, 1, (1, 2, 3, 4, 6, 12)),
    ],
)
def test_the_numbers_that_fit(
    axes: Mapping[str, int] | None, devices: int, batch: int, group: int, sizes: tuple[int, ...]
) -> None:
    made = rule(axes, devices=devices, batch=batch, group=group)
    assert made.sizes(12) == sizes
    assert made.largest(12) == (sizes[-1] if sizes else None)
    for hosts in range(1, 13):
        if hosts in sizes:
            assert made.mesh(hosts).num_devices == hosts * devices
            assert made.batch_plan(hosts).pad_rows == 0
        else:
            with pytest.raises(ConfigError, match=f"hosts: {hosts}: "):
                made.mesh(hosts)


def test_the_open_axis_takes_what_there_is() -> None:
    made = rule({"data": -1, "model": 2})
    assert [made.mesh(n).axes for n in (1, 2, 3)] == [
        {"data": 1, "model": 2},
        {"data": 2, "model": 2},
        {"data": 3, "model": 2},
    ]


def test_a_batch_that_does_not_divide_is_padded_where_the_user_wants_it() -> None:
    made = rule({"data": -1, "model": 2}, uneven=UnevenBatch.PAD)
    assert made.sizes(6) == (1, 2, 3, 4, 5, 6)
    plan = made.batch_plan(5)
    assert (plan.batch_size, plan.rows) == (12, 15)


@pytest.mark.parametrize(
    ("made", "hosts", "message"),
    [
        (
            rule({"data": -1, "model": 2}),
            5,
            r"hosts: 5: the 12 rows of a batch do not divide into 5 on mesh data=5,model=2\. "
            r"1, 2, 3, 4, 6, 12 hosts would do, and uneven_batch=pad takes any",
        ),
        (rule({"data": -1}, group=2), 3, r"hosts come in groups of 2\. 2, 6 hosts would do"),
        (
            rule({"data": -1, "model": 4}),
            3,
            r"hosts: 3: 6 devices do not give the mesh data=-1,model=4\. 2, 4, 6, 8, 12 hosts",
        ),
        (rule({"data": 5}), 2, "No number would do"),
        (rule(None), 0, "a world needs a host"),
    ],
)
def test_refusals_name_the_numbers_that_would_do(made: MeshRule, hosts: int, message: str) -> None:
    problem = made.problem(hosts)
    assert problem is not None
    with pytest.raises(ConfigError, match=message):
        raise problem
    assert made.problem(hosts, most=4) is not None


def test_of_many_sizes_the_nearest_are_named() -> None:
    made = rule({"data": -1}, devices=1, batch=5040)
    problem = made.problem(1001)
    assert "720, 840, 1008, 1260" in str(problem)
    assert "1, 2, 3" not in str(problem)


def test_a_rule_is_checked_when_it_is_made() -> None:
    with pytest.raises(ConfigError, match="hosts_per_group: 0 is below 1"):
        rule(None, group=0)
    with pytest.raises(ConfigError, match="devices_per_host: 0 is below 1"):
        rule(None, devices=0)
    with pytest.raises(ConfigError, match=r"'stage' .* has no role"):
        rule({"data": -1, "stage": 2})


def test_the_rule_of_a_run_is_that_of_its_settings() -> None:
    config = RunConfig.from_mapping(
        {"data": "x", "mesh": "data=-1,model=2", "devices_per_host": 2, "batch_size": 12}
    )
    made = MeshRule.of_run(config)
    assert made.sizes(6) == (1, 2, 3, 4, 6)
    assert MeshRule.of_run(config, hosts_per_group=2).sizes(6) == (2, 4, 6)
