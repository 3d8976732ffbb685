"""``meshfeed.connect``: a feed inside anyone's trainer, as a Grain ``DatasetIterator``.

Every process of a ``jax.distributed`` world calls it alike, whoever launched it; Ray is only how it
reaches the run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from grain import DatasetIterator
from jax.sharding import Mesh, NamedSharding

from meshfeed.actors.host.batches import BatchMaker
from meshfeed.actors.host.feed_limits import FeedLimits
from meshfeed.actors.host.host_feed import HostFeed
from meshfeed.actors.host.presence import failure_in_flight
from meshfeed.actors.messages import Opening
from meshfeed.actors.run import Run
from meshfeed.pipeline.assemble.global_arrays import BatchTarget
from meshfeed.pipeline.assemble.shardings import layout_of
from meshfeed.pipeline.data.batches.leaves import name_leaves, named_dtypes
from meshfeed.pipeline.data.batches.regions import wire_nbytes
from meshfeed.pipeline.data.packing.blocks import BlockFormat
from meshfeed.pipeline.plan.batch_plan import BatchPlan, plan_batch
from meshfeed.pipeline.plan.config import LEAVES
from meshfeed.pipeline.plan.errors import ChangedError, ConfigError
from meshfeed.pipeline.plan.partition import AxisRoles, resolve
from meshfeed.pipeline.plan.run_config import TRAIN, RunConfig

STATE_VERSION = 1


def connect(
    run: Run | str,
    *,
    mesh: Mesh,
    feed: str = TRAIN,
    partition: Any = None,
    state: Mapping[str, Any] | bytes | str | None = None,
    output: str = "global",
    leaves: tuple[str, ...] = LEAVES,
    leaf_names: str | Mapping[str, str] | None = None,
) -> FeedIterator:
    """Opens a feed for this process; every process of the world calls it alike.

    Args:
        run: what ``meshfeed.start`` gave, or the run directory of a run that is up.
        mesh: of the model.
        feed: its name, ``train`` or ``eval/<name>``.
        partition: see ``RunConfig.partition``; None: as the run says.
        state: where to go on, what ``get_state`` gave; None: from row 0.
        output: ``global`` arrays, or ``local`` numpy arrays of this process's slice for a trainer
            that makes global arrays itself.
        leaves: which leaves are wanted.
        leaf_names: preset or mapping; None: as the run says.

    Raises:
        ConfigError: the batch does not divide over the mesh, or a setting is unknown.
        StallError: not all processes connected in time.
    """
    handle = run if isinstance(run, Run) else Run.find(run)
    return FeedIterator(
        handle,
        feed=feed,
        mesh=mesh,
        partition=partition,
        start=_parse_state(state, feed),
        output=output,
        leaves=tuple(leaves),
        leaf_names=leaf_names,
    )


class FeedIterator(DatasetIterator[dict[str, Any]]):  # type: ignore[misc]  # grain has no types
    """Batches of a feed: dicts of global ``jax.Array``s [batch_size, seq_len], or local numpy.

    ``get_state`` describes the last batch *returned*, never one prefetched, and is the same bytes
    on every process; ``set_state`` must be given the same on every process.
    """

    def __init__(
        self,
        run: Run,
        *,
        feed: str,
        mesh: Mesh,
        partition: Any,
        start: dict[str, Any] | None,
        output: str,
        leaves: tuple[str, ...],
        leaf_names: str | Mapping[str, str] | None,
    ) -> None:
        super().__init__()
        if output not in ("global", "local"):
            raise ConfigError("output", f"{output!r} is neither 'global' nor 'local'")
        self._run = run
        self._feed = feed
        self._output = output
        config = run.config
        self._names = name_leaves(config.leaf_names if leaf_names is None else leaf_names)
        self._plan = _plan(config, feed, mesh, partition, self._names)
        self._dtypes = named_dtypes(leaves, self._names)
        self._target = BatchTarget.build(
            self._plan, mesh, dtypes=self._dtypes, leaf_names=self._names
        )
        self._host: HostFeed[dict[str, Any]] = self._open(start)

    def __next__(self) -> dict[str, Any]:
        batch = self._host.take()
        if batch is None:
            raise StopIteration
        return batch

    @property
    def step(self) -> int:
        """The step that comes next."""
        return self._host.step

    @property
    def real_rows(self) -> int:
        """Rows of the batch returned last that are not padding; they come first."""
        return self._host.rows_of(self._host.step - 1)

    @property
    def shardings(self) -> list[NamedSharding]:
        """How each leaf lies on the devices."""
        return [leaf.sharding for leaf in self._target.leaves.values()]

    def wire_bytes(self, rows: int, cols: int) -> int:
        """Bytes that a region of the batch takes on its way from a node to this host."""
        return wire_nbytes(BlockFormat.of(self._run.specs[self._feed]), rows, cols)

    def get_state(self) -> dict[str, Any]:
        """Where the feed is, as plain JSON values; the same on every process."""
        return {
            "version": STATE_VERSION,
            "feed": self._feed,
            "fingerprint": self._run.specs[self._feed].fingerprint,
            "cursor": self._host.cursor().to_json(),
        }

    def set_state(self, state: Mapping[str, Any] | bytes | str) -> None:
        """Goes on from what ``get_state`` gave; every process must do the same.

        Raises:
            ChangedError: the state is of another feed, or its data or settings have changed.
        """
        start = _parse_state(state, self._feed)
        self._host.close()
        self._host = self._open(start)

    def metrics(self) -> dict[str, Any]:
        """What this host fetched and waited for since the feed was opened.

        ``waiting_seconds`` in all, ``waited_for`` by the stage that was not ready (``grant``: rows
        not tokenized yet; ``fetch``: on their way; ``assemble``: leaves and device transfer).
        ``sources``: of each, rows given so far and the epoch it is in, and tokens and padding of
        all windows that have run in this run. Asks the coordinator: not for every step.
        """
        counters, waiting = self._host.counters, self._host.waiting
        tallies = self._run.status()["feeds"][self._feed]["sources"]
        cursor = self._host.cursor()
        sources = {
            name: {
                "rows": place.drawn,
                "epoch": place.epoch,
                "tokens": tally["tokens"],
                "padding": tally["padding"],
            }
            for (name, tally), place in zip(tallies.items(), cursor.sources, strict=True)
        }
        return {
            "steps": counters.steps,
            "waiting_seconds": waiting.seconds,
            "waited_for": dict(waiting.by_stage),
            "first_batch_seconds": waiting.first_batch_seconds,
            "bytes_fetched": counters.bytes_fetched,
            "fetches": counters.fetches,
            "polls": counters.polls,
            "sources": sources,
        }

    @property
    def ended_for(self) -> str:
        """Why there are no more batches: ``end`` of the feed or ``barrier``; "" while there are."""
        return self._host.ended_for

    @property
    def generation(self) -> int:
        """Of the membership that this process belongs to."""
        return self._host.generation

    def close(self) -> None:
        """Ends the feed in this process.

        Every process closes it at the same step. Where an exception is being handled meanwhile, the
        other processes of the feed raise with it, as they do when this process ends with one.
        """
        if hasattr(self, "_host"):  # also called on one that could not be opened
            self._host.close(failure_in_flight())
        super().close()

    def __enter__(self) -> FeedIterator:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()

    @property
    def plan(self) -> BatchPlan:
        """Who supplies what of each batch."""
        return self._plan

    def _open(self, start: dict[str, Any] | None) -> HostFeed[dict[str, Any]]:
        config = self._run.config
        opening: Opening = self._run.call(
            "join", self._feed, jax.process_index(), jax.process_count(), self._checked(start)
        )
        return HostFeed(
            self._run.coordinator,
            self._feed,
            opening=opening,
            plan=self._plan,
            process_index=jax.process_index(),
            make_batches=BatchMaker(
                self._plan.slice_of(jax.process_index()),
                self._dtypes,
                self._names,
                self._place,
                alive=config.prefetch + 2,
            ),
            limits=FeedLimits(
                prefetch=config.prefetch,
                stall_s=config.stall_seconds,
                timeout_s=config.timeout_seconds,
            ),
        )

    def _checked(self, state: dict[str, Any] | None) -> dict[str, Any] | None:
        """The cursor of a state of this feed."""
        if state is None:
            return None
        now = self._run.specs[self._feed].fingerprint
        if state["fingerprint"] != now:
            raise ChangedError(
                f"the state of feed {self._feed!r} has fingerprint {state['fingerprint']}, "
                f"this run has {now}: its data, order settings or tokenizer are others"
            )
        cursor: dict[str, Any] = state["cursor"]
        return cursor

    def _place(self, parts: Mapping[str, list[np.ndarray[Any, Any]]]) -> dict[str, Any]:
        """The leaves of one step, on the devices or as they are."""
        if self._output == "local":
            return {name: own[0] if len(own) == 1 else own for name, own in parts.items()}
        return dict(self._target.assemble(parts))


def _plan(
    config: RunConfig, feed: str, mesh: Mesh, partition: Any, names: Mapping[str, str]
) -> BatchPlan:
    settings = config.feed(feed)
    layout = layout_of(mesh)
    roles = AxisRoles(data=config.data_axes, sequence=config.sequence_axes, model=config.model_axes)
    asked = config.partition if partition is None else partition
    specs = resolve(asked, layout, roles, leaf_names=names)
    return plan_batch(
        layout,
        specs,
        batch_size=settings.batch_size,
        seq_len=settings.seq_len,
        uneven_batch=config.uneven_batch,
    )


def _parse_state(state: Mapping[str, Any] | bytes | str | None, feed: str) -> dict[str, Any] | None:
    if state is None:
        return None
    plain = json.loads(state) if isinstance(state, bytes | str) else dict(state)
    if plain.get("feed") != feed:
        raise ConfigError("state", f"it is of feed {plain.get('feed')!r}, not of {feed!r}")
    return plain
