"""How messages of callers are received: with room for each, and in nobody's way.

gRPC takes in a message of any size up to the server's limit as soon as somebody waits for it, and says nothing of it
before it is complete. So whether to wait is all that can be decided.

Invariants
- Nobody waits for a message without room for it: as large as the call's largest one so far; for the first ones of a
  stream, which may be batches of entries, as large as messages may be, or an eighth of what there is.
- Room in which nothing comes is given back after `SILENT_S`, because a stream may be silent for hours. Should messages
  come in then that nobody expected, `Callers.cut_receivers` ends the calls (`guard_memory`).
- A message counts until the next one is asked for, or the call ends.

Event loop only.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc

from bookie_pod.callers import Call, Callers
from bookie_protocol.errors import BadRequest

SILENT_S: Final = 0.2
FIRST_SHARE: Final = 8
"""Room for a first message is at most such a part of all there is, so that those who open streams and say nothing hold
up nobody for long."""
SMALL_MESSAGE_BYTES: Final = 64 * 1024
FIRST_MESSAGES: Final = 2
"""So many of a stream tell how large the others will be: the first may say only what the stream is about."""
COPIES: Final = 2
"""Of a message that is being dealt with: the message, and what was taken out of it."""
_CUT: Final = "memory is short, and this call is in the way: try again later, or another bookie"


class GovernedCalls(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Has every call's messages received by `_Messages`. `largest` in bytes."""

    def __init__(self, callers: Callers, largest: int) -> None:
        self._callers = callers
        self._first = min(COPIES * largest, callers.memory.limit // FIRST_SHARE)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[grpc.RpcMethodHandler | None]], handler_call_details: Any
    ) -> grpc.RpcMethodHandler | None:
        """The service's handler, as one that is given its messages one at a time."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        many, answers = handler.request_streaming, handler.response_streaming
        first = self._first if many else SMALL_MESSAGE_BYTES
        serve = next(
            each
            for each in (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
            if each is not None
        )

        async def governed(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> Any:
            with self._callers.call(context.peer()) as call:
                messages = _Messages(requests, call, first, handler.request_deserializer)
                try:
                    request = messages if many else await anext(messages, None)
                    if request is None:
                        raise BadRequest("the call ended without a request")
                    if not answers:
                        return await serve(request, context)
                    await _answer(serve, request, context)
                except BadRequest as error:
                    await _end(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
                except grpc.aio.InternalError:
                    raise asyncio.CancelledError from None  # the client went while it was being told something
                except asyncio.CancelledError:
                    if not call.was_cut:
                        raise
                    await _end(context, grpc.StatusCode.RESOURCE_EXHAUSTED, _CUT)

        made = grpc.stream_stream_rpc_method_handler if answers else grpc.stream_unary_rpc_method_handler
        return made(governed, response_serializer=handler.response_serializer)


async def _end(context: grpc.aio.ServicerContext, code: grpc.StatusCode, details: str) -> None:
    try:
        await context.abort(code, details)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None  # the client is gone


async def _answer(serve: Callable[..., Any], request: Any, context: grpc.aio.ServicerContext) -> None:
    # A call can be ended, and what waits in it dropped, while a message is being sent, but not while this is.
    await context.send_initial_metadata(())
    if inspect.isasyncgenfunction(serve):
        async for answer in serve(request, context):
            await context.write(answer)
    else:
        await serve(request, context)


class _Messages:
    """Those of one call, in order."""

    def __init__(
        self, raw: AsyncIterator[bytes], call: Call, first: int, deserialize: Callable[[bytes], Any] | None
    ) -> None:
        self._raw = raw
        self._received: AsyncIterator[bytes] | None = None
        self._call = call
        self._expected = first
        self._largest = self._count = 0
        self._room = 0
        self._held = 0
        self._deserialize = deserialize

    def __aiter__(self) -> _Messages:
        return self

    async def __anext__(self) -> Any:
        data = await self._receive()
        self._largest = max(self._largest, len(data))
        self._count += 1
        if self._count >= FIRST_MESSAGES:
            self._expected = max(COPIES * self._largest, SMALL_MESSAGE_BYTES)
        self._held = COPIES * len(data)
        self._call.hold(self._held)
        if self._deserialize is None:
            return data
        try:
            return self._deserialize(data)
        except Exception as error:  # that of the generated code, which differs from release to release
            raise BadRequest(f"{len(data)} bytes that are no request of this call") from error

    async def _receive(self) -> bytes:
        call = self._call
        call.hold(-self._held)
        self._held = 0
        self._room = await call.room(self._expected)
        silent = asyncio.get_running_loop().call_later(SILENT_S, self._give_back)
        call.receives = True
        try:
            if self._received is None:  # gRPC complains of an iterator that nobody asks for anything
                self._received = aiter(self._raw)
            return await anext(self._received)
        finally:
            call.receives = False
            silent.cancel()
            self._give_back()

    def _give_back(self) -> None:
        room, self._room = self._room, 0
        self._call.make(-room)
