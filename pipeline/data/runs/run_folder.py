"""The run directory: everything that a run keeps, as plain data.

::

    RUN_DIR/
      config.json        the settings as they were given
      control.json       the coordinator's incarnation, the generation, who has which feed open
      cluster.json       the Ray cluster that the run was started in last
      feeds.json         what is fixed for each feed: settings, dtype, engine, fingerprints
      tokenizer/         copies of the tokenizers' files
      manifest.json      the shards of every source, and the sizes that fix its windows
      ledger/            one append-only file a feed: rows of the windows that have run
      skipped.jsonl      every record that was left out, with file, place and reason
      report.json        written by ``meshfeed simulate``
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meshfeed.pipeline.data.tokenizers import keep_tokenizer
from meshfeed.pipeline.plan.config import FeedConfig
from meshfeed.pipeline.plan.errors import ChangedError, ConfigError
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.feed_state import WindowKey
from meshfeed.pipeline.plan.ledger import Ledger
from meshfeed.pipeline.plan.manifest import ORDER_VERSION, Manifest
from meshfeed.pipeline.plan.run_config import RunConfig, feed_from_plain, run_from_plain


class RunFolder:
    """Reads and writes a run directory."""

    def __init__(self, run_dir: str) -> None:
        self.path = Path(run_dir)
        self._listed: set[tuple[str, str, str]] | None = None

    @property
    def exists(self) -> bool:
        """A run has been prepared here."""
        return (self.path / "feeds.json").exists()

    def save(self, config: RunConfig, specs: Mapping[str, FeedSpec]) -> None:
        """Keeps what a new run has fixed."""
        (self.path / "ledger").mkdir(parents=True, exist_ok=True)
        sources = {
            f"{name}:{manifest.name}": manifest
            for name, spec in specs.items()
            for manifest in spec.manifests
        }
        feeds = {}
        for name, spec in specs.items():
            plain = dataclasses.asdict(spec)
            del plain["manifests"]
            feeds[name] = plain
        write_whole(self.path / "manifest.json", Manifest(sources).to_json())
        self.save_config(config)
        write_whole(self.path / "feeds.json", json.dumps(feeds, indent=1))

    def save_config(self, config: RunConfig) -> None:
        """Keeps the settings of this start; those that change no row may differ from the first."""
        write_whole(self.path / "config.json", json.dumps(dataclasses.asdict(config), indent=1))

    def keep_tokenizers(self, config: RunConfig) -> RunConfig:
        """Copies the tokenizers' files here: the run no longer depends on where they were."""
        feeds = []
        for feed in config.feeds:
            kept = feed.tokenizer
            if kept.path != "bytes":
                kept = keep_tokenizer(kept, self.path / "tokenizer")
            feeds.append(dataclasses.replace(feed, tokenizer=kept))
        return dataclasses.replace(config, feeds=tuple(feeds))

    def load_config(self) -> RunConfig:
        """The settings of the run.

        Raises:
            ConfigError: there is no run here.
        """
        return run_from_plain(self._read("config.json"))

    def load_specs(self) -> dict[str, FeedSpec]:
        """What was fixed for each feed.

        Raises:
            ConfigError: there is no run here.
            ChangedError: it was made by code that orders rows in another way.
        """
        feeds = self._read("feeds.json")
        manifest = Manifest.from_json((self.path / "manifest.json").read_text())
        if manifest.order_version != ORDER_VERSION:
            raise ChangedError(
                f"the run in {self.path} was begun by a meshfeed whose order of rows has version "
                f"{manifest.order_version}; this one has version {ORDER_VERSION}. Use the one that "
                "began it, or another run directory"
            )
        specs = {}
        for name, plain in feeds.items():
            config = self._at_home(feed_from_plain(plain.pop("config")))
            manifests = tuple(manifest.sources[f"{name}:{s.name}"] for s in config.sources)
            specs[name] = FeedSpec(config=config, manifests=manifests, **plain)
        return specs

    def save_cluster(self, ray_address: str, auth_mode: str) -> None:
        """Keeps which Ray cluster the run is up in, and whether it asks for a token."""
        facts = {"ray_address": ray_address, "auth_mode": auth_mode}
        write_whole(self.path / "cluster.json", json.dumps(facts))

    def cluster(self) -> dict[str, str]:
        """``ray_address`` and ``auth_mode`` of where the run was started last; it may be gone."""
        if not (self.path / "cluster.json").exists():
            return {}
        return dict(self._read("cluster.json"))

    def save_control(self, control: Mapping[str, Any]) -> None:
        """Keeps what a coordinator that is started again must know."""
        write_whole(self.path / "control.json", json.dumps(control, indent=1))

    def control(self) -> dict[str, Any]:
        """What the coordinator has kept; empty where none has begun."""
        return dict(self._read("control.json")) if (self.path / "control.json").exists() else {}

    def ledger(self, spec: FeedSpec, *, read_only: bool = False) -> Ledger:
        """The ledger of a feed."""
        return Ledger(self.ledger_path(spec), spec.fingerprint, read_only=read_only)

    def ledger_path(self, spec: FeedSpec) -> Path:
        """Where the ledger of a feed lies, or will."""
        name = spec.config.name.replace("/", "~")
        return self.path / "ledger" / f"{name}.ledger"

    def add_skipped(
        self, feed: str, source: str, key: WindowKey, skipped: Sequence[tuple[str, str, str]]
    ) -> int:
        """Lists records that were left out, durably, each once; gives how many are new."""
        path = self.path / "skipped.jsonl"
        if self._listed is None:
            self._listed = {(s["feed"], s["shard"], s["place"]) for s in self.skipped()}
        fresh = [s for s in skipped if (feed, s[0], s[1]) not in self._listed]
        if not fresh:
            return 0
        with path.open("a") as file:
            for shard, place, reason in fresh:
                self._listed.add((feed, shard, place))
                entry = {"feed": feed, "source": source, "epoch": key.epoch, "window": key.window}
                entry |= {"shard": shard, "place": place, "reason": reason}
                file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
        return len(fresh)

    def skipped(self) -> list[dict[str, Any]]:
        """All records that were left out; a line that was torn by a crash is none."""
        path = self.path / "skipped.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def _at_home(self, feed: FeedConfig) -> FeedConfig:
        """With the tokenizer's copy in this folder, wherever the folder lies now."""
        here = self.path / "tokenizer" / Path(feed.tokenizer.path).name
        if not here.exists():
            return feed
        return dataclasses.replace(
            feed, tokenizer=dataclasses.replace(feed.tokenizer, path=str(here))
        )

    def _read(self, name: str) -> Any:
        path = self.path / name
        try:
            return json.loads(path.read_text())
        except FileNotFoundError:
            raise ConfigError(
                "run_dir", f"{self.path} holds no run", "Start one there, or name another folder"
            ) from None
        except ValueError as error:
            raise ChangedError(
                f"{path} is damaged: {error}. Restore it or use another folder"
            ) from error


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
