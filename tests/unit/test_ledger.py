"""The ledger: what was appended comes back, a torn tail is cut, damage is refused."""

import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from order import Source, append_next, located, opened, plans, source_lists

from meshfeed.pipeline.plan.errors import ChangedError, DataError, DisagreementError
from meshfeed.pipeline.plan.ledger import Ledger, LedgerEntry, append_entries
from meshfeed.pipeline.plan.ledger_format import ENTRY, entries_from_bytes
from meshfeed.pipeline.plan.schedule import Schedule

HEADER = 96
SIZE = ENTRY.itemsize


def entry(window: int, source: int = 0, rows: int = 3) -> LedgerEntry:
    return LedgerEntry(source, 1, window, rows, 70, 2**33 + window, 2**64 - 1 - window)


def windows_in(ledger: Ledger) -> list[int]:
    return [w for block in ledger.replay() for w in block["window"].tolist()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three batches: windows 0..3, 4..5, 6..9."""
    with Ledger(tmp_path / "train.ledger", "feed-a") as ledger:
        ledger.append([entry(w) for w in range(4)])
        ledger.append([entry(w) for w in (4, 5)])
        ledger.append([entry(w) for w in range(6, 10)])
    return ledger.path


def test_what_was_appended_comes_back_in_order(path: Path) -> None:
    with Ledger(path, "feed-a") as ledger:
        ledger.append([entry(0, source=1, rows=0), entry(10)])
        ledger.append([])
        assert ledger.num_entries == 12
    with Ledger(path, "feed-a", read_only=True) as ledger:
        entries = np.concatenate(list(ledger.replay()))
        assert entries["window"].tolist() == [*range(10), 0, 10]
        assert entries["source"].tolist() == [0] * 10 + [1, 0]
        last = entries[9]
        assert tuple(int(last[name]) for name in LedgerEntry._fields) == tuple(entry(9))
        assert ledger.read(11, 50)["window"].tolist() == [10]
        assert entries_from_bytes(ledger.increments(4, 3))["window"].tolist() == [4, 5, 6]
        assert ledger.increments(12) == b""


@pytest.mark.parametrize("cut", range(1, 4 * SIZE, 7))
def test_a_torn_tail_is_cut_and_written_again(path: Path, cut: int) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    left = 10 - -(-cut // SIZE)
    with Ledger(path, "feed-a", read_only=True) as reader:
        assert windows_in(reader) == list(range(left))
        assert path.stat().st_size == len(whole) - cut
    with Ledger(path, "feed-a") as ledger:
        assert windows_in(ledger) == list(range(left))
        assert ledger.torn_bytes == (-cut) % SIZE
        ledger.append([entry(w) for w in range(left, 10)])
    with Ledger(path, "feed-a") as ledger:
        assert (windows_in(ledger), ledger.torn_bytes) == (list(range(10)), 0)


def test_pages_of_the_last_batch_may_be_missing_in_its_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[HEADER + 7 * SIZE : HEADER + 8 * SIZE] = bytes(SIZE)
    path.write_bytes(data + bytes(100))
    with Ledger(path, "feed-a") as ledger:
        assert windows_in(ledger) == list(range(7))
        assert ledger.torn_bytes == 3 * SIZE + 100


@pytest.mark.parametrize("damaged", range(6))
@pytest.mark.parametrize("byte", [0, 9, 17, 33, 47])
def test_damage_before_the_last_batch_is_an_error(path: Path, damaged: int, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[HEADER + damaged * SIZE + byte] ^= 4
    path.write_bytes(data)
    for read_only in (False, True):
        with pytest.raises(DataError, match=rf"entry {damaged}: is damaged"):
            Ledger(path, "feed-a", read_only=read_only)
    assert path.read_bytes() == data


def test_entries_in_another_order_do_not_pass(path: Path) -> None:
    data = path.read_bytes()
    first, second = HEADER, HEADER + SIZE
    swapped = data[:first] + data[second : second + SIZE] + data[first:second]
    path.write_bytes(swapped + data[second + SIZE :])
    with pytest.raises(DataError, match="entry 0"):
        Ledger(path, "feed-a")


def test_the_ledger_of_another_feed_is_refused(path: Path) -> None:
    with pytest.raises(ChangedError, match=r"feed-a.*feed-b"):
        Ledger(path, "feed-b")
    data = bytearray(path.read_bytes())
    data[16] += 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="header"):
        Ledger(path, "feed-a")
    path.write_bytes(b"something else")
    with pytest.raises(DataError, match="no ledger"):
        Ledger(path, "feed-a")
    with pytest.raises(FileNotFoundError):
        Ledger(path.with_name("none"), "feed-a", read_only=True)


def test_a_window_does_not_come_twice_or_out_of_order(path: Path) -> None:
    with Ledger(path, "feed-a") as ledger:
        for again in ([entry(9)], [entry(3)], [entry(11), entry(10)], [entry(0, 1), entry(0, 1)]):
            with pytest.raises(DisagreementError, match="follow"):
                ledger.append(again)
        ledger.append([entry(10), entry(0, source=1)])
        assert windows_in(ledger) == [*range(11), 0]


@pytest.mark.parametrize("bytes_left", [0, 60, 2 * SIZE])
def test_a_full_disk_leaves_the_ledger_as_it_was(path: Path, bytes_left: int) -> None:
    size = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Ledger(path, "feed-a") as ledger:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + bytes_left, hard))
        try:
            with pytest.raises(OSError, match="ledger") as failed:
                ledger.append([entry(w) for w in range(10, 13)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert failed.value.filename == str(path)
        assert path.stat().st_size == size
        ledger.append([entry(w) for w in range(10, 12)])
    with Ledger(path, "feed-a", read_only=True) as ledger:
        assert windows_in(ledger) == list(range(12))
        with pytest.raises(OSError, match="ledger"):
            ledger.append([entry(12)])


def test_batches_larger_than_the_batch_index_are_split(tmp_path: Path) -> None:
    many = 2**16 + 5
    with Ledger(tmp_path / "big", "f") as ledger:
        ledger.append([entry(w) for w in range(many)])
    with Ledger(tmp_path / "big", "f") as ledger:
        assert windows_in(ledger) == list(range(many))
        assert [len(block) for block in ledger.replay()] == [2**16, 5]


def test_row_counts_are_found_by_window_also_of_a_rare_source(tmp_path: Path) -> None:
    entries, at = [], {0: (0, 0), 1: (0, 0), 2: (0, 0)}
    for i in range(20_000):
        source = 2 if i in (9_000, 9_001, 19_999) else i % 3 % 2
        epoch, window = at[source]
        entries.append(LedgerEntry(source, epoch, window, i % 1009))
        at[source] = (epoch, window + 1) if window < 700 else (epoch + 1, 0)
    with Ledger(tmp_path / "l", "f") as ledger:
        assert ledger.rows(0, 0, 0) is None
        ledger.append(entries)
        for e in [*entries[::37], *(e for e in entries if e.source == 2), entries[-2]]:
            assert ledger.rows(e.source, e.epoch, e.window) == e.rows
        for source, after in at.items():
            assert ledger.rows(source, *after) is None
        for missing in ((0, 3, 701), (1, 0, 10**6), (2, 0, 3), (3, 0, 0)):
            assert ledger.rows(*missing) is None


@settings(max_examples=60, deadline=None)
@given(source_lists(), st.randoms(use_true_random=False))
def test_replay_gives_the_schedule_that_was_told_directly(
    tmp_path_factory, sources, random
) -> None:
    path = tmp_path_factory.mktemp("replay") / "ledger"
    direct = Schedule(plans(sources))
    with Ledger(path, "f") as ledger:
        while direct.known_rows < 60 and direct.total_rows is None:
            source = random.randrange(len(sources))
            place = direct.next_window(source)
            if place is not None:
                rows = sources[source].rows_in(place[0])[place[1]]
                ledger.append([LedgerEntry(source, *place, rows)])
                append_next(direct, sources, source)
    with Ledger(path, "f") as ledger:
        replayed = Schedule(plans(sources))
        at = 0
        while at < ledger.num_entries:  # as hosts do, some parts twice
            append_entries(replayed, entries_from_bytes(ledger.increments(max(0, at - 2), 7)))
            at += 5
        row = random.randint(0, direct.known_rows)
        resumed = Schedule(plans(sources), start=direct.cursor(row, 0))
        for block in ledger.replay():
            append_entries(resumed, block)
    for schedule in (replayed, resumed):
        assert schedule.known_rows == direct.known_rows
        assert schedule.total_rows == direct.total_rows
        known = direct.known_rows
        assert located(schedule, row, known) == located(direct, row, known)
        for source in range(len(sources)):
            assert schedule.next_window(source) == direct.next_window(source)


def test_missing_entries_and_other_window_numbers_are_refused() -> None:
    sources = [Source(1.0, ((3, 2, 1),), 4)]

    def told(*places: tuple[int, int]) -> None:
        entries = np.zeros(len(places), ENTRY)
        entries["epoch"], entries["window"] = zip(*places, strict=True)
        entries["rows"] = entries["records"] = 1
        append_entries(opened(sources, 3), entries)

    told((0, 0), (0, 1), (0, 2), (1, 0))
    for gap in ([(0, 2)], [(0, 1), (1, 0)], [(0, 1), (0, 2), (2, 0)], [(0, 1), (0, 2), (1, 1)]):
        with pytest.raises(ChangedError, match="source-0"):
            told(*gap)
