"""What is fixed for a feed when a run begins, and kept in the run directory.

Readers, hosts and tools all work from a ``FeedSpec`` and so agree on every row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from meshfeed.pipeline.plan.config import FeedConfig
from meshfeed.pipeline.plan.manifest import SourceManifest
from meshfeed.pipeline.plan.schedule import SourcePlan
from meshfeed.pipeline.plan.windows import EpochWindows


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSpec:
    """Everything that a reader or a host needs to know of a feed.

    Attributes:
        config: the feed's settings.
        manifests: one for each source, in the order of ``config.sources``.
        token_dtype: of the tokens in blocks and on the wire, ``uint16`` or ``int32``.
        loss_mask: some source brings a loss mask.
        window_rows: rows that a window gives, about, before any has run.
        engine: which tokenizer engine encodes; "" where all sources hold token ids.
        tokenizer_fingerprint: a reader whose tokenizer differs is refused; "" likewise.
        fingerprint: of all that fixes the rows and their order.
    """

    config: FeedConfig
    manifests: tuple[SourceManifest, ...]
    token_dtype: str
    loss_mask: bool
    window_rows: int
    engine: str
    tokenizer_fingerprint: str
    fingerprint: str

    def epochs(self) -> EpochLookup:
        """The windows of any epoch of any source."""
        return EpochLookup(self)

    def source_plans(self, epochs: EpochLookup) -> tuple[SourcePlan, ...]:
        """The sources as a ``Schedule`` wants them."""

        def counter(source: int) -> Callable[[int], int]:
            return lambda epoch: epochs.count(source, epoch)

        return tuple(
            SourcePlan(
                name=source.name,
                weight=source.weight,
                on_end=source.on_end,
                epochs=self.config.epochs_of(source),
                windows_in_epoch=counter(i),
            )
            for i, source in enumerate(self.config.sources)
        )


class EpochLookup:
    """Windows by (source, epoch); the last few epochs are kept, all counts are."""

    def __init__(self, spec: FeedSpec) -> None:
        self._spec = spec
        self._counts: dict[tuple[int, int], int] = {}
        self._epoch = lru_cache(maxsize=2 * len(spec.manifests) + 2)(self._make)

    def windows(self, source: int, epoch: int) -> EpochWindows:
        """The windows of one epoch of a source."""
        return self._epoch(source, epoch)

    def count(self, source: int, epoch: int) -> int:
        """Their number."""
        if (source, epoch) not in self._counts:
            self._counts[source, epoch] = self.windows(source, epoch).num_windows
        return self._counts[source, epoch]

    def _make(self, source: int, epoch: int) -> EpochWindows:
        config = self._spec.config
        return EpochWindows(self._spec.manifests[source], config.shuffle, config.seed, epoch)
