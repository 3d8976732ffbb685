"""Globs and folders: one sorted list of files from one listing of each folder."""

from __future__ import annotations

import glob
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfeed.pipeline.data.storage import Storage
from meshfeed.pipeline.data.storage.listing import glob_regex, list_shards
from meshfeed.pipeline.plan.errors import ConfigError


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


NAMES = ["a.txt", "b.txt", "b1.txt", "c.json", ".hidden.txt", "x/a.txt", "x/y/a.txt", "x/.h/a.txt"]

PATTERNS = [
    "*.txt",
    "?.txt",
    "[ab].txt",
    "[!a].txt",
    "b*",
    "*/a.txt",
    "**/*.txt",
    "x/**/a.txt",
    "*",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_globs_find_what_pythons_do(tmp_path: Path, pattern: str) -> None:
    make(tmp_path, *NAMES)
    found = list_shards(Storage(), [f"{tmp_path}/{pattern}"])
    expected = glob.glob(f"{tmp_path}/{pattern}", recursive=True)
    paths = sorted(f"{found.root}/{e.path}" for e in found.entries)
    assert paths == sorted(p for p in expected if os.path.isfile(p))


def test_braces(tmp_path: Path) -> None:
    make(tmp_path, "a.txt", "b.txt", "c.txt")
    found = list_shards(Storage(), [f"{tmp_path}/{{a,c}}.txt"])
    assert [e.path for e in found.entries] == ["a.txt", "c.txt"]


@given(st.text(alphabet="ab.+(){}^$\\", min_size=1, max_size=8))
def test_a_name_without_wildcards_means_itself(name: str) -> None:
    if "{" not in name:
        assert glob_regex(name).fullmatch(name)


def test_paths_are_relative_to_the_folder_that_holds_them_all(tmp_path: Path) -> None:
    make(tmp_path, "d/x/1.txt", "d/y/2.txt", "d/y/10.txt")
    found = list_shards(Storage(), [f"{tmp_path}/d/y/*.txt", f"{tmp_path}/d/x"])
    assert found.root == f"{tmp_path}/d"
    assert [e.path for e in found.entries] == ["x/1.txt", "y/10.txt", "y/2.txt"]
    assert [e.size for e in found.entries] == [9, 10, 9]


def test_folders_whose_names_begin_alike_are_not_one(tmp_path: Path) -> None:
    make(tmp_path, "part1/1.txt", "part2/2.txt")
    found = list_shards(Storage(), [f"{tmp_path}/part*/*.txt"])
    assert found.root == str(tmp_path)


def test_a_moved_folder_has_the_same_list(tmp_path: Path) -> None:
    make(tmp_path, "here/x/1.txt", "here/2.txt")
    before = list_shards(Storage(), [f"{tmp_path}/here"])
    (tmp_path / "here").rename(tmp_path / "there")
    assert list_shards(Storage(), [f"{tmp_path}/there"]).entries == before.entries


def test_each_file_once_and_hidden_ones_never(tmp_path: Path) -> None:
    make(tmp_path, *NAMES, "_SUCCESS", "_tmp/a.txt")
    patterns = [str(tmp_path), f"{tmp_path}/*.txt", f"{tmp_path}/a.txt"]
    found = list_shards(Storage(), patterns)
    assert [e.path for e in found.entries] == [
        "a.txt", "b.txt", "b1.txt", "c.json", "x/a.txt", "x/y/a.txt",
    ]  # fmt: skip


def test_relative_paths_and_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "store/blob", "d/keep.txt")
    (tmp_path / "d" / "link.txt").symlink_to(tmp_path / "store" / "blob")
    monkeypatch.chdir(tmp_path)
    found = list_shards(Storage(), ["d/*.txt"])
    assert found.root == f"{tmp_path}/d"
    assert [(e.path, e.size) for e in found.entries] == [("keep.txt", 10), ("link.txt", 10)]


def test_a_pattern_that_names_nothing_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "a.txt")
    (tmp_path / "empty").mkdir()
    for pattern in ("b.txt", "*.json", "nosuch", "empty", "nosuch/*.txt"):
        with pytest.raises(ConfigError, match=r"sources\.corpus\.data: .*names no file"):
            list_shards(Storage(), [f"{tmp_path}/a.txt", f"{tmp_path}/{pattern}"], source="corpus")


def test_many_single_files_are_found_by_one_listing(tmp_path: Path) -> None:
    names = [f"{i}.txt" for i in range(100)]
    make(tmp_path, *names)
    storage = Storage()
    found = list_shards(storage, [f"{tmp_path}/{n}" for n in names])
    assert len(found.entries) == 100
    assert storage.counters.listings == 1
