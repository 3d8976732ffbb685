"""The benchmark of the coordinator works, and its figures are of what it says."""

from benchmarks.coordinator_scale import measure


def test_a_small_cluster_keeps_its_step_a_second(tmp_path) -> None:
    found = measure(hosts=3, readers=160, windows=6, seconds=20, folder=tmp_path)
    assert (found["hosts"], found["readers"]) == (3, 480)
    assert 0.9 < found["steps_per_s"] < 1.1
    assert found["late_steps"] == 0
    assert found["windows_per_s"] >= 4
    assert 3 / 5 <= found["calls_per_s"]["poll"] < 3  # not one a step of each host
    assert found["calls_per_s"]["completed"] > 4
    assert found["coordinator_cpu_s_per_s"] > 0
