"""How the global batch lies over the mesh: partition types, specs as plain tuples, axis roles.

Every leaf is ``[rows, seq_len]``, so a spec has two entries: the mesh axes over which the rows
are split, and those over which the columns (the sequence) are. Unless a user says otherwise for
a leaf, all leaves have the same spec: segment ids that are laid out unlike the tokens have hung
tensor-parallel runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from meshfeed.pipeline.plan.config import LEAF_PRESETS
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mesh import MeshLayout

Spec = tuple[tuple[str, ...] | None, tuple[str, ...] | None]
"""A ``jax.sharding.PartitionSpec`` of two dimensions: rows, then columns."""


class DataPartitionType(StrEnum):
    """The usual layouts of a global batch."""

    FULL = "FULL"
    """Rows over every mesh axis: each device has rows of its own."""

    DATA = "DATA"
    """Rows over the data axes, replicated over the others: each has the whole sequence."""

    BATCH = "BATCH"
    """Rows over the data axes, columns over the sequence axes."""

    REPLICATED = "REPLICATED"
    """Every device has the whole batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisRoles:
    """What the axes of a mesh are for; names that a mesh lacks do no harm.

    Attributes:
        data: axes that split rows.
        sequence: axes that split columns under ``BATCH``.
        model: axes over which the batch is replicated, save under ``FULL``.
    """

    data: tuple[str, ...] = ("data", "fsdp")
    sequence: tuple[str, ...] = ("seq",)
    model: tuple[str, ...] = ("model", "tensor")

    def __post_init__(self) -> None:
        roles: dict[str, str] = {}
        for role in ("data", "sequence", "model"):
            for axis in getattr(self, role):
                if axis in roles:
                    raise ConfigError(
                        f"{role}_axes",
                        f"{axis!r} stands in {roles[axis]}_axes as well",
                        "Each axis has one role",
                    )
                roles[axis] = role


def resolve(
    partition: Any,
    mesh: MeshLayout,
    roles: AxisRoles | None = None,
    *,
    leaf_names: Mapping[str, str] | None = None,
) -> dict[str, Spec]:
    """The spec of every leaf.

    Args:
        partition: a ``DataPartitionType`` or its name; a spec (a ``PartitionSpec``, a list such
            as ``[["data", "fsdp"], None]``, or the text ``"P('data', None)"``); or a dict of
            these per leaf, where leaves that it does not name follow ``tokens``.
        mesh: the mesh.
        roles: what its axes are for.
        leaf_names: meshfeed's name of each leaf -> the user's. A dict may use either.

    Returns:
        Spec by meshfeed's name of the leaf.

    Raises:
        ConfigError: no such type, leaf or axis, or an axis without a role.
    """
    roles = roles or AxisRoles()
    names = leaf_names or LEAF_PRESETS["meshfeed"]
    if not isinstance(partition, Mapping):
        spec = spec_of(partition, mesh, roles)
        return dict.fromkeys(names, spec)
    # No preset gives a leaf the name that meshfeed has for another one, so one map reads both.
    canonical = {theirs: ours for ours, theirs in names.items()} | {ours: ours for ours in names}
    given: dict[str, Spec] = {}
    for leaf, entry in partition.items():
        if leaf not in canonical:
            raise ConfigError(
                f"partition.{leaf}", "is no leaf", f"The leaves are {', '.join(names.values())}"
            )
        given[canonical[leaf]] = spec_of(entry, mesh, roles, setting=f"partition.{leaf}")
    if "tokens" not in given and len(given) < len(names):
        raise ConfigError(
            "partition",
            f"names {', '.join(partition) or 'no leaf'} but not {names['tokens']}",
            "Leaves that are not named follow the tokens: name them, or all leaves",
        )
    return {leaf: given[leaf if leaf in given else "tokens"] for leaf in names}


