"""Commands set up the log of their process; a test run keeps its own."""

from __future__ import annotations

import pytest

from bookie_pod import logs


@pytest.fixture(autouse=True)
def own_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "configure", lambda *arguments: None)
