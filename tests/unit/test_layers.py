"""The rules of the code: imports go down only, modules and functions are short, one error tree.

================  ===========================================================  ==================
layer             may import of ours                                           never
================  ===========================================================  ==================
pipeline/plan     plan                                                         all but numpy
pipeline/data     data, plan                                                   jax, ray
pipeline/assemble assemble, data, plan                                         ray
actors            actors and everything below                                  -
launch            everything; nothing else imports it                          -
================  ===========================================================  ==================
"""

from __future__ import annotations

import ast
import builtins
import copy
import importlib
import inspect
import pickle
import subprocess
import sys
import types
import typing
from collections import abc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from meshfeed.pipeline.plan import errors
from meshfeed.pipeline.plan.errors import MeshfeedError

ROOT = Path(__file__).resolve().parents[2]
CODE_FOLDERS = ("pipeline", "actors", "launch")

LAYERS = (
    "meshfeed.pipeline.plan",
    "meshfeed.pipeline.data",
    "meshfeed.pipeline.assemble",
    "meshfeed.actors",
    "meshfeed.launch",
)
"""From the lowest to the highest; each may import itself and those before it."""

ROOMS = {
    "meshfeed.pipeline.data": (
        "memory",
        "storage",
        "formats",
        "sources",
        "tokenizers",
        "transforms",
        "packing",
        "batches",
        "runs",
    ),
    "meshfeed.actors": ("slice_checks", "messages", "reading", "control", "host", "..."),
}
"""The rooms of a layer, from the lowest up; the same rule holds among them. ``...``: all others."""

NEVER = {
    "meshfeed.pipeline.data": ("jax", "jaxlib", "ray"),
    "meshfeed.pipeline.assemble": ("ray",),
}

MODULE_LINES = 350
FUNCTION_LINES = 60

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Import(NamedTuple):
    """One import statement: what it names and where."""

    name: str
    line: int


def _modules(*folders: str) -> list[Path]:
    return sorted(
        path.relative_to(ROOT)
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts
    )


def _name_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(("meshfeed", *parts[: -1 if parts[-1] == "__init__" else None]))


def _tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), str(path))


