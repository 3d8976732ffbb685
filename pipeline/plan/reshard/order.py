"""The order in which things are done that each need memory and leave more or less of it behind."""

from __future__ import annotations

from collections.abc import Sequence


def lowest_peak_order(needs: Sequence[float], changes: Sequence[float]) -> list[int]:
    """The order with the lowest peak.

    First those that leave less than they found, the least needy first; then the others, those
    that give back most of what they need first. No other order has a lower peak: exchanging two
    neighbours never helps (Liu 1987, on pebbling trees).

    Args:
        needs: memory that each takes while it is done, beyond what was there before.
        changes: memory that there is more, or less, once it is done.

    Returns:
        Indices.
    """
    shrinking = [i for i, change in enumerate(changes) if change < 0]
    growing = [i for i, change in enumerate(changes) if change >= 0]
    shrinking.sort(key=lambda i: needs[i])
    growing.sort(key=lambda i: changes[i] - needs[i])
    return shrinking + growing


def peak_in_order(needs: Sequence[float], changes: Sequence[float], order: Sequence[int]) -> float:
    """The most memory that is needed at once, beyond what was there at the start."""
    level = peak = 0.0
    for i in order:
        peak = max(peak, level + needs[i])
        level += changes[i]
    return peak
