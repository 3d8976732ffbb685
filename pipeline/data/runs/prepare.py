"""What the coordinator chooses once for a run: manifests, tokenizer engine, token dtype.

A run directory that holds a run already is checked against what is asked for now: a feed whose
data, order settings or tokenizer differ is refused, naming what changed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import pyarrow as pa

from meshfeed.pipeline.data.formats.records import RecordSpec, is_int_list
from meshfeed.pipeline.data.runs.run_folder import RunFolder
from meshfeed.pipeline.data.sources.manifest_build import build_source_manifest
from meshfeed.pipeline.data.sources.sizes import window_tokens
from meshfeed.pipeline.data.sources.source_reader import first_records, storage_of
from meshfeed.pipeline.data.storage import Storage
from meshfeed.pipeline.data.tokenizers import EngineChoice, choose_engine
from meshfeed.pipeline.data.transforms import Stage, load_transforms
from meshfeed.pipeline.plan.config import FeedConfig
from meshfeed.pipeline.plan.errors import ChangedError
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.manifest import ORDER_VERSION, SourceManifest
from meshfeed.pipeline.plan.run_config import RunConfig

Progress = Callable[[str], None]


def prepare_feeds(
    config: RunConfig, progress: Progress = lambda _: None, storage: Storage | None = None
) -> dict[str, FeedSpec]:
    """The specs of a run's feeds, made now or taken from its directory.

    Args:
        config: of the run.
        progress: told a line for every stage and choice.
        storage: the process's way to storage; None: one for this call alone.

    Raises:
        ConfigError: a setting is wrong, or a source has no shard.
        DataError: a shard's used column is not there.
        ReadError: storage failed.
        ChangedError: the directory holds a run whose rows would be others.
    """
    folder = RunFolder(config.run_dir)
    config = folder.keep_tokenizers(config)
    used = storage or storage_of(config)
    longest = max(feed.seq_len for feed in config.feeds)
    try:
        specs = {feed.name: _prepare(feed, used, longest, progress) for feed in config.feeds}
    finally:
        if storage is None:
            used.close()
    if not folder.exists:
        folder.save(config, specs)
        return specs
    kept = folder.load_specs()
    for name, now in specs.items():
        if name in kept:
            check_same(config.run_dir, kept[name], now)
            kept[name] = _as_now(kept[name], now)
        else:
            kept[name] = now
    folder.save(config, kept)
    return {name: kept[name] for name in specs}


def _prepare(feed: FeedConfig, storage: Storage, longest: int, progress: Progress) -> FeedSpec:
    manifests, samples = [], []
    density = 1.0 if feed.tokenizer.path == "bytes" else 0.25
    for source in feed.sources:
        progress(f"{feed.name}: listing {source.name}")
        manifest = build_source_manifest(
            source, storage=storage, seq_len=longest, shuffle=feed.shuffle, tokens_per_byte=density
        )
        manifests.append(manifest)
        progress(f"{feed.name}: {source.name} has {len(manifest.shards)} shards")
        samples.append(first_records(storage, manifest, RecordSpec.of(source)))
    texts = [sample.column(0) for sample in samples if not is_int_list(sample.column(0).type)]
    engine = _choose(feed, texts, progress) if texts else None
    ids = [
        sample.column(0).type.value_type for sample in samples if is_int_list(sample.column(0).type)
    ]
    small = all(kind.bit_width <= 16 and kind != pa.int16() for kind in ids)
    small = small or 0 < feed.vocab_size <= 1 << 16
    if engine is not None:
        small = small and engine.vocab_size <= 1 << 16
    chains = {s.name: load_transforms(s.transforms) for s in feed.sources}
    fingerprint = _digest(
        {
            "order_version": ORDER_VERSION,
            "settings": feed.order_settings(),
            "data": {m.name: m.fingerprint() for m in manifests},
            "tokenizer": engine.fingerprint if engine else "",
            "transforms": {name: chain.fingerprints for name, chain in chains.items()},
        }
    )
    return FeedSpec(
        config=feed,
        manifests=tuple(manifests),
        token_dtype="uint16" if small else "int32",
        loss_mask=any(s.loss_mask_column for s in feed.sources)
        or any(chain.of_stage(Stage.TOKENS) for chain in chains.values()),
        window_rows=max(1, window_tokens(longest, stored=bool(ids)) // feed.seq_len),
        engine=engine.engine.value if engine else "",
        tokenizer_fingerprint=engine.fingerprint if engine else "",
        fingerprint=fingerprint,
    )


def _choose(feed: FeedConfig, texts: list[pa.ChunkedArray], progress: Progress) -> EngineChoice:
    sample = pa.chunked_array(
        [chunk.cast(pa.large_string()) for text in texts for chunk in text.chunks]
    )
    choice = choose_engine(feed.tokenizer, sample)
    progress(f"{feed.name}: tokenizer engine {choice.engine}: {choice.reason}")
    return choice


def check_same(run_dir: str, kept: FeedSpec, now: FeedSpec) -> None:
    """Refuses what would give other rows.

    Raises:
        ChangedError: names the settings, sources or tokenizer that differ.
    """
    if kept.fingerprint == now.fingerprint:
        return
    changed = _differences(kept.config.order_settings(), now.config.order_settings(), "")
    if [m.name for m in kept.manifests] == [m.name for m in now.manifests]:
        for before, after in zip(kept.manifests, now.manifests, strict=True):
            changed += _changed_data(before, after)
    if kept.tokenizer_fingerprint != now.tokenizer_fingerprint:
        changed.append(f"tokenizer {kept.tokenizer_fingerprint} -> {now.tokenizer_fingerprint}")
    what = "; ".join(changed) or "a transform's source"
    raise ChangedError(
        f"feed {now.config.name!r} of the run in {run_dir} would have other rows: {what}. Restore "
        "what it was, or use another run directory"
    )


def _differences(before: Any, after: Any, name: str) -> list[str]:
    if before == after:
        return []
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        keys = dict.fromkeys([*before, *after])
        parts = [_differences(before.get(k), after.get(k), f"{name}.{k}".lstrip(".")) for k in keys]
        return [line for part in parts for line in part]
    both_lists = isinstance(before, list | tuple) and isinstance(after, list | tuple)
    if both_lists and all(isinstance(v, Mapping) and "name" in v for v in (*before, *after)):
        names = [", ".join(v["name"] for v in values) for values in (before, after)]
        if names[0] != names[1]:
            return [f"{name} {names[0]} -> {names[1]}"]
    if both_lists and len(before) == len(after):
        pairs = zip(before, after, strict=True)
        return [d for i, (b, a) in enumerate(pairs) for d in _differences(b, a, f"{name}[{i}]")]
    shown = [str(v) if isinstance(v, StrEnum) else repr(v) for v in (before, after)]
    return [f"{name} {shown[0]} -> {shown[1]}"]


def _changed_data(before: SourceManifest, after: SourceManifest) -> list[str]:
    if before.fingerprint() == after.fingerprint():
        return []
    old = {shard.path: shard for shard in before.shards}
    new = {shard.path: shard for shard in after.shards}
    lines = []
    for verb, paths in (
        ("added", sorted(new.keys() - old.keys())),
        ("removed", sorted(old.keys() - new.keys())),
        ("replaced", sorted(p for p in old.keys() & new.keys() if old[p] != new[p])),
    ):
        if paths:
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            lines.append(f"source {after.name}: {verb} {paths[0]}{more}")
    return lines or [f"source {after.name}: chunk or window sizes"]


def _as_now(kept: FeedSpec, now: FeedSpec) -> FeedSpec:
    """What was kept, with the shards where they lie now and the settings that change no row."""
    manifests = tuple(
        dataclasses.replace(before, root=after.root)
        for before, after in zip(kept.manifests, now.manifests, strict=True)
    )
    return dataclasses.replace(kept, config=now.config, manifests=manifests)


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
