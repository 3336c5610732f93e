"""A copy of the parts of this checkout that a release is made of, and a release without its distributions."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from release.assembling import write_others
from release.facts import ROOT, Address, Made, tracked, version_of
from release.staging import stage

ADDRESS = Address("Some-Owner/podkeeper")
_PARTS = (
    "changes/",
    "charts/",
    "crds/",
    "docker/",
    "docs/",
    "examples/",
    "operator/",
    "bookie_protocol/",
    "bookie_pod/",
)

Broken = Callable[[str, str, str], AbstractContextManager[None]]


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of its own, of all but tests and benchmarks."""
    root = tmp_path_factory.mktemp("checkout") / "podkeeper"
    for path in tracked(ROOT):
        if "/" not in path or path.startswith(_PARTS):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, root / path)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=root, check=True, timeout=60)
    return root


@pytest.fixture
def broken(checkout: Path) -> Broken:
    """Puts one text in place of another in a file of the checkout, for a while."""

    @contextmanager
    def change(path: str, before: str, after: str) -> Iterator[None]:
        file = checkout / path
        text = file.read_text(encoding="utf-8")
        assert before in text, f"{path} has no {before!r}"
        file.write_text(text.replace(before, after, 1), encoding="utf-8")
        try:
            yield
        finally:
            file.write_text(text, encoding="utf-8")

    return change


@pytest.fixture(scope="session")
def source(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout with the addresses of a release."""
    target = tmp_path_factory.mktemp("source")
    stage(checkout, target, ADDRESS)
    return target


@pytest.fixture(scope="session")
def written(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("written")
    write_others(source, Made(directory, ADDRESS, version_of(source)))
    return directory


@pytest.fixture
def made(source: Path, written: Path, tmp_path: Path) -> Made:
    """A release of the checkout, without wheel and source distribution."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return Made(tmp_path, ADDRESS, version_of(source))
