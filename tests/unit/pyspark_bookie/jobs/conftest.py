"""Clusters of model bookies (faults on demand) and of served ones (real storage); a shelf of ledgers and an archive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ledger_shelf import LedgerShelf
from tests.unit.bookie_client.replication.conftest import models, served  # noqa: F401 - fixtures


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[LedgerShelf]:
    with LedgerShelf(tmp_path) as made:
        yield made


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"file://{tmp_path}/archive"
