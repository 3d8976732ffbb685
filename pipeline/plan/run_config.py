"""The settings of a whole run, and how a mapping (a YAML file, command line flags) becomes them.

A file's keys are flat: those of the train feed and those of the run stand side by side, and every
command line flag is a key of the same name with underscores::

    tokenizer: tokenizer.json
    seq_len: 2048
    batch_size: 32
    sources:
      - {name: code, data: [/data/code/*.parquet], weight: 0.7}
      - {name: docs, data: [/data/docs/*.jsonl.zst], weight: 0.3}
    eval:
      books: {data: [/data/books/*.parquet], batch_size: 8}
    hosts: 4
    devices_per_host: 2
    mesh: {data: 4, model: 2}
    partition: DATA
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from types import UnionType
from typing import Any, get_args, get_type_hints

from meshfeed.pipeline.plan.config import (
    LEAF_PRESETS,
    FeedConfig,
    SourceConfig,
    TokenizerConfig,
)
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mesh import DeviceOrder, parse_axes

TRAIN = "train"


class UnevenBatch(StrEnum):
    """What happens when a batch does not divide over the mesh."""

    REFUSE = "refuse"
    PAD = "pad"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A run: its feeds, its shape and its limits.

    Attributes:
        feeds: ``train`` first, then ``eval/<name>``.
        run_dir: where manifest, ledger, state and report are kept.
        hosts, devices_per_host: shape of a simulated world; a real one says itself.
        device_order: how devices lie in a simulated mesh, ``by_host`` or ``interleaved``.
        mesh: size of each mesh axis in order; -1 takes the devices that are left; None: one
            axis ``data`` over all devices.
        partition: name of a ``DataPartitionType``, a PartitionSpec as a list, or a dict of
            these per leaf.
        data_axes, sequence_axes: mesh axes that split rows, and columns under ``BATCH``.
        model_axes: mesh axes over which the batch is replicated, save under ``FULL``.
        uneven_batch: ``refuse`` a batch that does not divide over the mesh, or ``pad`` it at its
            end with rows of weight zero.
        leaf_names: preset (``meshfeed``, ``maxtext``, ``axlearn``, ``levanter``).
        steps: the train feed ends after this many steps; None: when its sources do.
        readers: reader processes in all; None: one for each core that Ray has.
        memory_budget: bytes of row blocks that each node may hold.
        chunk_cache: bytes of decoded chunks that each node keeps for windows that share them.
        prefetch: global batches kept ready on the devices ahead of the step.
        grant_seconds: how far ahead, in seconds of training, hosts may fetch.
        stall_seconds: a wait longer than this is logged with what is waited for.
        timeout_seconds: a wait longer than this ends the run with that as its error.
        read_attempts, read_timeout_seconds: limits of one storage read.
    """

    feeds: tuple[FeedConfig, ...]
    run_dir: str = "runs/default"
    hosts: int = 1
    devices_per_host: int = 1
    device_order: DeviceOrder = DeviceOrder.BY_HOST
    mesh: Mapping[str, int] | None = None
    partition: Any = "DATA"
    data_axes: tuple[str, ...] = ("data", "fsdp")
    sequence_axes: tuple[str, ...] = ("seq",)
    model_axes: tuple[str, ...] = ("model", "tensor")
    uneven_batch: UnevenBatch = UnevenBatch.REFUSE
    leaf_names: str = "meshfeed"
    steps: int | None = None
    readers: int | None = None
    memory_budget: int = 1 << 30
    chunk_cache: int = 1 << 30
    prefetch: int = 2
    grant_seconds: float = 5.0
    stall_seconds: float = 30.0
    timeout_seconds: float = 600.0
    read_attempts: int = 4
    read_timeout_seconds: float = 60.0

    def __post_init__(self) -> None:
        for setting in ("hosts", "devices_per_host", "prefetch", "read_attempts"):
            if getattr(self, setting) < 1:
                raise ConfigError(setting, f"{getattr(self, setting)} is below 1")
        for setting in (
            "grant_seconds",
            "stall_seconds",
            "timeout_seconds",
            "read_timeout_seconds",
        ):
            if not getattr(self, setting) > 0:
                raise ConfigError(setting, f"{getattr(self, setting)} is not a positive time")
        for setting in ("steps", "readers"):
            value = getattr(self, setting)
            if value is not None and value < 1:
                raise ConfigError(setting, f"{value} is below 1")
        if self.leaf_names not in LEAF_PRESETS:
            raise ConfigError("leaf_names", *_unknown(self.leaf_names, LEAF_PRESETS))

    def feed(self, name: str) -> FeedConfig:
        """The feed with this name.

        Raises:
            ConfigError: there is none.
        """
        for feed in self.feeds:
            if feed.name == name:
                return feed
        raise ConfigError("feed", *_unknown(name, [f.name for f in self.feeds]))

    @property
    def run_id(self) -> str:
        """Names the run's actors and shared memory: two run directories never touch each other."""
        place = self.run_dir if "://" in self.run_dir else os.path.abspath(self.run_dir)
        return hashlib.blake2b(place.encode(), digest_size=6).hexdigest()

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any]) -> RunConfig:
        """The run that a flat mapping describes.

        Raises:
            ConfigError: an unknown key (the nearest known one is named) or a wrong value.
        """
        values = dict(raw)
        evals = values.pop("eval", None) or {}
        if not isinstance(evals, Mapping):
            raise ConfigError("eval", f"{evals!r} is not a mapping", "Write books: {data: ...}")
        run_keys = {f.name for f in fields(cls)} - {"feeds"}
        feed_values = {k: values.pop(k) for k in list(values) if k in _FEED_KEYS}
        unknown = sorted(set(values) - run_keys)
        if unknown:
            raise ConfigError(unknown[0], *_unknown(unknown[0], run_keys | _FEED_KEYS | {"eval"}))
        feeds = [_feed(TRAIN, feed_values)]
        shared = {k: feed_values[k] for k in _TOKENIZER_KEYS if k in feed_values}
        shared |= {
            k: feed_values[k]
            for k in ("seq_len", "batch_size", "packing", "column", "format")
            if k in feed_values
        }
        for name, own in evals.items():
            if not isinstance(own, Mapping):
                raise ConfigError(f"eval.{name}", f"{own!r} is not a mapping of settings")
            merged = {"shuffle": "none", "epochs": 1, "remainder": "pad"} | shared | dict(own)
            wrong = sorted(set(merged) - _FEED_KEYS)
            if wrong:
                raise ConfigError(f"eval.{name}.{wrong[0]}", *_unknown(wrong[0], _FEED_KEYS))
            feeds.append(_feed(f"eval/{name}", merged))
        if values.get("mesh") is not None:
            values["mesh"] = _mesh(values["mesh"])
        return cls(feeds=tuple(feeds), **_checked(cls, values, ""))


