"""What `import meshfeed` gives: few names, each where it says, loaded when first used."""

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import meshfeed


def _defined_names(path: str) -> set[str]:
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    kinds = (ast.ClassDef, ast.FunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}


@pytest.mark.parametrize("name", sorted(meshfeed._HOME))
def test_each_public_name_is_defined_in_its_home(name: str) -> None:
    spec = importlib.util.find_spec(meshfeed._HOME[name])
    assert spec is not None, f"{meshfeed._HOME[name]} is not there"
    assert spec.origin is not None
    assert name in _defined_names(spec.origin)


def test_the_face_is_small() -> None:
    assert len(meshfeed.__all__) == len(set(meshfeed.__all__)) <= 12
    assert dir(meshfeed) == sorted(meshfeed.__all__)
    assert set(meshfeed.__all__) == {*meshfeed._HOME, "__version__"}


def test_the_version_stands_once() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", meshfeed.__version__)
    root = Path(__file__).resolve().parents[2]
    settings = (root / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in settings
    assert f'"{meshfeed.__version__}"' not in settings


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'meshfeed' has no attribute 'conect'"):
        _ = meshfeed.conect


def test_a_name_is_loaded_when_it_is_used_and_is_the_one_of_its_home() -> None:
    program = (
        "import sys, meshfeed; assert 'meshfeed.pipeline' not in sys.modules; "
        "from meshfeed import MeshfeedError, RunConfig; "
        "from meshfeed.pipeline.plan import errors, run_config; "
        "assert MeshfeedError is errors.MeshfeedError; "
        "assert RunConfig is run_config.RunConfig; "
        "assert 'jax' not in sys.modules and 'ray' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
