"""One Append call: batches of entries in, acknowledgements out.

Invariants
- Entries get their ids in the order in which they came.
- A batch is read only when the one before it has been sent, so the writer's window and the gateway's byte budget hold
  the client back, over the transport's own flow control.
- An entry counts against the budget with its payload and what it takes besides; a message is dropped as soon as its
  entries are taken out, so that what waits for room is there once.
- Acknowledgements that wait for the client to take them are one number: the last of them.
- An error of any batch ends the call at once, whether the client is sending or waiting.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from bookie_client.writing.window import Window
from bookie_pod.audit import audited
from bookie_pod.gateway.messages import check_ledger_id, creation
from bookie_pod.gateway.writers import OpenWriter, OpenWriters
from bookie_protocol.errors import BadRequest, LedgerClosed, fresh
from bookie_protocol.ledger_service import ledger_service_pb2 as messages

MAX_ENTRIES: Final = 100_000
"""Maximum entries of one message."""
ENTRY_BYTES: Final = 512
"""Approximate bytes that an entry takes on its way besides its payload."""

Respond = Callable[[messages.AppendResponse], Awaitable[None]]


class AppendCall:
    """One call of Append; run it once.

    `budget`: of the bytes under way of all calls together; `appended` gets entries and bytes of each batch that was
    sent; `before_a_password` is awaited before a password is compared.
    """

    def __init__(
        self,
        writers: OpenWriters,
        budget: Window,
        respond: Respond,
        appended: Callable[[int, int], None],
        before_a_password: Callable[[], Awaitable[None]],
    ) -> None:
        self._writers = writers
        self._budget = budget
        self._respond = respond
        self._appended = appended
        self._before_a_password = before_a_password
        self._writer: OpenWriter
        self._keep_open = False
        self._acknowledged = -1
        self._error: BaseException | None = None
        self._waits_for_room = False
        self._changed = asyncio.Event()
        self._all_sent = False

    async def run(self, requests: AsyncIterator[messages.AppendRequest]) -> None:
        """Serve the call until the client ends its side. Raises the error that ended it before; the writer is
        ended then."""
        try:
            first = await anext(requests)
        except StopAsyncIteration:
            raise BadRequest("Append ended before its first request, which says which ledger to append to") from None
        self._writer = await self._take_writer(first)
        try:
            entries = _entries_of(first)
            del first
            await self._append_all(entries, requests)
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
                await self._before_a_password()
                writer = self._writers.take(check_ledger_id(existing.ledger_id), existing.password)
                self._keep_open = existing.keep_open
            case _:
                raise BadRequest("the first request of Append must say which ledger: create, or existing")
        audited(ledger_id=writer.handle.metadata.ledger_id)
        writer.on_idle = self._idle
        self._acknowledged = writer.handle.last_add_confirmed
        return writer

    async def _append_all(self, first: list[bytes], requests: AsyncIterator[messages.AppendRequest]) -> None:
        await self._respond_with(self._acknowledged, closed=False)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._acknowledge(), name="acknowledge")
                await self._send(first)
                del first
                async for request in requests:
                    if request.WhichOneof("ledger") is not None:
                        raise BadRequest("only the first request of Append says which ledger")
                    entries = _entries_of(request)
                    del request
                    await self._send(entries)
                await self._writer.handle.flush()
                self._all_sent = True
                self._changed.set()
        except BaseExceptionGroup as errors:
            errors.__traceback__ = None  # leads to the frame of the group, which keeps what it raised
            # What a batch failed with comes first; others are its consequences.
            raise fresh(self._error or errors.exceptions[0]) from None

    async def _send(self, entries: list[bytes]) -> None:
        if not entries:
            return
        payload = sum(map(len, entries))
        nbytes = payload + ENTRY_BYTES * len(entries)
        self._waits_for_room = True
        await self._budget.acquire(nbytes)
        self._waits_for_room = False
        try:
            sent = await self._writer.handle.submit_many(entries)
        except BaseException:
            self._budget.release(1, nbytes)
            raise
        self._writers.used(self._writer)
        self._appended(len(entries), payload)
        sent.add_done_callback(lambda ended: self._ended(ended, nbytes))

    def _ended(self, batch: asyncio.Future[list[int]], nbytes: int) -> None:
        self._budget.release(1, nbytes)
        error = batch.exception() if not batch.cancelled() else None
        if error is None and not batch.cancelled():
            self._acknowledged = batch.result()[-1]
        elif error is not None:
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
                raise fresh(self._error)
            if self._all_sent:
                return

    def _idle(self) -> None:
        if self._waits_for_room:
            return  # for others, not for its client
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


def _entries_of(request: messages.AppendRequest) -> list[bytes]:
    """Taken out once: each look into the message makes new objects. Raises `BadRequest`."""
    if len(request.entries) > MAX_ENTRIES:
        raise BadRequest(f"{len(request.entries)} entries in one message; at most {MAX_ENTRIES} are possible")
    return list(request.entries)
