"""How numbers, places and tables are written for people, alike in all commands."""

from __future__ import annotations

from math import log10

from rich import box
from rich.table import Table

_SECOND_STEPS = ((1e-3, 1e6, "us"), (1.0, 1e3, "ms"))


def plural(count: int, one: str, many: str = "") -> str:
    """A number with its noun.

    >>> plural(1, "row"), plural(2000, "row"), plural(3, "box", "boxes")
    ('1 row', '2,000 rows', '3 boxes')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def share(part: float, whole: float) -> str:
    """A part in percent, with as many digits as say something.

    >>> share(1, 3), share(1, 1000), share(0, 5), share(1, 0)
    ('33 %', '0.1 %', '0 %', '-')
    """
    if not whole:
        return "-"
    percent = 100 * part / whole
    if percent and percent < 0.1:
        return "<0.1 %"
    digits = 1 if percent and percent < 9.95 and round(percent, 1) != round(percent) else 0
    return f"{percent:.{digits}f} %"


def seconds(value: float) -> str:
    """A time.

    >>> seconds(0.0000421), seconds(0.0532), seconds(5.32), seconds(75), seconds(7260)
    ('42 us', '53 ms', '5.3 s', '1 min 15 s', '2 h 1 min')
    """
    for limit, scale, unit in _SECOND_STEPS:
        if value < limit:
            scaled = value * scale
            return f"{scaled:.1f} {unit}" if 0 < scaled < 9.95 else f"{scaled:.0f} {unit}"
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def about(count: float) -> str:
    """An estimate, in two digits of thousands or more.

    >>> about(7.3), about(1234), about(98765), about(1.26e9)
    ('7', '1,200', '99,000', '1.3 billion')
    """
    for scale, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if count >= 0.995 * scale:
            return f"{count / scale:.2g} {word}"
    whole = round(count)
    digits = max(len(str(whole)) - 2, 0)
    return f"{round(whole, -digits):,}"


def plural_about(count: float, noun: str) -> str:
    """An estimate with its noun.

    >>> plural_about(1.0, "step"), plural_about(1234.0, "step")
    ('1 step', '1,200 steps')
    """
    return f"{about(count)} {noun if round(count) == 1 else noun + 's'}"


def format_bytes(count: int) -> str:
    """``1.50 MB``: three digits, in units of a thousand."""
    value, units = float(count), ["B", "KB", "MB", "GB", "TB", "PB"]
    at = 0 if count < 1 else min(int(log10(count)) // 3, len(units) - 1)
    scaled = value / 1000**at
    digits = 0 if at == 0 or scaled >= 100 else 1 if scaled >= 10 else 2
    return f"{scaled:.{digits}f} {units[at]}"


def tail(path: str, root: str = "", width: int = 48) -> str:
    """The end of a path, which tells most, below ``root``; whole names as far as they fit.

    >>> tail("/data/code/part-1.parquet", "/data/code")
    'part-1.parquet'
    >>> tail("/a/very/long/way/to/a/shard.parquet", width=22)
    '.../to/a/shard.parquet'
    >>> tail("/data/a-long-name.parquet", width=14)
    '...ame.parquet'
    """
    short = path.removeprefix(root.rstrip("/") + "/") if root else path
    if len(short) <= width:
        return short
    cut = short.find("/", len(short) - (width - 3))
    return "..." + (short[cut:] if cut >= 0 else short[-(width - 3) :])


def table(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table; columns named in ``right`` hold numbers."""
    made = Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        header_style="dim",
    )
    for column in columns:
        made.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=column in right,
            overflow="fold",
        )
    return made
