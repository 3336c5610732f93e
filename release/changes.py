"""The changes that users notice: fragments in `changes/` until a release, a section of CHANGELOG.md afterwards."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from release.facts import ReleaseError

FOLDER: Final = "changes"
_NAME: Final = re.compile(r"(?:\d+|\+[a-z0-9-]+)\.(?P<kind>[a-z]+)(?:\.\d+)?\.md")
_OTHERS: Final = ("README.md",)
_LONGEST: Final = 400
"""Characters of a fragment: it says what a user does differently, and the pages say the rest."""


def section(root: Path, version: str) -> str:
    """Return the text of CHANGELOG.md about this version, without its heading. Raises ReleaseError if it has none."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## (?:Podkeeper )?{re.escape(version)}\b.*\n(?P<body>(?:(?!## ).*\n?)*)", text, re.MULTILINE)
    if not found or not found["body"].strip():
        raise ReleaseError(f"CHANGELOG.md has no section {version}: run `make changelog` and commit what it writes")
    return found["body"].strip()


def faults(root: Path) -> Iterator[str]:
    """Return the faults of the fragments, one line each."""
    kinds = fragment_kinds(root)
    for path in sorted((root / FOLDER).glob("*")):
        if path.name in _OTHERS or path.name.startswith("."):
            continue
        found = _NAME.fullmatch(path.name)
        text = path.read_text(encoding="utf-8").strip()
        if not found or found["kind"] not in kinds:
            yield f"{FOLDER}/{path.name}: the name is not +SUBJECT.KIND.md with KIND one of {', '.join(kinds)}"
        elif not text:
            yield f"{FOLDER}/{path.name}: the file is empty"
        elif len(text) > _LONGEST:
            yield f"{FOLDER}/{path.name}: {len(text)} characters, at most {_LONGEST}"


def fragment_kinds(root: Path) -> list[str]:
    """The kinds of changes that pyproject.toml names for towncrier."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]
    return [each["directory"] for each in settings["type"]]
