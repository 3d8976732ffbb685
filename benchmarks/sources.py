"""Real documents out of Debian packages: prose, manuals and code, long and short, in many scripts.

A package is downloaded by name with ``apt-get download``, which installs nothing, and read as a
stream: nothing is unpacked onto the disk. Where that is not possible (no apt, no network) the
documents are the text files that this machine already has.
"""

from __future__ import annotations

import gzip
import html
import itertools
import re
import shutil
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

MB = 1_000_000

PACKAGES: dict[str, int] = {
    "golang-1.19-src": 36 * MB,
    "dict-gcide": 24 * MB,
    "emacs-el": 30 * MB,
    "gnome-user-docs": 18 * MB,
    "dict-wn": 16 * MB,
    "debian-handbook": 18 * MB,
    "rust-doc": 8 * MB,
    "linux-doc-6.1": 18 * MB,
    "erlang-doc": 8 * MB,
    "python3.11-doc": 12 * MB,
    "vim-runtime": 12 * MB,
    "libreoffice-help-ru": 10 * MB,
    "libreoffice-help-zh-cn": 8 * MB,
    "libreoffice-help-de": 8 * MB,
    "anarchism": 12 * MB,
    "postgresql-doc-15": 10 * MB,
    "python-django-doc": 10 * MB,
    "perl-doc": 10 * MB,
    "manpages": 4 * MB,
    "manpages-dev": 6 * MB,
    "manpages-ja": 10 * MB,
    "manpages-zh": 8 * MB,
    "manpages-de": 8 * MB,
    "manpages-fr": 6 * MB,
    "manpages-ru": 6 * MB,
    "freebsd-manpages": 10 * MB,
}
"""Package -> bytes of text that are taken from it at most."""

MAX_CHARACTERS = 131_072
"""A longer document is cut at the end of a line."""

MIN_CHARACTERS = 64

_PLAIN = {
    *("txt", "rst", "md", "pod", "el", "go", "s", "vim", "h", "c", "py", "pyi", "js", "java", "pl"),
    *("pm", "rs", "sh", "xml", "hpp", "hrl", "erl", "tex", "texi", "info", "org", "adoc"),
}
_MARKUP = {"html", "htm", "page", "xhtml"}
_MANUAL = re.compile(r"/man/(?:[^/]+/)?man\w+/[^/]+$")
_DROPPED = re.compile(r"<(script|style|head|nav|svg)\b.*?</\1\s*>|<!--.*?-->", re.S | re.I)
_BLOCK_END = re.compile(r"</(?:p|div|li|h\d|tr|pre|section|title)\s*>|<br\s*/?>", re.I)
_TAG = re.compile(r"<[^>]*>")
_SPACES = re.compile(r"[ \t]{3,}|[ \t]+(?=\n)")
_BLANK_LINES = re.compile(r"\n{3,}")
_DICT_DIGITS = {
    digit: value
    for value, digit in enumerate(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    )
}
_ENTRIES_A_DOCUMENT = (1, 2, 4, 8, 16)


def download(names: list[str], folder: Path) -> dict[str, Path]:
    """Package files by name, as far as they can be had; those already in ``folder`` stay.

    Packages are asked for one by one only where the request for all of them fails, so that one
    that this release does not have costs only itself.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in names if not _package_file(name, folder)]
    able = shutil.which("apt-get") and shutil.which("dpkg-deb")
    if missing and able and not _apt_download(missing, folder):
        subprocess.run(["apt-get", "update"], check=False, capture_output=True, timeout=120)
        for name in missing:
            _apt_download([name], folder)
    found = ((name, _package_file(name, folder)) for name in names)
    return {name: path for name, path in found if path is not None}


def _package_file(name: str, folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob(f"{name}_*.deb"))), None)


def _apt_download(names: list[str], folder: Path) -> bool:
    try:
        command = ["apt-get", "-q", "download", *names]
        done = subprocess.run(command, cwd=folder, check=False, capture_output=True, timeout=300)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def package_documents(package: Path, limit: int) -> Iterator[str]:
    """Documents of a package file, in the package's own order, up to ``limit`` bytes of UTF-8."""
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        if process.stdout is None:
            raise RuntimeError(f"dpkg-deb gave no output for {package}")
        yield from _limited(_archive_documents(process.stdout), limit)
        process.kill()