_TOKENIZER_KEYS = {"tokenizer", "engine", "bos", "eos", "bos_id", "eos_id"}
_SOURCE_KEYS = {f.name for f in fields(SourceConfig)}
_ONE_SOURCE_KEYS = {
    "data",
    "column",
    "format",
    "loss_mask_column",
    "transforms",
    "kept",
    "bad_records",
    "max_bad_records",
    "max_record_bytes",
}
_FEED_KEYS = (
    {f.name for f in fields(FeedConfig)} - {"name"}
    | _TOKENIZER_KEYS
    | _ONE_SOURCE_KEYS
    | {"on_end"}
)


def _feed(name: str, values: Mapping[str, Any]) -> FeedConfig:
    rest = dict(values)
    tokenizer = {k: rest.pop(k) for k in _TOKENIZER_KEYS if k in rest}
    tokenizer = {("path" if k == "tokenizer" else k): v for k, v in tokenizer.items()}
    defaults = {k: rest.pop(k) for k in (*_ONE_SOURCE_KEYS, "on_end") if k in rest}
    raw_sources = rest.pop("sources", None)
    data = defaults.pop("data", None)
    if data and raw_sources:
        raise ConfigError("data", "stands beside sources", "Give one of the two")
    if data:
        raw_sources = [{"name": "data", "data": data}]
    if not raw_sources:
        raise ConfigError(
            "data", f"feed {name!r} has no data", "Give --data GLOB or sources: in the file"
        )
    if not isinstance(raw_sources, list | tuple) or not all(
        isinstance(raw, Mapping) for raw in raw_sources
    ):
        raise ConfigError(
            "sources", f"{raw_sources!r} is not a list of sources", "Write - {name: ..., data: ...}"
        )
    sources = tuple(_source({**defaults, **raw}) for raw in raw_sources)
    return FeedConfig(
        name=name,
        sources=sources,
        tokenizer=TokenizerConfig(**_checked(TokenizerConfig, tokenizer, "tokenizer.")),
        **_checked(FeedConfig, rest, ""),
    )