def _imports(tree: ast.Module, package: str) -> Iterator[Import]:
    """Everything that is imported, inside functions and under TYPE_CHECKING too.

    ``from a import b`` counts as ``a.b``, since b may be a module.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: -(node.level - 1) or None] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (Import(f"{module}.{alias.name}", node.lineno) for alias in node.names)


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def _layer_of(name: str) -> int | None:
    found = [level for level, layer in enumerate(LAYERS) if _within(name, layer)]
    return found[0] if found else None


def violations(module: str, package: str, tree: ast.Module) -> list[str]:
    """Which imports of ``module`` the layers do not allow, in words."""
    level = _layer_of(module)
    words = []
    for name, line in _imports(tree, package):
        if _within(name, "meshfeed"):
            target = _layer_of(name)
            if target is None and level is not None and name != "meshfeed.__version__":
                words.append(f"line {line}: {name} is of no layer; import from the layer itself")
            elif target is not None and (level is None or target > level):
                words.append(f"line {line}: {name} is of a higher layer")
            continue
        top = name.split(".")[0]
        if level == 0 and top not in sys.stdlib_module_names and top != "numpy":
            words.append(f"line {line}: plan/ imports the standard library and numpy, not {top}")
        if level is not None and top in NEVER.get(LAYERS[level], ()):
            words.append(f"line {line}: {LAYERS[level]} does not import {top}")
    return words


MODULES = _modules(*CODE_FOLDERS)
EVERYWHERE = _modules(*CODE_FOLDERS, "src", "tests", "benchmarks", "examples", "docs")


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_go_down_only(path: Path) -> None:
    module = _name_of(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    assert violations(module, package, _tree(path)) == []


@pytest.mark.parametrize(
    ("module", "code", "allowed"),
    [
        ("meshfeed.pipeline.plan.x", "import os, numpy.typing", True),
        ("meshfeed.pipeline.plan.x", "import pyarrow", False),
        ("meshfeed.pipeline.plan.x", "def f():\n    import yaml", False),
        ("meshfeed.pipeline.plan.x", "from .y import z", True),
        ("meshfeed.pipeline.plan.x", "from ..data import z", False),
        ("meshfeed.pipeline.plan.x", "from meshfeed.pipeline import data", False),
        ("meshfeed.pipeline.plan.x", "from meshfeed import RunConfig", False),
        ("meshfeed.pipeline.plan.x", "from meshfeed import __version__", True),
        ("meshfeed.pipeline.data.x", "import pyarrow, grain, meshfeed.pipeline.plan.config", True),
        ("meshfeed.pipeline.data.x", "if TYPE_CHECKING:\n    import jax", False),
        ("meshfeed.pipeline.data.x", "from ray.util import y", False),
        ("meshfeed.pipeline.data.x", "from meshfeed.pipeline.assemble.y import z", False),
        ("meshfeed.pipeline.assemble.x", "import jax, meshfeed.pipeline.data.packing.blocks", True),
        ("meshfeed.pipeline.assemble.x", "import ray", False),
        ("meshfeed.actors.x", "import ray, jax, meshfeed.pipeline.assemble", True),
        ("meshfeed.actors.x", "import meshfeed.launch.cli", False),
        ("meshfeed.launch.x", "from meshfeed.actors import run", True),
        ("meshfeed.pipeline", "from meshfeed.pipeline.plan import config", False),
    ],
)
def test_the_check_of_imports_sees(module: str, code: str, allowed: bool) -> None:
    assert (violations(module, module.rpartition(".")[0], ast.parse(code)) == []) == allowed


def _room(name: str, layer: str) -> int | None:
    if not name.startswith(f"{layer}."):
        return None
    rooms = ROOMS[layer]
    room = name.removeprefix(f"{layer}.").split(".")[0]
    return rooms.index(room if "..." not in rooms or room in rooms else "...")


@pytest.mark.parametrize(
    ("layer", "path"),
    [(layer, p) for layer in ROOMS for p in MODULES if _within(_name_of(p), layer)],
    ids=str,
)
def test_the_rooms_of_a_layer_import_downwards_only(layer: str, path: Path) -> None:
    module = _name_of(path)
    level = _room(module, layer)
    upwards = [
        f"line {line}: {name}"
        for name, line in _imports(_tree(path), module)
        if level is not None and (target := _room(name, layer)) is not None and target > level
    ]
    assert upwards == []


@pytest.mark.parametrize("path", EVERYWHERE, ids=str)
def test_nothing_imports_the_folders_by_their_bare_names(path: Path) -> None:
    bare = [i for i in _imports(_tree(path), "") if i.name.split(".")[0] in CODE_FOLDERS]
    assert bare == []


@pytest.mark.parametrize("path", _modules(*CODE_FOLDERS, "benchmarks", "examples"), ids=str)
def test_modules_and_functions_are_short(path: Path) -> None:
    lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
    assert lines <= MODULE_LINES, f"{path} has {lines} lines; split it by what its parts do"
    for node in ast.walk(_tree(path)):
        if isinstance(node, Function):
            assert (size := _code_lines(node)) < FUNCTION_LINES, f"{node.name} has {size} lines"


def _code_lines(function: Function) -> int:
    """Lines from ``def`` to the end, docstrings (its own and inner ones) not counted."""
    docstrings = [
        node.body[0]
        for node in ast.walk(function)
        if isinstance(node, Function | ast.ClassDef) and ast.get_docstring(node) is not None
    ]
    taken = sum((doc.end_lineno or doc.lineno) - doc.lineno + 1 for doc in docstrings)
    return (function.end_lineno or function.lineno) - function.lineno + 1 - taken


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_modules_say_what_they_are_and_have_telling_names(path: Path) -> None:
    assert ast.get_docstring(_tree(path))
    assert path.stem not in ("utils", "util", "helpers", "common", "misc")


def _run_python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _loaded_by(imports: str, *watched: str) -> str:
    return _run_python(f"import sys; {imports}; print(*[m for m in {watched} if m in sys.modules])")


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert _loaded_by("import meshfeed", "jax", "ray", "pyarrow", "grain", "numpy") == ""


def test_plan_loads_numpy_alone() -> None:
    names = ", ".join(_name_of(path) for path in _modules("pipeline/plan"))
    heavy = ("jax", "ray", "pyarrow", "grain", "yaml", "tokenizers", "fsspec")
    assert _loaded_by(f"import {names}", *heavy) == ""


def test_what_readers_load_brings_no_jax() -> None:
    """Grain brings jax with it, so only a source that uses Grain may load it (CASES 35)."""
    names = ", ".join(_name_of(path) for path in _modules("pipeline/data"))
    assert _loaded_by(f"import {names}", "jax", "ray") == ""


BUILTIN_ERRORS = {
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}


def _bases_in(path: Path) -> set[str]:
    """The last names of the bases of all classes of a module."""
    classes = [node for node in ast.walk(_tree(path)) if isinstance(node, ast.ClassDef)]
    return {ast.unparse(base).split(".")[-1] for node in classes for base in node.bases}


def _load_errors_of_other_modules() -> None:
    known = {cls.__name__ for cls in _error_classes()}
    for path in MODULES:
        if _bases_in(path) & known:
            importlib.import_module(_name_of(path))


def _error_classes(base: type[MeshfeedError] = MeshfeedError) -> list[type[MeshfeedError]]:
    below = [found for child in base.__subclasses__() for found in _error_classes(child)]
    return [base, *below]


def _sample(annotation: Any, name: str) -> Any:
    """A value for an argument of an error, different for each name where the type allows."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _sample(inner[0], name)
    if origin is tuple:
        return tuple(_sample(part, name) for part in inner if part is not Ellipsis)
    if origin in (list, abc.Sequence, abc.Iterable):
        return [_sample(inner[0], name)]
    simple: dict[Any, Any] = {int: 3 + len(name), float: 1.5 + len(name), bool: True}
    return simple.get(annotation, f"a {name}")


