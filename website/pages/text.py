"""Markdown of the generated pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

COMMAND: Final = "make docs"
_CODE: Final = re.compile(r"(`[^`]*`)")


def heading(title: str, source: str, introduction: str) -> Iterator[str]:
    """Yield the beginning of a page that is made of `source`."""
    yield f"# {title}"
    yield ""
    yield f"This page is generated from {source}: after a change run `{COMMAND}`."
    yield ""
    yield introduction
    yield ""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table and an empty line; without rows nothing."""
    lines = [f"| {' | '.join(each.replace('|', chr(92) + '|') for each in row)} |" for row in rows]
    if lines:
        yield f"| {' | '.join(columns)} |"
        yield f"|{'---|' * len(columns)}"
        yield from lines
        yield ""


def plain(text: str) -> str:
    """Return prose in one line, in which only code between backticks has a meaning for Markdown."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(part if part.startswith("`") else re.sub(r"([<*_\[])", r"\\\1", part) for part in parts)


def code(text: str) -> str:
    """Return `text` as code."""
    return f"`{text}`" if text else ""
