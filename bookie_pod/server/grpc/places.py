"""The places of calls of one kind, so that calls of which nothing comes keep no others out.

Invariants
- At most `most` calls of a kind run, and with `of_one` so many of one connection.
- When all places are taken, the next call takes the place of the call that has waited for its client for longest:
  its request does not come, or its answer is not taken. If no call waits for its client, the next call is refused;
  with `brief`, the oldest call of the connection that has most of them ends instead. With `at_once`, it is the oldest
  of all: it should be over by now, and a connection with many calls may be a proxy's.
- A client that takes nothing does not take the end of its call either. So a call that was ended and is still there
  after `ENDS_S` loses its connection, and so does one of a connection that has `ENDING` such calls.

Event loop only.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from bookie_pod.callers import TAKES_S, Call, shut
from bookie_protocol.errors import TooManyRequests

ENDS_S: Final = 1.0
ENDING: Final = 16
_ENDED: Final = "this server has many calls, and needed the place of this one: try again"


class Places:
    """The places of calls of one kind."""

    def __init__(self, most: int, *, of_one: int | None = None, brief: bool = False, at_once: bool = False) -> None:
        """`of_one`: places of one connection. `brief`: a call may be ended whatever it does. `at_once`: it may, and is
        answered without any wait."""
        self._most = most
        self._of_one = of_one
        self._brief = brief
        self._at_once = at_once
        self._calls: dict[Call, None] = {}
        """The calls that have a place, the oldest first."""
        self._ending: list[Call] = []
        """The calls that were ended, and may still be there."""

    @property
    def taken(self) -> int:
        """The number of places that are taken."""
        return len(self._calls)

    @contextmanager
    def place(self, call: Call) -> Iterator[None]:
        """Have a place. Raises `TooManyRequests`."""
        if self._of_one is not None:
            its_own = [each for each in self._calls if each.caller is call.caller]
            if len(its_own) >= self._of_one:
                self._end_one_of(its_own)
        if len(self._calls) >= self._most:
            self._end_one_of(self._calls)
        self._calls[call] = None
        try:
            yield
        finally:
            self._calls.pop(call, None)

    def _end_one_of(self, calls: Collection[Call]) -> None:
        before = time.perf_counter() - TAKES_S
        waiting = [
            (each.waits_since, number, each)
            for number, each in enumerate(calls)
            if each.waits_since is not None and each.waits_since < before
        ]
        if waiting:
            *_, call = min(waiting)
        elif self._at_once:
            call = next(iter(calls))
        elif self._brief:
            of_one = Counter(each.caller for each in calls)
            call = max(calls, key=lambda each: of_one[each.caller])  # the first, and so the oldest, of these
        else:
            raise TooManyRequests(f"{len(calls)} calls are under way, and no more are possible: try again later")
        del self._calls[call]
        call.cut(_ENDED)
        self._ending = [each for each in self._ending if not each.has_ended]
        self._ending.append(call)
        if sum(each.caller is call.caller for each in self._ending) >= ENDING:
            shut((call.caller.peer,))
        else:
            asyncio.get_running_loop().call_later(ENDS_S, _shut_if_there, call)


def _shut_if_there(call: Call) -> None:
    if not call.has_ended:
        shut((call.caller.peer,))
