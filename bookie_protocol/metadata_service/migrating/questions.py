"""Questions whether the metadata have moved, asked behind each change of the flag.

A step of a participant may take long, and not every coordinator waits for us. So what our node proves counts, behind a
change of the flag, only once the flag has been read again.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from bookie_protocol.errors import MetadataUnavailable

RETRY_S: Final = 0.5
"""Seconds between two tries of a question that failed."""


class Questions:
    """Questions that are asked one at a time. `ask` raises if it was not answered; then it is called again."""

    def __init__(self, ask: Callable[[], Awaitable[None]]) -> None:
        self._ask = ask
        self._changed = asyncio.Event()
        """Set if the flag has changed since the last question began."""
        self._begun = self._answered = 0
        """Numbers of questions."""
        self._told = asyncio.Event()
        """Set, and replaced, when a question is answered."""
        self._has_ended = False

    def hear(self) -> None:
        """Ask: the flag has changed."""
        self._changed.set()

    async def answered(self) -> None:
        """Wait until all changes that were heard so far have been asked about. `MetadataUnavailable`: that ended."""
        wanted = self._begun + self._changed.is_set()
        while self._answered < wanted:
            if self._has_ended:
                raise MetadataUnavailable("the metadata service was closed")
            await self._told.wait()

    async def run(self) -> None:
        """Ask until the end of this task."""
        try:
            while True:
                await self._changed.wait()
                await self._question()
        finally:
            self._has_ended = True
            self._told.set()

    async def _question(self) -> None:
        self._changed.clear()
        self._begun += 1
        number = self._begun
        try:
            await self._ask()
        except Exception:  # the look says it
            self._changed.set()
            await asyncio.sleep(RETRY_S)
        else:
            self._answered = number
            self._told.set()
            self._told = asyncio.Event()
