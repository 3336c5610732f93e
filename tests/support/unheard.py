"""What nobody hears of fails the test: exceptions in callbacks, in tasks that nobody awaits, and in logs.

An event loop hands what its callbacks and forgotten tasks raise to its exception handler, which writes a line; and code
that survives an unexpected error logs it. Neither fails a test by itself. Here

- whatever reaches the default exception handler of a loop fails the test; who sets one of his own hears for himself,
- so does a log line whose exception can only be a fault in the code: a name or an attribute that is not there, a call
  that does not fit. A test that raises such a thing on purpose takes the lines with `structlog.testing.capture_logs`.

What is heard when a later test runs, as of a task that the collector finds then, fails that one: its traceback tells
whose it is. The module is a plug-in of pytest; any thread may log.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Generator, MutableMapping
from typing import Any

import pytest
import structlog

_FAULTS = (NameError, AttributeError, TypeError, ImportError, NotImplementedError)

_PLAIN = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
"""Structlog's own looks for a program that draws tracebacks, which takes longer than the tests that log them."""

_heard: list[str] = []
_hand_on = asyncio.BaseEventLoop.call_exception_handler


def _note(self: asyncio.BaseEventLoop, context: dict[str, Any]) -> None:
    if self.get_exception_handler() is None:
        error = context.get("exception")
        told = "".join(traceback.format_exception(error)) if error is not None else f"{context!r}\n"
        _heard.append(f"{context.get('message')}\n{told}")
    _hand_on(self, context)


def note_faults(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor of structlog."""
    told = event.get("exc_info")
    error = told if isinstance(told, BaseException) else told[1] if isinstance(told, tuple) else sys.exc_info()[1]
    if told and isinstance(error, _FAULTS):
        _heard.append(f"logged: {event.get('event')}\n{''.join(traceback.format_exception(error))}")
    return event


def listen_to_logs() -> None:
    """Defaults of structlog, with plain tracebacks, and faults are noted. It stays unconfigured, as in programs that
    only use a client."""
    structlog.reset_defaults()
    processors = structlog.get_config()["processors"]
    processors[:] = [note_faults, *processors[:-1], _PLAIN]
    assert not structlog.is_configured()


def pytest_configure() -> None:
    """For good: a run within a run ends before the other does."""
    asyncio.BaseEventLoop.call_exception_handler = _note  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, Any, Any]:
    """After everything of the test, its event loop included."""
    try:
        result = yield
    finally:
        told = "\n".join(_heard)
        _heard.clear()
    if told:
        pytest.fail(f"nobody was told of:\n{told}", pytrace=False)
    return result
