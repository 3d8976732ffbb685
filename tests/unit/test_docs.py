"""The documentation says what the code does: settings, names, commands, links and examples."""

from __future__ import annotations

import argparse
import dataclasses
import doctest
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from doc_pages import DOCS, PAGES, Block, blocks, column, sections, tables

from meshfeed.launch.checks import Level, check_run
from meshfeed.launch.cli import COMMANDS
from meshfeed.launch.resharding.arrays import arrays_of
from meshfeed.launch.settings import key_of
from meshfeed.pipeline.data.batches.leaves import derive, named_dtypes
from meshfeed.pipeline.data.batches.regions import cut_region, view_region
from meshfeed.pipeline.data.packing.blocks import BlockFormat
from meshfeed.pipeline.data.packing.pack import pack
from meshfeed.pipeline.plan import errors
from meshfeed.pipeline.plan.batch_plan import plan_batch
from meshfeed.pipeline.plan.config import (
    LEAF_PRESETS,
    LEAVES,
    FeedConfig,
    Packing,
    SourceConfig,
    TokenizerConfig,
)
from meshfeed.pipeline.plan.mesh import MeshLayout
from meshfeed.pipeline.plan.partition import resolve
from meshfeed.pipeline.plan.run_config import RunConfig, parse_bytes
from meshfeed.pipeline.plan.slices import describe_ranges

SETTINGS = {
    "Source": SourceConfig,
    "Tokenizer": TokenizerConfig,
    "Feed": FeedConfig,
    "Run": RunConfig,
}
NO_KEYS = {("Feed", "name"), ("Feed", "tokenizer"), ("Run", "feeds")}
"""Fields that no key of the file stands for."""


