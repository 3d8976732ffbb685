"""Demo data: real text that every machine has, and a tokenizer trained on it.

The text is the source of the running interpreter's standard library. ``code`` holds its modules,
one a record, in Parquet; ``docs`` the docstrings of their modules, classes and functions, in JSONL.
Both are made once into a folder named by what they depend on (interpreter and tokenizers version),
in a working folder beside it that takes its name when it is whole; so a folder that is there is
complete, two runs at once do no harm, and another interpreter finds its own.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import shutil
import sysconfig
import tempfile
import tokenize
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from meshfeed.pipeline.plan.config import SourceConfig
from meshfeed.pipeline.plan.errors import DataError

DEMO_VERSION = 1
"""Rises when the same interpreter gives other demo data, so that old folders are not taken."""

VOCABULARY_SIZE = 8192
END_OF_TEXT = "<|endoftext|>"

CODE_SHARDS = 8
DOCS_SHARDS = 4
ROW_GROUP_BYTES = 1 << 18

_LEFT_OUT = frozenset(("site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3"))
"""Folders without which the text is the same on machines that ship no tests."""

_TRAIN_EVERY = 4
"""The tokenizer learns from every fourth record of each source: enough for its size."""

Progress = Callable[[str, int, int], None]
"""Called with the stage in words, units done and units in all."""


class Record(NamedTuple):
    """One document: where it is from (``json.decoder``, ``json.decoder:JSONDecoder.decode``)."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """Two sources and a tokenizer file, ready to be given to a run.

    Attributes:
        sources: ``code`` (Parquet) and ``docs`` (JSONL), column ``text``, weights 4 to 1.
        tokenizer: a ``tokenizer.json``: byte-level BPE that ends a record with ``<|endoftext|>``.
    """

    sources: tuple[SourceConfig, ...]
    tokenizer: Path


def _silent(stage: str, done: int, total: int) -> None:
    del stage, done, total


def prepare_demo(
    folder: Path, *, max_bytes: int = 16_000_000, progress: Progress = _silent
) -> Demo:
    """Makes the demo data below ``folder``, or finds what an earlier call made there.

    Args:
        folder: the cache; made when it is not there.
        max_bytes: source code taken at most, in bytes; a standard library has about 12 million.
        progress: called every few files with the stage, units done and units in all.

    Raises:
        DataError: the running interpreter ships no sources.
    """
    modules = _choose_modules(_stdlib(), max_bytes)
    ready = folder / _folder_name(modules)
    if not ready.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        working = Path(tempfile.mkdtemp(prefix=f"{ready.name}.partial-", dir=folder))
        working.chmod(0o755)  # mkdtemp's is for one user alone
        try:
            _build(working, modules, progress)
            _give_name(working, ready)
        finally:
            shutil.rmtree(working, ignore_errors=True)
    return Demo(
        sources=(
            SourceConfig(name="code", data=(str(ready / "code" / "*.parquet"),), weight=4.0),
            SourceConfig(name="docs", data=(str(ready / "docs" / "*.jsonl"),), weight=1.0),
        ),
        tokenizer=ready / "tokenizer.json",
    )


def _give_name(working: Path, ready: Path) -> None:
    try:
        working.rename(ready)
    except OSError:
        if not ready.is_dir():  # else another run was first, with the same content
            raise


def _stdlib() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _choose_modules(library: Path, max_bytes: int) -> list[tuple[Path, int]]:
    """The library's modules in order of their paths, with their sizes, up to ``max_bytes``."""
    paths = []
    for folder, below, files in os.walk(library):
        below[:] = [name for name in below if name not in _LEFT_OUT]
        paths += [Path(folder, name) for name in files if name.endswith(".py")]
    chosen, total = [], 0
    for path in sorted(paths):
        size = path.stat().st_size
        if size and total + size <= max_bytes:
            chosen.append((path, size))
            total += size
    if not chosen:
        raise DataError(
            str(library),
            f"no Python source of at most {max_bytes} bytes is in the standard library",
            hint="Use an interpreter that ships its sources, or give --data and --tokenizer",
        )
    return chosen


