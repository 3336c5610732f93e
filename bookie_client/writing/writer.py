"""The writer's handle: pipelined appends whose entry ids the handle gives.

Event loop only.

Source: reference client protocol, section 6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from bookie_client.writing.handle import WriteHandle
from bookie_protocol.digest import Buffer


class LedgerWriter(WriteHandle):
    """Appends to one ledger. Made by `Client.create`; use it as an async context manager, or call `close`.

    Only the client that created a ledger writes it, and only through one handle.
    """

    async def append(self, payload: Buffer) -> int:
        """Append one entry and return its id once the ack quorum has it.

        Raises `QuorumLost` (too few bookies are left), `LedgerFenced` (another client is recovering the
        ledger), `Unauthorized` (another password), `LedgerClosed`, or a `MetadataError` of an ensemble
        change. The handle takes no more entries then, and whether this one survives is unknown. `BadRequest`:
        the entry does not fit a frame; nothing was sent.

        Cancelling, as `asyncio.timeout` does, takes back an entry that still waits for room in the window. One
        that was sent goes on, and may be acknowledged without anybody being told.
        """
        return await (self._pipeline.intake.try_submit(payload) or await self._pipeline.intake.submit(payload))

    async def submit(self, payload: Buffer) -> asyncio.Future[int]:
        """Send one entry; returns a future of its id that resolves as `append` does.

        Waits only while the window is full (`write_window_entries`, `write_window_bytes`), so a loop over
        `submit` keeps the pipeline full and memory bounded. Calls made one after the other get ascending ids.
        """
        return self._pipeline.intake.try_submit(payload) or await self._pipeline.intake.submit(payload)

    async def submit_many(self, payloads: Iterable[Buffer]) -> asyncio.Future[list[int]]:
        """Send entries in order, as `submit` does; one future for all of them, which costs much less.
        It resolves with their ids, in order, or with the first error. Raises `BadRequest` (an entry fits no frame) and
        `LedgerClosed`; what was sent before goes on."""
        return await self._pipeline.intake.submit_many(payloads)

    async def append_many(self, payloads: Iterable[Buffer]) -> list[int]:
        """Append entries in order, pipelined; returns their ids once all are acknowledged. Raises as
        `append`."""
        return await (await self._pipeline.intake.submit_many(payloads))
