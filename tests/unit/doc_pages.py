"""Reads the documentation's pages: sections, tables, fenced blocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [page for page in (ROOT / "README.md", *sorted(DOCS.glob("*.md"))) if page.exists()]

Table = list[dict[str, str]]


class Block(NamedTuple):
    """A fenced block: its language, text, and the line of the page at which the text begins."""

    kind: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text()
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(m[1], m[2], text.count("\n", 0, m.start(2)) + 1) for m in found]


def sections(page: Path) -> dict[str, str]:
    """What stands under each heading of the second level."""
    parts = re.split(r"^## (.+)$", page.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def tables(text: str) -> list[Table]:
    """The tables of a text: rows by the names of their columns."""
    found = []
    for group in re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE):
        head, _, *rows = (
            [cell.strip() for cell in line.strip().strip("|").split("|")]
            for line in group.strip().split("\n")
        )
        found.append([dict(zip(head, row, strict=True)) for row in rows])
    return found


def column(page: Path, name: str) -> list[Table]:
    """The tables of a page whose first column has this name."""
    return [table for table in tables(page.read_text()) if next(iter(table[0])) == name]
