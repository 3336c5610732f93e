"""Mutants are well-formed, change what is run, and leave what only tells people alone."""

from __future__ import annotations

import ast
from collections import Counter

from tests.mutants.mutations import WEIGHTS, mutations

SOURCE = b'''
"""A module of 3 lines."""
LIMIT: int = 7


class Store:
    def __init__(self) -> None:
        self.count = 0

    def take(self, size: int, names: list[str]) -> int:
        """At most 2."""
        if size > LIMIT and names:
            raise ValueError(f"{size + 1} is too much")
        try:
            self.count += size
            self.flush()
        except OSError:
            log.warning("no flush", left=size - 1)
            return -1
        for name in names:
            if not name:
                continue
            self.last = min(size, 5)
        return self.count + size

    async def flush(self) -> None:
        await self.sync(True)

    def __repr__(self) -> str:
        return "Store" + "!"
'''


def test_each_is_another_program() -> None:
    found = mutations(SOURCE)
    trees = [ast.dump(ast.parse(one.of(SOURCE))) for one in found]
    assert ast.dump(ast.parse(SOURCE)) not in trees
    assert len(set(trees)) == len(trees)


def test_what_is_changed() -> None:
    kinds = Counter(one.kind for one in mutations(SOURCE))
    assert kinds == {
        "statement dropped": 3,  # the sum, the flush, the last name
        "await dropped": 1,
        "raise dropped": 1,
        "jump dropped": 1,
        "error raised": 1,
        "comparison": 2,
        "branch": 4,
        "constant": 7,  # 7, 5 and the 1 of -1 either way, 0 upwards
        "and/or": 1,
        "arithmetic": 1,
        "min/max": 1,
        "true/false": 1,
    }
    assert kinds.keys() <= WEIGHTS.keys()


def test_texts_logs_and_representations_stay() -> None:
    quiet = {number for number, line in enumerate(SOURCE.splitlines(), 1) if b"log." in line or b'"' in line}
    assert quiet & {one.line for one in mutations(SOURCE)} <= {13}  # the raise, not its message
