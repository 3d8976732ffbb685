"""Record transforms: what a user may name in ``transforms``, and how a name becomes one.

A source lists ``module:function`` names, applied in order, each to one record at a time or, marked
as vectorized, to a table of them. A name stands for

- a function of a record (a dict). It returns the record to keep (a dict, or True for the one it
  was given), None or False to drop it, or a list of records in its place;
- a Grain ``Map``, ``Filter``, ``FlatMap`` or ``RandomMap``, as an instance or a class;
- a function marked ``@vectorized``: ``pyarrow.Table`` in and out. The table has an extra column
  ``RECORD_INDEX``, which must come back so that every row can be told where it came from: filters
  and ``take`` keep it by themselves. Or return ``(table, indices)``. Each row must be treated by
  itself: which records come together is no promise.

Further marks: ``@randomized`` functions are called with a ``numpy.random.Generator`` seeded by
(seed, source, epoch, shard, place) alone, vectorized ones with a ``uint64`` seed per row;
``@after_tokenizer`` ones see ``{"tokens": int32 array, "loss_mask": uint8 array}`` instead of
text, with BOS and EOS in place; ``@needs("lang")`` names columns to read besides the source's own.
Columns of integer lists come as numpy arrays (read-only: copy before writing), everything else as
``to_pylist`` gives it.

Order depends on what transforms do, so that each has a fingerprint: its ``version`` attribute
where it has one, else a digest of its module's source. Modules that this one imports are not
seen: give it a ``version`` where those matter.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from meshfeed.pipeline.plan.errors import ConfigError

RECORD_INDEX = "__record_index__"
"""Column that vectorized transforms get and give back: the row's index in what they were given."""

T = TypeVar("T")

Record = dict[str, Any]


class Stage(StrEnum):
    """What a transform works on."""

    RECORDS = "records"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """One named transform, ready to call.

    Attributes:
        name: ``module:function`` as configured.
        stage: before or after the tokenizer.
        vectorized: takes and returns a table.
        randomized: takes a generator (or seeds) as its second argument.
        needs: columns to read besides the source's own.
        fingerprint: version, or digest of the source.
        call: takes ``record`` or ``table``, and generator or seeds where it is randomized.
    """

    name: str
    stage: Stage
    vectorized: bool
    randomized: bool
    needs: tuple[str, ...]
    fingerprint: str
    call: Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformChain:
    """The transforms of a source, in order.

    Attributes:
        setting: name of the setting that lists them, for errors.
        transforms: those of ``RECORDS`` before those of ``TOKENS``.
    """

    setting: str
    transforms: tuple[Transform, ...]

    def of_stage(self, stage: Stage) -> tuple[tuple[int, Transform], ...]:
        """(position in the list, transform) of a stage."""
        return tuple((i, t) for i, t in enumerate(self.transforms) if t.stage is stage)

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns to read besides the source's own, each once."""
        return tuple(dict.fromkeys(name for t in self.transforms for name in t.needs))

    @property
    def fingerprints(self) -> tuple[tuple[str, str], ...]:
        """(name, fingerprint) in order: kept in the run, compared by readers and at resume."""
        return tuple((t.name, t.fingerprint) for t in self.transforms)


def vectorized(function: T) -> T:
    """Mark a function as taking and returning a ``pyarrow.Table`` of many records."""
    return _mark(function, "vectorized", True)


def randomized(function: T) -> T:
    """Mark a function as taking a ``numpy.random.Generator`` as its second argument.

    Vectorized ones get ``uint64 [rows]`` instead, one seed per row.
    """
    return _mark(function, "randomized", True)


def after_tokenizer(transform: T) -> T:
    """Mark a function or a Grain transform (class or instance) as working on token ids."""
    return _mark(transform, "stage", Stage.TOKENS)


def needs(*columns: str) -> Callable[[T], T]:
    """Name the columns that a transform looks at besides the source's own; only they are read."""
    return lambda transform: _mark(transform, "needs", columns)


def load_transforms(names: Sequence[str], *, setting: str = "transforms") -> TransformChain:
    """Import every named transform.

    Args:
        names: ``module:function``, in order.
        setting: what to call the list in errors.

    Raises:
        ConfigError: a name cannot be imported or is nothing that can be a transform, or one that
            works on records stands behind one that works on tokens.
    """
    loaded: list[Transform] = []
    for name in names:
        transform = _load(name, setting)
        if loaded and loaded[-1].stage is Stage.TOKENS and transform.stage is Stage.RECORDS:
            raise ConfigError(
                setting,
                f"{name} works on records but stands behind {loaded[-1].name}, which runs after "
                "the tokenizer",
                "Name those marked @after_tokenizer last",
            )
        loaded.append(transform)
    return TransformChain(setting=setting, transforms=tuple(loaded))


def _mark(target: T, mark: str, value: Any) -> T:
    setattr(target, f"meshfeed_{mark}", value)
    return target


def _marked(target: Any, mark: str, default: Any) -> Any:
    return getattr(target, f"meshfeed_{mark}", default)


