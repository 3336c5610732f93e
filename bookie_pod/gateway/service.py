"""The calls of `LedgerService`.

Invariants
- Every call ends with a status: an error of the client under its own name, anything unforeseen as INTERNAL with a log
  line.
- At most `max_streams` streaming calls run; beyond, `TooManyRequests`.
- A call that its client cancels, or whose deadline passes, is cancelled here, and ends what it opened.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import grpc
import structlog

from bookie_client import Client, LedgerReader
from bookie_client.access import check_password
from bookie_client.opening import Opening
from bookie_pod.config.sections.gateway import GatewayConfig
from bookie_pod.gateway.appending import AppendCall
from bookie_pod.gateway.budget import ByteBudget
from bookie_pod.gateway.messages import check_ledger_id, creation, digest_of, metadata_message
from bookie_pod.gateway.reading import BatchLimits, CountedResponse, responses
from bookie_pod.gateway.status import status_of
from bookie_pod.gateway.writers import OpenWriters
from bookie_pod.metrics.gateway import GatewayMetrics
from bookie_protocol.errors import BookieUnavailable, LedgerNotClosed, PodkeeperError, TooManyRequests
from bookie_protocol.ledger_service import ledger_service_pb2 as messages
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import LedgerServiceServicer

LIST_BATCH: Final = 10_000
"""Ids in one response of List."""

T = TypeVar("T")
Context: TypeAlias = grpc.aio.ServicerContext
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """What the calls share."""

    client: Client
    writers: OpenWriters
    budget: ByteBudget
    config: GatewayConfig
    metrics: GatewayMetrics


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
            return messages.CreateResponse(metadata=metadata_message(writer.handle.metadata))

        return await self._answer(context, create())

    async def Recover(self, request: messages.RecoverRequest, context: Context) -> messages.LedgerMetadata:
        async def recover() -> messages.LedgerMetadata:
            digest = digest_of(request.digest_type)
            ledger_id = check_ledger_id(request.ledger_id)
            return metadata_message(await self._client.recover(ledger_id, password=request.password, digest=digest))

        return await self._answer(context, recover())

    async def Close(self, request: messages.CloseRequest, context: Context) -> messages.LedgerMetadata:
        return await self._answer(context, self._close(check_ledger_id(request.ledger_id), request.password))

    async def Delete(self, request: messages.DeleteRequest, context: Context) -> messages.DeleteResponse:
        async def delete() -> messages.DeleteResponse:
            await self._client.delete(check_ledger_id(request.ledger_id))
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
            with self._stream():
                ids: list[int] = []
                async for ledger_id in self._client.list():
                    ids.append(ledger_id)
                    if len(ids) == LIST_BATCH:
                        await context.write(messages.ListResponse(ledger_ids=ids))
                        ids = []
                if ids:
                    await context.write(messages.ListResponse(ledger_ids=ids))

        await self._answer(context, list_all())

    # --- inside ---------------------------------------------------------------------------------------------

    async def _close(self, ledger_id: int, password: bytes) -> messages.LedgerMetadata:
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
        with self._stream():
            limits = BatchLimits.of(request, self._parts.config.read_batch_bytes)
            async with self._open(request, recover=request.recover) as reader:
                last = request.last_entry_id if request.HasField("last_entry_id") else None
                async for response in responses(reader, reader.entries(request.first_entry_id, last), limits):
                    await self._send(context, response)

    async def _tail(self, request: messages.TailRequest, context: Context) -> None:
        with self._stream():
            limits = BatchLimits.of(request, self._parts.config.read_batch_bytes)
            async with self._open(request, recover=False) as reader:
                given = request.HasField("first_entry_id")
                start = request.first_entry_id if given else reader.last_add_confirmed + 1
                async for response in responses(reader, reader.tail(start), limits):
                    await self._send(context, response)

    def _open(self, request: messages.ReadRequest | messages.TailRequest, *, recover: bool) -> Opening[LedgerReader]:
        return self._client.open(
            check_ledger_id(request.ledger_id),
            password=request.password,
            digest=digest_of(request.digest_type),
            recover=recover,
        )

    async def _send(self, context: Context, response: CountedResponse) -> None:
        await context.write(response.message)
        self._parts.metrics.was_read(response.entries, response.nbytes)

    @contextmanager
    def _stream(self) -> Iterator[None]:
        if self.streams >= self._parts.config.max_streams:
            raise TooManyRequests(
                f"{self.streams} streams are open on this gateway, as many as gatewayMaxStreams allows: try another"
                " gateway, or later"
            )
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1

    async def _answer(self, context: Context, work: Coroutine[Any, Any, T]) -> T:
        """Await it; an error becomes the call's status."""
        try:
            if self.is_stopping:
                work.close()
                raise BookieUnavailable("this gateway is stopping: try another")
            return await work
        except PodkeeperError as error:
            status = status_of(error)
            self._parts.metrics.failed.add(1)
            await context.abort(status.code, status.details, status.trailing_metadata)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception as error:
            _log.error("unexpected fault in the gateway, this is a bug", exc_info=error)
            self._parts.metrics.failed.add(1)
            await context.abort(grpc.StatusCode.INTERNAL, f"unexpected fault, this is a bug: {error!r}")
        raise AssertionError("abort raises")
