"""Which tests may wait for a longer ring: `tests/rings.toml`, as marks on the tests that pytest collected.

A ring has all the tests of the shorter ones. What has no mark is of the shortest.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

TABLE = Path(__file__).parents[1] / "rings.toml"
RINGS = {"wide": "make test", "change": ".ci/run", "slow": "make test-long"}
"""From the shorter to the longer: the mark, and the command that first runs such a test."""


@dataclass(frozen=True)
class Later:
    """Tests that wait for a longer ring."""

    ring: str
    tests: tuple[str, ...]
    """Beginnings of node ids: a folder, a file, a test, or a test with the beginning of its parameters."""
    why: str
    covered: str
    """What of it the shorter ring still has."""
    keeps: tuple[str, ...] = ()
    """Ends of the node ids that stay where they are."""
    parameters: tuple[str, ...] = ()
    """Only those that have one of these among their parameters; empty: all."""

    def takes(self, node: str) -> bool:
        if not any(_begins(node, one) for one in self.tests) or node.endswith(self.keeps or ("\0",)):
            return False
        return not self.parameters or not {*node.partition("[")[2].rstrip("]").split("-")}.isdisjoint(self.parameters)

    def takes_all_of(self, file: str, path: Path) -> bool:
        """Whether no test of this file stays."""
        if self.parameters or not any(file == one or (one[-1] == "/" and file.startswith(one)) for one in self.tests):
            return False
        text = path.read_text() if self.keeps else ""
        return not any(end.removeprefix("::").partition("[")[0] in text for end in self.keeps)

    def may_take_of(self, file: str) -> bool:
        return any(file.startswith(one.partition("::")[0]) for one in self.tests)


def _begins(node: str, part: str) -> bool:
    """A part ends where a word does, or where it says itself that more follows."""
    return node == part or (node.startswith(part) and (part[-1] in "/[-_" or node[len(part)] in ":[/-]"))


def read(text: str) -> list[Later]:
    """`ValueError` for a ring that there is not, `TypeError` for a key that there is not."""
    table = [
        Later(**{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()})
        for entry in tomllib.loads(text).get("later", [])
    ]
    for entry in table:
        if entry.ring not in RINGS:
            raise ValueError(f"{TABLE.name}: ring {entry.ring!r}; known: {', '.join(RINGS)}")
    return table


def mark(items: Sequence[pytest.Item], table: Sequence[Later]) -> None:
    of_file: dict[str, list[Later]] = {}  # most files are in no entry
    for item in items:
        file = item.nodeid.partition("::")[0]
        if file not in of_file:
            of_file[file] = [entry for entry in table if entry.may_take_of(file)]
        for ring in {entry.ring for entry in of_file[file] if entry.takes(item.nodeid)}:
            item.add_marker(ring)


def waits(path: Path, expression: str, table: Sequence[Later]) -> bool:
    """Whether every test of this file has a mark that `-m expression` leaves out, as far as the table and an expression
    without `or` can tell."""
    if " or " in expression or "(" in expression:
        return False
    file, out = path.relative_to(TABLE.parents[1]).as_posix(), set(expression.split(" and "))
    return any(f"not {entry.ring}" in out and entry.takes_all_of(file, path) for entry in table)
