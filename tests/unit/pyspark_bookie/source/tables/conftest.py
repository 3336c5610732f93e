"""Metadata tables as Spark reads them, in one process."""

from __future__ import annotations

import pytest

from pyspark_bookie.source.options import SourceOptions
from tests.support.ledger_shelf import LedgerShelf


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """Whose client all readers have."""
    with LedgerShelf(tmp_path) as made:
        monkeypatch.setattr(SourceOptions, "client", lambda _: made)
        yield made