def _folder_name(modules: Sequence[tuple[Path, int]]) -> str:
    depends_on = {
        "demo": DEMO_VERSION,
        "tokenizers": tokenizers.__version__,
        "modules": [(path.name, size) for path, size in modules],
    }
    digest = hashlib.sha256(json.dumps(depends_on).encode()).hexdigest()
    return f"python-{platform.python_version()}-{digest[:12]}"


def _build(working: Path, modules: Sequence[tuple[Path, int]], progress: Progress) -> None:
    code, docs = _read_modules(modules, progress)
    for number, records in enumerate(_cut(code, CODE_SHARDS)):
        _write_parquet(working / "code" / _shard_name(number, CODE_SHARDS, "parquet"), records)
        progress("writing code shards", number + 1, CODE_SHARDS)
    for number, records in enumerate(_cut(docs, DOCS_SHARDS)):
        _write_jsonl(working / "docs" / _shard_name(number, DOCS_SHARDS, "jsonl"), records)
        progress("writing docs shards", number + 1, DOCS_SHARDS)
    progress("training a tokenizer", 0, 1)
    texts = [record.text for record in (*code[::_TRAIN_EVERY], *docs[::_TRAIN_EVERY])]
    train_tokenizer(texts).save(str(working / "tokenizer.json"))
    progress("training a tokenizer", 1, 1)


def _read_modules(
    modules: Sequence[tuple[Path, int]], progress: Progress
) -> tuple[list[Record], list[Record]]:
    """The modules as records, and their docstrings."""
    library = _stdlib()
    code, docs = [], []
    for number, (path, _) in enumerate(modules):
        if number % 16 == 0:
            progress("reading the standard library", number, len(modules))
        name = ".".join(path.relative_to(library).with_suffix("").parts)
        try:
            with tokenize.open(path) as file:
                text = file.read()
            documented = list(docstrings(name, text))
            for record in documented:
                record.text.encode()  # an escape in it may be a lone surrogate, which no file holds
        except (SyntaxError, UnicodeError):  # or it is for another version of the language
            continue
        code.append(Record(name, text))
        docs += documented
    progress("reading the standard library", len(modules), len(modules))
    return code, docs


def docstrings(module: str, text: str) -> Iterator[Record]:
    """The docstrings of a module, its classes and functions, in the order of the source.

    Raises:
        SyntaxError: ``text`` is not Python of this interpreter's version.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the text's style, which is not ours
        tree = ast.parse(text)
    if doc := ast.get_docstring(tree):
        yield Record(module, doc)
    yield from _docstrings_below(tree, module + ":")


def _docstrings_below(node: ast.AST, prefix: str) -> Iterator[Record]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = prefix + child.name
            if doc := ast.get_docstring(child):
                yield Record(name, doc)
            yield from _docstrings_below(child, name + ".")
        elif isinstance(child, ast.stmt):
            yield from _docstrings_below(child, prefix)


def _cut(records: Sequence[Record], shards: int) -> list[list[Record]]:
    """Consecutive parts with about the same number of characters; the last may be empty."""
    total = sum(len(record.text) for record in records)
    parts: list[list[Record]] = [[] for _ in range(shards)]
    before = 0
    for record in records:
        parts[before * shards // max(1, total)].append(record)
        before += len(record.text)
    return parts


def _shard_name(number: int, shards: int, suffix: str) -> str:
    return f"part-{number:05d}-of-{shards:05d}.{suffix}"


def _write_parquet(path: Path, records: Sequence[Record]) -> None:
    """Writes row groups of about ``ROW_GROUP_BYTES`` of text, so that a shard has several."""
    path.parent.mkdir(exist_ok=True)
    schema = pa.schema([("name", pa.string()), ("text", pa.string())])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        begin, size = 0, 0
        for end, record in enumerate(records, start=1):
            size += len(record.text)
            if size >= ROW_GROUP_BYTES or end == len(records):
                names, texts = zip(*records[begin:end], strict=True)
                writer.write_table(pa.table({"name": names, "text": texts}, schema=schema))
                begin, size = end, 0


def _write_jsonl(path: Path, records: Sequence[Record]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record._asdict(), ensure_ascii=False) + "\n")


def train_tokenizer(texts: Sequence[str]) -> tokenizers.Tokenizer:
    """Trains a byte-level BPE tokenizer; the same ``texts`` give the same one.

    Every string can be encoded and comes back whole: the 256 bytes are all in the vocabulary.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer, length=len(texts))
    return tokenizer
