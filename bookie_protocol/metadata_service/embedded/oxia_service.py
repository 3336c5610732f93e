"""Oxia's client protocol over an embedded store: one shard, which this process leads, under whichever namespace.

Invariants
- All namespaces are names for the one tree. One that is not served is an error, and no empty tree.
- A call holds one page of a range at a time, or one request of a stream of writes and its answer.
- Only sessions that were opened here can be renewed or ended here, since clients name them by their id alone.
- An answer shows what is durable.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from bookie_protocol.errors import BadRequest, MetadataError
from bookie_protocol.metadata_service.embedded import embedded_metadata_pb2 as messages
from bookie_protocol.metadata_service.embedded import oxia_records as records
from bookie_protocol.metadata_service.embedded.notices import SHARD
from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner
from bookie_protocol.metadata_service.embedded.oxia_keys import MAX_KEY_BYTES
from bookie_protocol.metadata_service.embedded.oxia_scan import Rest
from bookie_protocol.metadata_service.oxia import oxia_pb2 as oxia
from bookie_protocol.metadata_service.oxia.wire import (
    CALLS,
    DEFAULT_NAMESPACE,
    ERROR_DOMAIN,
    FORMER_SERVICE,
    NAMESPACE_HEADER,
    SERVICE,
    SHARD_HEADER,
)

SHORTEST_TIMEOUT_MS: Final = 2_000
LONGEST_TIMEOUT_MS: Final = 300_000
"""The longest time-out of a session, in ms, as in Oxia."""
MAX_IDENTITY: Final = 500
_ALL_HASHES: Final = oxia.Int32HashRange(min_hash_inclusive=0, max_hash_inclusive=2**32 - 1)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OxiaServing:
    """`namespaces`: names under which clients find the tree. `leader`: host:port at which they find the shard; None:
    the server's port at `host`, or where the server listens."""

    namespaces: Sequence[str] = (DEFAULT_NAMESPACE,)
    host: str | None = None
    leader: str | None = None


