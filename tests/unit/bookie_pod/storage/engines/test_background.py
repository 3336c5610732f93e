"""The storage thread of engines with one for all directories, by itself."""

from __future__ import annotations

import threading

import pytest

from bookie_pod.storage.engines import background
from bookie_pod.storage.engines.background import BackgroundFlush


def test_closing_waits_for_a_retry_that_has_just_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "RETRY_SECONDS", 0.0)
    begun, goes_on = threading.Event(), threading.Event()

    def retry() -> None:
        begun.set()
        goes_on.wait()

    def work() -> None:
        monkeypatch.setattr(flush, "_submit", retry)
        raise OSError("no disk")

    flush = BackgroundFlush("storage-0", work)
    flush.request()
    assert begun.wait(10)
    closing = threading.Thread(target=flush.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    goes_on.set()
    closing.join(10)
    assert not closing.is_alive()
