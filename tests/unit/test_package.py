"""The sdist and the wheel hold real files in place of the links, and what is installed imports."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

import meshfeed

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("pipeline", "actors", "launch")

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("build", "setuptools", "pip")),
    reason="build, setuptools or pip is not installed, and no network is used to get them",
)


def _run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with an sdist of a copy of this tree, and the wheel built from that sdist."""
    tree = tmp_path_factory.mktemp("tree") / "meshfeed"
    tree.mkdir()
    for name in (*LINKED, "src"):
        shutil.copytree(
            ROOT / name,
            tree / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", cwd=tree)
    return tree / "dist"


def _expected() -> set[str]:
    """Every module of the linked folders as it should lie in the package."""
    return {
        str(PurePosixPath("meshfeed", *path.relative_to(ROOT).parts))
        for folder in LINKED
        for path in (ROOT / folder).rglob("*.py")
    }


def test_the_wheel_holds_every_module_and_nothing_beside_the_package(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    assert wheel.name.startswith(f"meshfeed-{meshfeed.__version__}-py3-none-any")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for name in _expected():
            path = ROOT.joinpath(*PurePosixPath(name).parts[1:])
            assert archive.read(name) == path.read_bytes(), name
    assert "meshfeed/py.typed" in names
    tops = {name.split("/")[0] for name in names}
    assert tops == {"meshfeed", f"meshfeed-{meshfeed.__version__}.dist-info"}


def test_the_sdist_holds_every_module_as_a_real_file(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        kinds = {member.name: member for member in archive.getmembers()}
    top = f"meshfeed-{meshfeed.__version__}"
    for name in _expected():
        assert kinds[f"{top}/src/{name}"].isreg(), name
    assert not [member.name for member in kinds.values() if member.issym() or member.islnk()]
    assert f"{top}/LICENSE" in kinds


def test_the_installed_wheel_imports_from_where_it_was_put(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    target = tmp_path / "site"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index")
    _run(*pip, "--no-deps", "--target", target, wheel, cwd=tmp_path)
    program = (
        "import meshfeed, meshfeed.pipeline.data, meshfeed.launch.demo, meshfeed.actors\n"
        "from meshfeed import RunConfig\n"
        "from importlib.metadata import version\n"
        "print(meshfeed.__file__, meshfeed.launch.demo.__file__, meshfeed.__version__)\n"
        "print(version('meshfeed'))"
    )
    out = _run(sys.executable, "-c", program, cwd=tmp_path, PYTHONPATH=str(target)).split()
    assert out == [
        str(target / "meshfeed/__init__.py"),
        str(target / "meshfeed/launch/demo.py"),
        meshfeed.__version__,
        meshfeed.__version__,
    ]
    assert (target / "bin" / "meshfeed").is_file()
