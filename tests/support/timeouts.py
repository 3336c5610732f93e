"""Hooks that make a test's time-out end it also while its event loop is busy.

The time-out is an exception that a signal handler raises wherever the program is at that moment. An event loop
catches what its callbacks and tasks raise, whatever it is, and goes on: a test that spins would never end, and
might fill the memory. Two exceptions pass, and `KeyboardInterrupt` is one of them; neither does Hypothesis take it
for a failing example that is worth minutes of shrinking.

To pytest it is a failure like any other. A fixture that waits for a task that the time-out ended raises it again; and
where a fixture ends with anything but an exception or a failure, pytest does not finalize the others, so that all later
tests of the process get the loop and the folder of this one.

It is raised once. A test that does not come to its end then, because what it takes down waits for a thread that waits
for something else, ends its process, with the stacks of all threads on standard error: a worker of a parallel run is
replaced, and the run goes on.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
from collections.abc import Generator
from types import FrameType
from typing import Any

import pytest

_TO_THE_END_S = float(os.environ.get("TO_THE_END_S", "60"))
"""For how long a test may take itself down after its time-out."""


class _TimedOut(pytest.fail.Exception, KeyboardInterrupt):
    """The time-out on its way through the event loop."""


def lengthen(items: list[pytest.Item]) -> None:
    """Give each test `--patience` times its time-out, also where it names one of its own."""
    for item in items:
        factor, own = item.config.getoption("patience"), item.get_closest_marker("timeout")
        seconds = own.args[0] if own else float(item.config.getini("timeout"))
        if factor != 1:
            item.add_marker(pytest.mark.timeout(seconds * factor, **(own.kwargs if own else {})), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(settings: Any) -> Generator[None, Any, Any]:
    """Have the plug-in's handler raise what passes."""
    result = yield
    plain = signal.getsignal(signal.SIGALRM)
    if settings.method == "signal" and callable(plain):

        def handler(number: int, frame: FrameType | None) -> None:
            try:
                plain(number, frame)
            except pytest.fail.Exception as failure:
                _late.append(True)
                _limit()
                raise _TimedOut(failure.msg) from None

        signal.signal(signal.SIGALRM, handler)
    return result


_late: list[bool] = []
"""Whether the test that runs has taken too long."""
_standard_error = [2]


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Generator[None, Any, Any]:
    """Nothing is captured yet."""
    _standard_error[0] = os.dup(2)
    return (yield)


def _limit() -> None:
    faulthandler.dump_traceback_later(_TO_THE_END_S, exit=True, file=_standard_error[0])


def _told_as_failure() -> Generator[None, Any, Any]:
    try:
        return (yield)
    except _TimedOut as timed_out:
        pytest.fail(str(timed_out))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    return (yield from _told_as_failure())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    return (yield from _told_as_failure())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, Any, Any]:
    if _late:
        _limit()  # pytest has taken it back when it told of the failure
        _late.clear()
    try:
        return (yield from _told_as_failure())
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Without the collector: the syntax trees that a report is made of do not survive it in CPython 3.11, when what
    it collects (tasks that a time-out left behind) has its own traceback shown (gh-106905)."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
