"""No message sends a user to a package index for Podkeeper, and every extra that is named exists."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.support.chart_files import ROOT

PACKAGES = ("podkeeper", "bookie_protocol", "bookie_client", "bookie_pod", "pyspark_bookie", "operator/bookie_operator")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_INDEX = re.compile(r"pip install ['\"]?podkeeper\b|install podkeeper\[")
_NAMED = re.compile(r"podkeeper\[([a-z0-9,]+)\]")
_BY_EXTRA = {"run_with": 0, "needed": 1, "install_command": 0}


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "extra" in text or "install" in text or "needed(" in text or "run_with(" in text:
                yield path, ast.parse(text)


def texts(tree: ast.Module) -> Iterator[str]:
    """Texts as they are written, those with values in them whole."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)


def named_extras(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _BY_EXTRA:
            position = _BY_EXTRA[node.func.id]
            given = node.args[position] if len(node.args) > position else None
            if isinstance(given, ast.Constant) and isinstance(given.value, str) and len(node.args) > 1:
                yield given.value
    for text in texts(tree):
        for found in _NAMED.findall(text):
            yield from found.split(",")


def test_no_message_and_no_page_names_a_package_of_an_index() -> None:
    """Nothing is published there: another's package of that name would be installed."""
    said = [f"{path}: {text}" for path, tree in modules() for text in texts(tree) if _INDEX.search(text)]
    examples = [each for each in (ROOT / "examples").rglob("*.*") if each.suffix != ".pyc"]
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *examples]
    said += [str(page) for page in pages if _INDEX.search(page.read_text(encoding="utf-8"))]
    assert said == []


def test_every_extra_that_a_message_names_exists() -> None:
    found = {extra for _, tree in modules() for extra in named_extras(tree)}
    assert found >= {"bookie", "operator", "kubectl", "spark", "etcd", "embedded", "kerberos", "pkcs12", "yaml"}
    assert found - PROJECT["optional-dependencies"].keys() == set()
