"""Windows: every record in exactly one window of each epoch, whatever the sizes."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshfeed.pipeline.plan.config import Shuffle
from meshfeed.pipeline.plan.manifest import ChunkRef, Shard, SourceManifest, Unit
from meshfeed.pipeline.plan.shuffle import derive_key
from meshfeed.pipeline.plan.windows import EpochWindows, Window


def manifest(
    sizes: list[int],
    *,
    chunk_size: int = 10,
    window_size: int = 40,
    group_size: int = 160,
    splittable: bool = True,
    random_access: bool = False,
    name: str = "books",
) -> SourceManifest:
    return SourceManifest(
        name=name,
        root="/data",
        format="arrayrecord" if random_access else "jsonl",
        unit=Unit.RECORDS if random_access else Unit.BYTES,
        shards=tuple(Shard(f"{i:05}", size) for i, size in enumerate(sizes)),
        splittable=splittable,
        random_access=random_access,
        chunk_size=chunk_size,
        window_size=window_size,
        group_size=group_size,
    )


def records_of_chunk(chunk: ChunkRef) -> list[tuple[int, int]]:
    """What a reader finds: records of 1 to 4 units, by (shard, first unit)."""
    starts, place = [], 0
    while place < chunk.end:
        if place >= chunk.begin:
            starts.append((chunk.shard_index, place))
        place += 1 + derive_key(chunk.shard_index, place) % 4
    return starts


def records_of_window(source: SourceManifest, window: Window) -> list[tuple[int, int]]:
    if window.records is not None:
        everything = [(i, r) for i, s in enumerate(source.shards) for r in range(s.size)]
        assert window.span(len(everything)) == window.records
    elif source.random_access:
        everything = [(c.shard_index, r) for c in window.chunks for r in range(c.begin, c.end)]
    else:
        everything = [record for chunk in window.chunks for record in records_of_chunk(chunk)]
    return [everything[i] for i in window.record_order(len(everything)).tolist()]


def all_records(source: SourceManifest) -> list[tuple[int, int]]:
    if source.random_access:
        return [(i, r) for i, s in enumerate(source.shards) for r in range(s.size)]
    whole = [ChunkRef(i, 0, s.size) for i, s in enumerate(source.shards)]
    return [record for chunk in whole for record in records_of_chunk(chunk)]


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 150), min_size=0, max_size=12),
    chunk_size=st.integers(1, 60),
    window_size=st.integers(1, 120),
    group_size=st.integers(1, 300),
    splittable=st.booleans(),
    random_access=st.booleans(),
    shuffle=st.sampled_from(Shuffle),
    epoch=st.integers(0, 3),
)
def test_every_record_is_in_exactly_one_window_of_each_epoch(
    sizes: list[int],
    chunk_size: int,
    window_size: int,
    group_size: int,
    splittable: bool,
    random_access: bool,
    shuffle: Shuffle,
    epoch: int,
) -> None:
    source = manifest(
        sizes,
        chunk_size=chunk_size,
        window_size=window_size,
        group_size=group_size,
        splittable=splittable,
        random_access=random_access,
    )
    windows = EpochWindows(source, shuffle, 3, epoch)
    order: list[tuple[int, int]] = []
    for index in range(windows.num_windows):
        window = windows.window(index)
        assert (window.source, window.epoch, window.index) == ("books", epoch, index)
        order += records_of_window(source, window)
    assert Counter(order) == Counter(all_records(source))
    assert windows.num_windows == 0 or sum(sizes) > 0
    if shuffle is Shuffle.NONE:
        assert order == all_records(source)


@pytest.mark.parametrize("random_access", [False, True])
@pytest.mark.parametrize("shuffle", [Shuffle.CHUNK, Shuffle.RECORD])
def test_seed_epoch_and_source_each_give_another_order(
    shuffle: Shuffle, random_access: bool
) -> None:
    def order(seed: int, epoch: int, name: str = "books") -> list[tuple[int, int]]:
        source = manifest([200] * 8, random_access=random_access, name=name)
        windows = EpochWindows(source, shuffle, seed, epoch)
        parts = (windows.window(i) for i in range(windows.num_windows))
        return [record for window in parts for record in records_of_window(source, window)]

    orders = [order(1, 1), order(2, 1), order(1, 2), order(1, 1, "code")]
    assert orders[0] == order(1, 1)
    assert all(orders[i] != orders[j] for i in range(4) for j in range(i))


@pytest.mark.parametrize(("shuffle", "windows_taken"), [(Shuffle.CHUNK, 100), (Shuffle.RECORD, 1)])
@pytest.mark.parametrize("random_access", [False, True])
def test_case_21_the_first_records_come_from_many_shards(
    shuffle: Shuffle, windows_taken: int, random_access: bool
) -> None:
    # Under chunk a window is a shard or less: 100 windows. Under record: 100 records.
    source = manifest(
        [1000] * 1024,
        chunk_size=500,
        window_size=500 if shuffle is Shuffle.CHUNK else 16 * 500,
        group_size=128_000,
        random_access=random_access,
    )

    def first(seed: int, epoch: int) -> list[tuple[int, int]]:
        windows = EpochWindows(source, shuffle, seed, epoch)
        taken = [records_of_window(source, windows.window(i)) for i in range(windows_taken)]
        if shuffle is Shuffle.CHUNK:
            return [records[0] for records in taken if records]
        return taken[0][:100]

    one = first(7, 1)
    assert len(one) == 100
    assert len({shard for shard, _ in one}) >= 50
    assert first(7, 1) == one
    assert first(7, 2) != one
    assert first(8, 1) != one


def test_the_first_group_of_the_run_is_cut_along_a_ramp_and_later_epochs_are_not() -> None:
    source = manifest([16_000], chunk_size=100, window_size=1600, group_size=16_000)
    first = EpochWindows(source, Shuffle.RECORD, 0, 0)
    sizes = [(w.hi - w.lo) / w.den * 16_000 for w in map(first.window, range(first.num_windows))]
    assert sizes[:4] == [100, 200, 400, 800]
    assert sum(sizes) == 16_000
    assert all(1400 < size < 1800 for size in sizes[4:])
    later = EpochWindows(source, Shuffle.RECORD, 0, 1)
    assert later.num_windows == 10


@pytest.mark.parametrize("units", [1, 2, 5, 99, 100, 101, 300, 1599, 1600, 1601, 5000])
def test_ramp_windows_are_never_empty_in_units_and_grow(units: int) -> None:
    source = manifest([units], chunk_size=units, window_size=1600, group_size=units)
    windows = EpochWindows(source, Shuffle.RECORD, 0, 0)
    parts = [windows.window(i) for i in range(windows.num_windows)]
    assert all(w.hi > w.lo for w in parts)
    assert [w.lo for w in parts[1:]] == [w.hi for w in parts[:-1]]
    assert max(w.hi - w.lo for w in parts) <= 2400


def test_windows_stay_near_the_window_size_when_chunks_are_small() -> None:
    source = manifest([977] * 300, chunk_size=50, window_size=1000, group_size=16_000)
    for shuffle in Shuffle:
        windows = EpochWindows(source, shuffle, 5, 1)
        # A group of record has a whole number of windows, which is 16 of 16.28.
        expected = 288 if shuffle is Shuffle.RECORD else 293
        assert windows.num_windows == pytest.approx(expected, abs=2)


@pytest.mark.parametrize("groups", [0.3, 1.05, 1.45, 1.55, 2.05, 2.45, 7.01, 7.99])
def test_no_group_of_record_is_much_smaller_or_larger_than_the_group_size(groups: float) -> None:
    source = manifest(
        [977] * 300, chunk_size=50, window_size=1000, group_size=int(293_100 / groups)
    )
    windows = EpochWindows(source, Shuffle.RECORD, 5, 1)
    assert windows.num_groups == max(1, round(groups))
    units = dict.fromkeys(range(windows.num_groups), 0)
    for window in map(windows.window, range(windows.num_windows)):
        units[window.group] = sum(chunk.end - chunk.begin for chunk in window.chunks)
    assert sum(units.values()) == 293_100
    assert max(units.values()) - min(units.values()) <= 2 * 50


def test_the_chunks_of_a_group_cover_it_and_windows_of_a_group_share_them() -> None:
    source = manifest([977] * 30, chunk_size=50, window_size=400, group_size=3000)
    windows = EpochWindows(source, Shuffle.RECORD, 5, 1)
    parts = [windows.window(i) for i in range(windows.num_windows)]
    by_group = {w.group: w.chunks for w in parts}
    assert all(by_group[w.group] == w.chunks for w in parts)
    assert sorted(by_group) == list(range(windows.num_groups))
    chunks = [chunk for group in by_group.values() for chunk in group]
    assert sorted(chunks) == [source.chunk(i) for i in range(source.num_chunks)]
    assert len({w.record_key for w in parts}) == windows.num_groups


@pytest.mark.parametrize("random_access", [False, True])
@pytest.mark.parametrize("shuffle", Shuffle)
def test_the_group_of_a_window_is_known_without_its_chunks(shuffle, random_access) -> None:
    source = manifest([700, 300, 50], random_access=random_access)
    windows = EpochWindows(source, shuffle, seed=1, epoch=0)
    groups = [windows.group(i) for i in range(windows.num_windows)]
    assert groups == [windows.window(i).group for i in range(windows.num_windows)]
    for outside in (-1, windows.num_windows):
        with pytest.raises(IndexError, match=f"window {outside} of"):
            windows.group(outside)


def test_a_million_chunks_cost_no_python_object_each() -> None:
    source = manifest(
        [10**10], chunk_size=10**4, window_size=10**6, group_size=2 * 10**7, name="big"
    )
    windows = EpochWindows(source, Shuffle.CHUNK, 0, 0)
    assert source.num_chunks == 10**6
    seen = np.zeros(10**6, bool)
    for index in range(0, windows.num_windows, 500):
        seen[[c.begin // 10**4 for c in windows.window(index).chunks]] = True
    assert seen.sum() > 1500


def test_an_epoch_without_chunks_has_no_window_and_a_window_beyond_the_end_is_refused() -> None:
    for random_access in (False, True):
        empty = EpochWindows(manifest([0, 0], random_access=random_access), Shuffle.RECORD, 0, 0)
        assert empty.num_windows == 0
    windows = EpochWindows(manifest([100]), Shuffle.CHUNK, 0, 0)
    for index in (-1, windows.num_windows):
        with pytest.raises(IndexError, match="books"):
            windows.window(index)
