"""The facts that the parts of a release have to agree on: the version, and where each part is published."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
IMAGES: Final = {"podkeeper": "", "podkeeper-pulsar": "-pulsar"}
"""Names of images in the checkout, each with what follows the name of the repository in the registry."""
CHARTS: Final = ("podkeeper-operator", "podkeeper-cluster")
LICENSE: Final = "Apache-2.0"
AUTHORS: Final = "The Podkeeper authors"
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38})/[A-Za-z0-9._-]{1,100}")


class ReleaseError(Exception):
    """A release cannot be made; the message says why, and what to do."""


@dataclass(frozen=True)
class Address:
    """The addresses of a release: a repository of GitHub, and the registry beside it."""

    repository: str
    """`OWNER/NAME`."""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises ReleaseError if `text` is not `OWNER/NAME`."""
        if not _REPOSITORY.fullmatch(text):
            raise ReleaseError(
                f"repository {text!r} is not OWNER/NAME: give it as the address of the repository has it"
            )
        return cls(text)

    @property
    def url(self) -> str:
        return f"https://github.com/{self.repository}"

    @property
    def registry(self) -> str:
        """The name of the image. A registry has lower case only."""
        return f"ghcr.io/{self.repository.lower()}"

    @property
    def charts(self) -> str:
        return f"oci://{self.registry}/charts"

    def image(self, name: str, version: str) -> str:
        """The published image that the checkout calls `name`."""
        return f"{self.registry}{IMAGES[name]}:{version}"

    def page(self, path: str, version: str) -> str:
        """A file or folder of the repository as of this version, for a reader."""
        return f"{self.url}/blob/v{version}/{path}"

    def raw(self, path: str, version: str) -> str:
        """A file of the repository as of this version, for a program."""
        return f"https://raw.githubusercontent.com/{self.repository}/v{version}/{path}"

    def asset(self, name: str, version: str) -> str:
        """A file of the release."""
        return f"{self.url}/releases/download/v{version}/{name}"


@dataclass(frozen=True)
class Made:
    """A release that was written to a directory."""

    directory: Path
    address: Address
    version: str

    @cached_property
    def wheel(self) -> Path:
        return self.directory / f"podkeeper-{self.version}-py3-none-any.whl"

    @cached_property
    def source(self) -> Path:
        return self.directory / f"podkeeper-{self.version}.tar.gz"

    @cached_property
    def plugin(self) -> Path:
        """The archive that krew installs."""
        return self.directory / f"kubectl-bookie-v{self.version}.tar.gz"

    @cached_property
    def krew(self) -> Path:
        return self.directory / "bookie.yaml"

    @cached_property
    def bundle(self) -> Path:
        return self.directory / f"podkeeper-bundle-{self.version}.tar.gz"

    def chart(self, name: str) -> Path:
        return self.directory / f"{name}-{self.version}.tgz"


def project(root: Path) -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    return dict(tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"])


def version_of(root: Path) -> str:
    return str(project(root)["version"])


def tracked(root: Path) -> list[str]:
    """The files of the checkout that git knows, below `root`."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{root} is not a git checkout: {done.stderr.strip()}")
    return [path for path in done.stdout.split("\0") if path and os.path.lexists(root / path)]


def commit_seconds(root: Path) -> int:
    """Return the time of the checkout's commit, for files that have a time: the same commit makes the same files."""
    command = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return int(done.stdout.strip() or 0)
