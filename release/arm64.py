"""A check that the images' packages exist for arm64, so that no compiler is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from release.sbom import locked

LOCKS: Final = ("requirements-build.lock", "requirements-runtime.lock", "requirements-spark.lock")
FROM_SOURCE: Final[Mapping[str, str]] = MappingProxyType(
    {"pyspark": "Python and jars, published as a source distribution alone"}
)
"""Packages without a wheel, each with the reason why no compiler is needed."""
PLATFORM: Final = "aarch64-manylinux_2_28"

Run = Callable[[list[str]], "subprocess.CompletedProcess[str]"]


def missing_wheels(root: Path, run: Run | None = None) -> list[str]:
    """One line for each lock file with a package that has no wheel for arm64, or that uv could not resolve.

    `run` is for tests: it runs uv.
    """
    faults = []
    for lock in LOCKS:
        names = [each.name for each in locked(root / lock)]
        command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "-q", "--no-header", "--no-annotate"]
        command += ["--no-deps", "--python-version", "3.11", "--python-platform", PLATFORM]
        command += [f"--only-binary={name}" for name in names if name not in FROM_SOURCE]
        done = (run or _run)([*command, str(root / lock)])
        if done.returncode:
            faults.append(f"{lock}: {_reason(done.stderr)}")
    return faults


def _reason(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.strip().startswith("hint")]
    return " ".join(lines)[:400] or "uv failed and gave no reason"


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
