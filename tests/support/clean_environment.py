"""Environments that have what an extra of pyproject.toml installs, and nothing else.

They are links to what is installed here, the packages that the extra names and theirs, so that no index is asked.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from functools import cache
from importlib.metadata import distribution, distributions
from itertools import chain
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
_OWN = ("podkeeper", "bookie_protocol", "bookie_client", "bookie_pod", "pyspark_bookie", "operator/bookie_operator")


def run_in_clean_environment(
    directory: Path, extra: str, code: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run `code` with what `podkeeper[extra]` installs ("": the plain install) and the standard library."""
    if not directory.exists():
        directory.mkdir()
        project = link_packages(directory, (extra,) if extra else ())
        about = directory / "podkeeper.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(_metadata(project))
        for own in _OWN:
            (directory / Path(own).name).symlink_to(ROOT / own)
    program = f"import sys\nsys.path.append({str(directory)!r})\n{code}"
    command = [sys.executable, "-I", "-S", "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def link_packages(directory: Path, extras: Iterable[str]) -> dict[str, Any]:
    """Link what `podkeeper` with these extras needs into a folder for packages, and return the project's table of
    pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    wanted = project["dependencies"] + [each for extra in extras for each in optional[extra]]
    for name in _closure([Requirement(each) for each in wanted]):
        _link(name, directory)
    return project


def _metadata(project: dict[str, Any]) -> str:
    """What a wheel says of the package, as far as the product reads it."""
    lines = ["Metadata-Version: 2.4", "Name: podkeeper", f"Version: {project['version']}"]
    lines += [f"Requires-Dist: {each}" for each in project["dependencies"]]
    for extra, requirements in project["optional-dependencies"].items():
        for name, _, condition in (each.partition(";") for each in requirements):
            only = f'({condition.strip()}) and extra == "{extra}"' if condition else f'extra == "{extra}"'
            lines.append(f"Requires-Dist: {name}; {only}")
    return "\n".join([*lines, ""])


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
    """A folder that no other distribution has is one link; of those that several share (`google`) every file is."""
    found = distribution(name)
    for file in found.files or ():
        top = file.parts[0]
        if top in ("..", "__pycache__"):
            continue
        alone = _owners()[top] == 1
        link = directory / (top if alone else file)
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(found.locate_file(top) if alone else file.locate())


@cache
def _owners() -> Counter[str]:
    """How many distributions have something in a folder of the environment."""
    records = (each.read_text("RECORD") or "" for each in distributions())
    return Counter(chain.from_iterable({line.partition("/")[0] for line in text.splitlines()} for text in records))
