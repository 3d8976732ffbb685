"""Dataclasses as plain JSON values and back, without pickling.

Types decide how a value is read: dataclasses, enums, optional values, tuples, lists, sets and
dicts with text as keys. Only what the elastic state machine keeps goes through here.
"""

from __future__ import annotations

import dataclasses
from enum import Enum
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from meshfeed.pipeline.plan.errors import ChangedError

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """The value in JSON's terms; sets in ascending order."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return [to_plain(item) for item in sorted(value)]
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return value


def from_plain(kind: type[T], plain: Any) -> T:
    """The dataclass that ``to_plain`` turned into ``plain``.

    Raises:
        ChangedError: it is none, as where another version has written it.
    """
    try:
        made: T = _read(kind, plain)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ChangedError(
            f"{kind.__name__} cannot be read from what the run has kept ({error}): another version "
            "of meshfeed has written it. Go on with that version, or begin another run directory"
        ) from error
    return made


def _read(hint: Any, plain: Any) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is UnionType:
        if plain is None and NoneType in inner:
            return None
        (hint,) = (kind for kind in inner if kind is not NoneType)
        return _read(hint, plain)
    if origin is dict:
        return {_read(inner[0], key): _read(inner[1], item) for key, item in plain.items()}
    if origin is tuple:
        kinds = [inner[0]] * len(plain) if inner[-1] is Ellipsis else inner
        return tuple(_read(kind, item) for kind, item in zip(kinds, plain, strict=True))
    if origin in (list, set):
        return origin(_read(inner[0], item) for item in plain)
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        unknown = set(plain) - set(hints)
        if unknown:
            raise ValueError(f"{sorted(unknown)[0]!r} is not known")
        make: Any = hint
        return make(**{name: _read(hints[name], item) for name, item in plain.items()})
    if hint is float and type(plain) is int:
        return float(plain)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(plain)
    if not isinstance(plain, hint) or (isinstance(plain, bool) and hint is not bool):
        raise TypeError(f"{plain!r} is no {hint.__name__}")
    return plain
