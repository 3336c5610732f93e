"""Modules read top-down: constants and the logger stand before the first class.

A constant that needs a class or a function of its module, such as a table of them, stands behind it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("podkeeper", "bookie_protocol", "bookie_client", "bookie_pod", "operator/bookie_operator", "pyspark_bookie")


def test_constants_stand_before_the_first_class() -> None:
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py") if "_pb2" not in file.name]
    assert len(files) > 700
    late = {file.relative_to(ROOT).as_posix(): sorted(_late(file.read_text())) for file in files}
    assert {file: names for file, names in late.items() if names} == {}


def test_what_counts_as_late() -> None:
    assert set(
        _late("A = 1\nclass C: ...\nTABLE = {1: C}\nKNOWN = frozenset(TABLE)\nlog = logger(__name__)\nB: int = 2\n")
    ) == {
        "log",
        "B",
    }


def _late(text: str) -> Iterator[str]:
    body = ast.parse(text).body
    own = {each.name for each in body if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)}
    seen = False
    for each in body:
        seen |= isinstance(each, ast.ClassDef)
        if seen and isinstance(each, ast.Assign | ast.AnnAssign):
            made = _names(*(each.targets if isinstance(each, ast.Assign) else [each.target]))
            if each.value is not None and _names(each.value) & own:
                own |= made
            else:
                yield from made


def _names(*nodes: ast.AST) -> set[str]:
    return {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)}