def machine_documents(limit: int) -> Iterator[str]:
    """Documents from the text files of this machine, up to ``limit`` bytes of UTF-8."""
    roots = [Path(sys.prefix), Path("/usr/share"), Path("/usr/lib"), Path("/usr/include")]
    files = (path for root in roots for path in sorted(root.rglob("*")))
    yield from _limited(_file_documents(files), limit)


def _limited(documents: Iterator[str], limit: int) -> Iterator[str]:
    for document in documents:
        limit -= len(document.encode())
        if limit < 0:
            return
        yield document


def _archive_documents(stream: IO[bytes]) -> Iterator[str]:
    index: dict[str, bytes] = {}
    dictionaries: dict[str, bytes] = {}
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is None:
                continue
            if member.name.endswith(".dict.dz"):
                dictionaries[member.name.removesuffix(".dict.dz")] = gzip.decompress(content.read())
            elif member.name.endswith(".index"):
                index[member.name.removesuffix(".index")] = content.read()
            elif _kind(member.name):
                yield from _documents(member.name, content.read())
    for name, body in dictionaries.items():
        yield from _dictionary_documents(index.get(name, b""), body)


def _file_documents(files: Iterator[Path]) -> Iterator[str]:
    for path in files:
        if not _kind(path.as_posix()) or path.is_symlink() or not path.is_file():
            continue
        try:
            content = path.read_bytes()
        except OSError as error:
            print(f"  left out: {error}", file=sys.stderr)
            continue
        yield from _documents(path.as_posix(), content)


def _kind(name: str) -> str:
    """``markup``, ``plain`` or "" for what is not text, from the name of a file."""
    name = name.removesuffix(".gz")
    if _MANUAL.search(name):
        return "plain"
    suffix = name.rsplit(".", 1)[-1].lower()
    return "markup" if suffix in _MARKUP else "plain" if suffix in _PLAIN else ""


def _documents(name: str, content: bytes) -> Iterator[str]:
    try:
        if name.endswith(".gz"):
            content = gzip.decompress(content)
        text = content.decode()
    except (UnicodeDecodeError, OSError, EOFError, zlib.error):
        return  # not text, or not in UTF-8: a corpus loses nothing by leaving it out
    if "\0" in text:
        return
    yield from _cut(_without_markup(text) if _kind(name) == "markup" else text.strip())


def _without_markup(text: str) -> str:
    text = _BLOCK_END.sub("\n", _DROPPED.sub("", text))
    text = _SPACES.sub(" ", html.unescape(_TAG.sub("", text)))
    return _BLANK_LINES.sub("\n\n", text).strip()


def _cut(text: str) -> Iterator[str]:
    while len(text) > MAX_CHARACTERS:
        line_end = text.rfind("\n", MAX_CHARACTERS // 2, MAX_CHARACTERS)
        cut = line_end + 1 if line_end >= 0 else MAX_CHARACTERS
        yield text[:cut]
        text = text[cut:]
    if len(text) >= MIN_CHARACTERS:
        yield text


def _dictionary_documents(index: bytes, body: bytes) -> Iterator[str]:
    """Entries of a dictd dictionary, one to sixteen a document: the corpus' many short ones."""
    spans = set()
    for line in index.decode(errors="replace").splitlines():
        fields = line.split("\t")
        if len(fields) == 3 and not fields[0].startswith("00"):
            spans.add((_dict_number(fields[1]), _dict_number(fields[2])))
    entries = iter(sorted(spans))
    for size in itertools.cycle(_ENTRIES_A_DOCUMENT):
        group = list(itertools.islice(entries, size))
        if not group:
            return
        text = b"".join(body[at : at + length] for at, length in group).decode(errors="ignore")
        yield from _cut(text.strip())


def _dict_number(digits: str) -> int:
    value = 0
    for digit in digits:
        value = value * 64 + _DICT_DIGITS.get(digit, 0)
    return value
