"""Copies `docs/` to the folder that the site is built from, so that every link of the copy leads somewhere on the web.

    python -m website.stage build/pages

Pages link to each other by relative paths, which a Git host and the site both follow. A link to a file outside `docs/`
has no page on the site, so in the copy it is an address of the repository.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
REPOSITORY: Final = "https://github.com/podkeeper/podkeeper"
_BRANCH: Final = "main"
_FENCE: Final = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(?<=\]\()(?P<path>[^)#:\s]+)(?P<anchor>#[^)]*)?(?=\))")


def main() -> None:
    target = Path(sys.argv[1])
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(DOCS, target)
    for page in target.rglob("*.md"):
        original = DOCS / page.relative_to(target)
        page.write_text(staged(original, original.read_text(encoding="utf-8")), encoding="utf-8")


def staged(page: Path, text: str) -> str:
    """Return the text of `page`, with links that leave `docs/` as addresses of the repository."""

    def link(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(page.parent / found["path"]))
        if target.is_relative_to(DOCS):
            return found[0]
        kind = "tree" if target.is_dir() else "blob"
        return f"{REPOSITORY}/{kind}/{_BRANCH}/{target.relative_to(ROOT)}{found['anchor'] or ''}"

    return "".join(part if code else _LINK.sub(link, part) for code, part in _parts(text))


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """Yield the text in order: blocks of code, and what is between them."""
    end = 0
    for found in _FENCE.finditer(text):
        yield False, text[end : found.start()]
        yield True, found[0]
        end = found.end()
    yield False, text[end:]


if __name__ == "__main__":
    main()
