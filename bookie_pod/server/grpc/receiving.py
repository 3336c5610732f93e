"""The reception of callers' messages: with room for each, and without delaying other calls.

gRPC takes in a message of any size up to the server's limit as soon as a call waits for it, and does not report it
before it is complete. So the server can only decide whether to wait.

Invariants
- No call waits for a message without room for it: as large as the call's largest one so far; for its first ones as
  large as messages may be, or an eighth of what there is.
- Room in which nothing of a stream comes is given back after `SILENT_S`, because a stream may be silent for hours. A
  message that comes then, and for which there is no room any more, ends its call before the message is read. Should
  more come in than there is memory for before that, `Callers.cut_receivers` ends the calls (`guard_memory`). A client
  that calls with one request and does not send it delays the calls that wait for room. So such a call ends after
  `ONLY_LOOKS` times `SILENT_S`, and `SILENT_S` more for each `LOOK_BYTES` that its request may have. A process that
  stood still finds what came meanwhile before.
- Each call has one of the places of its kind (`places`). The calls that are `public` are those of strangers, too: they
  have places of their own, keep no room in which nothing comes, and end like the others even if they are streams.
- The one request of a call is at most `ONLY_REQUEST_BYTES`, unless the services' are larger; beyond, it is dropped
  unread.
- A message counts until the next one is asked for, or the call ends. With `large_answers` an answer counts until the
  client has taken it, and the one answer to a request of such a call is made in the room of the request; else that is
  the services' business.
- A call that waits for the services keeps such room. So calls that have to go on meanwhile have some `apart`, and each
  of them so little that none waits for it: `APART_BYTES`, as much as their one request may have. A call of these that
  is silent ends after `APART_LOOKS` times `SILENT_S`.
- In one turn of the event loop `CALLS_PER_TURN` calls begin: gRPC hands over all that came since the last one, and a
  client may send thousands.
- A call with more than `MOST_HEADERS` headers, or `HEADER_BYTES` of them, is refused before anything else is done for
  it, and its connection is shut (`FewHeaders`): a header of some kilobytes can be named thousands of times by a byte
  each, and gRPC makes a text of each. It keeps them in a cycle, so garbage is collected after such a call.
- gRPC's own logger is off: it would write a line, with a traceback, for each header that is not text, on the event loop
  and before any interceptor runs; such a header may be one byte. The errors of a call are logged here instead, in few
  lines.
- gRPC takes `UNASKED_BYTES` of a message for which no call waits yet. `bounds` says how many calls it keeps that the
  server has not seen: each may cost a megabyte, if its headers are a bomb. It has a buffer of `READ_BYTES` for each
  connection.

Event loop only.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import grpc
import structlog

from bookie_pod.audit import asked_request
from bookie_pod.callers import FIRST_SHARE, Call, Callers, shut, to_its_end
from bookie_pod.logs import FewLines
from bookie_pod.server.grpc.places import Places
from bookie_pod.server.turns import Turns
from bookie_protocol.errors import BadRequest, TooManyRequests

SILENT_S: Final = 0.2
SMALL_MESSAGE_BYTES: Final = 64 * 1024
ONLY_REQUEST_BYTES: Final = 128 * 1024
"""Bytes of the only request of a call, at most. The data of a ledger (`gateway.messages.MAX_GIVEN_BYTES`) is the
largest.
"""
APART_BYTES: Final = 4 * 1024
APART_LOOKS: Final = 10
ONLY_LOOKS: Final = 25
LOOK_BYTES: Final = 32 * 1024
FIRST_MESSAGES: Final = 2
"""The number of messages that show how large later ones will be: the first may say only what the stream is about."""
CALLS_PER_TURN: Final = 4
"""The number of calls that begin in one turn: each takes some 300 microseconds until it is served or refused."""
MOST_HEADERS: Final = 100
HEADER_BYTES: Final = 16 * 1024
COLLECT_S: Final = 0.01
"""Seconds from a call with too many headers to the garbage collection of its remains."""
FEW_STREAMS: Final = 128
"""Streams of a connection, at most: no account has the memory that gRPC keeps for headers of calls not yet seen."""
HANDSHAKE_MS: Final = 10_000
MOST_SHUT: Final = 256
"""The number of connections that were shut which are remembered."""
UNASKED_BYTES: Final = 16 * 1024
"""Bytes of a message that gRPC takes in before a call waits for it.

