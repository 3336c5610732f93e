"""Commands set up the log of their process; a test run keeps its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie_pod import logs
from tests.support.served_admin import TOKEN, ServedAdmin


@pytest.fixture(autouse=True)
def own_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "configure", lambda *arguments: None)


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An embedded metadata store that no configuration file names."""
    monkeypatch.delenv("BOOKIE_CONF", raising=False)
    return str(tmp_path / "metadata")


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedAdmin]:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN + "\n")
    made = ServedAdmin(token_file)
    monkeypatch.setenv("BOOKIE_URL", made.url)
    monkeypatch.setenv("BOOKIE_TOKEN_FILE", str(token_file))
    yield made
    made.stop()
