"""What a test leaves behind is its own matter, however it ends."""

from __future__ import annotations

import signal

import pytest

from tests.conftest import pytest_runtest_teardown


def test_sigint_is_given_back_and_who_took_it_is_told() -> None:
    teardown = pytest_runtest_teardown()
    next(teardown)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with pytest.raises(AssertionError, match="SIGINT"):
        next(teardown)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_sigint_is_given_back_though_the_teardown_fails() -> None:
    teardown = pytest_runtest_teardown()
    next(teardown)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with pytest.raises(RuntimeError, match="fixture"):
        teardown.throw(RuntimeError("of a fixture"))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
