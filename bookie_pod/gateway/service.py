"""The calls of `LedgerService`.

Invariants
- Every call ends with a status: an error of the client under its own name, anything unforeseen as INTERNAL with a log
  line.
- At most `max_streams` streaming calls run, and no connection has more of them than are left for all others; beyond,
  `TooManyRequests`.
- What a call reads for its client counts as the caller's, until the client has taken it (`bookie_pod.callers`).
- A call that its client cancels, or whose deadline passes, is cancelled here, and ends what it opened.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import grpc
import structlog

from bookie_client import Client, LedgerReader
from bookie_client.access import check_password
from bookie_client.client import Opening
from bookie_client.writing.window import Window
from bookie_pod.audit import audited, audited_failure, changing
from bookie_pod.callers import Call, current_call
from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.sections.gateway import GatewayConfig
from bookie_pod.gateway.appending import AppendCall
from bookie_pod.gateway.messages import check_ledger_id, creation, digest_of, metadata_message, status_of
from bookie_pod.gateway.reading import RESPONSES, BatchLimits, CountedResponse, responses, small_window, window
from bookie_pod.gateway.writers import OpenWriters
from bookie_pod.metrics.gateway import GatewayMetrics
from bookie_pod.roles import Role
from bookie_protocol.errors import (
    BookieUnavailable,
    LedgerNotClosed,
    NoSuchLedger,
    PodkeeperError,
    TooManyRequests,
    Unauthorized,
    public_kind,
)
from bookie_protocol.ledger_service import ledger_service_pb2 as messages
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import LedgerServiceServicer

LIST_BATCH: Final = 10_000
"""Ids in one response of List."""
ID_BYTES: Final = 48
"""Of each, while the response waits to be taken, about."""

T = TypeVar("T")
Context: TypeAlias = grpc.aio.ServicerContext
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """What the calls share."""

    client: Client
    writers: OpenWriters
    budget: Window
    config: GatewayConfig
    metrics: GatewayMetrics
    memory: MemoryGovernor


class LedgerService(LedgerServiceServicer):
    """See the module; the proto says what each call does."""

    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts
        self._client = parts.client
        self.streams = 0
        self.is_stopping = False

    # --- calls with one answer ------------------------------------------------------------------------------

    async def Create(self, request: messages.CreateRequest, context: Context) -> messages.CreateResponse:
        async def create() -> messages.CreateResponse:
            writer = await self._parts.writers.create(creation(request))
            audited(ledger_id=writer.handle.metadata.ledger_id)
            return messages.CreateResponse(metadata=metadata_message(writer.handle.metadata))

        return await self._answer(context, create())

    async def Recover(self, request: messages.RecoverRequest, context: Context) -> messages.LedgerMetadata:
        async def recover() -> messages.LedgerMetadata:
            digest = digest_of(request.digest_type)
            ledger_id = check_ledger_id(request.ledger_id)
            audited(ledger_id=ledger_id)
            return metadata_message(await self._client.recover(ledger_id, password=request.password, digest=digest))

        return await self._answer(context, recover())

    async def Close(self, request: messages.CloseRequest, context: Context) -> messages.LedgerMetadata:
        return await self._answer(context, self._close(check_ledger_id(request.ledger_id), request.password))

    async def Delete(self, request: messages.DeleteRequest, context: Context) -> messages.DeleteResponse:
        async def delete() -> messages.DeleteResponse:
            ledger_id = check_ledger_id(request.ledger_id)
            audited(ledger_id=ledger_id)
            if request.HasField("password"):
                with suppress(NoSuchLedger):
                    check_password(await self._client.metadata(ledger_id), request.password)
            await self._client.delete(ledger_id)
            return messages.DeleteResponse()

        return await self._answer(context, delete())

    async def GetMetadata(self, request: messages.GetMetadataRequest, context: Context) -> messages.LedgerMetadata:
        async def read() -> messages.LedgerMetadata:
            return metadata_message(await self._client.metadata(check_ledger_id(request.ledger_id)))

        return await self._answer(context, read())

    # --- streams --------------------------------------------------------------------------------------------

    async def Append(self, request_iterator: AsyncIterator[messages.AppendRequest], context: Context) -> None:
        async def append() -> None:
            with self._stream():
                parts = self._parts
                call = AppendCall(parts.writers, parts.budget, context.write, parts.metrics.appended)
                await call.run(aiter(request_iterator))

        await self._answer(context, append())

    async def Read(self, request: messages.ReadRequest, context: Context) -> None:
        await self._answer(context, self._read(request, context))

    async def Tail(self, request: messages.TailRequest, context: Context) -> None:
        await self._answer(context, self._tail(request, context))

    async def List(self, request: messages.ListRequest, context: Context) -> None:
        async def list_all() -> None:
            with self._stream() as call:
                ids: list[int] = []
                async for ledger_id in self._client.list():
                    ids.append(ledger_id)
                    if len(ids) == LIST_BATCH:
                        await self._give(call, context, messages.ListResponse(ledger_ids=ids), ID_BYTES * LIST_BATCH)
                        ids = []
                if ids:
                    await self._give(call, context, messages.ListResponse(ledger_ids=ids), ID_BYTES * len(ids))

        await self._answer(context, list_all())

    # --- inside ---------------------------------------------------------------------------------------------

    async def _close(self, ledger_id: int, password: bytes) -> messages.LedgerMetadata:
        audited(ledger_id=ledger_id)
        writers = self._parts.writers
        if writers.holds(ledger_id):
            writer = writers.take(ledger_id, password)
            await writers.close(writer)
            return metadata_message(writer.handle.metadata)
        metadata = await self._client.metadata(ledger_id)
        check_password(metadata, password)
        if not metadata.is_closed:
            raise LedgerNotClosed(
                f"ledger {ledger_id} is {metadata.state.value}, and this gateway does not have its writer: close it"
                " where it was created, or recover it"
            )
        return metadata_message(metadata)

    async def _read(self, request: messages.ReadRequest, context: Context) -> None:
        recovers = changing(Role.WRITER, "a read that recovers", ledger_id=request.ledger_id)
        with self._stream() as call, recovers if request.recover else nullcontext():
            limits = BatchLimits.of(request, self._parts.config.read_batch_bytes)
            async with self._open(request, recover=request.recover) as reader:
                limits = await window(call, reader, limits)
                last = request.last_entry_id if request.HasField("last_entry_id") else None
                async for response in responses(reader, reader.entries(request.first_entry_id, last), limits):
                    beyond = max(0, response.nbytes - limits.nbytes)
                    await self._give_entries(call, context, response, (RESPONSES - 1) * beyond)

    async def _tail(self, request: messages.TailRequest, context: Context) -> None:
        with self._stream() as call:
            limits = BatchLimits.of(request, self._parts.config.read_batch_bytes)
            async with self._open(request, recover=False) as reader:
                given = request.HasField("first_entry_id")
                start = request.first_entry_id if given else reader.last_add_confirmed + 1
                limits = small_window(reader, self._parts.memory, self._parts.config.max_streams, limits)
                async for response in responses(reader, reader.tail(start), limits):
                    await self._give_entries(call, context, response, RESPONSES * response.nbytes)

    async def _give_entries(self, call: Call, context: Context, response: CountedResponse, nbytes: int) -> None:
        await self._give(call, context, response.message, nbytes)
        self._parts.metrics.was_read(response.entries, response.nbytes)

    def _open(self, request: messages.ReadRequest | messages.TailRequest, *, recover: bool) -> Opening[LedgerReader]:
        return self._client.open(
            check_ledger_id(request.ledger_id),
            password=request.password,
            digest=digest_of(request.digest_type),
            recover=recover,
        )

    async def _give(self, call: Call, context: Context, message: Any, nbytes: int) -> None:
        """`nbytes` are held until the client has taken it."""
        call.hold(nbytes)
        with call.giving():
            await context.write(message)
        call.hold(-nbytes)

    @contextmanager
    def _stream(self) -> Iterator[Call]:
        call, most = current_call(), self._parts.config.max_streams
        if self.streams >= most or call.caller.streams >= max(most - self.streams, 1):
            raise TooManyRequests(
                f"{self.streams} streams are open on this gateway, {call.caller.streams} of them over this connection;"
                f" gatewayMaxStreams={most} allows so many, and no connection more than are left for the others: try"
                " another gateway, or later"
            )
        self.streams += 1
        call.caller.streams += 1
        try:
            yield call
        finally:
            self.streams -= 1
            call.caller.streams -= 1

    async def _answer(self, context: Context, work: Coroutine[Any, Any, T]) -> T:
        """Await it; an error becomes the call's status."""
        try:
            if self.is_stopping:
                work.close()
                raise BookieUnavailable("this gateway is stopping: try another")
            return await work
        except PodkeeperError as error:
            status = status_of(error)
            audited_failure(public_kind(error).__name__, refused=isinstance(error, Unauthorized))
            self._parts.metrics.failed.add(1)
            await context.abort(status.code, status.details, status.trailing_metadata)
        except (asyncio.CancelledError, grpc.aio.AbortError, grpc.aio.InternalError):
            raise  # the last: the client was gone while it was being told something
        except Exception as error:
            _log.error("unexpected fault in the gateway, this is a bug", exc_info=error)
            self._parts.metrics.failed.add(1)
            await context.abort(grpc.StatusCode.INTERNAL, f"unexpected fault, this is a bug: {error!r}")
        raise AssertionError("abort raises")
