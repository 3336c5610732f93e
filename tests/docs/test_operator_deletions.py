"""docs/operator-deletions.md: every place of the operator that deletes something has a row with all its cells."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.docs.pages import functions
from tests.support.chart_files import ROOT

OPERATOR = ROOT / "operator" / "bookie_operator"
PAGE = (ROOT / "docs" / "operator-deletions.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("|") and "`" in line]
ACTIONS = {
    *("DeleteClaim", "RetireClaim", "DeleteCookie", "UndoDrain", "BeginDrain"),
    *("DeletePod", "EvictPod", "ScaleStatefulSet"),
    *("DeleteObject", "OrphanStatefulSet", "DestroyMetadata", "ReleaseFinalizer", "Removal", "RemoveMember"),
}
"""What plans decide."""
REQUESTS = {"delete", "delete_cookie", "remove_member", "_delete", "_delete_as_seen"}
GROW = {
    "planner/flows/decommission_steps.py::return_",
    "planner/flows/replicas.py::begin",
    "planner/flows/scale_up.py::_grow",
}
"""Places that only scale up."""
_PLACE = re.compile(r"`((?:executor|planner|plugin|reconcile)/[\w/]+\.py::\w+)`")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def calls(node: ast.AST, inside: str = "") -> Iterator[tuple[str, str]]:
    """The functions that are called, each with the function that calls it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            called = child.func.attr if isinstance(child.func, ast.Attribute) else getattr(child.func, "id", "")
            yield inside, called
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from calls(child, child.name if is_function else inside)  # type: ignore[union-attr]


def deleting() -> set[str]:
    found = set()
    for file in sorted(OPERATOR.rglob("*.py")):
        if file.parent.name == "api":  # what carries a request to its server
            continue
        for inside, called in calls(ast.parse(file.read_text(encoding="utf-8"))):
            if inside and called in ACTIONS | REQUESTS:
                found.add(f"{file.relative_to(OPERATOR)}::{inside}")
    return found - GROW


def test_every_place_that_deletes_has_a_row_and_every_row_a_place() -> None:
    named = {place for row in ROWS for place in _PLACE.findall(row)}
    found = {place for place in deleting() if not place.endswith("::_delete_as_seen")}
    assert (sorted(found - named), sorted(named - found)) == ([], [])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:40])
def test_a_row_answers_every_question_and_its_test_exists(row: str) -> None:
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert len(cells) == 6
    assert all(cells)
    assert _PLACE.search(cells[1])
    ((path, name),) = _TEST.findall(cells[5])
    assert name in functions(path)
