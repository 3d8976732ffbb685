"""The schedule equals the plain simulation of the order, from the start and from any cursor."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from order import Source, append_next, fill, located, opened, plans, simulate, source_lists

from meshfeed.pipeline.plan.config import OnEnd
from meshfeed.pipeline.plan.cursor import Cursor
from meshfeed.pipeline.plan.errors import ChangedError, ConfigError, DataError
from meshfeed.pipeline.plan.schedule import Schedule

LIMIT = 120


@settings(max_examples=300, deadline=None)
@given(source_lists(), st.randoms(use_true_random=False))
def test_places_equal_the_plain_simulation_whatever_the_order_of_appends(sources, random) -> None:
    expected, ends = simulate(sources, LIMIT)
    schedule = Schedule(plans(sources))
    while schedule.known_rows < LIMIT and schedule.total_rows is None:
        known = schedule.known_rows
        append_next(schedule, sources, random.randrange(len(sources)), random.randint(0, 3))
        assert schedule.known_rows >= known
    known = min(schedule.known_rows, LIMIT)
    assert located(schedule, 0, known) == expected[:known]
    if ends:
        assert schedule.total_rows == len(expected)
        assert schedule.limiting_source is None
    begin = random.randint(0, known)
    end = random.randint(begin, known)
    assert located(schedule, begin, end) == expected[begin:end]


@settings(max_examples=200, deadline=None)
@given(source_lists())
def test_the_limiting_source_is_all_that_is_needed(sources) -> None:
    expected, ends = simulate(sources, LIMIT)
    schedule = Schedule(plans(sources))
    appends = 0
    while schedule.known_rows < LIMIT and schedule.limiting_source is not None:
        append_next(schedule, sources, schedule.limiting_source)
        appends += 1
    assert (schedule.total_rows == len(expected)) if ends else schedule.known_rows >= LIMIT
    used = {place[:3] for place in located(schedule, 0, schedule.known_rows)}
    empty = sum(1 for s in sources for e in range(LIMIT) for r in s.rows_in(e) if r == 0)
    assert appends <= len(used) + len(sources) + empty


@settings(max_examples=200, deadline=None)
@given(source_lists(), st.data())
def test_a_schedule_from_any_cursor_goes_on_as_the_one_from_the_start(sources, data) -> None:
    expected, ends = simulate(sources, LIMIT)
    whole = opened(sources, LIMIT)
    row, schedule = 0, whole
    # Saved and restored again and again, with more or less known at the time.
    for _ in range(3):
        row = data.draw(st.integers(row, min(len(expected), row + 60)))
        fill(schedule, sources, row + data.draw(st.integers(0, 30)))
        cursor = schedule.cursor(row, step=row // 4)
        assert cursor == whole.cursor(row, step=row // 4)
        restored = Cursor.from_json(json.loads(json.dumps(cursor.to_json())))
        assert restored == cursor
        schedule = Schedule(plans(sources), start=restored)
        assert schedule.known_rows >= schedule.first_row == row
        assert schedule.cursor(row, step=row // 4) == cursor
        assert schedule.drawn(row).tolist() == whole.drawn(row).tolist()
    fill(schedule, sources, LIMIT)
    stop = min(LIMIT, len(expected))
    assert located(schedule, row, stop) == expected[row:stop]
    assert schedule.cursor(stop, 0) == whole.cursor(stop, 0)
    if ends:
        assert schedule.total_rows == whole.total_rows == len(expected)


def test_case_12_epoch_and_position_are_both_restored_also_at_an_epochs_edge() -> None:
    # 10 records of a row each, in windows of 3, 4, 0 and 3; batches of 4, saved at every step.
    source = [Source(1.0, ((3, 4, 0, 3), (4, 3, 3)), epochs=4)]
    expected, ends = simulate(source, 1000)
    assert ends
    assert len(expected) == 40
    baseline = opened(source, 1000)
    for row in range(41):
        resumed = opened(source, 1000, baseline.cursor(row, row // 4))
        assert located(resumed, row, 40) == expected[row:]
        assert resumed.total_rows == 40
    at_edge = baseline.cursor(10, 0).sources[0]
    assert (at_edge.epoch, at_edge.window, at_edge.row) == (0, 3, 3)
    behind = baseline.cursor(12, 3).sources[0]
    assert (behind.epoch, behind.window, behind.row) == (1, 0, 2)


def test_case_13_resume_needs_the_windows_at_the_cursor_only() -> None:
    sources = [Source(w, ((7, 9) * 500,), epochs=None) for w in (0.5, 0.3, 0.2)]
    asked: list[tuple[int, int]] = []

    def counted(start: Cursor | None) -> Schedule:
        watched = [
            p.__class__(
                name=p.name,
                weight=p.weight,
                on_end=p.on_end,
                epochs=p.epochs,
                windows_in_epoch=lambda epoch, p=p, i=i: (
                    asked.append((i, epoch)) or p.windows_in_epoch(epoch)
                ),
            )
            for i, p in enumerate(plans(sources))
        ]
        return Schedule(watched, start=start)

    def needed(start: Cursor) -> int:
        schedule = counted(start)
        appends = 0
        while schedule.known_rows < start.global_row + 8:
            append_next(schedule, sources, schedule.limiting_source or 0)
            appends += 1
        return appends

    near, far = opened(sources, 100), Schedule(plans(sources))
    for source in range(3):
        far.append(source, np.tile(sources[source].windows[0], 600))
    assert far.known_rows > 8_000_000
    assert needed(near.cursor(80, 10)) <= 12
    asked.clear()
    assert needed(far.cursor(8_000_000, 1_000_000)) <= 12
    assert len(asked) <= 12


def test_case_13_a_cursor_of_100_sources_is_below_10_kb() -> None:
    sources = [Source(1.0 + i * 0.37912, ((1 << 20,) * 1000,), epochs=None) for i in range(100)]
    named = [
        p.__class__(
            name=f"common-crawl/dedup/language-{i:03}/quality-high/2024-10.filtered",
            weight=p.weight,
            on_end=p.on_end,
            epochs=p.epochs,
            windows_in_epoch=p.windows_in_epoch,
        )
        for i, p in enumerate(plans(sources))
    ]
    schedule = Schedule(named)
    for source in range(100):
        schedule.append(source, np.full(20_000, 1 << 20))
    assert schedule.known_rows > 10**12
    cursor = schedule.cursor(schedule.known_rows, 10**9)
    text = json.dumps(cursor.to_json(), separators=(",", ":"))
    assert len(text) < 10_000
    assert Cursor.from_json(json.loads(text)) == cursor


@pytest.mark.parametrize("place", [0, 1, 2])
def test_case_19_an_empty_source_in_any_place_is_skipped(place: int) -> None:
    sources = [Source(1.0, ((2,),)), Source(1.0, ((1,),))]
    for empty in (Source(1.0, ((),)), Source(1.0, ((),), epochs=3)):
        mixed = [*sources]
        mixed.insert(place, empty)
        schedule = opened(mixed, 100)
        assert schedule.total_rows == 3
        assert sorted(located(schedule, 0, 3)) == sorted(
            (i, 0, 0, row) for i, s in enumerate(mixed) for row in range(sum(s.windows[0]))
        )


@pytest.mark.parametrize("place", [0, 1, 2])
def test_case_19_shards_without_records_are_skipped_and_records_without_rows_are_not(
    place: int,
) -> None:
    mixed = [Source(1.0, ((2,),)), Source(1.0, ((1,),))]
    mixed.insert(place, Source(1.0, ((0, 0),)))
    schedule = Schedule(plans(mixed))
    schedule.append(place, [0, 0], records=[0, 0])
    fill(schedule, mixed, 100)
    assert schedule.total_rows == 3
    filtered = Schedule(plans(mixed))
    filtered.append(place, [0], records=[5])
    with pytest.raises(DataError, match=rf"source-{place}.*no row in the whole of epoch 0"):
        filtered.append(place, [0], records=[0])


def test_an_endless_source_that_gives_nothing_is_an_error_with_its_name() -> None:
    with pytest.raises(DataError, match="source-1"):
        Schedule(plans([Source(1.0, ((1,),)), Source(1.0, ((),), None, OnEnd.REPEAT)]))
    later = [Source(1.0, ((2, 1), (0, 0)), None, OnEnd.REPEAT)]
    schedule = Schedule(plans(later))
    with pytest.raises(DataError, match=r"source-0.*epoch 1"):
        schedule.append(0, [2, 1, 0, 0], records=[2, 1, 0, 0])


def test_stop_ends_the_feed_and_continue_goes_on_with_the_others() -> None:
    def total(on_end: OnEnd) -> int | None:
        sources = [Source(1.0, ((3,),), 1, on_end), Source(1.0, ((10,),))]
        return opened(sources, 100).total_rows

    assert total(OnEnd.STOP) == 6
    assert total(OnEnd.CONTINUE) == 13
    repeated = [Source(1.0, ((3,),), None, OnEnd.REPEAT), Source(1.0, ((10,),), 1, OnEnd.STOP)]
    assert opened(repeated, 100).total_rows == 21


def test_shares_start_again_when_a_source_has_ended() -> None:
    sources = [
        Source(0.5, ((100,),)),
        Source(0.3, ((2000,),), None, OnEnd.REPEAT),
        Source(0.2, ((2000,),), None, OnEnd.REPEAT),
    ]
    schedule = opened(sources, 2000)
    source = schedule.locate(0, 1200).source
    end = int(np.flatnonzero(source == 0)[-1])
    assert 198 <= end <= 201
    for rows in (10, 100, 500):
        after = source[200 : 200 + rows]
        assert abs(np.count_nonzero(after == 1) - 0.6 * rows) <= 1


def test_rows_ahead_and_needs_say_how_much_is_known() -> None:
    sources = [Source(0.75, ((6, 6),), None), Source(0.25, ((3,),), None)]
    schedule = Schedule(plans(sources))
    assert schedule.limiting_source == 0
    append_next(schedule, sources, 0)
    append_next(schedule, sources, 1)
    assert schedule.drawn_limit(0) == 6
    assert schedule.needed_at(0) == schedule.known_rows
    assert schedule.needed_at(1) > schedule.known_rows
    need = schedule.needed_at(1, extra_rows=2)
    fill(schedule, sources, 100)
    assert located(schedule, need, need + 1) == [(1, 1, 0, 2)]
    with pytest.raises(ValueError, match="determined"):
        schedule.locate(0, schedule.known_rows + 1)


def test_what_is_forgotten_is_refused_and_the_rest_stays() -> None:
    sources = [Source(2.0, ((3, 2, 0), (1, 1)), 30), Source(1.0, ((4, 0, 1),), None)]
    whole, trimmed = opened(sources, 400), opened(sources, 400)
    for row in range(0, 400, 7):
        trimmed.forget(row)
        assert trimmed.cursor(row, 1) == whole.cursor(row, 1)
        assert located(trimmed, row, 400) == located(whole, row, 400)
    with pytest.raises(ValueError, match="determined"):
        trimmed.locate(0, 10)
    fill(whole, sources, 600)
    fill(trimmed, sources, 600)
    assert located(trimmed, 400, 600) == located(whole, 400, 600)


def test_what_does_not_belong_to_the_feed_is_refused() -> None:
    sources = [Source(0.7, ((3, 2),), 2), Source(0.3, ((4,),), 2)]
    cursor = opened(sources, 8).cursor(7, 2)
    with pytest.raises(ChangedError, match="weight"):
        Schedule(plans([Source(0.6, ((3, 2),), 2), Source(0.4, ((4,),), 2)]), start=cursor)
    with pytest.raises(ChangedError, match="source-1"):
        Schedule(plans(sources[:1]), start=cursor)
    with pytest.raises(ChangedError, match="windows"):
        Schedule(plans([Source(0.7, ((5,),), 2), sources[1]]), start=cursor)
    with pytest.raises(ChangedError, match="rows"):
        Schedule(plans(sources), start=cursor).append(0, [0])
    with pytest.raises(ChangedError, match="more than source 'source-1' has"):
        Schedule(plans(sources)).append(1, [4, 4, 4])
    with pytest.raises(ConfigError, match="once"):
        Schedule(plans(sources)[:1] * 2)


@settings(max_examples=100, deadline=None)
@given(source_lists(), st.data())
def test_the_row_of_a_source_is_found_where_it_is_located(sources, data) -> None:
    schedule = opened(sources, LIMIT)
    numbers = [0] * len(sources)
    rows = []
    for row, place in enumerate(located(schedule, 0, schedule.known_rows)):
        rows.append((row, place[0], numbers[place[0]]))
        numbers[place[0]] += 1
    first = data.draw(st.integers(0, schedule.known_rows))
    schedule.forget(first)
    for row, source, number in rows:
        if row >= first:
            assert schedule.row_of(source, number) == row
        else:
            with pytest.raises(ValueError, match="row"):
                schedule.row_of(source, number)
    for source in schedule.active:
        with pytest.raises(ValueError, match="were asked for"):
            schedule.row_of(source, numbers[source] + 10_000)
