"""The training state, bit for bit, from world to world: planned, and after a loss."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from members import Member, all_do, all_join, members

from meshfeed.pipeline.assemble.state_leaves import StateLeaf
from meshfeed.pipeline.assemble.worlds import CoordinationService
from meshfeed.pipeline.plan.moves import LeafPlacement, MovePlan, plan_moves


@pytest.fixture(autouse=True)
def _cpu() -> None:
    jax.config.update("jax_platforms", "cpu")


@contextmanager
def world(group: Sequence[Member], generation: int) -> Iterator[None]:
    running = CoordinationService(len(group))
    try:
        all_join(group, running.address, generation)
        yield
    finally:
        running.stop()


def _plan(
    held: dict[str, list[dict[str, Any]]], hosts: Sequence[Member], needed: list[dict[str, Any]]
) -> MovePlan:
    """The moves from the holders, by name, to the hosts of the new world."""
    described = {
        name: {leaf.path: leaf for leaf in map(StateLeaf.from_data, leaves)}
        for name, leaves in held.items()
    }
    first = next(iter(described.values()))

    def as_boxes(path: str, boxes: Any) -> Any:
        return np.array(boxes, dtype=np.int64).reshape(len(boxes), len(first[path].shape), 2)

    leaves = [
        LeafPlacement(
            name=path,
            shape=leaf.shape,
            itemsize=leaf.itemsize,
            held={name: own[path].boxes for name, own in described.items()},
            needed={
                host.name: as_boxes(path, boxes[path])
                for host, boxes in zip(hosts, needed, strict=True)
            },
        )
        for path, leaf in first.items()
    ]
    return plan_moves(leaves, {host.name: host.name for host in hosts if host.name in held})


def _build(
    held: dict[str, list[dict[str, Any]]], group: Sequence[Member], folder: Path
) -> MovePlan:
    """Gives all members of the new world the state that the holders have in ``folder``."""
    plan = _plan(held, group, all_do(group, "state", call="needed"))
    for member in group:
        moves = [*plan.local(target=member.name), *plan.moves(target=member.name)]
        member.begin(
            "state",
            call="build",
            moves=[(m.leaf, str(folder / m.source), m.box.tolist()) for m in moves],
        )
    for member in group:
        member.end()
    return plan


def _save(group: Sequence[Member], folder: Path) -> dict[str, list[dict[str, Any]]]:
    for member in group:
        member.begin("state", call="save", folder=str(folder / member.name))
    return {member.name: member.end() for member in group}


def test_the_state_is_the_same_through_every_world(tmp_path: Path) -> None:
    worlds = [(0, 1, 2, 3), (0, 1), (1, 0, 4), (0, 1, 4, 2), (2,)]
    with members(5, tmp_path) as everyone:
        held: dict[str, list[dict[str, Any]]] = {}
        moved = []
        for generation, chosen in enumerate(worlds):
            group = [everyone[index] for index in chosen]
            with world(group, generation):
                if held:
                    plan = _build(held, group, tmp_path / str(generation - 1))
                    assert plan.bytes_moved == plan.bytes_bound
                    moved.append(plan.bytes_moved)
                else:
                    all_do(group, "state", call="make")
                right: list[list[str]] = [[] for _ in group]
                assert all_do(group, "state", call="check", step=3 * generation) == right
                all_do(group, "state", call="step", count=3)
                held = _save(group, tmp_path / str(generation))
                all_do(group, "state", call="drop")
                assert all_do(group, "leave") == [False] * len(group)
        assert len(moved) == 4
        assert all(moved[:-1])


@pytest.mark.parametrize("lost", [0, 1])
def test_after_a_kill_the_snapshot_is_the_state(tmp_path: Path, lost: int) -> None:
    with members(3, tmp_path) as group:
        with world(group, 1):
            all_do(group, "state", call="make")
            all_do(group, "state", call="step", count=5)
            held = _save(group, tmp_path / "5")
            all_do(group, "state", call="step", count=2)
            group[lost].signal(signal.SIGKILL)
            survivors = [member for member in group if member is not group[lost]]
            all_do(survivors, "state", call="drop")
            all_do(survivors, "abort")
            all_do(survivors, "leave")
        with world(survivors, 2):
            plan = _build(held, survivors, tmp_path / "5")
            assert plan.bytes_moved == plan.bytes_bound > 0
            assert all_do(survivors, "state", call="check", step=5) == [[], []]
            all_do(survivors, "state", call="step", count=4)
            assert all_do(survivors, "state", call="check", step=9) == [[], []]
            all_do(survivors, "state", call="drop")
            assert all_do(survivors, "leave") == [False, False]
