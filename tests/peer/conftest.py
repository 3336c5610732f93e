"""Marks the ring, and writes what it found to build/peer.tsv: class, test, what became of it, why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parent
_TABLE = _FOLDER.parents[1] / "build" / "peer.tsv"
_SECONDS = 3600

Note = Callable[..., None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _FOLDER in item.path.parents:
            item.add_marker(pytest.mark.peer)
            item.add_marker(pytest.mark.timeout(_SECONDS))


@pytest.fixture(scope="session")
def note() -> Iterator[Note]:
    _TABLE.parent.mkdir(exist_ok=True)
    with _TABLE.open("w") as table:

        def line(*words: str) -> None:
            print(*words, sep="\t", file=table, flush=True)

        yield line
