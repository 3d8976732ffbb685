"""Prepare the corpus that the benchmarks run on: ``python -m benchmarks.corpus``.

At least 200 MB of real text (``sources``), without duplicates, in an order that only depends on
the documents' content, written as what people really have::

    parquet/      text, zstd, row groups of 2 MB          jsonl/  the same, .jsonl.zst
    tokenizer.json  byte-level BPE of 32,768 ids, trained on a sample
    tokens/       list<int32> of every document and its end token, Parquet, zstd
    rows/         fixed_size_list<int32>[2048], packed, Arrow IPC: what a gather reads
    corpus.json   what all this was made of

Every part is made once and kept; a part whose recipe changes is made again. The folder is
``.cache/benchmarks`` in the repository, or ``--cache``, or ``MESHFEED_BENCHMARK_CACHE``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import shards, sources

RECIPE = 1
"""Rises when the same packages would give other files."""

LEAST_BYTES = 200_000_000
NUM_SHARDS = 32

_DOCUMENTS = pa.schema([("text", pa.string()), ("order", pa.uint64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Where the corpus lies and how large it is.

    Attributes:
        root: folder of all parts.
        documents, text_bytes: of the text, in UTF-8.
        tokens: of all documents, with their end tokens.
        digest: of the documents in their order.
    """

    root: Path
    documents: int
    text_bytes: int
    tokens: int
    digest: str

    @property
    def tokenizer(self) -> Path:
        """The tokenizer file."""
        return self.root / "tokenizer.json"

    def files(self, part: str) -> list[Path]:
        """Sorted shards of ``parquet``, ``jsonl``, ``tokens`` or ``rows``."""
        return sorted(path for path in (self.root / part).iterdir() if path.is_file())


def default_root() -> Path:
    """The folder of the corpus where nothing else is asked for."""
    kept = os.environ.get("MESHFEED_BENCHMARK_CACHE")
    return Path(kept) if kept else Path(__file__).resolve().parents[1] / ".cache" / "benchmarks"


def load(root: Path | None = None) -> Corpus:
    """The corpus that ``prepare`` made.

    Raises:
        FileNotFoundError: there is none; ``python -m benchmarks.corpus`` makes it.
    """
    root = root or default_root()
    facts = json.loads((root / "corpus.json").read_text())["corpus"]
    return Corpus(root=root, **facts)


def prepare(root: Path | None = None) -> Corpus:
    """Make what is missing of the corpus, and say what is being done.

    Takes a few minutes on two cores the first time, and no time when everything is there.
    """
    root = (root or default_root()).absolute()
    root.mkdir(parents=True, exist_ok=True)
    recipe = {"recipe": RECIPE, "packages": sources.PACKAGES, "shards": NUM_SHARDS}
    made = root / "corpus.json"
    if made.exists() and json.loads(made.read_text())["recipe"] == recipe:
        corpus = load(root)
        print(f"corpus: {_size(corpus)} in {root}", flush=True)
        return corpus
    began = time.monotonic()
    if not _is_stamped(root, recipe):
        for part in ("documents", "parquet", "jsonl", "tokens", "rows"):
            shutil.rmtree(root / part, ignore_errors=True)
        (root / "tokenizer.json").unlink(missing_ok=True)
        (root / "recipe.json").write_text(json.dumps(recipe))
    parts = _collect(root)
    texts, digest = _ordered(parts)
    _part(root / "parquet", lambda to: shards.write_parquet(texts, to, NUM_SHARDS))
    _part(root / "jsonl", lambda to: shards.write_jsonl(texts, to, NUM_SHARDS))
    _part(root / "tokenizer.json", lambda to: shards.train_tokenizer(texts, to))
    _part(root / "tokens", lambda to: shards.write_tokens(root / "parquet", to, root))
    _part(root / "rows", lambda to: shards.write_rows(root / "tokens", to))
    facts = {
        "documents": len(texts),
        "text_bytes": _text_bytes(texts),
        "tokens": shards.count_tokens(root / "tokens"),
        "digest": digest,
    }
    versions = {path.stem: path.stem.split("_", 1)[-1] for path in sorted(parts)}
    made.write_text(json.dumps({"recipe": recipe, "corpus": facts, "versions": versions}, indent=1))
    shutil.rmtree(root / "documents")
    corpus = load(root)
    print(
        f"corpus: {_size(corpus)} in {root}, made in {time.monotonic() - began:.0f} s", flush=True
    )
    return corpus


def _is_stamped(root: Path, recipe: dict[str, Any]) -> bool:
    stamp = root / "recipe.json"
    return stamp.exists() and bool(json.loads(stamp.read_text()) == recipe)


def _size(corpus: Corpus) -> str:
    return (
        f"{corpus.documents:,} documents, {corpus.text_bytes / 1e6:.0f} MB of text, "
        f"{corpus.tokens / 1e6:.1f} million tokens"
    )


def _part(path: Path, write: Callable[[Path], None]) -> None:
    """Make one part under a name of its own, and rename it when it is whole."""
    if path.exists():
        return
    began = time.monotonic()
    unfinished = path.with_name("unfinished-" + path.name)
    shutil.rmtree(unfinished, ignore_errors=True)
    write(unfinished)
    unfinished.rename(path)
    print(f"  {path.name}: {time.monotonic() - began:.1f} s", flush=True)


def _collect(root: Path) -> list[Path]:
    """A file of documents for every package that can be had, or for this machine's own text."""
    folder = root / "documents"
    folder.mkdir(exist_ok=True)
    print(f"  fetching {len(sources.PACKAGES)} packages", flush=True)
    packages = sources.download(list(sources.PACKAGES), root / "packages")
    jobs = [
        (package, sources.PACKAGES[name], folder / f"{package.stem}.arrow")
        for name, package in packages.items()
    ]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        sizes = dict(zip((job[2] for job in jobs), pool.map(_extract, jobs), strict=True))
    if sum(sizes.values()) < LEAST_BYTES:
        print("  too few packages can be had: taking the text files of this machine", flush=True)
        own = folder / "machine.arrow"
        sizes[own] = _save(sources.machine_documents(LEAST_BYTES * 5 // 4), own)
    return list(sizes)


def _extract(job: tuple[Path, int, Path]) -> int:
    package, limit, path = job
    size = _save(sources.package_documents(package, limit), path)
    print(f"  {package.stem.split('_')[0]}: {size / 1e6:.1f} MB", flush=True)
    return size


def _save(documents: Any, path: Path) -> int:
    """Write documents with their place in the corpus, a hash of their content; returns bytes."""
    texts = list(documents)
    order = [
        int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
        for text in texts
    ]
    table = pa.table([pa.array(texts, pa.string()), pa.array(order, pa.uint64())], _DOCUMENTS)
    with pa.ipc.new_file(str(path), _DOCUMENTS) as writer:
        writer.write_table(table)
    return _text_bytes(table["text"])


def _ordered(parts: list[Path]) -> tuple[pa.ChunkedArray, str]:
    """All documents once, in the order of their hashes, and a digest of that order."""
    table = pa.concat_tables(pa.ipc.open_file(pa.memory_map(str(p))).read_all() for p in parts)
    order, first = np.unique(table["order"].to_numpy(), return_index=True)
    digest = hashlib.blake2b(order.tobytes(), digest_size=8).hexdigest()
    return table["text"].take(pa.array(first)), digest


def _text_bytes(texts: pa.ChunkedArray) -> int:
    return int(pc.sum(pc.binary_length(texts)).as_py() or 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, help="folder of the corpus")
    print(json.dumps(asdict(prepare(parser.parse_args().cache)), default=str))


if __name__ == "__main__":
    main()