def spec_of(
    partition: Any, mesh: MeshLayout, roles: AxisRoles, *, setting: str = "partition"
) -> Spec:
    """The spec that one partition type or spec means on ``mesh``.

    Raises:
        ConfigError: it is none, or does not fit the mesh.
    """
    if isinstance(partition, str):
        if partition.strip().startswith(("P(", "PartitionSpec(")):
            return _checked(_parse_call(partition, setting), mesh, setting)
        kind = partition.upper()
        if kind not in list(DataPartitionType):
            raise ConfigError(
                setting,
                f"{partition!r} is no partition type",
                f"One of {', '.join(DataPartitionType)}, or a spec such as P('data', None)",
            )
        return _spec_of_type(DataPartitionType(kind), mesh, roles)
    if not isinstance(partition, Iterable):
        raise ConfigError(setting, f"{partition!r} is neither a partition type nor a spec")
    return _checked(tuple(partition), mesh, setting)


def _spec_of_type(kind: DataPartitionType, mesh: MeshLayout, roles: AxisRoles) -> Spec:
    if kind is DataPartitionType.FULL:
        return mesh.axis_names, None
    if kind is DataPartitionType.REPLICATED:
        return None, None
    known = {*roles.data, *roles.sequence, *roles.model}
    unknown = [axis for axis, size in mesh.axes.items() if axis not in known and size > 1]
    if unknown:
        raise ConfigError(
            "mesh",
            f"axis {unknown[0]!r} of {mesh} has no role, so {kind} does not say what lies on it",
            "Name it in data_axes (splits rows), sequence_axes (splits columns) or model_axes "
            "(replicates), or give a PartitionSpec",
        )
    rows = tuple(axis for axis in mesh.axis_names if axis in roles.data)
    cols = tuple(axis for axis in mesh.axis_names if axis in roles.sequence)
    return rows or None, (cols or None) if kind is DataPartitionType.BATCH else None


def _parse_call(text: str, setting: str) -> tuple[Any, ...]:
    """``"P(('data', 'fsdp'), None)"`` -> ``(("data", "fsdp"), None)``; nothing is evaluated."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if isinstance(call, ast.Call) and not call.keywords:
            return tuple(ast.literal_eval(argument) for argument in call.args)
    except (SyntaxError, ValueError) as error:
        raise ConfigError(setting, f"{text!r} is no spec", "Write P('data', None)") from error
    raise ConfigError(setting, f"{text!r} is no spec", "Write P('data', None)")


def _checked(raw: tuple[Any, ...], mesh: MeshLayout, setting: str) -> Spec:
    """The raw entries of a spec as a ``Spec``, each axis known and used once."""
    if len(raw) > 2:
        raise ConfigError(
            setting,
            f"{raw!r} has {len(raw)} entries",
            "A leaf is [rows, seq_len]: give two at most",
        )
    entries: list[tuple[str, ...] | None] = [None, None]
    used: set[str] = set()
    for dim, entry in enumerate(raw):
        axes = (entry,) if isinstance(entry, str) else entry
        if axes is not None and not (
            isinstance(axes, tuple | list) and all(isinstance(axis, str) for axis in axes)
        ):
            raise ConfigError(
                setting, f"entry {entry!r} is no axis", "Give names of mesh axes or null"
            )
        for axis in axes or ():
            if axis not in mesh.axis_names:
                raise ConfigError(
                    setting,
                    f"axis {axis!r} is not in the mesh",
                    f"Its axes are {', '.join(mesh.axis_names)}",
                )
            if axis in used:
                raise ConfigError(setting, f"axis {axis!r} stands in {raw!r} twice")
            used.add(axis)
        entries[dim] = tuple(axes) if axes else None
    return entries[0], entries[1]


def describe_spec(spec: Spec) -> str:
    """``P(('data', 'fsdp'), None)``: the form that JAX prints and ``resolve`` reads."""
    return f"P({', '.join(_describe_entry(entry) for entry in spec)})"


def _describe_entry(entry: tuple[str, ...] | None) -> str:
    if entry is None:
        return "None"
    return repr(entry[0]) if len(entry) == 1 else repr(entry)
