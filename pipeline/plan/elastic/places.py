"""Which host takes which place in a new world: as much as possible stays where it lies.

A *place* is a ``process_index`` of the new world. What a host at a place needs and has already
need not travel, so the places are given so that this is the most in all; among equally good ways
the one that keeps the hosts in their old order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.plan.boxes import intersect, no_boxes, sizes, union
from meshfeed.pipeline.plan.moves import LeafPlacement

EXACT_HOSTS = 256
"""Up to so many hosts (or groups) places are the best there are; above, good ones."""

Overlap = npt.NDArray[np.int64]
"""int64 [hosts, places], bytes that a host at a place would not have to receive."""


def overlap_bytes(
    leaves: Sequence[LeafPlacement], holders: Sequence[str], places: Sequence[str]
) -> Overlap:
    """Bytes that each holder has of what each place needs.

    Args:
        leaves: ``needed`` names the places.
        holders: of each host the vault on its node.
        places: in the order of ``process_index``.
    """
    overlap = np.zeros((len(holders), len(places)), dtype=np.int64)
    known: dict[object, Overlap] = {}
    for leaf in leaves:
        none = no_boxes(len(leaf.shape))
        both = [
            [boxes_of.get(who, none) for who in names]
            for boxes_of, names in ((leaf.held, holders), (leaf.needed, places))
        ]
        key = (leaf.shape, *((len(b), b.tobytes()) for side in both for b in side))
        if key not in known:
            have, need = ([union(boxes) for boxes in side] for side in both)
            common, of_have, of_need = intersect(
                np.concatenate([none, *have]), np.concatenate([none, *need])
            )
            holder = np.repeat(np.arange(len(have)), [len(boxes) for boxes in have])
            place = np.repeat(np.arange(len(need)), [len(boxes) for boxes in need])
            cells = np.zeros_like(overlap)
            np.add.at(cells, (holder[of_have], place[of_need]), sizes(common))
            known[key] = cells
        overlap += known[key] * leaf.itemsize
    return overlap


def assign_places(overlap: Overlap, *, hosts_per_group: int = 1) -> npt.NDArray[np.int32]:
    """int32 [places], the host at each place.

    Args:
        overlap: hosts in their old order, as many as places.
        hosts_per_group: neighbours in that order stay together, in their order.

    Raises:
        ValueError: the numbers do not agree.
    """
    hosts, places = overlap.shape
    if hosts != places or hosts % hosts_per_group:
        raise ValueError(f"{hosts} hosts, {places} places, groups of {hosts_per_group}")
    groups = hosts // hosts_per_group
    member = np.arange(hosts_per_group)
    at = np.arange(groups)[:, None] * hosts_per_group + member  # [groups, members]
    together: Overlap = overlap[at[:, None], at[None, :]].sum(axis=2)  # [groups, groups]
    chosen = _exact(together) if groups <= EXACT_HOSTS else _greedy(together)
    return at[chosen].reshape(-1).astype(np.int32)


def _exact(overlap: Overlap) -> npt.NDArray[np.int64]:
    """The host at each place, with the most overlap, and of those ways the least displaced.

    Every best way uses only pairs whose price is met exactly, so the second search, for the old
    order, is among these alone.
    """
    n = len(overlap)
    _, price_of_place, price_of_host = _cheapest(-overlap.T)
    is_met = price_of_place[:, None] + price_of_host[None, :] == -overlap.T
    apart = (np.arange(n)[:, None] - np.arange(n)[None, :]) ** 2
    return _cheapest(np.where(is_met, apart, n**3 + 1))[0]


def _cheapest(
    cost: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The cheapest column for each row, and the prices that prove it.

    The Hungarian method by shortest augmenting paths, one row at a time (Jonker and Volgenant
    1987), with the step over all columns done by numpy.

    Args:
        cost: int64 [n, n].

    Returns:
        int64 [n] the column of each row; int64 [n] prices of rows and of columns, whose sum is
        nowhere above the cost and is the cost where a row has its column.
    """
    n = len(cost)
    top = np.iinfo(np.int64).max
    row_price, col_price = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
    row_of = np.full(n + 1, -1, dtype=np.int64)  # the last column stands for "no column yet"
    for row in range(n):
        row_of[n] = row
        column = n
        distance = np.full(n, top)
        before = np.full(n, n, dtype=np.int64)
        done = np.zeros(n + 1, dtype=bool)
        while row_of[column] >= 0:
            done[column] = True
            at = row_of[column]
            open_ = ~done[:n]
            reduced = cost[at] - row_price[at] - col_price[:n]
            better = open_ & (reduced < distance)
            distance[better] = reduced[better]
            before[better] = column
            nearest = int(np.where(open_, distance, top).argmin())
            step = distance[nearest]
            row_price[row_of[done]] += step
            col_price[done] -= step
            distance[open_] -= step
            column = nearest
        while column != n:
            row_of[column] = row_of[before[column]]
            column = int(before[column])
    column_of = np.empty(n, dtype=np.int64)
    column_of[row_of[:n]] = np.arange(n)
    return column_of, row_price[:n], col_price[:n]


def _greedy(overlap: Overlap) -> npt.NDArray[np.int64]:
    """The host at each place: the pairs with the most overlap first, then as near as it goes."""
    n = len(overlap)
    hosts, places = np.nonzero(overlap)
    order = np.lexsort((hosts, np.abs(hosts - places), -overlap[hosts, places]))
    host_at = np.full(n, -1, dtype=np.int64)
    is_placed = np.zeros(n, dtype=bool)
    for i in order.tolist():
        host, place = hosts[i], places[i]
        if host_at[place] < 0 and not is_placed[host]:
            host_at[place] = host
            is_placed[host] = True
    host_at[host_at < 0] = np.flatnonzero(~is_placed)
    return host_at