class _Refused(Exception):
    """A call ends with an error of Oxia."""

    def __init__(self, code: grpc.StatusCode, reason: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Packed:
    """An answer that is encoded already."""

    data: bytes

    def ByteSize(self) -> int:  # noqa: N802
        return len(self.data)


class OxiaService:
    """The calls of one server. `leader` is host and port that clients connect to."""

    def __init__(self, owner: EmbeddedOwner, namespaces: Sequence[str], leader: str) -> None:
        assert owner.notices is not None, "the owner keeps them for this service"
        self._owner = owner
        self._notices = owner.notices
        self._namespaces = frozenset(namespaces)
        self._leader = leader
        self._ended = asyncio.Event()

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """Return the calls, for gRPC, under both names of the service."""
        calls = {name: self._handler(*call) for name, call in self._calls().items()}
        assert calls.keys() == set(CALLS)
        return tuple(grpc.method_handlers_generic_handler(name, calls) for name in (SERVICE, FORMER_SERVICE))

    def end(self) -> None:
        """End the streams that tell clients where the shard is."""
        self._ended.set()

    def _calls(self) -> dict[str, tuple[type, Callable[..., Any], bool, bool]]:
        """Return for each call: its request, its handler, True if it has many requests, and True for many answers."""
        return {
            "GetShardAssignments": (oxia.ShardAssignmentsRequest, self._assignments, False, True),
            "Write": (oxia.WriteRequest, self._write, False, False),
            "WriteStream": (oxia.WriteRequest, self._write_stream, True, True),
            "Read": (oxia.ReadRequest, self._read, False, True),
            "List": (oxia.ListRequest, self._list, False, True),
            "RangeScan": (oxia.RangeScanRequest, self._range_scan, False, True),
            "GetSequenceUpdates": (oxia.GetSequenceUpdatesRequest, self._sequence_updates, False, True),
            "GetNotifications": (oxia.NotificationsRequest, self._notifications, False, True),
            "CreateSession": (oxia.CreateSessionRequest, self._create_session, False, False),
            "KeepAlive": (oxia.SessionHeartbeat, self._keep_alive, False, False),
            "CloseSession": (oxia.CloseSessionRequest, self._close_session, False, False),
        }

    def _handler(self, request: Any, serve: Callable[..., Any], many: bool, answers: bool) -> grpc.RpcMethodHandler:
        async def one(asked: Any, context: grpc.aio.ServicerContext) -> Any:
            try:
                return await serve(asked, context)
            except (_Refused, BadRequest, MetadataError) as error:
                refusal = _refusal(error)
            return await _abort(context, refusal)

        async def each(asked: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            try:
                async for answer in serve(asked, context):
                    yield answer
                return
            except (_Refused, BadRequest, MetadataError) as error:
                refusal = _refusal(error)
            await _abort(context, refusal)

        name = f"{'stream' if many else 'unary'}_{'stream' if answers else 'unary'}_rpc_method_handler"
        return getattr(grpc, name)(
            each if answers else one,
            request_deserializer=request.FromString,
            response_serializer=lambda answer: (
                answer.data if isinstance(answer, Packed) else answer.SerializeToString()
            ),
        )

    # --- shards -------------------------------------------------------------------------------------------

    async def _assignments(
        self, asked: oxia.ShardAssignmentsRequest, _: grpc.aio.ServicerContext
    ) -> AsyncIterator[oxia.ShardAssignments]:
        self._check_namespace(asked.namespace)
        shard = oxia.ShardAssignment(shard=SHARD, leader=self._leader, int32_hash_range=_ALL_HASHES)
        assigned = oxia.NamespaceShardsAssignment(assignments=[shard], shard_key_router=oxia.XXHASH3)
        yield oxia.ShardAssignments(namespaces={asked.namespace: assigned})
        await self._ended.wait()

    def _check_namespace(self, namespace: str) -> None:
        if namespace not in self._namespaces:
            raise _Refused(grpc.StatusCode.NOT_FOUND, "NAMESPACE_NOT_FOUND", "oxia: namespace not found")

    # --- writing ------------------------------------------------------------------------------------------

    async def _write(self, asked: oxia.WriteRequest, _: grpc.aio.ServicerContext) -> oxia.WriteResponse:
        _check_shard(asked.shard if asked.HasField("shard") else None)
        return await self._written(asked)

    async def _write_stream(
        self, requests: AsyncIterator[oxia.WriteRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[oxia.WriteResponse]:
        headers = dict(context.invocation_metadata() or ())
        shard = str(headers.get(SHARD_HEADER, ""))
        _check_shard(int(shard) if shard.isascii() and shard.isdecimal() and len(shard) < 20 else None)
        self._check_namespace(str(headers.get(NAMESPACE_HEADER, "")))
        async for asked in requests:
            yield await self._written(asked)

    async def _written(self, asked: oxia.WriteRequest) -> oxia.WriteResponse:
        records.check_write(asked)
        answer = await self._owner.change_in_steps(lambda store: records.write(store, asked))
        for part in asked.delete_ranges:
            rest = await self._owner.change(partial(records.delete_range, request=part, start=None), lists=True)
            while rest is not None:
                rest = await self._owner.change(partial(records.delete_range, request=part, start=rest), lists=True)
            answer.delete_ranges.add(status=oxia.OK)
        return answer

    # --- reading ------------------------------------------------------------------------------------------

    async def _read(self, asked: oxia.ReadRequest, _: grpc.aio.ServicerContext) -> AsyncIterator[oxia.ReadResponse]:
        _check_shard(asked.shard if asked.HasField("shard") else None)
        records.check_read(asked)
        left, search = list(asked.gets), None
        while left:
            answers, search = await self._owner.read(partial(records.gets, requests=left, search=search))
            if answers:
                yield oxia.ReadResponse(gets=answers)
                del left[: len(answers)]

    async def _list(self, asked: oxia.ListRequest, _: grpc.aio.ServicerContext) -> AsyncIterator[oxia.ListResponse]:
        async for page in self._pages(asked):
            yield oxia.ListResponse(keys=page.keys)

    async def _range_scan(
        self, asked: oxia.RangeScanRequest, _: grpc.aio.ServicerContext
    ) -> AsyncIterator[oxia.RangeScanResponse]:
        async for page in self._pages(asked):
            yield oxia.RangeScanResponse(records=page.records)

    async def _pages(self, asked: oxia.ListRequest | oxia.RangeScanRequest) -> AsyncIterator[records.Page]:
        _check_shard(asked.shard if asked.HasField("shard") else None)
        records.check_range(asked.start_inclusive, asked.end_exclusive)
        rest: Rest | None = None
        while True:
            page = await self._owner.read(partial(records.page, asked=asked, start=rest), lists=True)
            rest = page.rest
            if page.keys or page.records:
                yield page
            del page
            if rest is None:
                return

    # --- streams of changes -------------------------------------------------------------------------------

    async def _notifications(
        self, asked: oxia.NotificationsRequest, _: grpc.aio.ServicerContext
    ) -> AsyncIterator[Packed]:
        _check_shard(asked.shard)
        start = asked.start_offset_exclusive if asked.HasField("start_offset_exclusive") else None
        async for batch in self._notices.after(start):
            yield Packed(batch)

    async def _sequence_updates(
        self, asked: oxia.GetSequenceUpdatesRequest, _: grpc.aio.ServicerContext
    ) -> AsyncIterator[oxia.GetSequenceUpdatesResponse]:
        _check_shard(asked.shard)
        if len(asked.key) > MAX_KEY_BYTES:
            raise BadRequest(f"a key of more than {MAX_KEY_BYTES} bytes")
        with self._notices.growing(asked.key) as growing:
            key = await self._owner.read(lambda store: records.last_in_sequence(store, asked.key))
            if key is None:
                key = await growing.next()
            while key is not None:
                yield oxia.GetSequenceUpdatesResponse(highest_sequence_key=key)
                key = await growing.next()

    # --- sessions -----------------------------------------------------------------------------------------

    async def _create_session(
        self, asked: oxia.CreateSessionRequest, context: grpc.aio.ServicerContext
    ) -> oxia.CreateSessionResponse:
        _check_shard(asked.shard)
        if not SHORTEST_TIMEOUT_MS <= asked.session_timeout_ms <= LONGEST_TIMEOUT_MS:
            text = "oxia: invalid session timeout"
            raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_SESSION_TIMEOUT", text)
        if len(asked.client_identity) > MAX_IDENTITY:
            raise BadRequest(f"an identity of more than {MAX_IDENTITY} characters")
        opening = messages.OpenSessionRequest(
            timeout_ms=asked.session_timeout_ms, process=records.PROCESS + asked.client_identity
        )
        reply = await self._owner.open_session(opening, peer=context.peer(), heard=True)
        _check_outcome(reply.outcome)
        return oxia.CreateSessionResponse(session_id=reply.session.session_id)

    async def _keep_alive(self, asked: oxia.SessionHeartbeat, _: grpc.aio.ServicerContext) -> oxia.KeepAliveResponse:
        _check_shard(asked.shard)
        _check_outcome(self._owner.heartbeat(self._session(asked.session_id)))
        return oxia.KeepAliveResponse()

    async def _close_session(
        self, asked: oxia.CloseSessionRequest, _: grpc.aio.ServicerContext
    ) -> oxia.CloseSessionResponse:
        _check_shard(asked.shard)
        _check_outcome(await self._owner.close_session(self._session(asked.session_id)))
        return oxia.CloseSessionResponse()

    def _session(self, session_id: int) -> messages.SessionRequest:
        if (found := self._owner.session_by_id(session_id, records.PROCESS)) is None:
            raise _no_session()
        return found


def _serialized(answer: Any) -> bytes:
    data: bytes = answer.data if isinstance(answer, Packed) else answer.SerializeToString()
    return data


def _check_shard(shard: int | None) -> None:
    if shard != SHARD:
        raise _Refused(grpc.StatusCode.NOT_FOUND, "SHARD_NOT_FOUND", "oxia: shard not found")


def _check_outcome(outcome: messages.Outcome) -> None:
    if outcome.code == messages.SESSION_EXPIRED:
        raise _no_session()
    if outcome.code != messages.OK:
        raise _Refused(grpc.StatusCode.UNAVAILABLE, "RESOURCE_UNAVAILABLE", outcome.message)


def _no_session() -> _Refused:
    return _Refused(grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND", "oxia: session not found")


def _refusal(error: _Refused | BadRequest | MetadataError) -> tuple[grpc.StatusCode, str, str]:
    if isinstance(error, _Refused):
        return error.code, error.reason, str(error)
    if isinstance(error, BadRequest):
        return grpc.StatusCode.INVALID_ARGUMENT, "UNKNOWN", str(error)
    return grpc.StatusCode.UNAVAILABLE, "RESOURCE_UNAVAILABLE", str(error)


async def _abort(context: grpc.aio.ServicerContext, refusal: tuple[grpc.StatusCode, str, str]) -> NoReturn:
    """End a call with an error that newer clients know by its reason, and older ones by its text."""
    code, reason, text = refusal
    detail = AnyMessage()
    detail.Pack(ErrorInfo(reason=reason, domain=ERROR_DOMAIN))
    status = Status(code=code.value[0], message=text, details=[detail])
    try:
        await context.abort(code, text, (("grpc-status-details-bin", status.SerializeToString()),))
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None  # the client is gone
    raise AssertionError("an abort raises")
