"""One future for many adds: what a bulk append waits for.

Event loop only.
"""

from __future__ import annotations

import asyncio

from bookie_protocol.errors import PodkeeperError


class AddBatch:
    """`future` resolves with the entry ids, in the order of the payloads, once `seal` was called and every add
    of the batch was delivered; with the first error as soon as one failed."""

    __slots__ = ("_missing", "future", "ids")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[list[int]] = loop.create_future()
        self.ids: list[int] = []
        self._missing = 1

    def expect_run(self, first: int, count: int) -> None:
        """So many adds, from this entry id on, belong to the batch."""
        self.ids += range(first, first + count)
        self._missing += count

    def seal(self) -> None:
        """No more adds will come."""
        self.delivered(1)

    def delivered(self, count: int) -> None:
        """So many adds more are acknowledged."""
        self._missing -= count
        if not self._missing and not self.future.done():
            self.future.set_result(self.ids)

    def failed(self, error: PodkeeperError) -> None:
        """An add failed; whoever does not wait for the batch learns it from `flush` or the end of the context."""
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()

    def raise_failure(self) -> None:
        """Raise what ended an add of this batch, if something did."""
        error = self.future.exception() if self.future.done() else None
        if error is not None:
            raise error
