from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mesh import (
    DeviceOrder,
    MeshLayout,
    describe_axes,
    fit_axes,
    parse_axes,
)


def test_axes_are_read_in_the_order_in_which_they_are_written() -> None:
    assert list(parse_axes(" data=4, model=2").items()) == [("data", 4), ("model", 2)]
    assert describe_axes(parse_axes("model=-1,data=4")) == "model=-1,data=4"


@pytest.mark.parametrize("text", ["", "data", "data=", "data=4;model=2", "=4", "data=x", "data=4,"])
def test_text_that_is_no_mesh_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no axis"):
        parse_axes(text)


def test_an_axis_named_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="'data' is named twice"):
        parse_axes("data=2,data=4")
    with pytest.raises(ConfigError, match="named twice"):
        MeshLayout(axis_names=("a", "a"), shape=(1, 1), process_of_device=np.zeros(1, np.int32))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_minus_one_takes_what_is_left(sizes: list[int], data: st.DataObject) -> None:
    axes = {f"a{i}": size for i, size in enumerate(sizes)}
    devices = int(np.prod(sizes))
    open_axis = data.draw(st.sampled_from(sorted(axes)))
    assert fit_axes({**axes, open_axis: -1}, devices) == axes
    assert fit_axes(axes, devices) == axes


@pytest.mark.parametrize(
    ("text", "devices", "names"),
    [
        ("data=4,model=3", 8, ["12 devices, there are 8", "data=4,model=2"]),
        ("data=3,model=2", 8, ["6 devices, there are 8", "data=4,model=2"]),
        ("data=-1,model=3", 8, ["of the 8 devices", "1, 2, 4, 8"]),
        ("data=3,model=5", 8, ["15 devices", "1, 2, 4, 8"]),
        ("a=-1,b=-1", 8, ["a and b open"]),
        ("data=0", 8, ["'data' has size 0"]),
        ("data=-2", 8, ["'data' has size -2"]),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_sizes_that_do(
    text: str, devices: int, names: list[str]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        fit_axes(parse_axes(text), devices)
    for name in names:
        assert name in str(refusal.value)


def test_the_usual_mesh_has_one_data_axis_and_the_devices_host_by_host() -> None:
    mesh = MeshLayout.build(None, hosts=3, devices_per_host=2)
    assert mesh.axes == {"data": 6}
    assert mesh.process_of_device.tolist() == [0, 0, 1, 1, 2, 2]
    order = DeviceOrder.INTERLEAVED
    mixed = MeshLayout.build(None, hosts=3, devices_per_host=2, order=order)
    assert mixed.process_of_device.tolist() == [0, 1, 2, 0, 1, 2]
    assert mesh != mixed
    assert mesh == MeshLayout.build({"data": -1}, hosts=3, devices_per_host=2)
    assert hash(mesh) == hash(MeshLayout.build({"data": 6}, hosts=3, devices_per_host=2))


def test_owners_must_be_as_many_as_devices_and_cannot_be_changed() -> None:
    with pytest.raises(ConfigError, match="data=4 is 4 devices, 3 owners"):
        MeshLayout(axis_names=("data",), shape=(4,), process_of_device=np.zeros(3, np.int32))
    mesh = MeshLayout.build(None, hosts=1, devices_per_host=1)
    with pytest.raises(ValueError, match="read-only"):
        mesh.process_of_device[0] = 1
    with pytest.raises(ConfigError, match="hosts: 0 is below 1"):
        MeshLayout.build(None, hosts=0, devices_per_host=1)
