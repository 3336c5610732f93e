"""One Append call: batches of entries in, acknowledgements out.

Invariants
- Entries get their ids in the order in which they came.
- A batch is read only when the one before it has been sent, so the writer's window and the gateway's byte budget hold
  the client back, over the transport's own flow control.
- Acknowledgements that wait for the client to take them are one number: the last of them.
- An error of any batch ends the call at once, whether the client is sending or waiting.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from bookie_pod.gateway.budget import ByteBudget
from bookie_pod.gateway.messages import check_ledger_id, creation
from bookie_pod.gateway.writers import OpenWriter, OpenWriters
from bookie_protocol.errors import BadRequest, LedgerClosed, PodkeeperError
from bookie_protocol.ledger_service import ledger_service_pb2 as messages

Respond = Callable[[messages.AppendResponse], Awaitable[None]]


class AppendCall:
    """Run it once. `appended` is told entries and bytes of each batch that was sent."""

    def __init__(
        self,
        writers: OpenWriters,
        budget: ByteBudget,
        respond: Respond,
        appended: Callable[[int, int], None],
    ) -> None:
        self._writers = writers
        self._budget = budget
        self._respond = respond
        self._appended = appended
        self._writer: OpenWriter
        self._keep_open = False
        self._acknowledged = -1
        self._error: PodkeeperError | None = None
        self._changed = asyncio.Event()
        self._all_sent = False

    async def run(self, requests: AsyncIterator[messages.AppendRequest]) -> None:
        """Until the client ends its side. Raises what ended it before; the writer is ended then."""
        try:
            first = await anext(requests)
        except StopAsyncIteration:
            raise BadRequest("Append ended before its first request, which says which ledger to append to") from None
        self._writer = await self._take_writer(first)
        try:
            await self._append_all(first, requests)
            if not self._keep_open:
                await self._writers.close(self._writer)
        except BaseException:
            self._writers.end(self._writer)
            raise
        if self._keep_open:
            self._writers.give_back(self._writer)
        await self._respond_with(self._writer.handle.last_add_confirmed, closed=not self._keep_open)

    async def _take_writer(self, first: messages.AppendRequest) -> OpenWriter:
        match first.WhichOneof("ledger"):
            case "create":
                writer = await self._writers.create(creation(first.create))
            case "existing":
                existing = first.existing
                writer = self._writers.take(check_ledger_id(existing.ledger_id), existing.password)
                self._keep_open = existing.keep_open
            case _:
                raise BadRequest("the first request of Append must say which ledger: create, or existing")
        writer.on_idle = self._idle
        self._acknowledged = writer.handle.last_add_confirmed
        return writer

    async def _append_all(self, first: messages.AppendRequest, requests: AsyncIterator[messages.AppendRequest]) -> None:
        await self._respond_with(self._acknowledged, closed=False)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._acknowledge(), name="acknowledge")
                await self._send(first)
                async for request in requests:
                    if request.WhichOneof("ledger") is not None:
                        raise BadRequest("only the first request of Append says which ledger")
                    await self._send(request)
                await self._writer.handle.flush()
                self._all_sent = True
                self._changed.set()
        except BaseExceptionGroup as errors:
            # What a batch failed with comes first; others are its consequences.
            raise self._error or errors.exceptions[0] from None

    async def _send(self, request: messages.AppendRequest) -> None:
        entries = list(request.entries)  # once: each look into the message makes new objects
        if not entries:
            return
        nbytes = sum(map(len, entries))
        await self._budget.acquire(nbytes)
        try:
            sent = await self._writer.handle.submit_many(entries)
        except BaseException:
            self._budget.release(nbytes)
            raise
        self._writers.used(self._writer)
        self._appended(len(entries), nbytes)
        sent.add_done_callback(lambda ended: self._ended(ended, nbytes))

    def _ended(self, batch: asyncio.Future[list[int]], nbytes: int) -> None:
        self._budget.release(nbytes)
        error = batch.exception() if not batch.cancelled() else None
        if error is None and not batch.cancelled():
            self._acknowledged = batch.result()[-1]
        elif isinstance(error, PodkeeperError):
            self._error = self._error or error
        self._changed.set()

    async def _acknowledge(self) -> None:
        """Tell the client how far it is, once for all that was acknowledged meanwhile."""
        told = self._acknowledged
        while True:
            await self._changed.wait()
            self._changed.clear()
            acknowledged = self._acknowledged
            if acknowledged != told:
                await self._respond_with(acknowledged, closed=False)
                told = acknowledged
            if self._error is not None:
                raise self._error
            if self._all_sent:
                return

    def _idle(self) -> None:
        last = self._writer.handle.last_add_confirmed
        self._error = LedgerClosed(
            f"ledger {self._writer.ledger_id}: nothing was appended for so long that the gateway closes it behind entry"
            f" {last} (gatewayIdleWriterSeconds)"
        )
        self._changed.set()

    async def _respond_with(self, last_entry_id: int, *, closed: bool) -> None:
        await self._respond(
            messages.AppendResponse(ledger_id=self._writer.ledger_id, last_entry_id=last_entry_id, closed=closed)
        )
