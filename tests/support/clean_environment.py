"""Environments that have what an extra of pyproject.toml installs, and nothing else.

They are links to what is installed here, the packages that the extra names and theirs, so that no index is asked.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
_OWN = ("bookie_protocol", "bookie_client", "bookie_pod", "pyspark_bookie", "operator/bookie_operator")


def run_in_clean_environment(
    directory: Path, extra: str, code: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run `code` with what `podkeeper[extra]` installs ("": the plain install) and the standard library."""
    if not directory.exists():
        directory.mkdir()
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        wanted = project["dependencies"] + (project["optional-dependencies"][extra] if extra else [])
        for name in _closure([Requirement(each) for each in wanted]):
            _link(name, directory)
        about = directory / "podkeeper.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: podkeeper\nVersion: {project['version']}\n")
        for own in _OWN:
            (directory / Path(own).name).symlink_to(ROOT / own)
    program = f"import sys\nsys.path.append({str(directory)!r})\n{code}"
    command = [sys.executable, "-I", "-S", "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def _closure(wanted: list[Requirement]) -> set[str]:
    seen: set[tuple[str, str]] = set()
    while wanted:
        requirement = wanted.pop()
        for extra in ("", *requirement.extras):
            if (requirement.name, extra) in seen or not _applies(requirement, ""):
                continue
            seen.add((requirement.name, extra))
            further = [Requirement(each) for each in distribution(requirement.name).requires or ()]
            wanted += [each for each in further if _applies(each, extra)]
    return {name for name, _ in seen}


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _link(name: str, directory: Path) -> None:
    """Every file, in folders of their own: several distributions share some (`google`)."""
    for file in distribution(name).files or ():
        if ".." in file.parts or "__pycache__" in file.parts:
            continue
        link = directory / file
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(file.locate())
