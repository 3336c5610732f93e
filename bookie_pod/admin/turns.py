"""Turns of work that anybody may ask for and that costs the metadata service much: listings and searches.

Invariants
- There are two lines: operators and admins do not wait for those of viewers, however many these are.
- In a line one piece of work runs at a time. The next one begins after a pause of `PAUSE` times as long as the last one
  took, so that any number of callers costs a fifth of one; but of `LONGEST_S` at most, so that a slow search does not
  keep all other callers out.
- At most `WAITING` callers wait in a line; more are refused at once, so that they do not take the places of other
  requests.

Event loop only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from bookie_pod.roles import NOBODY, Caller
from bookie_protocol.errors import TooManyRequests

PAUSE: Final = 4.0
LONGEST_S: Final = 5.0
"""Seconds of the longest pause: less than a request may take."""
WAITING: Final = 4


class Turns:
    """The turns of one kind of work."""

    def __init__(self) -> None:
        self._lines = {runs_cluster: _Line() for runs_cluster in (False, True)}

    def turn(self, caller: Caller = NOBODY) -> AbstractAsyncContextManager[None]:
        """Wait for a turn, and have it. Raises `TooManyRequests`."""
        return self._lines[caller.runs_cluster].turn()


class _Line:
    def __init__(self) -> None:
        self._one = asyncio.Lock()
        self._waiting = 0
        self._may_begin = 0.0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        if self._waiting >= WAITING:
            raise TooManyRequests(f"{WAITING} searches wait already; try again in a few seconds")
        self._waiting += 1
        try:
            await self._one.acquire()
        finally:
            self._waiting -= 1
        try:
            await asyncio.sleep(max(0.0, self._may_begin - time.monotonic()))
            began = time.monotonic()
            try:
                yield
            finally:
                ended = time.monotonic()
                self._may_begin = ended + min(LONGEST_S, PAUSE * (ended - began))
        finally:
            self._one.release()
