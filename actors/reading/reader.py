"""The reader: runs windows, one at a time, and leaves their blocks in shared memory.

A reader is a single-threaded process. It knows nothing of hosts, steps or order: it is given a
window and writes that window's rows, the same as any other reader would. It never imports jax.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa

from meshfeed.actors.messages import WindowLease, WindowReport
from meshfeed.actors.reading.shared_memory import BlockFile, StageFile, block_path
from meshfeed.pipeline.data.packing.blocks import BlockFormat
from meshfeed.pipeline.data.packing.rows import WindowRunner
from meshfeed.pipeline.data.sources.chunk_cache import ChunkCache
from meshfeed.pipeline.data.sources.source_reader import storage_of
from meshfeed.pipeline.data.tokenizers import Tokenizer, load_tokenizer, use_one_thread
from meshfeed.pipeline.plan.config import Engine, TokenizerConfig
from meshfeed.pipeline.plan.errors import ChangedError
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.run_config import RunConfig


class Reader:
    """Runs windows. Wrapped as a Ray actor by its node server.

    Args:
        name: of this reader, for messages.
        folder: the node's folder in shared memory.
        config: of the run.
    """

    def __init__(self, name: str, folder: str, config: RunConfig) -> None:
        use_one_thread()
        pa.set_cpu_count(1)
        self._name = name
        self._folder = Path(folder)
        self._stage = StageFile.create(self._folder / f"{name}.stage")
        self._stage.idle()
        self._storage = storage_of(config)
        self._cache = ChunkCache(self._folder / "chunks", config.chunk_cache)
        self._specs: dict[str, FeedSpec] = {}
        self._tokenizers: dict[tuple[TokenizerConfig, str], Tokenizer] = {}
        self._runners: dict[tuple[str, int], WindowRunner] = {}

    def pid(self) -> int:
        """Process id, so that a test can end exactly this reader."""
        return os.getpid()

    def prepare(self, specs: dict[str, FeedSpec]) -> None:
        """Learns the feeds and loads their tokenizers, so that the first window does not wait.

        Raises:
            ChangedError: this reader's tokenizer is not the one that the run chose.
        """
        for name, spec in specs.items():
            if name in self._specs:
                continue
            config = spec.config.tokenizer
            wanted = (config, spec.engine)
            if spec.tokenizer_fingerprint and wanted not in self._tokenizers:
                tokenizer = load_tokenizer(config, Engine(spec.engine))
                if tokenizer.fingerprint != spec.tokenizer_fingerprint:
                    raise ChangedError(
                        f"reader {self._name}: its tokenizer is {tokenizer.fingerprint}, the "
                        f"run's is {spec.tokenizer_fingerprint}. Install the same versions"
                    )
                self._tokenizers[wanted] = tokenizer
            self._specs[name] = spec

    def run(self, lease: WindowLease) -> WindowReport:
        """Runs one window; an error in its data comes back in the report."""
        key = lease.key
        started = time.monotonic()
        retries = self._storage.counters.retries
        target = BlockFile(block_path(self._folder, lease.feed, key))
        try:
            result = self._runner(lease.feed, key.source).run(
                key.epoch, key.window, target.allocate
            )
            target.commit()
        except Exception as error:  # noqa: BLE001 - the coordinator judges
            target.discard()
            return WindowReport(feed=lease.feed, key=key, reader=self._name, error=error)
        finally:
            self._stage.idle()
        stats = result.stats
        return WindowReport(
            feed=lease.feed,
            key=key,
            rows=result.packed.block.rows,
            nbytes=target.nbytes,
            digest=target.digest,
            tokens=stats.tokens,
            padding=stats.padding,
            records=stats.records,
            storage_bytes=stats.storage_bytes,
            used_bytes=stats.used_bytes,
            seconds=stats.seconds | {"total": time.monotonic() - started},
            skipped=stats.skipped,
            counts=stats.counts | {"retries": self._storage.counters.retries - retries},
            reader=self._name,
        )

    def _runner(self, feed: str, source: int) -> WindowRunner:
        if (feed, source) not in self._runners:
            spec = self._specs[feed]
            config = spec.config
            self._runners[feed, source] = WindowRunner(
                feed=config,
                source=config.sources[source],
                manifest=spec.manifests[source],
                block_format=BlockFormat.of(spec),
                tokenizer=self._tokenizers.get((config.tokenizer, spec.engine)),
                storage=self._storage,
                cache=self._cache,
                on_stage=lambda stage, shard: self._stage.set(stage, feed, shard),
            )
        return self._runners[feed, source]
