"""The required content of wheel and source distribution: files, metadata, and a description that can be rendered."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Final

from readme_renderer import markdown

from release.building import members
from release.facts import Made, project, tracked
from release.staging import LINK, urls

_SCRIPTS: Final = re.compile(r"^([\w-]+) = ", re.MULTILINE)


def check_distributions(root: Path, made: Made) -> Iterator[str]:
    """The faults of the two archives, one line each."""
    for path in (made.wheel, made.source):
        if not path.exists():
            yield f"{path.name}: it was not built; is the version of pyproject.toml {made.version}?"
            return
    yield from _wheel(root, made)
    yield from _source(root, made)


def metadata_faults(root: Path, made: Made, text: str, where: str) -> Iterator[str]:
    """The faults of the metadata `text`, of which `where` is the archive."""
    about = project(root)
    found = Parser().parsestr(text)
    for field, expected in [
        ("Name", about["name"]),
        ("Version", made.version),
        ("Summary", about["description"]),
        ("License-Expression", about["license"]),
        ("Requires-Python", about["requires-python"]),
        ("Keywords", ",".join(about["keywords"])),
        ("Description-Content-Type", "text/markdown"),
    ]:
        if found[field] != expected:
            yield f"{where}: {field} is {found[field]!r}, expected {expected!r}"
    if set(found.get_all("Classifier", [])) != set(about["classifiers"]):
        yield f"{where}: its classifiers are not those of pyproject.toml"
    given = {name: url for name, _, url in (each.partition(", ") for each in found.get_all("Project-URL", []))}
    for name, url in urls(made.address, made.version).items():
        if given.get(name) != url:
            yield f"{where}: the address {name} is {given.get(name)}, expected {url}"
    if set(found.get_all("Provides-Extra", [])) != set(about["optional-dependencies"]):
        yield f"{where}: its extras are not those of pyproject.toml"
    yield from _description(found, where)


def _description(metadata: Message, where: str) -> Iterator[str]:
    text = str(metadata.get_payload())
    for found in LINK.finditer(text):
        if not re.match(r"https?:|#|mailto:", found["target"]):
            yield f"{where}: the long description has a link that leads nowhere from an index: {found['target']}"
    warnings = io.StringIO()
    if not text.strip() or markdown.render(text, stream=warnings) is None:
        yield f"{where}: the long description cannot be rendered: {warnings.getvalue().strip() or 'it is empty'}"


def _wheel(root: Path, made: Made) -> Iterator[str]:
    with zipfile.ZipFile(made.wheel) as packed:
        names = set(packed.namelist())
        information = f"podkeeper-{made.version}.dist-info"
        metadata = packed.read(f"{information}/METADATA").decode()
        scripts = set(_SCRIPTS.findall(packed.read(f"{information}/entry_points.txt").decode()))
    yield from metadata_faults(root, made, metadata, made.wheel.name)
    if scripts != set(project(root)["scripts"]):
        yield f"{made.wheel.name}: its commands are {', '.join(sorted(scripts))}"
    expected = {path.removeprefix("operator/") for path in tracked(root) if _packaged(path)}
    for name in sorted(expected - names):
        yield f"{made.wheel.name}: {name} is missing"
    for name in sorted(names - expected):
        if not name.startswith(information):
            yield f"{made.wheel.name}: {name} is not of the packages"


def _source(root: Path, made: Made) -> Iterator[str]:
    top = made.source.name.removesuffix(".tar.gz") + "/"
    files = {path.removeprefix(top): content for path, content in members(made.source).items()}
    yield from metadata_faults(root, made, files["PKG-INFO"].decode(), made.source.name)
    for path in tracked(root):
        if path not in files and not (root / path).is_symlink():
            yield f"{made.source.name}: {path} is missing"


def _packaged(path: str) -> bool:
    packages = ("podkeeper/", "bookie_protocol/", "bookie_client/", "bookie_pod/", "pyspark_bookie/")
    named = path.startswith((*packages, "operator/bookie_operator/"))
    return (
        named and path.endswith((".py", "py.typed", ".proto", ".pyi", ".css", ".js", "alerts.json"))
    ) or "/rocksdb/OPTIONS-" in path
