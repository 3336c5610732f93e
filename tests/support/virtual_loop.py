"""An event loop whose clock moves only while everybody waits: timers cost no time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class _VirtualSelector(selectors.DefaultSelector):
    """Nothing ever happens outside; waiting moves the clock."""

    now = 0.0

    def select(self, timeout=None):
        assert timeout is not None, "the loop waits for ever"
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        super().__init__(_VirtualSelector())
        self._clock_resolution = 1e-9

    def time(self):
        return self._selector.now


def on_a_virtual_clock(main: Coroutine[Any, Any, T]) -> T:
    """What `main` returns; tasks that it leaves are cancelled."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def virtually(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that runs on a virtual clock."""

    @wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        on_a_virtual_clock(test(*arguments, **named))

    return run
