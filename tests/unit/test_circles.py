"""No module needs another one that needs it, be it at load, within a function or for types alone.

No test module needs another one at all.
"""

from __future__ import annotations

import re
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "podkeeper": ROOT,
    "bookie_protocol": ROOT,
    "bookie_client": ROOT,
    "bookie_pod": ROOT,
    "pyspark_bookie": ROOT,
}
PACKAGES["bookie_operator"] = ROOT / "operator"
TEXTS = re.compile(r'"""[\s\S]*?"""')
IMPORT = re.compile(r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|[^\n#]+)|import ([\w.]+))", re.MULTILINE)
FROM_TESTS = re.compile(
    r"^[ \t]*(?:(?:from|import) +[\w.]*\btest_|from +[\w.]+ +import +(?:\([^)]*|[^(\n]*)\btest_)\w+", re.MULTILINE
)


def test_no_circle_of_imports() -> None:
    modules = _modules()
    graph = {name: _needed(_code(path), modules) - {name} for name, path in modules.items()}
    assert sum(map(len, graph.values())) > 4_000
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules of the circle


def test_no_test_module_imports_from_another_one() -> None:
    """What two of them need is in `tests/support`, or in a module beside them that has no tests."""
    found = {
        path.relative_to(ROOT).as_posix(): found
        for path in (ROOT / "tests").rglob("*.py")
        if (found := FROM_TESTS.findall(_code(path)))
    }
    assert found == {}


def _modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for package, root in PACKAGES.items()
        for path in (root / package).rglob("*.py")
    }


def _code(path: Path) -> str:
    return TEXTS.sub("", path.read_text())


def _needed(text: str, modules: dict[str, Path]) -> set[str]:
    found = set()
    for package, names, plain in IMPORT.findall(text):
        for name in re.findall(r"\w+", re.sub(r" as \w+", "", names)) or ["-"]:
            one = package or plain
            found.add(f"{one}.{name}" if f"{one}.{name}" in modules else one)
    return found & modules.keys()
