from __future__ import annotations

from typing import Any

import pytest

from meshfeed.pipeline.plan.config import LEAF_PRESETS, LEAVES
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mesh import MeshLayout, parse_axes
from meshfeed.pipeline.plan.partition import (
    AxisRoles,
    DataPartitionType,
    Spec,
    describe_spec,
    resolve,
)


def _mesh(text: str) -> MeshLayout:
    axes = parse_axes(text)
    devices = 1
    for size in axes.values():
        devices *= size
    return MeshLayout.build(axes, hosts=1, devices_per_host=devices)


MESH = _mesh("data=2,fsdp=2,seq=2,tensor=2")


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (DataPartitionType.FULL, (("data", "fsdp", "seq", "tensor"), None)),
        (DataPartitionType.DATA, (("data", "fsdp"), None)),
        (DataPartitionType.BATCH, (("data", "fsdp"), ("seq",))),
        (DataPartitionType.REPLICATED, (None, None)),
    ],
)
def test_each_type_means_its_spec_for_every_leaf(kind: DataPartitionType, spec: Spec) -> None:
    assert resolve(kind, MESH) == dict.fromkeys(LEAVES, spec)
    assert resolve(kind.lower(), MESH) == dict.fromkeys(LEAVES, spec)


def test_case_01_every_leaf_has_the_spec_of_the_tokens() -> None:
    specs = resolve("DATA", _mesh("data=2,model=2"))
    assert {leaf: describe_spec(spec) for leaf, spec in specs.items()} == dict.fromkeys(
        LEAVES, "P('data', None)"
    )
    assert len(specs) == 5


@pytest.mark.parametrize(
    "raw",
    [
        [["data", "fsdp"], "seq"],
        (("data", "fsdp"), ("seq",)),
        "P(('data', 'fsdp'), 'seq')",
        " PartitionSpec(('data', 'fsdp'), 'seq')",
    ],
)
def test_a_spec_may_be_written_in_any_usual_form(raw: Any) -> None:
    spec = resolve(raw, MESH)["targets"]
    assert spec == (("data", "fsdp"), ("seq",))
    assert resolve(describe_spec(spec), MESH)["targets"] == spec


def test_short_specs_replicate_what_they_leave_out() -> None:
    assert resolve([], MESH)["tokens"] == (None, None)
    assert resolve(["data"], MESH)["tokens"] == (("data",), None)
    assert resolve([None, []], MESH)["tokens"] == (None, None)
    assert resolve("P()", MESH)["tokens"] == (None, None)


def test_leaves_that_a_dict_leaves_out_follow_the_tokens() -> None:
    specs = resolve({"tokens": "BATCH", "positions": "REPLICATED"}, MESH)
    assert specs.pop("positions") == (None, None)
    assert set(specs) == set(LEAVES) - {"positions"}
    assert set(specs.values()) == {(("data", "fsdp"), ("seq",))}


def test_a_dict_may_use_the_names_of_the_preset() -> None:
    names = LEAF_PRESETS["maxtext"]
    specs = resolve({"inputs": "DATA", "targets_segmentation": "FULL"}, MESH, leaf_names=names)
    assert specs["loss_weights"] == (("data", "fsdp", "seq", "tensor"), None)
    assert specs["segment_ids"] == (("data", "fsdp"), None)


def test_axis_roles_are_configuration() -> None:
    mesh = _mesh("replica=2,expert=2,context=2")
    roles = AxisRoles(data=("replica",), sequence=("context",), model=("expert",))
    assert resolve("BATCH", mesh, roles=roles)["tokens"] == (("replica",), ("context",))
    assert resolve("DATA", _mesh("data=2,expert=1"))["tokens"] == (("data",), None)
    assert resolve("DATA", _mesh("model=2"))["tokens"] == (None, None)


@pytest.mark.parametrize(
    ("partition", "names"),
    [
        ("DATUM", ["'DATUM'", "FULL, DATA, BATCH, REPLICATED"]),
        ("P(data)", ["'P(data)' is no spec"]),
        ("P('data'", ["is no spec"]),
        ("P(x='data')", ["is no spec"]),
        (["rows"], ["'rows' is not in the mesh", "data, fsdp, seq, tensor"]),
        (["data", "data"], ["'data'", "twice"]),
        (["data", "seq", "tensor"], ["3 entries", "two at most"]),
        ([3], ["entry 3 is no axis"]),
        (3, ["3 is neither"]),
        ({"tokens": "DATA", "labels": "DATA"}, ["partition.labels", "tokens, targets"]),
        ({"targets": "DATA"}, ["names targets but not tokens"]),
        ({}, ["names no leaf"]),
        ({"tokens": "DATA", "targets": "WHOLE"}, ["partition.targets", "'WHOLE'"]),
    ],
)
def test_a_partition_that_means_nothing_is_refused(partition: Any, names: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        resolve(partition, MESH)
    for name in names:
        assert name in str(refusal.value)


@pytest.mark.parametrize("kind", ["DATA", "BATCH"])
def test_an_axis_without_a_role_is_refused_rather_than_replicated_in_silence(kind: str) -> None:
    with pytest.raises(ConfigError, match="'expert' of data=2,expert=2 has no role"):
        resolve(kind, _mesh("data=2,expert=2"))
    assert resolve("FULL", _mesh("data=2,expert=2"))["tokens"] == (("data", "expert"), None)


def test_an_axis_has_one_role() -> None:
    with pytest.raises(ConfigError, match="'data' stands in data_axes as well"):
        AxisRoles(model=("data",))