def parser_of(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    commands: Any = parser.add_subparsers()
    add = getattr(import_module(COMMANDS[command]), f"add_{command.replace('-', '_')}_command")
    add(commands)
    return commands.choices[command]


def flags_of(command: str) -> set[str]:
    """Without those that say no."""
    return {
        option
        for action in parser_of(command)._actions
        for option in action.option_strings
        if option.startswith("--") and option != "--help" and not option.startswith("--no-")
    }


def settings_table(section: str) -> dict[str, dict[str, str]]:
    table = tables(sections(DOCS / "settings.md")[section])[0]
    return {row["key"].strip("`"): row for row in table}


def shown(default: Any) -> str:
    if isinstance(default, tuple):
        return f"`{' '.join(default)}`" if default else "none"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


@pytest.mark.parametrize("section", SETTINGS)
def test_every_setting_is_in_the_page_with_its_default_and_flag(section: str) -> None:
    rows = settings_table(section)
    fields = {
        "tokenizer" if (section, f.name) == ("Tokenizer", "path") else f.name: f
        for f in dataclasses.fields(SETTINGS[section])
        if (section, f.name) not in NO_KEYS
    }
    assert list(rows) == [key for key in rows if key in fields]
    assert set(rows) == set(fields)
    flags = {key_of(flag): flag for flag in flags_of("simulate")}
    for key, field in fields.items():
        row = rows[key]
        if field.default is None:
            assert row["default"].startswith("none: "), key
        elif row["type"] == "bytes":
            assert parse_bytes(row["default"].strip("`"), key) == field.default, key
        elif field.default is not dataclasses.MISSING:
            assert row["default"] == shown(field.default), key
        if key in flags and row["flag"] != "file only":
            assert row["flag"] == f"`{flags[key]}`", key
        else:
            assert row["flag"] == "file only", key
        for choice in getattr(type(field.default), "__members__", {}).values():
            assert f"`{choice}`" in row["type"], key


def test_every_flag_is_in_the_page() -> None:
    page = {
        row["flag"].strip("`")
        for section in SETTINGS
        for row in settings_table(section).values()
        if row["flag"] != "file only"
    }
    own = tables(sections(DOCS / "settings.md")["Flags of one command alone"])[0]
    for command in ("simulate", "serve", "check", "inspect", "plan"):
        listed = {r["flag"].strip("`") for r in own if r["command"] == f"`{command}`"}
        assert listed | page == flags_of(command), command
        assert not listed & page


@pytest.mark.parametrize(
    ("command", "page"),
    [("explain-partition", "partition-cost.md"), ("reshard-plan", "reshard-plan.md")],
)
def test_every_flag_of_a_command_with_a_page_is_in_it(command: str, page: str) -> None:
    (table,) = column(DOCS / page, "flag")
    listed = {flag for row in table for flag in re.findall(r"--[a-z-]+", row["flag"])}
    assert listed == flags_of(command)


def test_the_tree_of_parameters_in_the_page_can_be_planned() -> None:
    (block,) = [b for b in blocks(DOCS / "reshard-plan.md") if b.kind == "yaml"]
    arrays = arrays_of(yaml.safe_load(block.text))
    assert [(one.name, one.count) for one in arrays] == [
        ("embedding", 1),
        ("layers/query", 32),
        ("layers/scale", 64),
    ]


def test_the_page_says_which_settings_change_rows() -> None:
    source = SourceConfig(name="a", data=("x",))
    plain = FeedConfig(name="train", sources=(source,)).order_settings()
    fixed = {
        "Source": set(plain["sources"][0]),
        "Tokenizer": set(plain["tokenizer"]),
        "Feed": set(plain),
    }
    for section, keys in fixed.items():
        for key, row in settings_table(section).items():
            assert (row["changes rows?"] == "yes") == (key in keys), key


def test_the_example_file_is_a_run() -> None:
    (block,) = [b for b in blocks(DOCS / "settings.md") if b.kind == "yaml"]
    config = RunConfig.from_mapping(yaml.safe_load(block.text))
    train, books = config.feeds
    assert [source.weight for source in train.sources] == [0.7, 0.3]
    assert train.sources[1].column == "body"
    assert books.name == "eval/books"
    assert (books.batch_size, books.seq_len, books.shuffle) == (16, train.seq_len, "none")
    MeshLayout.build(
        config.mesh, hosts=config.hosts, devices_per_host=config.devices_per_host
    )  # its sizes fit together


def test_keys_at_the_top_hold_for_every_source() -> None:
    for key in set(settings_table("Source")) - {"name", "data", "weight", "epochs"}:
        own = {"transforms": ["m:f"], "on_end": "repeat", "bad_records": "skip", "format": "text"}
        value = own.get(key, "3" if key in ("column", "loss_mask_column") else 1)
        sources = [{"name": "a", "data": "x"}, {"name": "b", "data": "y"}]
        feed = RunConfig.from_mapping({key: value, "sources": sources}).feeds[0]
        first, second = (getattr(source, key) for source in feed.sources)
        assert first == second != SourceConfig.__dataclass_fields__[key].default or value == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_their_flags_are_there(page: Path) -> None:
    for line in commands_in(page):
        words = line.split()
        assert words[1] in COMMANDS or words[1].startswith("-"), line
        if words[1] in COMMANDS:
            given = {word for word in words if re.fullmatch(r"--[a-z][a-z-]*", word)}
            assert given <= flags_of(words[1]), line


def commands_in(page: Path) -> Iterator[str]:
    """Commands of console blocks, on one line each, and those in running text."""
    for block in blocks(page):
        if block.kind in ("console", ""):
            joined = block.text.replace("\\\n", " ")
            yield from re.findall(r"^(?:\$ )?(meshfeed [a-z-].*)$", joined, re.MULTILINE)
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    yield from re.findall(r"`(meshfeed [a-z-][^`]*)`", text)


def test_leaf_names_are_those_of_the_presets() -> None:
    (table,) = column(DOCS / "trainers.md", "`leaf_names`")
    assert [row["`leaf_names`"].strip("`") for row in table] == list(LEAF_PRESETS)
    for row in table:
        names = LEAF_PRESETS[row["`leaf_names`"].strip("`")]
        assert {leaf: row[leaf].strip("`") for leaf in LEAVES} == names
        dtypes = named_dtypes(LEAVES, names)
        assert row["dtype of loss_weights"] == str(dtypes.pop("loss_weights"))
        assert set(map(str, dtypes.values())) == {"int32"}
    (leaves,) = column(DOCS / "trainers.md", "leaf")
    meshfeed = named_dtypes(LEAVES, LEAF_PRESETS["meshfeed"])
    assert {row["leaf"].strip("`"): row["dtype"] for row in leaves} == {
        leaf: str(dtype) for leaf, dtype in meshfeed.items()
    }


def test_who_gets_what_is_what_the_plan_says() -> None:
    (table,) = column(DOCS / "trainers.md", "host")
    mesh = MeshLayout.build({"data": 2, "seq": 2, "model": 2}, hosts=4, devices_per_host=2)
    for kind in ("FULL", "DATA", "BATCH", "REPLICATED"):
        plan = plan_batch(mesh, resolve(kind, mesh), batch_size=8, seq_len=1024)
        for row in table:
            (part,) = plan.slice_of(int(row["host"])).parts
            said = f"rows {describe_ranges(part.rows)}"
            if part.shape[1] < 1024:
                said += f", columns {describe_ranges(part.cols)}"
            assert row[f"`{kind}`"] == said


def test_leaves_of_the_packing_example() -> None:
    lengths = [5, 6, 9, 3, 2]
    format = BlockFormat(seq_len=8, token_dtype="int32", loss_mask=False)
    ids = np.repeat(np.arange(1, 6, dtype=np.int32), lengths)
    block = pack(ids, np.cumsum([0, *lengths]), format=format, packing=Packing.CONCAT).block
    flat = cut_region([block], np.zeros(2, int), np.arange(2), 0, 8, format=format)
    leaves = derive(view_region(flat, format, 2, 8))
    (table,) = column(DOCS / "order.md", "leaf")
    assert [row["leaf"].strip("`") for row in table] == list(LEAVES)
    for row in table:
        name = row["leaf"].strip("`")
        letters = "0abcde" if name in ("tokens", "targets") else "0123456789"
        for index in (0, 1):
            values = " ".join(letters[int(v)] for v in leaves[name][index])
            assert row[f"row {index}"] == values, name


def test_every_error_is_explained() -> None:
    def below(kind: type) -> Iterator[str]:
        for child in kind.__subclasses__():
            if child.__module__ == errors.__name__:
                yield child.__name__
                yield from below(child)

    (table,) = column(DOCS / "when-it-is-slow.md", "error")
    assert sorted(row["error"].strip("`") for row in table) == sorted(below(errors.MeshfeedError))


def test_interactive_examples_print_what_they_say() -> None:
    run_doctests(DOCS / "order.md")


def test_examples_of_data_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = DOCS / "data.md"
    files = named_files(page)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = [Path(name).stem for name in files if name.endswith(".py")]
    for module in modules:
        monkeypatch.delitem(sys.modules, module, raising=False)
    exec(compile(files["make_data.py"], "make_data.py", "exec"), {})
    run_doctests(page)
    runs = [name for name in files if name.endswith(".yaml")]
    assert len(runs) >= 6
    for name in runs:
        config = RunConfig.from_mapping(yaml.safe_load(files[name]))
        findings = list(check_run(config))
        assert [f for f in findings if f.level is Level.PROBLEM] == [], name
        made = [f.text for f in findings if f.topic == "window"]
        assert all("gave 0 rows" not in text for text in made)
        assert made
    for module in modules:
        sys.modules.pop(module, None)


def named_files(page: Path) -> dict[str, str]:
    """Blocks whose first line is a comment with the name of a file."""
    named = {}
    for block in blocks(page):
        name = re.match(r"# ([\w-]+\.(?:py|yaml))\n", block.text)
        if name and block.kind in ("python", "yaml"):
            named[name[1]] = block.text
    return named


def run_doctests(page: Path) -> None:
    examples: list[Block] = [b for b in blocks(page) if b.text.startswith(">>> ")]
    assert examples
    parse, runner, scope = doctest.DocTestParser(), doctest.DocTestRunner(), dict[str, Any]()
    for block in examples:
        test = parse.get_doctest(block.text, scope, page.name, str(page), block.line)
        out: list[str] = []
        result = runner.run(test, out=out.append, clear_globs=False)
        scope = test.globs
        assert result.failed == 0, "".join(out)


def test_python_examples_are_python() -> None:
    for page in PAGES:
        for block in blocks(page):
            if block.kind == "python" and not block.text.startswith(">>> "):
                compile(block.text, f"{page.name}:{block.line}", "exec")
