"""What the examples of a page run on: a cluster, and the names that one example leaves to the next.

Both are of a page, whose examples are run in their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.standalone_command import StandaloneCommand


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCommand]:
    """`bookie standalone` at the addresses of the pages."""
    with StandaloneCommand(tmp_path_factory.mktemp("docs") / "data", "--bookies", "3") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def namespace() -> dict[str, Any]:
    return {"__name__": "docs"}
