"""The order of a feed as slowly and plainly as it can be said; what ``Schedule`` is held to."""

from dataclasses import dataclass

from hypothesis import strategies as st

from meshfeed.pipeline.plan.config import OnEnd
from meshfeed.pipeline.plan.cursor import Cursor
from meshfeed.pipeline.plan.mixture import integer_weights
from meshfeed.pipeline.plan.schedule import Schedule, SourcePlan

Place = tuple[int, int, int, int]


@dataclass(frozen=True)
class Source:
    """A source by the rows of each window: ``windows[epoch % len(windows)]``."""

    weight: float
    windows: tuple[tuple[int, ...], ...]
    epochs: int | None = 1
    on_end: OnEnd = OnEnd.CONTINUE

    def rows_in(self, epoch: int) -> tuple[int, ...]:
        return self.windows[epoch % len(self.windows)]

    def rows(self, limit: int) -> list[tuple[int, int, int]]:
        """The first ``limit`` rows as (epoch, window, row)."""
        rows: list[tuple[int, int, int]] = []
        epoch = 0
        while len(rows) < limit and (self.epochs is None or epoch < self.epochs):
            for window, count in enumerate(self.rows_in(epoch)):
                rows += [(epoch, window, row) for row in range(count)]
            epoch += 1
        return rows[:limit]


def simulate(sources: list[Source], limit: int) -> tuple[list[Place], bool]:
    """The first ``limit`` rows as (source, epoch, window, row), and whether the feed ends there."""
    left = [iter(source.rows(limit + 1)) for source in sources]
    active = list(range(len(sources)))
    places: list[Place] = []
    while active:
        weights = integer_weights([sources[i].weight for i in active])
        period = sum(weights)
        given = [0] * len(active)
        gone = None
        for row in range(limit + 1):
            if len(places) == limit:
                return places, False
            # Those that may give a row without being a whole one ahead; the first to fall behind.
            may = [s for s, w in enumerate(weights) if given[s] * period < w * (row + 1)]
            slot = min(may, key=lambda s: (-(-(given[s] + 1) * period // weights[s]), s))
            place = next(left[active[slot]], None)
            if place is None:
                gone = active[slot]
                break
            places.append((active[slot], *place))
            given[slot] += 1
        if gone is None or sources[gone].on_end is OnEnd.STOP:
            return places, True
        active.remove(gone)
    return places, True


def plans(sources: list[Source]) -> list[SourcePlan]:
    return [
        SourcePlan(
            name=f"source-{i}",
            weight=s.weight,
            on_end=s.on_end,
            epochs=s.epochs,
            windows_in_epoch=lambda epoch, s=s: len(s.rows_in(epoch)),  # type: ignore[misc]
        )
        for i, s in enumerate(sources)
    ]


def append_next(schedule: Schedule, sources: list[Source], source: int, windows: int = 1) -> None:
    """What the ledger would tell: the next windows of a source, as far as there are any."""
    rows = []
    place = schedule.next_window(source)
    while place is not None and len(rows) < windows:
        rows.append(sources[source].rows_in(place[0])[place[1]])
        place = schedule.window_after(source, *place)
    schedule.append(source, rows)


def fill(schedule: Schedule, sources: list[Source], rows: int) -> None:
    """Appends the windows that limit progress until so many rows are determined or the end."""
    while schedule.known_rows < rows and schedule.limiting_source is not None:
        append_next(schedule, sources, schedule.limiting_source)


def located(schedule: Schedule, begin: int, end: int) -> list[Place]:
    places = schedule.locate(begin, end)
    return list(zip(*(column.tolist() for column in places), strict=True))


def opened(sources: list[Source], rows: int, start: Cursor | None = None) -> Schedule:
    schedule = Schedule(plans(sources), start=start)
    fill(schedule, sources, rows)
    return schedule


def _epochs_of(draw: st.DrawFn, size: int) -> tuple[tuple[int, ...], ...]:
    windows = st.lists(st.integers(0, 5), min_size=1, max_size=4)
    epochs = draw(st.lists(windows.filter(lambda rows: sum(rows) > 0), min_size=1, max_size=size))
    return tuple(tuple(rows) for rows in epochs)


@st.composite
def source_lists(draw: st.DrawFn) -> list[Source]:
    """One to four sources, finite, endless and empty ones among them."""
    sources = []
    for _ in range(draw(st.integers(1, 4))):
        weight = draw(st.sampled_from([1.0, 2.0, 0.3, 0.7, 5.0]))
        on_end = draw(st.sampled_from([OnEnd.CONTINUE, OnEnd.CONTINUE, OnEnd.STOP, OnEnd.REPEAT]))
        epochs = None if on_end is OnEnd.REPEAT else draw(st.sampled_from([1, 2, 3, None]))
        empty = epochs is not None and draw(st.integers(0, 5)) == 0
        windows = ((),) if empty else _epochs_of(draw, 3)
        sources.append(Source(weight, windows, epochs, on_end))
    return sources
