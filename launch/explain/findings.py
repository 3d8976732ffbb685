"""What the measurements come to: which type to use, and what the others cost, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from meshfeed.launch.explain.measure import Measured, Outcome
from meshfeed.launch.words import format_bytes, plural, seconds
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.partition import DataPartitionType, Spec

_ALIKE = 1.01
"""Less than a part in a hundred of the bytes that are moved decides nothing."""

_ALIKE_MEMORY = 1.1
"""Nor does a tenth of temporary memory, which depends on how XLA schedules."""

_PREFERRED = (
    DataPartitionType.DATA,
    DataPartitionType.BATCH,
    DataPartitionType.FULL,
    DataPartitionType.REPLICATED,
)
"""Where nothing tells two types apart."""


def same_programs(outcome: Outcome) -> list[tuple[tuple[DataPartitionType, ...], Measured]]:
    """The types by the program that they give: those with the same spec are one."""
    groups: dict[Spec, list[DataPartitionType]] = {}
    measured: dict[Spec, Measured] = {}
    for kind, one in outcome.items():
        if isinstance(one, Measured):
            groups.setdefault(one.spec, []).append(kind)
            measured[one.spec] = one
    return [(tuple(kinds), measured[spec]) for spec, kinds in groups.items()]


def recommend(outcome: Outcome) -> tuple[DataPartitionType, Measured]:
    """The type with the fewest bytes between devices; then memory, then bytes that hosts fetch.

    Raises:
        ConfigError: none fits; with the first refusal.
    """
    left = {kind: one for kind, one in outcome.items() if isinstance(one, Measured)}
    if not left:
        raise next(one for one in outcome.values() if isinstance(one, ConfigError))
    costs: tuple[tuple[Callable[[Measured], float], float], ...] = (
        (lambda one: one.received_bytes, _ALIKE),
        (lambda one: one.temporary_bytes, _ALIKE_MEMORY),
        (lambda one: one.host_bytes, _ALIKE),
    )
    for cost, alike in costs:
        least = min(map(cost, left.values()))
        left = {kind: one for kind, one in left.items() if cost(one) <= alike * least}
    best = next(kind for kind in _PREFERRED if kind in left)
    return best, left[best]


def findings(outcome: Outcome) -> list[tuple[str, str]]:
    """What to use, and what each other type would cost: (types, in words)."""
    best, chosen = recommend(outcome)
    lines = [
        (
            f"Use {best}",
            f"a device receives {format_bytes(round(chosen.received_bytes))} from others in a "
            f"step and takes {format_bytes(chosen.temporary_bytes)} of temporary memory; a host "
            f"fetches {format_bytes(chosen.host_bytes)}",
        )
    ]
    for kinds, other in same_programs(outcome):
        if best in kinds:
            lines += [(kind, f"is {best} on this mesh") for kind in kinds if kind is not best]
        else:
            lines.append((" = ".join(kinds), "; ".join(_against(other, chosen, best))))
    refused = {kind: one for kind, one in outcome.items() if isinstance(one, ConfigError)}
    return lines + [(kind, f"is refused: {one}") for kind, one in refused.items()]


def _against(other: Measured, chosen: Measured, best: str) -> list[str]:
    """How a type differs from the one that is recommended."""
    said = []
    if (factor := _factor(other.received_bytes, chosen.received_bytes)) is None:
        said.append(f"as many bytes between devices as {best}")
    else:
        why = _more_collectives(other, chosen)
        said.append(
            f"a device receives {format_bytes(round(other.received_bytes))}, {factor}"
            + (f" ({why})" if why else "")
        )
    factor = _factor(other.temporary_bytes, chosen.temporary_bytes, _ALIKE_MEMORY)
    if factor is not None:
        said.append(f"temporary memory is {format_bytes(other.temporary_bytes)}, {factor}")
    if (factor := _factor(other.host_bytes, chosen.host_bytes)) is not None:
        said.append(f"a host fetches {format_bytes(other.host_bytes)}, {factor}")
    if other.dynamic_slices > chosen.dynamic_slices:
        cut = plural(other.dynamic_slices - chosen.dynamic_slices, "dynamic-slice")
        said.append(f"{cut} more, each cutting a part out of what a device holds")
    return said + _speed(other, chosen)


def _speed(other: Measured, chosen: Measured) -> list[str]:
    """What the times say, where they say something: the middle halves must lie apart."""
    if other.seconds is None or chosen.seconds is None:
        return []
    slow, fast = _middle(other.step_seconds), _middle(chosen.step_seconds)
    took = f"a step took {seconds(other.seconds)} here, "
    if len(other.step_seconds) >= 3 and slow[0] > fast[1]:
        return [f"{took}{other.seconds / chosen.seconds:.2f} times as long"]
    if len(other.step_seconds) >= 3 and slow[1] < fast[0]:
        return [f"yet {took}{100 * other.seconds / chosen.seconds:.0f} % of that"]
    return ["step times here do not tell them apart"]


def _middle(times: tuple[float, ...]) -> tuple[float, float]:
    """The times between which the middle half lies."""
    ordered = sorted(times)
    cut = len(ordered) // 4
    return ordered[cut], ordered[-1 - cut]


def _factor(value: float, base: float, alike: float = _ALIKE) -> str | None:
    """``1.6 times as much``; None where the two are alike."""
    if max(value, base) <= alike * min(value, base):
        return None
    if not base or not value:
        return "in the place of none" if value else "in the place of some"
    factor = value / base
    if factor < 1:
        return f"{100 * factor:.0f} % of that"
    digits = 0 if factor >= 10 else 1 if factor >= 2 else 2
    return f"{factor:,.{digits}f} times as much"


def _more_collectives(other: Measured, chosen: Measured) -> str:
    """``41 all-gather and 1 all-to-all more``: kinds that bring more bytes."""
    counts: Mapping[str, int] = {
        kind: traffic.count - (chosen.collectives[kind].count if kind in chosen.collectives else 0)
        for kind, traffic in other.collectives.items()
    }
    more = [f"{count} {kind}" for kind, count in counts.items() if count > 0]
    fewer = [f"{-count} {kind}" for kind, count in counts.items() if count < 0]
    fewer += [
        f"{traffic.count} {kind}"
        for kind, traffic in chosen.collectives.items()
        if kind not in other.collectives
    ]
    return ", ".join(
        f"{_listed(some)} {how}" for some, how in ((more, "more"), (fewer, "less")) if some
    )


def _listed(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
