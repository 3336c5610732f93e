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

    def expect(self, entry_id: int) -> None:
        """This add belongs to the batch."""
        self.ids.append(entry_id)
        self._missing += 1

    def seal(self) -> None:
        """No more adds will come."""
        self.delivered()

    def delivered(self) -> None:
        """One add more is acknowledged."""
        self._missing -= 1
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
