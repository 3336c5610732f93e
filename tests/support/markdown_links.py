"""Links of a Markdown page to files of the work tree and to headings."""

from __future__ import annotations

import re
from pathlib import Path

_LINK = re.compile(r"\]\((?P<path>[^)#:]+)?(#(?P<anchor>[^)]+))?\)")


def broken_links(page: Path) -> list[str]:
    """Those that lead nowhere; addresses of the web are left alone."""
    broken = []
    for found in _LINK.finditer(page.read_text(encoding="utf-8")):
        target = page.parent / found["path"] if found["path"] else page
        if not target.exists() or (found["anchor"] and found["anchor"] not in anchors(target)):
            broken.append(f"{page.name}: {found[0]}")
    return broken


def anchors(page: Path) -> set[str]:
    """Of the headings, as Git hosts make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
