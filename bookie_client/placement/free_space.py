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
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Final

from bookie_client.bookies import Bookies
from bookie_client.logs import get_logger
from bookie_protocol.errors import PodkeeperError

_log = get_logger(__name__)

MAX_ASKED: Final = 8

AskFreeBytes = Callable[[str], Awaitable[int]]
"""Bookie id -> free bytes. Raises what operations on bookies raise."""


async def ask_free_bytes(
    bookies: Iterable[str], ask: AskFreeBytes, told: MutableMapping[str, int]
) -> Mapping[str, PodkeeperError]:
    """Ask each bookie once, at most `MAX_ASKED` at a time. `told` gets its free bytes as soon as it answers; returned
    is why others did not tell."""
    few = asyncio.Semaphore(MAX_ASKED)
    silent: dict[str, PodkeeperError] = {}

    async def ask_one(bookie: str) -> None:
        try:
            async with few:
                told[bookie] = max(0, await ask(bookie))
        except PodkeeperError as error:
            silent[bookie] = error

    await asyncio.gather(*map(ask_one, sorted(bookies)))
    return silent


class FreeSpace:
    """`interval` and `retry_interval` in seconds; `start` before use."""

    def __init__(self, bookies: Bookies, ask: AskFreeBytes, *, interval: float, retry_interval: float) -> None:
        self._bookies = bookies
        self._ask = ask
        self._interval = interval
        self._retry_interval = retry_interval
        self._told: dict[str, int] = {}
        self._due: dict[str, float] = {}
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
            await asyncio.wait([self._task])

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            writable = self._bookies.known_writable
            for gone in self._due.keys() - writable:
                del self._due[gone]
                self._told.pop(gone, None)
            now = loop.time()
            await self._refresh([bookie for bookie in writable if self._due.get(bookie, now) <= now])
            if self._bookies.known_writable == writable:
                next_due = min(self._due.values(), default=loop.time() + self._interval)
                await self._bookies.changed(max(0.0, next_due - loop.time()))

    async def _refresh(self, bookies: list[str]) -> None:
        silent = await ask_free_bytes(bookies, self._ask, self._told)
        now = asyncio.get_running_loop().time()
        for bookie in bookies:
            error = silent.get(bookie)
            self._due[bookie] = now + (self._interval if error is None else self._retry_interval)
            if error is not None:
                _log.info("bookie does not tell its free space", bookie=bookie, error=str(error))
