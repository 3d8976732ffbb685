"""One trainer host: an actor whose process takes part in the world of each of its generations.

A *control* side answers calls at any time, also while training is stuck in a collective; a
*training* thread runs ``train(job)``, once for each generation.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshfeed.actors.elastic.messages import Beat, Membership, Phase, Source
from meshfeed.actors.elastic.progress import Progress
from meshfeed.pipeline.plan.errors import ConfigError

if TYPE_CHECKING:
    from meshfeed.actors.elastic.job import Job
    from meshfeed.actors.elastic.keeper import Keeper
    from meshfeed.pipeline.assemble.worlds.world import World

log = logging.getLogger(__name__)

LEAVE_S = 5.0
"""Training that was aborted ends within this."""

Train = Callable[["Job"], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """What a trainer host needs to know before it belongs to a generation.

    Attributes:
        host: its name.
        run_dir: of the run whose feed it trains on.
        feed: its name.
        train: ``module:function`` or ``file.py:function``.
        devices: simulated CPU devices; None: those that JAX finds.
        hold_at: steps after which training waits to be released.
        digests: whether every batch is digested as it lies on the devices.
        compiled: folder of compiled programs; None: every world compiles anew.
        timeout_s: of every wait.
    """

    host: str
    run_dir: str
    feed: str
    train: str
    devices: int | None
    hold_at: frozenset[int] = frozenset()
    digests: bool = False
    compiled: str | None = None
    timeout_s: float


class TrainerHost:
    """Wrapped as a Ray actor.

    Args:
        settings: of the host.
    """

    def __init__(self, settings: TrainerSettings) -> None:
        self._settings = settings
        self._progress = Progress(settings.hold_at, settings.timeout_s)
        self._train: Train | None = None
        self._thread: threading.Thread | None = None
        self._membership: Membership | None = None
        self._world: World | None = None
        self._keeper: Keeper | None = None

    def prepare(self) -> int:
        """Imports all that training needs and touches no device; gives the process id.

        Raises:
            ConfigError: there is no such ``train``, or others may write to the compiled programs.
        """
        import jax

        import meshfeed.actors.elastic.job  # noqa: F401
        from meshfeed.pipeline.assemble.worlds.compilation_cache import enable_compilation_cache

        if self._settings.devices is not None:
            jax.config.update("jax_platforms", "cpu")
            jax.config.update("jax_num_cpu_devices", self._settings.devices)
        if self._settings.compiled is not None:
            enable_compilation_cache(self._settings.compiled)
        self._train = load_train(self._settings.train)
        self._progress.enter(Phase.READY)
        return os.getpid()

    def ready(self) -> bool:
        """It answers."""
        return True

    def join(self, membership: Membership) -> None:
        """Joins the world of a generation; returns when all of its hosts have.

        Raises:
            StallError: not all did in time.
            StaleGenerationError: this process has been in a later one.
        """
        from meshfeed.pipeline.assemble.worlds.world import join_world

        began = time.monotonic()
        self._progress.begin(membership.generation)
        self._membership = membership
        self._world = join_world(
            membership.address,
            generation=membership.generation,
            process_index=membership.process_index,
            process_count=membership.process_count,
            devices=self._settings.devices,
            timeout_s=self._settings.timeout_s,
        )
        self._progress.took("join", time.monotonic() - began)

    def train(self, source: Source | None) -> None:
        """Begins to train, from the state at ``source`` or from init; returns at once."""
        self._thread = threading.Thread(
            target=self._run_training, args=(source,), name="meshfeed-train", daemon=True
        )
        self._thread.start()

    def beat(self) -> Beat:
        """How far the host is; the answer comes when there is news, or a little later."""
        return self._progress.beat()

    def release(self, step: int) -> None:
        """Training need not wait at this step."""
        self._progress.release(step)

    def export(self) -> int:
        """The last committed state goes to the vault; gives its step.

        Raises:
            ConfigError: the last state was not committed.
        """
        if self._keeper is None:
            raise ConfigError("train", "the host has not trained")
        began = time.monotonic()
        step = self._keeper.leave()
        self._progress.took("drain", time.monotonic() - began)
        return step

    def leave(self) -> None:
        """Leaves the world; what training still waits for there fails."""
        if self._world is None:
            return
        began = time.monotonic()
        if self._thread is not None and self._thread.is_alive():
            self._world.abort()
            self._thread.join(LEAVE_S)
        self._keeper = self._thread = None
        self._world.leave()
        self._world = None
        self._progress.took("leave", time.monotonic() - began)

    def _run_training(self, source: Source | None) -> None:
        from meshfeed.actors.connect import connect
        from meshfeed.actors.elastic.job import Job, JobFeed
        from meshfeed.actors.elastic.keeper import Keeper
        from meshfeed.pipeline.assemble.shardings import mesh_of

        settings, membership, train = self._settings, self._membership, self._train
        feed = None
        try:
            if membership is None or train is None:
                raise ConfigError("train", "the host has joined no world")
            self._progress.enter(Phase.TRAINING)
            mesh = mesh_of(membership.layout)
            feed = connect(
                settings.run_dir,
                mesh=mesh,
                feed=settings.feed,
                state=None if source is None else source.cursor,
            )
            self._progress.opened(feed.generation)
            self._keeper = keeper = Keeper(
                membership.generation,
                membership.process_index,
                membership.keeping,
                source,
                self._progress,
            )
            job_feed = JobFeed(feed, digests=settings.digests)
            job = Job(membership.generation, mesh, job_feed, keeper, self._progress)
            train(job)
            job.flush()
            self._progress.end(job.step, at_barrier=feed.ended_for == "barrier")
        except BaseException as error:
            log.exception("generation %s: training failed", self._progress.generation)
            self._progress.fail(membership.generation if membership else 0, error)
        finally:
            if feed is not None:
                feed.close()


def load_train(name: str) -> Train:
    """The function that ``module:function`` or ``file.py:function`` names.

    Raises:
        ConfigError: there is none.
    """
    place, _, attribute = name.rpartition(":")
    if not place:
        raise ConfigError("train", f"{name!r} names no function", "Write module:function")
    try:
        if place.endswith(".py"):
            module = _module_of(Path(place))
        else:
            module = importlib.import_module(place)
        found: Train = getattr(module, attribute)
    except (ImportError, OSError, AttributeError) as error:
        raise ConfigError(
            "train", f"{name!r} cannot be loaded: {error}", "Write module:function"
        ) from error
    if not callable(found):
        raise ConfigError("train", f"{name!r} is no function")
    return found


def _module_of(path: Path) -> Any:
    """A module from a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.exists():
        raise ImportError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module
