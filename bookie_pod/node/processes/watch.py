"""The watch over threads and tasks that others wait for: when one ends, or makes no progress, the process ends.

A wait for a thread that is gone never ends, and nothing outside shows it. So one look a second compares the threads
that live with those that were begun, and asks each step that is under way whether it is still the same one. The
supervisor of a process that fails this way starts it again, which brings all of it back.

Invariants
- Every thread with a name of ours is watched from its beginning, without registration, even if it ends before the next
  look; but for those that end by nature (`SHORT_LIVED`). Threads of libraries (`LIBRARIES`) are their owners' business.
- Tasks tell by themselves that they ended (`bookie_protocol.lasting`).
- How long a step takes is counted in looks, so that a process which was stopped, or a machine which slept, has not
  missed anything.
- Once the process is being ended (`ending`), threads may end; but not while a step goes on that needs them, and what
  makes no progress is found all the same.

Threads: event loop. The loop itself is watched from outside, by probes that it does not answer.
"""

from __future__ import annotations

import asyncio
import fnmatch
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple
from weakref import WeakSet

from bookie_protocol.errors import StartupError
from bookie_protocol.lasting import watched_by

LOOK_S: Final = 1.0
LIBRARIES: Final = ("Thread-*", "ThreadPoolExecutor-*", "Dummy-*", "asyncio-waitpid-*", "Otel*")
"""Names of threads that are none of ours. `Dummy` is one that Python did not begin; it vanishes from the list when
another thread gets its number. `asyncio-waitpid` waits for a child, where the loop is not uvloop's.
`Otel` exports telemetry, which no other thread waits for."""
SHORT_LIVED: Final = (*LIBRARIES, "journal-*-next-file", "index-headers_*", "index-rebuild", "storage-*-retry")
"""Names of threads whose end is no fault."""


class Step(NamedTuple):
    """The current step of a thread."""

    thread: str
    at: object | None
    """Another one with each step; None: it waits to be given something."""
    limit_s: float
    """Seconds that no step takes on hardware that works. Half of it makes the process unready."""
    needs: str = ""
    """A pattern of threads: without one of them the step never ends."""

    def is_lost(self, ended: str) -> bool:
        """Return whether it never ends, because this thread did."""
        return bool(self.needs) and fnmatch.fnmatchcase(ended, self.needs)


class PartEnded(StartupError):
    """A thread or a task of this process ended, or makes no progress."""


class Watch:
    """One per process, made before what it watches is begun."""

    def __init__(self, steps: Callable[[], Iterable[Step]] = tuple) -> None:
        """`steps` tells what goes on now, at each look."""
        self._steps = steps
        self._known: set[threading.Thread] = set()
        self._past: WeakSet[threading.Thread] = WeakSet(_begun() - set(threading.enumerate()))
        """Threads that ended and were reported, or need no report, for as long as they are referenced."""
        self._at: dict[str, tuple[object, int]] = {}
        """The current step of each thread, and the number of looks for which it has been that."""
        self._slow: list[str] = []
        self._found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._ending = False
        self._gone: set[str] = set()
        """Names of threads that ended while the process is being ended."""
        watched_by(self._task_ended)

    @property
    def slow(self) -> Sequence[str]:
        """Return the steps without progress for half of the time that they may take, a line each."""
        return self._slow

    async def run(self) -> None:
        """Watch until cancelled. Raises `PartEnded`."""
        while not self._found.done():
            self._look()
            await asyncio.wait([self._found], timeout=LOOK_S)
        raise PartEnded(f"{self._found.result()}: the process ends, to be restarted")

    def ending(self) -> None:
        """Let threads and tasks end from now on, because the process is being ended."""
        self._look()
        self._ending = True

    def _found_out(self, why: str) -> None:
        if not self._found.done():
            self._found.set_result(why)

    def _task_ended(self, why: str) -> None:
        if not self._ending:
            self._found_out(why)

    def _look(self) -> None:
        begun = self._known | _begun()
        alive = set(threading.enumerate())
        ended = begun - alive - set(self._past)
        self._past.update(ended)
        self._known = alive
        names = {thread.name for thread in ended if not _is_short_lived(thread.name)}
        if self._ending:
            self._gone |= names
            names = {name for step in self._steps() if step.at is not None for name in self._gone if step.is_lost(name)}
        if names:
            self._found_out(f"the thread {min(names)} ended")
        if (hung := self._slowest()) is not None:
            self._found_out(hung)

    def _slowest(self) -> str | None:
        at, slow, hung = {}, [], None
        for step in self._steps():
            if step.at is None:
                continue
            before, looks = self._at.get(step.thread, (None, 0))
            looks = looks + 1 if before == step.at else 0
            at[step.thread] = step.at, looks
            if looks * LOOK_S >= step.limit_s / 2:
                line = f"the thread {step.thread} has made no progress for {looks * LOOK_S:.0f} s"
                slow.append(line)
                hung = line if looks * LOOK_S >= step.limit_s else hung
        self._at, self._slow = at, slow
        return hung


def _begun() -> set[threading.Thread]:
    """Return every thread that was ever begun and is still referenced, as by its owner.

    Python lists only living threads, and forgets what ended between two looks: an executor's thread that died of its
    first piece of work. What it keeps for its own tests has them all.
    """
    try:
        made = set(threading._dangling)  # type: ignore[attr-defined]
    except RuntimeError:
        return set()  # one is being made at this very moment: the next look sees it
    return {thread for thread in made if thread.ident is not None}


def _is_short_lived(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in SHORT_LIVED)