def _mesh(axes: Any) -> dict[str, int]:
    if isinstance(axes, str):
        return parse_axes(axes)
    whole = isinstance(axes, Mapping) and all(type(size) is int for size in axes.values())
    if not whole:
        raise ConfigError(
            "mesh", f"{axes!r} is not a size for each axis", "Write {data: 4, model: 2}"
        )
    return {str(axis): size for axis, size in axes.items()}


def _source(raw: Mapping[str, Any]) -> SourceConfig:
    unknown = sorted(set(raw) - _SOURCE_KEYS)
    if unknown:
        raise ConfigError(f"sources.{unknown[0]}", *_unknown(unknown[0], _SOURCE_KEYS))
    for key in ("name", "data"):
        if key not in raw:
            raise ConfigError(f"sources.{key}", f"is missing in {dict(raw)!r}")
    values = dict(raw)
    for key in ("data", "transforms"):
        if isinstance(values.get(key), str):
            values[key] = (values[key],)
    return SourceConfig(**_checked(SourceConfig, values, "sources."))


def _checked(cls: type, values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Values turned into the types that the dataclass states."""
    hints = get_type_hints(cls)
    return {key: _cast(value, hints[key], prefix + key) for key, value in values.items()}


def _cast(value: Any, hint: Any, setting: str) -> Any:
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if value is None:
        if type(None) in options:
            return None
        raise ConfigError(setting, "has no value")
    target = next(o for o in options if o is not type(None))
    if isinstance(target, type) and issubclass(target, StrEnum):
        if str(value) not in list(target):
            raise ConfigError(setting, *_unknown(str(value), list(target)))
        return target(str(value))
    if target is int and setting.rpartition(".")[2] in _BYTES:
        return parse_bytes(value, setting)
    if target is bool and not isinstance(value, bool):
        raise ConfigError(setting, f"{value!r} is neither true nor false")
    if target in (int, float, str):
        return _number_or_text(value, target, setting)
    if getattr(target, "__origin__", None) is tuple and not isinstance(value, tuple):
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise ConfigError(setting, f"{value!r} is not a list")
        return tuple(value)
    return value


def _number_or_text(value: Any, target: type, setting: str) -> Any:
    try:
        cast = target(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            setting, f"{value!r} is not {'a number' if target is not str else 'text'}"
        ) from error
    if target is int and cast != value and not isinstance(value, str):
        raise ConfigError(setting, f"{value!r} is not a whole number")
    return cast


def feed_from_plain(plain: Mapping[str, Any]) -> FeedConfig:
    """The feed that ``dataclasses.asdict`` turned into plain values."""
    values = dict(plain)
    sources = tuple(
        SourceConfig(**_checked(SourceConfig, source, "sources."))
        for source in values.pop("sources")
    )
    tokenizer = TokenizerConfig(**_checked(TokenizerConfig, values.pop("tokenizer"), "tokenizer."))
    return FeedConfig(sources=sources, tokenizer=tokenizer, **_checked(FeedConfig, values, ""))


def run_from_plain(plain: Mapping[str, Any]) -> RunConfig:
    """The run that ``dataclasses.asdict`` turned into plain values."""
    values = dict(plain)
    feeds = tuple(feed_from_plain(feed) for feed in values.pop("feeds"))
    return RunConfig(feeds=feeds, **_checked(RunConfig, values, ""))


_BYTES = ("memory_budget", "chunk_cache", "max_record_bytes")

_SIZES = {
    "": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "KI": 2**10,
    "MI": 2**20,
    "GI": 2**30,
    "TI": 2**40,
}


def parse_bytes(value: int | str, setting: str) -> int:
    """A number of bytes: ``1048576``, ``"512MB"``, ``"2 GiB"``.

    Raises:
        ConfigError: it is none.
    """
    match = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?I?)B?\s*", str(value).upper())
    if match is None or match[2] not in _SIZES:
        raise ConfigError(setting, f"{value!r} is not a size", "Write 1048576, 512MB or 2GiB")
    return int(float(match[1]) * _SIZES[match[2]])


def _unknown(name: str, known: Iterable[str]) -> tuple[str, str]:
    names = sorted(str(k) for k in known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(names)}"
    return f"{name!r} is not known", hint
