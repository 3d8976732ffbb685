"""From fetched bytes to the leaves of each step: derived for several steps at once, placed by step.

Deriving has a fixed cost of some forty numpy calls, so it is done for as many steps as stay in
the processor's cache; each step is then a view of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from meshfeed.actors.host.fetching import Stretch
from meshfeed.pipeline.data.batches.leaves import derive
from meshfeed.pipeline.data.memory import RecycledMemory
from meshfeed.pipeline.plan.slices import HostSlice

Parts = list[npt.NDArray[Any]]
Place = Callable[[Mapping[str, Parts]], dict[str, Any]]

TOKENS_AT_ONCE = 1 << 18


class BatchMaker:
    """Makes the batches of one process, one stretch after another. For one thread.

    Args:
        held: what the process supplies of each batch.
        dtypes: of the wanted leaves, by meshfeed's name.
        names: the user's name of each leaf.
        place: puts the parts of one step where they belong: on the devices, or nowhere.
        alive: batches that exist at a time, about.
    """

    def __init__(
        self,
        held: HostSlice,
        dtypes: Mapping[str, np.dtype[Any]],
        names: Mapping[str, str],
        place: Place,
        alive: int,
    ) -> None:
        self._held = held
        self._dtypes = dict(dtypes)
        self._names = names
        self._place = place
        self._step_tokens = max(1, held.cells)
        self._memory = RecycledMemory(keep=(alive + 2) * len(dtypes) * len(held.regions))

    def __call__(self, stretch: Stretch) -> Iterator[dict[str, Any]]:
        """The batches of a stretch, in order, each made when it is asked for."""
        at_once = max(1, TOKENS_AT_ONCE // self._step_tokens)
        for begin in range(stretch.begin, stretch.end, at_once):
            end = min(begin + at_once, stretch.end)
            leaves = self._derive(stretch, begin, end)
            for step in range(end - begin):
                yield self._place(_step(leaves, step, end - begin))

    def _derive(self, stretch: Stretch, begin: int, end: int) -> dict[str, Parts]:
        """Each leaf's parts of some steps, one step below the other: [steps * rows, columns]."""
        made: dict[str, Parts] = {self._names[leaf]: [] for leaf in self._dtypes}
        index = 0
        for part in self._held.parts:
            pieces = []
            for _ in part.cols:
                region = stretch.region(begin, end, index)
                pieces.append(derive(region, self._dtypes, self._dtypes, memory=self._memory))
                index += 1
            for leaf in self._dtypes:
                arrays = [piece[leaf] for piece in pieces]
                whole = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)
                made[self._names[leaf]].append(whole)
        return made


def _step(leaves: Mapping[str, Parts], step: int, steps: int) -> dict[str, Parts]:
    """The parts of one of some steps."""
    cut = {}
    for name, parts in leaves.items():
        cut[name] = [
            part[len(part) // steps * step : len(part) // steps * (step + 1)] for part in parts
        ]
    return cut
