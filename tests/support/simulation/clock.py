"""An asyncio event loop whose clock is virtual: time jumps to the next timer when nothing is ready.

Invariants
- Nothing depends on the real clock, on threads or on sockets; asking for one of the latter two is an error.
- Call-backs run in the order in which they became due; the same program gives the same order every time.
- The loop never waits. When nothing is ready and no timer is set, whoever waits would wait for ever: `Deadlock`.
  When very many call-backs ran and the clock stands still: `Livelock`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import re
from asyncio import base_events, events
from collections.abc import Callable
from typing import Any, Final

MAX_TURNS_AT_ONE_TIME: Final = 50_000
START: Final = 1_000.0
"""Not zero, so that nobody takes the start for "never"."""


_NO_NAME: Final = re.compile(r"Task-[0-9]+")
"""The name of a task that nobody named counts the tasks of the process, which is no part of a run."""


class Deadlock(AssertionError):
    """Nothing is ready and no timer is set."""


class Livelock(AssertionError):
    """Call-backs without end, and the clock does not move."""


class _NoSelector:
    """`BaseEventLoop` asks a selector how long to wait; this one moves the clock instead."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        self._loop.pass_time(timeout)
        return []


class _CountedTask(asyncio.Task[Any]):
    """asyncio keeps tasks in sets, and cancels them in the order of these: it must not hang on where they lie."""

    def __init__(self, *arguments: Any, number: int, **options: Any) -> None:
        self._number = number
        super().__init__(*arguments, **options)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(base_events.BaseEventLoop):
    """`describe` is called for the message of a `Deadlock` or `Livelock`."""

    def __init__(self, describe: Callable[[], str] = lambda: "") -> None:
        super().__init__()
        self._now = START
        self._turns = 0
        self._describe = describe
        self._selector = _NoSelector(self)
        self._clock_resolution = 1e-9
        self.unhandled: list[str] = []
        """What call-backs and forgotten tasks raised."""
        self.set_exception_handler(_remember)
        numbers = itertools.count()
        self.set_task_factory(
            lambda loop, work, **options: _CountedTask(work, loop=loop, number=next(numbers), **options)
        )

    def time(self) -> float:
        return self._now

    def pass_time(self, timeout: float | None) -> None:
        if timeout == 0:
            self._turns += 1
            if self._turns > MAX_TURNS_AT_ONE_TIME:
                raise Livelock(f"{self._turns} turns of the loop at {self._now:.6f}\n{self._report()}")
            return
        self._turns = 0
        if timeout is None:
            raise Deadlock(f"nothing is ready and no timer is set at {self._now:.6f}\n{self._report()}")
        # The timer's own time, not the sum: two timers of one moment must fall due together.
        self._now = max(self._now, self._scheduled[0].when())

    def _report(self) -> str:
        return "\n".join(filter(None, (self._describe(), waiting_tasks(self))))

    # --- what `BaseEventLoop` leaves to its children --------------------------------------------------------

    def _process_events(self, event_list: list[Any]) -> None:
        return

    def _write_to_self(self) -> None:
        return

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        raise AssertionError(f"no threads in a simulation: {func!r}")

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        # As in the base class, without what it does for debugging: timers are most of what a simulation does.
        timer = events.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)


def _remember(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, VirtualLoop)
    error = context.get("exception")
    loop.unhandled.append(f"{context.get('message')}: {error!r}" if error is not None else str(context.get("message")))


def waiting_tasks(loop: asyncio.AbstractEventLoop) -> str:
    """Every task that is not done, and where it waits."""
    lines = []
    for task in sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()):
        frames = []
        awaited: Any = task.get_coro()
        while awaited is not None and len(frames) < 12:
            frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None)
            if frame is None:
                break
            code = frame.f_code
            frames.append(f"{code.co_name} ({code.co_filename.rsplit('/', 2)[-1]}:{frame.f_lineno})")
            awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "ag_await", None)
        name = _NO_NAME.sub("Task", task.get_name())
        lines.append(f"  task {name}: {' > '.join(frames) or 'not started'}")
    return "\n".join(lines)
