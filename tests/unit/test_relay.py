"""Where no copies of the new mesh fit on the old devices; those that do are in multiprocess/."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from meshfeed.pipeline.assemble.relay import mesh_of_copies
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mesh import MeshLayout


@dataclass(frozen=True)
class Device:
    """As much of a device as the layout looks at."""

    id: int
    process_index: int


def _old(hosts: int) -> list[Device]:
    return [Device(2048 * host + n, host) for host in range(hosts) for n in range(2)]


def _layout(hosts: int) -> MeshLayout:
    owners = np.repeat(np.arange(hosts, dtype=np.int32), 2)
    return MeshLayout(axis_names=("data", "model"), shape=(hosts, 2), process_of_device=owners)


def test_without_whole_copies_there_is_no_mesh() -> None:
    assert mesh_of_copies(_old(4), _layout(3), [0, 1, 2]) is None


def test_a_host_that_was_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="process 1 of the new mesh has more devices"):
        mesh_of_copies(_old(2), _layout(2), [0, 5])