No governor sees them, and there may be some 1,000 calls that wait. Once a call waits for the message, the rest is let
in at once, so a longer message takes one more round trip.
"""
READ_BYTES: Final = 64 * 1024
"""gRPC's own limit is 4 MiB, which a connection that was fast once keeps ready as long as it lasts."""
COPIES: Final = 2
"""The copies of a message in use: the message, and what was taken out of it."""
Behaviour = Callable[[AsyncIterator[bytes], Any], Awaitable[Any]]
"""Serves a call that receives its messages one by one."""
_faults: Final = FewLines(structlog.get_logger(__name__))
logging.getLogger("grpc._cython.cygrpc").disabled = True
REQUEST_ID: Final = "x-request-id"
"""The metadata in which a client may send the id of its request, and gets it."""
_SILENT: Final = "the request of this call did not come in time"


def bounds(calls: int, unseen: int, connections: int) -> tuple[tuple[str, int], ...]:
    """Options of a server that runs so many calls at a time, at most `FEW_STREAMS` of one connection: its other
    calls wait at its own end. Of the calls that the server has not seen yet, those beyond `unseen` end with CANCELLED.
    Of more connections, those whose handshake has not ended among them, the new ones are closed at once."""
    return (
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        # Else a fast network lets every stream send megabytes before anybody waits for its message.
        ("grpc.http2.bdp_probe", 0),
        # Else a client with many calls has some refused, because the core still counts those that it has ended.
        ("grpc.http.overload_protection", 0),
        ("grpc.http2.lookahead_bytes", UNASKED_BYTES),
        ("grpc.experimental.tcp_max_read_chunk_size", READ_BYTES),
        ("grpc.max_metadata_size", HEADER_BYTES // 2),
        ("grpc.absolute_max_metadata_size", HEADER_BYTES),
        ("grpc.max_concurrent_streams", min(calls, FEW_STREAMS)),
        # Else some calls end by chance before there are too many.
        ("grpc.server.max_pending_requests", unseen),
        ("grpc.server.max_pending_requests_hard_limit", unseen),
    )


class FewHeaders(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """An interceptor that refuses calls by their headers. It comes before all others."""

    def __init__(self) -> None:
        self._shut: deque[str] = deque(maxlen=MOST_SHUT)
        """Connections that were shut lately, as gRPC names them: others of their calls may still come."""
        self._collecting: asyncio.TimerHandle | None = None

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[grpc.RpcMethodHandler | None]], handler_call_details: Any
    ) -> grpc.RpcMethodHandler | None:
        """The service's handler, or one that refuses the call."""
        headers = handler_call_details.invocation_metadata
        if (
            len(headers) <= MOST_HEADERS
            and sum(len(name) + len(value or "") for name, value in headers) <= HEADER_BYTES
        ):
            return await continuation(handler_call_details)
        self._collect_soon()
        return grpc.stream_stream_rpc_method_handler(self._refuse)

    async def _refuse(self, _: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
        peer = context.peer()
        if peer not in self._shut:
            self._shut.append(peer)
            shut((peer,))
        self._collect_soon()
        await end_call(context, grpc.StatusCode.RESOURCE_EXHAUSTED, f"at most {MOST_HEADERS} headers are possible")

    def _collect_soon(self) -> None:
        if self._collecting is None:
            self._collecting = asyncio.get_running_loop().call_later(COLLECT_S, self._collect)

    def _collect(self) -> None:
        self._collecting = None
        gc.collect(1)


class GovernedCalls(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Has every call's messages received by `_Messages`. Bytes: `largest` of any message, `only` of those that are
    their call's only ones. `places`: those of all calls but the `public` ones and those with places of their `own`,
    which are given by the full names of their methods. `large_answers`: whether the answer to a request may be a large
    one. `apart`: the full names of methods whose calls are `Callers.apart`."""

    def __init__(
        self,
        callers: Callers,
        largest: int,
        places: Places,
        *,
        public: Mapping[str, Places] = MappingProxyType({}),
        own: Mapping[str, Places] = MappingProxyType({}),
        only: int = ONLY_REQUEST_BYTES,
        large_answers: Callable[[Any], bool] | None = None,
        apart: Collection[str] = (),
    ) -> None:
        self._callers = callers
        self._largest = largest
        self._places = places
        self._public = public
        self._own = {**own, **public}
        self._only = only
        self._large_answers = large_answers
        self._apart = apart
        self._turns = Turns(CALLS_PER_TURN)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[grpc.RpcMethodHandler | None]], handler_call_details: Any
    ) -> grpc.RpcMethodHandler | None:
        """The service's handler, as one that is given its messages one at a time."""
        await self._turns.one()
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        many, answers = handler.request_streaming, handler.response_streaming
        large_answers = self._large_answers
        callers, only, method = self._callers, self._only, handler_call_details.method
        first = min(COPIES * self._largest, callers.memory.limit // FIRST_SHARE)
        is_public, is_apart = method in self._public, method in self._apart
        places = self._own.get(method, self._places)
        looks = 0 if many and not is_public else ONLY_LOOKS + only // LOOK_BYTES
        if is_apart:
            assert callers.apart is not None, "there are such methods"
            callers, first, only, looks = callers.apart, APART_BYTES, APART_BYTES, APART_LOOKS
        serve = next(
            each
            for each in (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
            if each is not None
        )
        keeps_room = not is_public and (is_apart or not many)
        send = _hold_and_write if large_answers is not None else _write

        @leaving_no_cycle
        async def governed(_: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
            with callers.call(context.peer()) as call:
                write = partial(send, call, context)
                messages = _Messages(
                    context,
                    call,
                    handler.request_deserializer,
                    first,
                    None if many else only,
                    looks,
                    keeps_room=keeps_room,
                )
                try:
                    with places.place(call):
                        request = messages if many else await anext(messages, None)
                        if request is None:
                            raise BadRequest("the call ended without a request")
                        is_large = not many and large_answers is not None and large_answers(request)
                        if is_large:
                            messages.keep_room()  # at once: others wait for it
                        # A call can be ended, and what waits in it dropped, while a message is being sent, but not
                        # while this is.
                        await context.send_initial_metadata(_own_metadata())
                        if inspect.isasyncgenfunction(serve):
                            await _give(serve(request, context), write, messages if is_large else None)
                        elif answers:
                            await serve(request, context)
                        else:
                            answer = await serve(request, context)
                            messages.give_up_room()
                            await write(answer)
                    return
                except BadRequest as error:
                    code, reason = grpc.StatusCode.INVALID_ARGUMENT, str(error)
                except TooManyRequests as error:
                    code, reason = grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
                except grpc.aio.InternalError:
                    raise asyncio.CancelledError from None  # the client went during the answer
                except asyncio.CancelledError:
                    if call.cut_for is None:
                        raise
                    code, reason = grpc.StatusCode.RESOURCE_EXHAUSTED, call.cut_for
                # Only now: else the error's frames, with the message, would live as long as that of the abort, which
                # only the collector of cycles frees.
                await end_call(context, code, reason)

        # The answer of a call that has only one is written here, too: its client may not take it.
        return grpc.stream_stream_rpc_method_handler(governed, response_serializer=handler.response_serializer)


def _own_metadata() -> tuple[tuple[str, str], ...]:
    """Return the id of the request, for its client; nothing for a public call, which has none."""
    _, request = asked_request()
    return ((REQUEST_ID, request),) if request else ()


def leaving_no_cycle(behaviour: Behaviour) -> Behaviour:
    """gRPC keeps the error of an abort with the call that it ended, and its frames hold the call, as do those of the
    error that was being dealt with: they are let go of, or only the collector of cycles would free them."""

    async def served(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> Any:
        try:
            return await behaviour(requests, context)
        except grpc.aio.AbortError as error:
            error.__traceback__ = error.__context__ = None
            raise
        except Exception:
            _faults.error("unexpected error in a call over gRPC", exc_info=True)
            raise
        finally:
            del requests, context  # this frame's

    return served


async def end_call(context: grpc.aio.ServicerContext, code: grpc.StatusCode, details: str) -> None:
    """Raises: what the call ends with, or that its client is gone."""
    try:
        await context.abort(code, details)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None  # the client is gone


async def _write(call: Call, context: grpc.aio.ServicerContext, answer: Any) -> None:
    with call.giving():
        await context.write(answer)


async def _hold_and_write(call: Call, context: grpc.aio.ServicerContext, answer: Any) -> None:
    nbytes = COPIES * answer.ByteSize()
    call.hold(nbytes)
    with call.giving():
        await context.write(answer)
    call.hold(-nbytes)


async def _give(answers: AsyncIterator[Any], write: Callable[[Any], Awaitable[None]], rooms: _Messages | None) -> None:
    """Send the answers of a stream. `rooms`: each is made in the room that the call keeps."""
    async for answer in answers:
        if rooms is not None:
            rooms.give_up_room()
        await write(answer)
        if rooms is not None:
            rooms.keep_room()  # for the next one


class _Messages:
    """The messages of one call, in order."""

    def __init__(
        self,
        context: grpc.aio.ServicerContext,
        call: Call,
        deserialize: Callable[[bytes], Any] | None,
        first: int,
        only: int | None,
        looks: int,
        *,
        keeps_room: bool,
    ) -> None:
        """`first`: the room for the first of them. `only`: there is just one, of so many bytes at most. A call that is
        silent for so many `looks` ends; 0: it does not. `keeps_room`: until then."""
        self._context = context
        self._call = call
        self._expected = first
        self._only = only
        self._looks = looks
        self._keeps_room = keeps_room
        self._silent: asyncio.TimerHandle
        self._largest = self._count = self._seen_silent = 0
        self._room = 0
        self._held = 0
        self._deserialize = deserialize

    def __aiter__(self) -> _Messages:
        return self

    async def __anext__(self) -> Any:
        data = await self._receive()
        size = len(data)
        if self._only is not None and size > self._only:
            del data
            raise BadRequest(f"a request of {size} bytes; at most {self._only} are possible")
        self._largest = max(self._largest, size)
        self._count += 1
        if self._count >= FIRST_MESSAGES:
            self._expected = max(COPIES * self._largest, SMALL_MESSAGE_BYTES)
        self._hold(COPIES * size)
        if self._deserialize is None:
            return data
        try:
            return self._deserialize(data)
        except Exception as error:  # that of the generated code, which differs from release to release
            raise BadRequest(f"{size} bytes that are not a request of this call") from error

    def keep_room(self) -> None:
        """Keep the room of the first message, which has just come, for an answer."""
        self._hold(max(self._held, self._expected))

    def give_up_room(self) -> None:
        """The answer is there, and counts itself from now on."""
        self._hold(COPIES * self._largest)

    async def _receive(self) -> bytes:
        call = self._call
        self._hold(0)
        self._seen_silent = 0
        self._room = await call.room(self._expected)
        self._silent = asyncio.get_running_loop().call_later(SILENT_S, self._is_silent)
        call.receives = True
        try:
            # gRPC's own iterator keeps what it gave last.
            data: bytes = await to_its_end(self._context.read())
            if data is grpc.aio.EOF:
                raise StopAsyncIteration
            if not self._room and not self._held and not call.fits(COPIES * len(data)):
                del data
                call.cut()
                await asyncio.sleep(0)  # that ends it here
            return data
        finally:
            call.receives = False
            self._silent.cancel()
            call.goes_on()
            self._hold(0)
            self._give_back()

    def _is_silent(self) -> None:
        self._seen_silent += 1
        if self._seen_silent == 1:
            room = self._room
            self._give_back()  # first, so that it does not count twice
            if self._keeps_room:
                self._hold(room)
        if not self._looks:
            return
        if self._seen_silent == 1:
            self._call.waits()
        if self._seen_silent < self._looks:
            self._silent = asyncio.get_running_loop().call_later(SILENT_S, self._is_silent)
        else:
            self._call.cut(_SILENT)

    def _give_back(self) -> None:
        room, self._room = self._room, 0
        self._call.make(-room)

    def _hold(self, nbytes: int) -> None:
        before, self._held = self._held, nbytes
        self._call.hold(nbytes - before)
