"""Items of an asynchronous iterator in batches: each batch is all that arrived since the one before.

For consumers that pay per hand-over and not per item: another thread, or a message of another protocol.

Invariants
- A batch is handed out as soon as it holds one item; nothing waits for a batch to fill.
- Items come in order, then the iterator's error or its end.
- What arrived and was not taken is bounded in items and bytes; one item larger than the bound still passes.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, Generic, TypeVar

from bookie_protocol.errors import fresh
from bookie_protocol.lasting import Ending

MAX_ITEMS: Final = 1_000
MAX_BYTES: Final = 4 * 1024 * 1024

T = TypeVar("T")


class Batches(Generic[T]):
    """Reads `items` ahead of its consumer. `close` it, also after an error.

    `size_of` gives the bytes of an item. The first `take` begins to read.
    """

    def __init__(
        self,
        items: AsyncIterator[T],
        size_of: Callable[[T], int],
        *,
        max_items: int = MAX_ITEMS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._items = items
        self._size_of = size_of
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._arrived: list[T] = []
        self._nbytes = 0
        self._error: Exception | None = None
        self._ended = False
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._ending = Ending("close batches")

    async def take(self) -> list[T]:
        """Return the next batch; empty when the iterator has ended. Raises its error once the items before it were
        taken. One caller at a time; a cancelled call loses nothing."""
        if self._pump is None and not self._ended:
            self._pump = asyncio.get_running_loop().create_task(self._read(), name="batches")
        while not self._arrived and not self._ended:
            self._changed.clear()
            await self._changed.wait()
        if not self._arrived and self._error is not None:
            raise fresh(self._error)
        batch, self._arrived, self._nbytes = self._arrived, [], 0
        self._room.set()
        return batch

    async def close(self) -> None:
        """Stop reading and end the iterator. Calling it again is fine, and cancelling a call does not stop it."""
        await self._ending.reach(self._close)

    async def _close(self) -> None:
        self._ended = True
        self._changed.set()
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.cancel()
            await asyncio.wait([pump])
        end = getattr(self._items, "aclose", None)
        if end is not None:
            await end()

    async def _read(self) -> None:
        try:
            async for item in self._items:
                self._arrived.append(item)
                self._nbytes += self._size_of(item)
                self._changed.set()
                if len(self._arrived) >= self._max_items or self._nbytes >= self._max_bytes:
                    self._room.clear()
                    await self._room.wait()
        except Exception as error:
            self._error = fresh(error)
        finally:
            self._ended = True
            self._changed.set()
