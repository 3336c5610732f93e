"""The page of the architecture: the modules, classes and functions that it names are there."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.support.chart_files import ROOT

PACKAGES = ("bookie_pod", "bookie_client", "bookie_protocol", "operator", "pyspark_bookie")
PAGE = ROOT / "docs" / "architecture.md"
_NAME = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)`")
_DEFINED = re.compile(r"^\s*(?:async def|def|class)\s+(\w+)|^\s*(?:self\.)?(\w+)\s*(?::[^=\n]+)?=", re.MULTILINE)
_OF_OTHERS = {"google.rpc.ErrorInfo.reason"}


def names(text: str) -> set[str]:
    return set(_NAME.findall(text)) - _OF_OTHERS


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


@pytest.mark.parametrize("name", sorted(names(PAGE.read_text(encoding="utf-8"))))
def test_what_is_named_exists(name: str) -> None:
    assert exists(name), f"docs/architecture.md names {name}, which is nowhere"


@pytest.mark.parametrize(
    "name", ["reading.no_such_module", "connection.dialect.NoSuchClass", "PlacementPolicy.no_such"]
)
def test_what_is_not_there_is_noticed(name: str) -> None:
    assert not exists(name)


def test_names_are_found() -> None:
    assert {"reading.reader.EntryReader", "writing.explicit_lac"} <= names(PAGE.read_text(encoding="utf-8"))