def _construct(cls: type[MeshfeedError]) -> MeshfeedError:
    if cls.__init__ is Exception.__init__:
        return cls("what was wrong, and what to do")
    hints = typing.get_type_hints(cls.__init__)
    args, kwargs = [], {}
    for parameter in list(inspect.signature(cls.__init__).parameters.values())[1:]:
        value = _sample(hints.get(parameter.name), parameter.name)
        if parameter.kind is parameter.KEYWORD_ONLY:
            kwargs[parameter.name] = value
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            args.append(value)
    return cls(*args, **kwargs)


_load_errors_of_other_modules()


@pytest.mark.parametrize("cls", _error_classes(), ids=lambda cls: cls.__name__)
def test_errors_survive_pickling_and_copying(cls: type[MeshfeedError]) -> None:
    error = _construct(cls)
    assert str(error)
    copies = [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(2, 6)]
    for again in (*copies, copy.copy(error), copy.deepcopy(error)):
        assert type(again) is cls
        assert str(again) == str(error)
        assert again.args == error.args
        assert vars(again) == vars(error)


def test_a_note_survives_pickling() -> None:
    error = _construct(errors.DataError)
    error.add_note("while reading window 3")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while reading window 3"]


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_there_is_one_tree_of_errors(path: Path) -> None:
    """Whoever catches MeshfeedError catches all that is raised on purpose."""
    if path == Path("pipeline/plan/errors.py"):
        return
    outside = _bases_in(path) & BUILTIN_ERRORS
    assert not outside, f"{path} makes a kind of {outside} that is no MeshfeedError"


def test_the_docstring_draws_the_whole_tree() -> None:
    for cls in _error_classes():
        if cls.__module__ == errors.__name__:
            assert cls.__name__ in (errors.__doc__ or "")
