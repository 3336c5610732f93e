"""What the page of the architecture and the docstrings of packages name exists: modules, classes and functions."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.support.chart_files import ROOT

PACKAGES = ("podkeeper", "bookie_pod", "bookie_client", "bookie_protocol", "operator", "pyspark_bookie")
PAGE = ROOT / "docs" / "architecture.md"
_NAME = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)`")
_DEFINED = re.compile(r"^\s*(?:async def|def|class)\s+(\w+)|^\s*(?:self\.)?(\w+)\s*(?::[^=\n]+)?=", re.MULTILINE)
_OF_OTHERS = re.compile(r"google\.rpc\..*|spec\..*|.*\.(conf|proto|py)")


def names(text: str) -> set[str]:
    return {name for name in _NAME.findall(text) if not _OF_OTHERS.fullmatch(name)}


def texts() -> dict[str, str]:
    """The page, and the docstring of each package, by path."""
    found = {"docs/architecture.md": PAGE.read_text(encoding="utf-8")}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("__init__.py")):
            docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
            found[file.relative_to(ROOT).as_posix()] = docstring or ""
    return found


@cache
def modules() -> dict[str, str]:
    """The text of each module, by every ending of its dotted name; of a package, that of all its modules."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            parts = file.relative_to(ROOT).with_suffix("").parts
            text = file.read_text(encoding="utf-8")
            for end in range(1, len(parts) + 1):
                for start in range(end):
                    name = ".".join(parts[start:end])
                    found[name] = found.get(name, "") + text
    return found


def exists(name: str) -> bool:
    """A module; or what a module defines; or an attribute or method of a class, named without its module."""
    if name in modules():
        return True
    owner, _, attribute = name.rpartition(".")
    if owner[0].isupper():
        defining = [
            text for text in modules().values() if re.search(rf"^class {re.escape(owner)}\b", text, re.MULTILINE)
        ]
    else:
        defining = [modules().get(owner, "")]
    return any(attribute in word for text in defining for word in _DEFINED.findall(text))


@pytest.mark.parametrize(("where", "text"), [(where, text) for where, text in texts().items() if names(text)])
def test_what_is_named_exists(where: str, text: str) -> None:
    assert not [name for name in sorted(names(text)) if not exists(name)], f"{where} names what is nowhere"


@pytest.mark.parametrize(
    "name", ["reading.no_such_module", "connection.dialect.NoSuchClass", "PlacementPolicy.no_such"]
)
def test_what_is_not_there_is_noticed(name: str) -> None:
    assert not exists(name)


def test_names_are_found() -> None:
    found = set().union(*map(names, texts().values()))
    assert {"bookie_protocol.lasting", "replication.check"} <= found
