"""The places outside pyproject.toml that name the version, an image or an API version, such as examples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from release.facts import ReleaseError, tracked

_VERSION: Final = r"(?P<version>\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)"
IMAGE: Final = re.compile(rf"(?<![\w./-])(?P<name>podkeeper(?:-[a-z]+)?):{_VERSION}(?P<spark>-spark)?(?![\w.])")
SPEC: Final = re.compile(rf'^ *(?:version|appVersion): "?{_VERSION}"?$', re.MULTILINE)
API: Final = re.compile(r"podkeeper\.dev/(?P<version>v\d\w*)")
_PROJECT: Final = re.compile(rf'^version = "{_VERSION}"$', re.MULTILINE)
_PLACES: Final = ("charts/", "examples/", "docs/", "docker/", "operator/", "README.md", "Dockerfile", "Makefile")
_ELSEWHERE: Final = (
    "docs/internals/",
    "docs/adr/",
    "charts/podkeeper-operator/files/",
    "charts/podkeeper-cluster/files/",
)
_TEXT: Final = (".md", ".yaml", ".yml", ".py", ".sh", ".tpl", ".txt", "")
_NEW: Final = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")


@dataclass(frozen=True)
class Mention:
    """A place that names something which has to agree with the rest."""

    path: str
    line: int
    name: str
    """The image, or empty."""
    version: str


@dataclass(frozen=True)
class Mentions:
    """All places of a checkout that repeat something."""

    images: list[Mention]
    """Every image of ours with a tag."""
    versions: list[Mention]
    """Every `version:` of a chart or a resource."""
    api_versions: list[Mention]
    """Every API version of our definitions that a page, an example or a chart names."""


def find(root: Path) -> Mentions:
    """Read every file that may repeat something."""
    found = Mentions([], [], [])
    for path in _files(root):
        text = (root / path).read_text(encoding="utf-8")
        for pattern, places in ((IMAGE, found.images), (SPEC, found.versions), (API, found.api_versions)):
            places.extend(_found(path, text, pattern))
    return found


def write_version(root: Path, old: str, new: str) -> list[str]:
    """Put `new` in place of `old` wherever it has to stand. Returns the files that changed."""
    if not _NEW.fullmatch(new):
        raise ReleaseError(f"version {new!r} is not X.Y.Z, X.Y.ZaN, X.Y.ZbN or X.Y.ZrcN")
    written = []
    for path in ("pyproject.toml", *_files(root)):
        text = before = (root / path).read_text(encoding="utf-8")
        for pattern in (_PROJECT,) if path == "pyproject.toml" else (IMAGE, SPEC):
            text = pattern.sub(lambda found: found[0].replace(old, new) if found["version"] == old else found[0], text)
        if text != before:
            (root / path).write_text(text, encoding="utf-8")
            written.append(path)
    return written


def _found(path: str, text: str, pattern: re.Pattern[str]) -> Iterator[Mention]:
    for found in pattern.finditer(text):
        line = text.count("\n", 0, found.start("version")) + 1
        yield Mention(path, line, found.groupdict().get("name") or "", found["version"])


def _files(root: Path) -> Iterator[str]:
    for path in tracked(root):
        ours = path.startswith(_PLACES) and not path.startswith(_ELSEWHERE)
        if ours and Path(path).suffix in _TEXT and (root / path).is_file():
            yield path
