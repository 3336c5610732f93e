"""The calls of `LedgerService`.

Invariants
- Every call ends with a status: an error of the client under its own name, anything unforeseen as INTERNAL with a log
  line.
- At most `max_streams` streaming calls run, and no connection has more of them than are left for all others; beyond,
  `TooManyRequests`.
- What a call reads for its client counts as the caller's, until the client has taken it (`bookie_pod.callers`).
- A caller that shows a wrong password of a ledger is named in the audit trail, and is answered slowly
  (`WrongPasswords`).
- A call that its client cancels, or whose deadline passes, is cancelled here, and ends what it opened.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import grpc
import structlog

from bookie_client import Client, LedgerReader
from bookie_client.access import check_password
from bookie_client.client import Opening
from bookie_client.writing.window import Window
from bookie_pod.audit import asked_by, asked_request, audited, audited_failure, audited_refusal, changing
from bookie_pod.callers import Call, current_call
from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.sections.gateway import GatewayConfig
from bookie_pod.gateway.appending import AppendCall
from bookie_pod.gateway.messages import check_ledger_id, creation, digest_of, metadata_message, status_of
from bookie_pod.gateway.reading import RESPONSES, BatchLimits, CountedResponse, responses, small_window, window
from bookie_pod.gateway.writers import OpenWriters
from bookie_pod.logs import FewLines
from bookie_pod.metrics.gateway import GatewayMetrics
from bookie_pod.roles import Caller, Role
from bookie_protocol.errors import (
    BookieUnavailable,
    LedgerNotClosed,
    MetadataVersionConflict,
    NoSuchLedger,
    NotThere,
    PodkeeperError,
    Refused,
    TooManyRequests,
    Unauthorized,
    public_kind,
)
from bookie_protocol.ledger_service import ledger_service_pb2 as messages
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import LedgerServiceServicer
from bookie_protocol.shown import one_line

LIST_BATCH: Final = 10_000
"""Ids in one response of List."""
_DELETE_TRIES: Final = 20
GUESS_S: Final = 0.5
"""Seconds from one refusal of a wrong password to the next, for one name."""
MOST_WAITING: Final = 8
"""Refusals of one name that wait for their time."""
MOST_GUESSERS: Final = 1000
"""Names, and names at an address, that are remembered."""
ID_BYTES: Final = 48
"""Bytes of each, roughly, while the response waits to be taken."""

T = TypeVar("T")
K = TypeVar("K")
_COMPARES: ContextVar[bool] = ContextVar("compares", default=False)
"""A password that the call shows is compared."""
Context: TypeAlias = grpc.aio.ServicerContext
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """The parts that all calls share."""

    client: Client
    writers: OpenWriters
    budget: Window
    config: GatewayConfig
    metrics: GatewayMetrics
    memory: MemoryGovernor


class WrongPasswords:
    """Makes guessing slow: a name gets one refusal of a wrong password in `GUESS_S`, however many calls it makes.

    Calls that wait for that keep places among the calls of the port, so `MOST_WAITING` of a name do. More are refused
    at once, and cost their caller as much as cancelled ones.

    A call that is cancelled while it waits costs its caller the same time, since the silence shows the caller that the
    password was wrong: the next calls of that name that come from the same address and show a password wait. Those from
    other addresses do not: an application's pods may share a token, and one with a wrong password must not hold up the
    others."""

    def __init__(self) -> None:
        self._told_at: OrderedDict[str, float] = OrderedDict()
        """Time of the last refusal of a wrong password by name, by the event loop's clock."""
        self._owes_until: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Time at which the refusals of cancelled calls would have been sent, by name and address."""
        self._waiting: Counter[str | tuple[str, str]] = Counter()
        """The calls that wait, by name, or by name and address for cancelled ones."""

    async def slow_down(self, caller: Caller) -> None:
        """Wait until the refusal of a wrong password may be sent to the caller. Raises `TooManyRequests`."""
        now = asyncio.get_running_loop().time()
        who = caller.name, caller.address
        if self._waiting[caller.name] >= MOST_WAITING:
            _put(self._owes_until, who, max(self._owes_until.get(who, now), now) + GUESS_S)
        with self._place(caller.name):
            at = max(self._told_at.get(caller.name, now), now) + GUESS_S
            _put(self._told_at, caller.name, at)
            try:
                await asyncio.sleep(at - now)
            except asyncio.CancelledError:
                _put(self._owes_until, who, max(self._owes_until.get(who, at), at))
                raise

    async def wait_for_cancelled(self, caller: Caller) -> None:
        """Wait until the caller has paid for its cancelled calls, before a password that it shows is looked at. Raises
        `TooManyRequests`."""
        loop, who = asyncio.get_running_loop(), (caller.name, caller.address)
        while (left := self._owes_until.get(who, 0.0) - loop.time()) > 0:
            with self._place(who):
                await asyncio.sleep(left)  # it may grow meanwhile

    @contextmanager
    def _place(self, kind: str | tuple[str, str]) -> Iterator[None]:
        if self._waiting[kind] >= MOST_WAITING:
            raise TooManyRequests("many calls of this caller showed a wrong password: try again later")
        self._waiting[kind] += 1
        try:
            yield
        finally:
            self._waiting[kind] -= 1
            if not self._waiting[kind]:
                del self._waiting[kind]


def _put(times: OrderedDict[K, float], key: K, value: float) -> None:
    """Set a value, and forget the oldest if there are too many."""
    times[key] = value
    times.move_to_end(key)
    if len(times) > MOST_GUESSERS:
        times.popitem(last=False)


class LedgerService(LedgerServiceServicer):
    """See the module; the proto says what each call does."""

    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts
        self._client = parts.client
        self._guesses = WrongPasswords()
        self._failures: dict[str, FewLines] = {}
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
            await self._before_a_password()
            return metadata_message(await self._client.recover(ledger_id, password=request.password, digest=digest))

        return await self._answer(context, recover())

    async def Close(self, request: messages.CloseRequest, context: Context) -> messages.LedgerMetadata:
        return await self._answer(context, self._close(check_ledger_id(request.ledger_id), request.password))

    async def Delete(self, request: messages.DeleteRequest, context: Context) -> messages.DeleteResponse:
        async def delete() -> messages.DeleteResponse:
            ledger_id = check_ledger_id(request.ledger_id)
            audited(ledger_id=ledger_id)
            if request.HasField("password"):
                await self._delete_with(ledger_id, request.password)
            else:
                await self._client.delete(ledger_id)
            return messages.DeleteResponse()

        return await self._answer(context, delete())

    async def _delete_with(self, ledger_id: int, password: bytes) -> None:
        """Delete the ledger whose password was compared, and none that is made under its id meanwhile."""
        await self._before_a_password()
        with suppress(NoSuchLedger):
            for _ in range(_DELETE_TRIES):
                stored = await self._client.stored_metadata(ledger_id)
                check_password(stored.value, password)
                with suppress(MetadataVersionConflict):
                    await self._client.metadata_service.ledgers.delete_this(stored)
                    return
            raise MetadataVersionConflict(f"the metadata of ledger {ledger_id} change all the time: try again")

    async def GetMetadata(self, request: messages.GetMetadataRequest, context: Context) -> messages.LedgerMetadata:
        async def read() -> messages.LedgerMetadata:
            return metadata_message(await self._client.metadata(check_ledger_id(request.ledger_id)))

        return await self._answer(context, read())

    # --- streams --------------------------------------------------------------------------------------------

    async def Append(self, request_iterator: AsyncIterator[messages.AppendRequest], context: Context) -> None:
        async def append() -> None:
            with self._stream():
                parts = self._parts
                call = AppendCall(
                    parts.writers, parts.budget, context.write, parts.metrics.appended, self._before_a_password
                )
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

    async def _before_a_password(self) -> None:
        """Wait for the time that cancelled guesses owe; each call that compares a password awaits this first.

        A refusal from then on may be an answer to a guess.
        """
        _COMPARES.set(True)
        await self._guesses.wait_for_cancelled(asked_by())

    async def _close(self, ledger_id: int, password: bytes) -> messages.LedgerMetadata:
        audited(ledger_id=ledger_id)
        await self._before_a_password()
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
            await self._before_a_password()
            async with self._open(request, recover=request.recover) as reader:
                limits = await window(call, reader, limits)
                last = request.last_entry_id if request.HasField("last_entry_id") else None
                async for response in responses(reader, reader.entries(request.first_entry_id, last), limits):
                    beyond = max(0, response.nbytes - limits.nbytes)
                    await self._give_entries(call, context, response, (RESPONSES - 1) * beyond)

    async def _tail(self, request: messages.TailRequest, context: Context) -> None:
        with self._stream() as call:
            limits = BatchLimits.of(request, self._parts.config.read_batch_bytes)
            await self._before_a_password()
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

    def _log_failure(self, error: PodkeeperError) -> None:
        """Log a call that failed, with the id of its request; what is not there is an answer."""
        if isinstance(error, NotThere):
            return
        kind, (call, request) = public_kind(error).__name__, asked_request()
        lines = self._failures.setdefault(kind, FewLines(_log))
        if lines.may_write():
            write = lines.log.info if isinstance(error, Refused) else lines.log.warning
            write("a call failed", call=call, request=request, kind=kind, reason=one_line(error))

    async def _answer(self, context: Context, work: Coroutine[Any, Any, T]) -> T:
        """Await it; an error becomes the call's status."""
        _COMPARES.set(False)
        try:
            if self.is_stopping:
                work.close()
                raise BookieUnavailable("this gateway is stopping: try another")
            return await work
        except PodkeeperError as error:
            status = status_of(error)
            if isinstance(error, Unauthorized):
                audited_refusal(public_kind(error).__name__)
                if _COMPARES.get():
                    try:
                        await self._guesses.slow_down(asked_by())
                    except TooManyRequests as too_many:
                        status = status_of(too_many)
            else:
                audited_failure(public_kind(error).__name__)
                self._log_failure(error)
            self._parts.metrics.failed.add(1)
            await context.abort(status.code, status.details, status.trailing_metadata)
        except (asyncio.CancelledError, grpc.aio.AbortError, grpc.aio.InternalError):
            raise  # the last: the client was gone while an answer was sent
        except Exception as error:
            _log.error("unexpected fault in the gateway, this is a bug", exc_info=error)
            self._parts.metrics.failed.add(1)
            await context.abort(grpc.StatusCode.INTERNAL, f"unexpected fault, this is a bug: {error!r}")
        raise AssertionError("abort raises")
