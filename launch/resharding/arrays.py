"""What is to move: arrays with their shardings before and after, from flags or from a file.

A file holds the meshes, and a tree of arrays; a mapping with a ``shape`` is an array::

    src_mesh: data=8                  # or {data: 8}
    dst_mesh: replica=2,tensor=4
    dtype: bfloat16                   # of arrays that do not say it themselves
    arrays:
      embedding: {shape: [32768, 4096], src_spec: "data,-", dst_spec: "-,tensor"}
      layers:
        query: {shape: [4096, 4096], src_spec: "data,-", dst_spec: "-,tensor", count: 32}

A spec names for each dimension an axis, several joined by ``+``, or ``-`` for a whole dimension; a
list, or the form that JAX prints, ``P(('data', 'fsdp'), None)``, will do as well.
"""

from __future__ import annotations

import ast
import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshfeed.launch.settings import load_yaml
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mesh import parse_axes
from meshfeed.pipeline.plan.reshard.costs import item_bytes
from meshfeed.pipeline.plan.reshard.placement import Placement

WORLD_KEYS = ("src_mesh", "dst_mesh", "src_devices", "dst_devices", "dtype")
ARRAY_KEYS = ("shape", "dtype", "src_spec", "dst_spec", "count")
_SIDES = ("src", "dst")


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedArray:
    """An array, or several alike, that is to move.

    Attributes:
        name: path in the tree.
        shape: of each.
        dtype: name of the element type.
        source: sharding before.
        target: sharding after.
        count: how many there are.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    source: Placement
    target: Placement
    count: int = 1


def arrays_of(settings: Mapping[str, Any]) -> list[MovedArray]:
    """The arrays that settings describe.

    Args:
        settings: ``WORLD_KEYS``, and ``arrays`` (a tree), or the ``ARRAY_KEYS`` of a single one.

    Raises:
        ConfigError: a key is missing, unknown, or does not fit; names it.
    """
    _known(settings, (*WORLD_KEYS, *ARRAY_KEYS, "arrays"), "")
    single = [key for key in ARRAY_KEYS if key in settings and key != "dtype"]
    if "arrays" not in settings:
        own = {key: settings[key] for key in ARRAY_KEYS if key in settings}
        return [_array("array", "", own, settings)]
    if single:
        raise ConfigError(single[0], "describes one array, and a file with arrays is given")
    tree = settings["arrays"]
    if not isinstance(tree, Mapping) or not tree:
        raise ConfigError("arrays", f"{tree!r} is no mapping of arrays", "Write name: {shape: ...}")
    return list(_leaves(tree, "", settings))


def load_arrays_file(path: str) -> dict[str, Any]:
    """The settings of a file.

    Raises:
        ConfigError: it is not there, or is no mapping with arrays.
    """
    try:
        settings = load_yaml(Path(path))
    except ConfigError as error:
        said = " ".join(str(error).removeprefix(f"{error.setting}: ").split())
        raise ConfigError("FILE.yaml", said) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("FILE.yaml", f"{path} cannot be read: {error}") from error
    if "arrays" not in settings:
        raise ConfigError("arrays", f"is missing in {path}", "It holds name: {shape: ...}")
    return settings


def parse_spec(spec: Any, setting: str) -> tuple[tuple[str, ...], ...]:
    """The axes of each dimension.

    >>> parse_spec("data+fsdp,-", "src_spec")
    (('data', 'fsdp'), ())
    >>> parse_spec("P(None, 'model')", "src_spec"), parse_spec(["data", None], "src_spec")
    (((), ('model',)), (('data',), ()))

    Raises:
        ConfigError: it is no spec.
    """
    if isinstance(spec, str) and spec.strip().startswith(("P(", "PartitionSpec(")):
        spec = _parsed_call(spec, setting)
    if isinstance(spec, str):
        spec = [part.strip() for part in spec.split(",")] if spec.strip() else []
    if not isinstance(spec, list | tuple):
        raise ConfigError(setting, f"{spec!r} is no spec", "Write data,- or [data, null]")
    return tuple(_entry(entry, setting) for entry in spec)


def _parsed_call(text: str, setting: str) -> list[Any]:
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if isinstance(call, ast.Call) and not call.keywords:
            return [ast.literal_eval(argument) for argument in call.args]
    except (SyntaxError, ValueError):
        pass
    raise ConfigError(setting, f"{text!r} is no spec", "Write P('data', None), or data,-")


def _entry(entry: Any, setting: str) -> tuple[str, ...]:
    if entry is None or entry in ("-", "None", ""):
        return ()
    axes = entry.split("+") if isinstance(entry, str) else entry
    if not isinstance(axes, list | tuple) or not all(isinstance(axis, str) for axis in axes):
        raise ConfigError(
            setting, f"entry {entry!r} is no axis", "Name axes of the mesh, joined by +, or -"
        )
    return tuple(axis.strip() for axis in axes)


def parse_devices(devices: Any, setting: str) -> list[int]:
    """Device numbers.

    >>> parse_devices("0-3,6", "src_devices"), parse_devices([4, 5], "src_devices")
    ([0, 1, 2, 3, 6], [4, 5])

    Raises:
        ConfigError: they are none.
    """
    parts: Iterable[Any] = devices if isinstance(devices, list) else str(devices).split(",")
    numbers: list[int] = []
    for part in parts:
        found = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", str(part))
        if found is None:
            raise ConfigError(setting, f"{part!r} is no device", "Write 0-3,6")
        numbers += range(int(found[1]), int(found[2] or found[1]) + 1)
    return numbers


def parse_shape(shape: Any, setting: str) -> tuple[int, ...]:
    """Sizes of an array, ``8192,8192`` or ``[8192, 8192]``; "" is a scalar.

    Raises:
        ConfigError: they are none.
    """
    parts = re.split(r"[,x]", shape) if isinstance(shape, str) and shape else shape or []
    parts = [parts] if isinstance(parts, int) else parts
    if isinstance(parts, list) and all(re.fullmatch(r"\s*\d+\s*", str(part)) for part in parts):
        return tuple(int(part) for part in parts)
    raise ConfigError(setting, f"{shape!r} is no shape", "Write 8192,8192")


def _leaves(
    tree: Mapping[Any, Any], path: str, settings: Mapping[str, Any]
) -> Iterator[MovedArray]:
    for key, value in tree.items():
        name = f"{path}/{key}" if path else str(key)
        if not isinstance(value, Mapping) or not value:
            raise ConfigError(
                f"arrays.{name}", f"{value!r} is no array", "Write {shape: ..., src_spec: ...}"
            )
        if "shape" in value or not all(isinstance(inner, Mapping) for inner in value.values()):
            yield _array(name, f"arrays.{name}.", value, settings)
        else:
            yield from _leaves(value, name, settings)


def _array(
    name: str, where: str, own: Mapping[str, Any], settings: Mapping[str, Any]
) -> MovedArray:
    _known(own, ARRAY_KEYS, where)
    shape = parse_shape(_needed(own, "shape", where), f"{where}shape")
    dtype = str(own.get("dtype", settings.get("dtype", "float32")))
    try:
        item_bytes(dtype)
    except ConfigError as error:
        raise _at(f"{where}dtype", error) from error
    count = own.get("count", 1)
    if not isinstance(count, int) or count < 1:
        raise ConfigError(f"{where}count", f"{count!r} is no number of arrays", "1 or more")
    source, target = (_placement(side, where, shape, own, settings) for side in _SIDES)
    return MovedArray(
        name=name, shape=shape, dtype=dtype, source=source, target=target, count=count
    )


def _placement(
    side: str,
    where: str,
    shape: tuple[int, ...],
    own: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> Placement:
    """The sharding before or after."""
    mesh, at = f"{side}_mesh", f"{where}{side}_spec"
    given = _needed(settings, mesh, "")
    spec = parse_spec(_needed(own, f"{side}_spec", where), at)
    if len(spec) > len(shape) and any(spec[len(shape) :]):
        raise ConfigError(at, f"{len(spec)} entries for the {len(shape)} dimensions of {shape}")
    devices = settings.get(f"{side}_devices")
    try:
        axes = parse_axes(given) if isinstance(given, str) else dict(given)
        if not all(isinstance(size, int) and size > 0 for size in axes.values()):
            raise ConfigError(mesh, f"{given!r} has an axis below 1", "Write data=4,model=2")
    except (ConfigError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise _at(mesh, error) from error
        raise ConfigError(mesh, f"{given!r} is no mesh", "Write data=4,model=2") from error
    ids = None if devices is None else parse_devices(devices, f"{side}_devices")
    if ids is not None and len(ids) != math.prod(axes.values()):
        raise ConfigError(
            f"{side}_devices",
            f"{len(ids)} devices are given for the {math.prod(axes.values())} of {given}",
            "Give one for each place in the mesh",
        )
    try:
        placement = Placement.build(axes, spec[: len(shape)], device_ids=ids)
        placement.check(shape, at)
    except ConfigError as error:
        setting = f"{side}_devices" if error.setting == "device_ids" else at
        raise _at(setting, error) from error
    return placement


def _at(setting: str, error: ConfigError) -> ConfigError:
    """The same error, under the name that the user wrote."""
    return ConfigError(setting, str(error).removeprefix(f"{error.setting}: "))


def _needed(settings: Mapping[str, Any], key: str, where: str) -> Any:
    if settings.get(key) is None:
        flag = f", or --{key.replace('_', '-')}" if not where else ""
        raise ConfigError(f"{where}{key}", "is missing", f"Give {key}{flag}")
    return settings[key]


def _known(settings: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    for key in settings:
        if key not in keys:
            near = difflib.get_close_matches(str(key), keys, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(keys)}"
            raise ConfigError(f"{where}{key}", "is unknown", hint)