def _load(name: str, setting: str) -> Transform:
    module, found = _resolve(name, setting)
    target = found
    if inspect.isclass(found):
        try:
            target = found()
        except TypeError as error:
            raise ConfigError(
                setting,
                f"{name} is a class that cannot be made without arguments: {error}",
                "Make an instance in the module and name that",
            ) from error
    call, random = _adapted(target, name, setting)
    as_table = bool(_marked(target, "vectorized", False))
    _check_arguments(call, 2 if random else 1, name, setting)
    return Transform(
        name=name,
        stage=_marked(target, "stage", Stage.RECORDS),
        vectorized=as_table,
        randomized=random,
        needs=tuple(_marked(target, "needs", ())),
        fingerprint=_fingerprint(target, module, random, name, setting),
        call=call,
    )


def _resolve(name: str, setting: str) -> tuple[ModuleType, Any]:
    path, colon, attribute = name.partition(":")
    if not colon or not path or not attribute:
        raise ConfigError(
            setting, f"{name!r} is no module:function", "Write e.g. my_data.clean:strip"
        )
    if path == "__main__":
        raise ConfigError(
            setting,
            f"{name}: readers cannot import the main script",
            "Put it in a module of its own",
        )
    try:
        module = importlib.import_module(path)
    except Exception as error:
        raise ConfigError(
            setting,
            f"{name}: module {path} cannot be imported: {type(error).__name__}: {error}",
            "Readers on every node must find it: install it or put it on PYTHONPATH",
        ) from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, dir(found), n=3)
            hint = f"Did you mean {' or '.join(near)}?" if near else ""
            raise ConfigError(setting, f"{name}: {path} has no {attribute}", hint)
        found = getattr(found, part)
    return module, found


def _adapted(target: Any, name: str, setting: str) -> tuple[Callable[..., Any], bool]:
    """(callable, whether it is randomized)."""
    grain = sys.modules.get("grain")  # imports jax: only if the user's module did so already
    if grain is not None:
        kinds = grain.transforms
        if isinstance(target, kinds.RandomMap):
            return _must_be_dict(target.random_map), True
        if isinstance(target, kinds.Map):
            return _must_be_dict(target.map), False
        if isinstance(target, kinds.Filter):
            return lambda record: bool(target.filter(record)), False
        if isinstance(target, grain.experimental.FlatMapTransform):
            return _within_fan_out(target), False
        for kind, why in (
            (kinds.MapWithIndex, "a record has no index in a run; use its own columns"),
            (kinds.Batch, "batches are made by packing, behind all transforms"),
            (kinds.TfRandomMap, "readers have no TensorFlow"),
        ):
            if isinstance(target, kind):
                raise ConfigError(setting, f"{name} is a Grain {kind.__name__}: {why}")
    if not callable(target):
        raise ConfigError(
            setting,
            f"{name} is of type {type(target).__name__}",
            "Name a function, or a Grain Map, Filter, FlatMap or RandomMap",
        )
    return target, bool(_marked(target, "randomized", False))


def _must_be_dict(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Record:
        result = function(*arguments)
        if not isinstance(result, dict):
            raise TypeError(f"a Grain Map must return a dict, not {type(result).__name__}")
        return result

    return call


def _within_fan_out(target: Any) -> Callable[[Record], list[Record]]:
    def call(record: Record) -> list[Record]:
        results = list(target.flat_map(record))
        if len(results) > target.max_fan_out:
            raise ValueError(
                f"{len(results)} records out of one; max_fan_out is {target.max_fan_out}"
            )
        return results

    return call


def _check_arguments(call: Callable[..., Any], count: int, name: str, setting: str) -> None:
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return  # built-in functions do not say
    try:
        signature.bind(*[None] * count)
    except TypeError as error:
        takes = "(record, rng)" if count == 2 else "(record)"
        raise ConfigError(
            setting,
            f"{name}{signature} cannot be called as {takes}",
            "Mark it @randomized if it takes a generator",
        ) from error


def _fingerprint(target: Any, module: ModuleType, random: bool, name: str, setting: str) -> str:
    suffix = ""
    if random:  # numpy keeps streams of bits for ever, but not what its distributions make of them
        suffix = f" numpy {'.'.join(np.__version__.split('.')[:2])}"
    version = getattr(target, "version", None)
    if version is not None:
        return f"version {version}{suffix}"
    digest = hashlib.blake2b(digest_size=16)
    own = inspect.getmodule(target if inspect.isroutine(target) else type(target))
    sources = {module.__name__: module}
    if own is not None:
        sources[own.__name__] = own
    for _, source in sorted(sources.items()):
        try:
            digest.update(inspect.getsource(source).encode())
        except (OSError, TypeError) as error:
            raise ConfigError(
                setting,
                f"{name}: the source of module {source.__name__} cannot be read, so that a change "
                "of it would go unseen",
                "Give the transform a version attribute, a string that changes with what it does",
            ) from error
    return f"source {digest.hexdigest()}{suffix}"
