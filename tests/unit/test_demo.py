"""The demo data is real text, the same each time, and whole or not there."""

import json
import os
import subprocess
import sys
from glob import glob
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import tokenizers

from meshfeed.launch import demo
from meshfeed.launch.demo import Demo, docstrings, prepare_demo, train_tokenizer
from meshfeed.pipeline.plan.errors import DataError

SMALL = 600_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    return prepare_demo(tmp_path_factory.mktemp("demo"), max_bytes=SMALL)


def _shards(made: Demo, name: str) -> list[Path]:
    (source,) = [s for s in made.sources if s.name == name]
    return [Path(path) for path in sorted(glob(source.data[0]))]


def _contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_code_holds_every_chosen_module_once_in_order(made: Demo) -> None:
    shards = _shards(made, "code")
    assert len(shards) == demo.CODE_SHARDS
    rows = [row for shard in shards for row in pq.read_table(shard).to_pylist()]
    names = [row["name"] for row in rows]
    assert "abc" in names
    assert len(set(names)) == len(names)
    library = Path(os.__file__).parent
    assert names == [
        ".".join(path.relative_to(library).with_suffix("").parts)
        for path in sorted(library / (name.replace(".", "/") + ".py") for name in names)
    ]
    text = dict(zip(names, [row["text"] for row in rows], strict=True))["abc"]
    assert text == (library / "abc.py").read_text(encoding="utf-8")
    assert 0.8 * SMALL < sum(len(row["text"]) for row in rows) <= SMALL


def test_docs_are_lines_with_name_and_text(made: Demo) -> None:
    shards = _shards(made, "docs")
    assert len(shards) == demo.DOCS_SHARDS
    rows = [json.loads(line) for shard in shards for line in shard.open(encoding="utf-8")]
    found = {row["name"]: row["text"] for row in rows}
    assert found["abc:ABCMeta"].startswith("Metaclass for defining Abstract Base Classes")
    assert len(rows) > 200
    assert min(shard.stat().st_size for shard in shards) > 0


def test_a_module_of_several_groups_has_several_row_groups(tmp_path: Path) -> None:
    half = demo.ROW_GROUP_BYTES // 2
    records = [demo.Record(str(i), "x" * half) for i in range(5)]
    demo._write_parquet(tmp_path / "code" / "a.parquet", records)
    file = pq.ParquetFile(tmp_path / "code" / "a.parquet")
    counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert counts == [2, 2, 1]
    assert file.read().to_pylist() == [record._asdict() for record in records]


def test_any_text_comes_back_from_the_tokenizer(made: Demo) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(made.tokenizer))
    assert tokenizer.get_vocab_size() <= demo.VOCABULARY_SIZE
    assert tokenizer.token_to_id(demo.END_OF_TEXT) == 0
    for text in ("def f(x):\n\treturn x", "naïve 漢字 🙂", "\x00\x7f", " " * 9):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    code = pq.read_table(_shards(made, "code")[0])["text"][0].as_py()
    assert len(tokenizer.encode(code).ids) < len(code.encode()) / 2


def test_making_it_again_elsewhere_gives_the_same_bytes(made: Demo, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from meshfeed.launch.demo import prepare_demo; "
        f"prepare_demo(Path(sys.argv[1]), max_bytes={SMALL})"
    )
    # Another process has another hash seed, on which an order might depend.
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    (other,) = tmp_path.iterdir()
    assert _contents(other) == _contents(made.tokenizer.parent)


def test_the_second_call_makes_nothing(made: Demo) -> None:
    folder = made.tokenizer.parent.parent
    before = {path: path.stat() for path in folder.rglob("*")}
    calls: list[str] = []
    again = prepare_demo(folder, max_bytes=SMALL, progress=lambda stage, *_: calls.append(stage))
    assert again == made
    assert calls == []
    assert {path: path.stat() for path in folder.rglob("*")} == before


def test_progress_tells_each_stage_up_to_its_end(tmp_path: Path) -> None:
    seen: dict[str, list[tuple[int, int]]] = {}
    prepare_demo(
        tmp_path,
        max_bytes=60_000,
        progress=lambda stage, done, total: seen.setdefault(stage, []).append((done, total)),
    )
    assert len(seen) == 4
    for stage, calls in seen.items():
        assert calls == sorted(calls), stage
        assert calls[-1][0] == calls[-1][1] > 0, stage


def test_what_stops_half_way_leaves_nothing_and_can_be_made_again(tmp_path: Path) -> None:
    def stop(stage: str, done: int, total: int) -> None:
        if stage.startswith("training"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_demo(tmp_path, max_bytes=60_000, progress=stop)
    assert list(tmp_path.iterdir()) == []
    assert prepare_demo(tmp_path, max_bytes=60_000).tokenizer.is_file()


def test_two_at_once_give_one_folder(tmp_path: Path) -> None:
    inner: list[Demo] = []

    def second(stage: str, done: int, total: int) -> None:
        if not inner:
            inner.append(prepare_demo(tmp_path, max_bytes=60_000))

    outer = prepare_demo(tmp_path, max_bytes=60_000, progress=second)
    assert inner == [outer]
    assert [path.name for path in tmp_path.iterdir()] == [outer.tokenizer.parent.name]


def test_an_interpreter_without_sources_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--data"):
        prepare_demo(tmp_path, max_bytes=0)


def test_docstrings_carry_where_they_stand() -> None:
    source = (
        '"""M"""\nif True:\n    class A:\n        "C"\n        async def f(self):\n'
        '            "F"\n            def g(): "G"\ndef silent(): pass\n'
    )
    assert list(docstrings("m", source)) == [
        ("m", "M"),
        ("m:A", "C"),
        ("m:A.f", "F"),
        ("m:A.f.g", "G"),
    ]


def test_a_tokenizer_learns_frequent_words() -> None:
    tokenizer = train_tokenizer(["frobnicate the meshes"] * 50)
    assert tokenizer.encode("frobnicate").tokens == ["frobnicate"]
