"""From globs, folders and addresses to one sorted list of files, with one listing for each folder.

A glob is the path's usual one: ``*`` and ``?`` within a name, ``**`` over folders, ``[abc]`` and
``{a,b}``. A folder stands for all files below it. Names that begin with a dot are never meant, nor
in a folder those that begin with ``_`` (``_SUCCESS``).
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from meshfeed.pipeline.data.storage import Storage
from meshfeed.pipeline.data.storage.backends import Entry, split_scheme
from meshfeed.pipeline.plan.errors import ConfigError

_MAGIC = re.compile(r"[*?\[{]")
_LIST_FROM = 8
"""So many single files of one folder are found by listing it, fewer by asking for each."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files of a source.

    Attributes:
        root: address of the folder that holds them all; "" where there is none.
        entries: sorted by path, which is relative to ``root``.
    """

    root: str
    entries: tuple[Entry, ...]


def list_shards(
    storage: Storage,
    patterns: Sequence[str],
    *,
    source: str = "",
    in_folder: Callable[[str], bool] | None = None,
) -> Listing:
    """The files that ``patterns`` name, each once.

    Args:
        storage: counts the listings.
        patterns: globs, folders, single files; local paths or addresses.
        source: its name, for errors.
        in_folder: which files a folder stands for, by path; None: all.

    Raises:
        ConfigError: a pattern names no file.
        ReadError: storage failed.
    """
    found: dict[str, Entry] = {}
    listed: dict[tuple[str, bool], list[Entry]] = {}

    def files_in(folder: str, recursive: bool) -> list[Entry]:
        key = (folder, recursive)
        if key not in listed:
            listed[key] = storage.files_in(folder, recursive=recursive)
        return listed[key]

    full = [_absolute(p) for p in patterns]
    singles = [p for p in full if not _MAGIC.search(p)]
    near: dict[str, int] = {}
    for path in singles:
        near[posixpath.dirname(path)] = near.get(posixpath.dirname(path), 0) + 1
    for pattern in full:
        if _MAGIC.search(pattern):
            entries = _glob(pattern, files_in)
        else:
            folder = posixpath.dirname(pattern)
            listing = files_in(folder, False) if near[folder] >= _LIST_FROM else None
            entries = _single(storage, pattern, files_in, listing, in_folder)
        if not entries:
            raise ConfigError(
                f"sources.{source}.data",
                f"{pattern} names no file",
                "Check the path; a folder needs files of the source's format in it",
            )
        found |= {e.path: e for e in entries}
    return _relative(sorted(found.values()))


def glob_regex(pattern: str) -> re.Pattern[str]:
    """The regular expression of a glob.

    >>> bool(glob_regex("a/**/*.txt").fullmatch("a/b/c/d.txt"))
    True
    """
    out, i, depth = "", 0, 0
    while i < len(pattern):
        char = pattern[i]
        at_start = i == 0 or pattern[i - 1] == "/"
        if pattern.startswith("**/", i) and at_start:
            out, i = out + r"(?:[^/.][^/]*/)*", i + 3
            continue
        if pattern.startswith("**", i):
            out, i = out + r".*", i + 2
            continue
        close = pattern.find("]", i + 2) if char == "[" else -1
        if char == "*":
            out += r"(?!\.)[^/]*" if at_start else r"[^/]*"
        elif char == "?":
            out += r"[^/]"
        elif close > 0:
            inner = pattern[i + 1 : close].replace("\\", r"\\")
            out += "[" + ("^" + inner[1:] if inner[0] == "!" else inner) + "]"
            i = close
        elif char == "{":
            out, depth = out + "(?:", depth + 1
        elif char in ",}" and depth:
            out, depth = (out + "|", depth) if char == "," else (out + ")", depth - 1)
        else:
            out += re.escape(char)
        i += 1
    return re.compile(out)


def _glob(pattern: str, files_in: Callable[[str, bool], list[Entry]]) -> list[Entry]:
    start = _MAGIC.search(pattern)
    base = pattern[: pattern.rfind("/", 0, start.start() if start else None)]
    rest = pattern[len(base) + 1 :]
    matches = glob_regex(pattern).fullmatch
    recursive = "/" in rest or "**" in rest
    return [e for e in files_in(base or "/", recursive) if matches(e.path)]


def _single(
    storage: Storage,
    path: str,
    files_in: Callable[[str, bool], list[Entry]],
    listing: list[Entry] | None,
    in_folder: Callable[[str], bool] | None,
) -> list[Entry]:
    """A file, or all files below a folder."""
    if listing is None:
        entry = storage.stat(path)
    else:
        entry = next((e for e in listing if e.path == path), None)
    if entry is not None:
        return [entry]
    below = [e for e in files_in(path, True) if not _is_hidden(e.path[len(path) :])]
    kept = [e for e in below if in_folder is None or in_folder(e.path)]
    if len(kept) < len(below):
        left = sorted({e.path for e in below} - {e.path for e in kept})
        logger.warning("%s: %d files are of no known format, e.g. %s", path, len(left), left[0])
    return kept


def _is_hidden(path: str) -> bool:
    return any(part[:1] in "._" for part in path.split("/") if part)


def _absolute(pattern: str) -> str:
    scheme, path = split_scheme(pattern)
    if scheme:
        return pattern.rstrip("/")
    return path if os.sep == "/" else path.replace(os.sep, "/")


def _relative(entries: list[Entry]) -> Listing:
    """Paths relative to the one folder that holds them all."""
    if not entries:
        return Listing(root="", entries=())
    folders = [posixpath.dirname(e.path).split("/") for e in entries]
    pairs = zip(min(folders), max(folders), strict=False)
    shared = [first for first, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    root = "/".join(shared) or ("/" if entries[0].path.startswith("/") else "")
    if "://" not in root and any("://" in e.path for e in entries):
        return Listing(root="", entries=tuple(entries))
    cut = len(root.rstrip("/")) + 1
    return Listing(root=root, entries=tuple(e._replace(path=e.path[cut:]) for e in entries))
