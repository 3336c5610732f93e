"""A store of its own for a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie_protocol.metadata_service.embedded.store import NodeStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[NodeStore]:
    opened = NodeStore(str(tmp_path / "store"))
    yield opened
    opened.close()
