"""Worlds that are left and formed again in the same processes, planned and after losses."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import pytest
from members import Member, all_do, all_join, members

from meshfeed.pipeline.assemble.worlds import CoordinationService, supported


@pytest.fixture(autouse=True)
def _cpu() -> None:
    jax.config.update("jax_platforms", "cpu")
    assert supported() is None


@contextmanager
def service(count: int) -> Iterator[CoordinationService]:
    running = CoordinationService(count)
    try:
        yield running
    finally:
        running.stop()


def _check_world(group: list[Member], generation: int) -> None:
    """That every tool of JAX sees the world as it is."""
    count = len(group)
    with service(count) as running:
        joined = all_join(group, running.address, generation)
        assert joined == [
            {
                "process": [index, count],
                "devices": [2 * count, 2],
                "world": [generation, index, count],
            }
            for index in range(count)
        ]
        values = 4 * 2 * count
        expected = {
            "sum": values * (values - 1) / 2,
            "gathered": [10 + index for index in range(count)],
            "first": 7,
        }
        assert all_do(group, "sum_over_all") == [expected] * count
        assert all_do(group, "leave") == [False] * count


def test_the_same_processes_form_worlds_of_any_size(tmp_path: Path) -> None:
    with members(4, tmp_path) as group:
        for generation, chosen in enumerate([(0, 1, 2, 3), (2, 0), (1, 3, 2), (3, 2, 1, 0), (2,)]):
            _check_world([group[index] for index in chosen], generation)


def test_arrays_of_a_world_that_was_left_can_be_read(tmp_path: Path) -> None:
    with members(2, tmp_path) as group:
        with service(2) as running:
            all_join(group, running.address, 1)
            all_do(group, "keep")
            # The array holds on to the devices.
            assert all_do(group, "leave") == [True, True]
        with service(1) as running:
            all_join(group[1:], running.address, 2)
            assert group[0].do("read_kept") == [float(x) for x in range(8)]
            assert group[1].do("read_kept") == [float(x) for x in range(8, 16)]
            assert group[1].do("sum_over_all")["sum"] == 28.0


def _train_until_stuck(group: list[Member], lost: Member, number: signal.Signals) -> list[Member]:
    """Lets all train, then stops one of them for good, in the middle of it."""
    all_do(group, "train", steps=2)
    all_do(group, "train_beside", steps=100_000, pause_s=0.001)
    time.sleep(0.5)
    lost.signal(number)
    return [member for member in group if member is not lost]


def _free(group: list[Member]) -> list[bool]:
    """Cuts them off, lets them leave, and says of whom nothing was left of the old world.

    Gloo now and then loses an operation that begins while its connection breaks: such a thread
    stays until the time-out of the collective. It must be rare, and in no one's way.
    """
    all_do(group, "abort")
    answers = all_do(group, "join_trainer", limit_s=5.0)
    assert all("Gloo" in answer["failure"] for answer in answers if not answer["runs"])
    in_use = all_do(group, "leave")
    assert in_use == [answer["runs"] for answer in answers]
    return [not runs for runs in in_use]


@pytest.mark.parametrize("lost", [0, 2])
def test_survivors_of_a_kill_form_a_new_world(tmp_path: Path, lost: int) -> None:
    with members(4, tmp_path) as group:
        with service(4) as running:
            all_join(group, running.address, 1)
            survivors = _train_until_stuck(group, group[lost], signal.SIGKILL)
            stuck = all_do(survivors, "join_trainer", limit_s=1.0)
            assert any(answer["runs"] for answer in stuck)
            assert any(_free(survivors))
        _check_world(survivors, 2)


def test_a_stopped_process_wakes_up_in_a_generation_that_is_over(tmp_path: Path) -> None:
    with members(3, tmp_path) as group:
        with service(3) as first:
            all_join(group, first.address, 1)
            survivors = _train_until_stuck(group, group[1], signal.SIGSTOP)
            stuck = all_do(survivors, "join_trainer", limit_s=1.0)
            assert all(answer["runs"] for answer in stuck)
            assert any(_free(survivors))
        with service(2) as second:
            all_join(survivors, second.address, 2)
            all_do(survivors, "train", steps=2)
            group[1].signal(signal.SIGCONT)
            while not group[1].do("lost"):  # the test has a time limit
                time.sleep(0.05)
            _free(group[1:2])
            with pytest.raises(RuntimeError, match="generation 1 refused"):
                group[1].do(
                    "join", address=second.address, generation=1, process_index=0, process_count=2
                )
            all_do(survivors, "train", steps=2)
            all_do(survivors, "leave")
        _check_world([group[1], *survivors], 3)
        assert [member.exit_code for member in group] == [None] * 3


def test_members_outlive_their_service(tmp_path: Path) -> None:
    with members(2, tmp_path) as group:
        with service(2) as running:
            all_join(group, running.address, 1)
            all_do(group, "train", steps=1)
        assert all_do(group, "train", steps=3) == [4, 4]
        assert all_do(group, "lost") == [True, True]
        assert all_do(group, "leave") == [False, False]
        _check_world(group, 2)


def test_a_world_that_stays_incomplete_is_given_up(tmp_path: Path) -> None:
    with members(2, tmp_path) as group, service(2) as running:
        place = {"address": running.address, "process_count": 2}
        with pytest.raises(RuntimeError, match=r"StallError.*process 0 of 2.*stage join"):
            group[0].do("join", generation=1, process_index=0, timeout_s=2.0, **place)
        _check_world(group, 2)


def test_a_world_that_is_called_off_is_not_waited_for(tmp_path: Path) -> None:
    with members(2, tmp_path) as group:
        with service(2) as running:
            place = {"address": running.address, "process_count": 2}
            group[0].begin("join", generation=1, process_index=0, timeout_s=3600.0, **place)
            time.sleep(1.0)
        with pytest.raises(RuntimeError, match="was retired"):
            group[0].end()
        _check_world(group, 2)


def test_case_17_after_many_resizes_threads_and_files_are_as_at_the_start(tmp_path: Path) -> None:
    with members(2, tmp_path) as group:
        _check_world(group, 0)
        before = all_do(group, "usage")
        for round_ in range(5):
            _check_world(group[:1], 2 * round_ + 1)
            _check_world(group, 2 * round_ + 2)
        after = all_do(group, "usage")
        assert after == before


def test_case_18_stale_variables_are_named_and_not_used(tmp_path: Path) -> None:
    stale = {
        "JAX_NUM_PROCESSES": "3",
        "JAX_COORDINATOR_ADDRESS": "127.0.0.1:1",
        "JAX_PROCESS_ID": "2",
        "JAX_LOCAL_DEVICE_IDS": "5",
    }
    with members(2, tmp_path, stale) as group:
        _check_world(group, 1)
        for member in group:
            for name, value in stale.items():
                assert f"{name}={value} in the environment is not used" in member.log.read_text()


def test_the_service_needs_no_platform_and_a_second_world_does(tmp_path: Path) -> None:
    jax.config.update("jax_platforms", None)
    assert "jax_platforms is not set" in str(supported())
    with members(1, tmp_path) as group:
        with service(1) as running:
            all_join(group, running.address, 1)
            all_do(group, "leave")
        group[0].do("configure", name="jax_platforms", value="")
        with service(1) as running, pytest.raises(RuntimeError, match=r"reuse is not possible"):
            all_join(group, running.address, 2)
