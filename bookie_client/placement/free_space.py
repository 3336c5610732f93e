"""Free disk space of the writable bookies, asked for now and then, for weighted placement.

Invariants
- At most `MAX_ASKED` bookies are asked at once. Each is asked when it appears, then every `interval`; one that does
  not answer, after `retry_interval`.
- What a bookie told is forgotten when it is not writable any more.

Event loop only.

Source: reference client protocol, section 16.5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

from bookie_client.bookies import Bookies
from bookie_client.logs import get_logger
from bookie_protocol.errors import PodkeeperError

_log = get_logger(__name__)

MAX_ASKED: Final = 8

AskFreeBytes = Callable[[str], Awaitable[int]]
"""Bookie id -> free bytes. Raises what operations on bookies raise."""


class FreeSpace:
    """`interval` and `retry_interval` in seconds; `start` before use."""

    def __init__(self, bookies: Bookies, ask: AskFreeBytes, *, interval: float, retry_interval: float) -> None:
        self._bookies = bookies
        self._ask = ask
        self._interval = interval
        self._retry_interval = retry_interval
        self._told: dict[str, int] = {}
        self._due: dict[str, float] = {}
        self._few = asyncio.Semaphore(MAX_ASKED)
        self._task: asyncio.Task[None] | None = None

    @property
    def known(self) -> Mapping[str, int]:
        """Free bytes of the bookies that told them."""
        return self._told

    def start(self) -> None:
        """Begin to ask."""
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="free space of bookies")

    async def close(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            writable = self._bookies.known_writable
            for gone in self._due.keys() - writable:
                del self._due[gone]
                self._told.pop(gone, None)
            now = loop.time()
            await asyncio.gather(*(self._refresh(b) for b in sorted(writable) if self._due.get(b, now) <= now))
            if self._bookies.known_writable == writable:
                next_due = min(self._due.values(), default=loop.time() + self._interval)
                await self._bookies.changed(max(0.0, next_due - loop.time()))

    async def _refresh(self, bookie: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with self._few:
                self._told[bookie] = max(0, await self._ask(bookie))
        except PodkeeperError as error:
            self._due[bookie] = loop.time() + self._retry_interval
            _log.info("bookie does not tell its free space", bookie=bookie, error=str(error))
        else:
            self._due[bookie] = loop.time() + self._interval
