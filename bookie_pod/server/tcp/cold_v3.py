"""Protobuf frames that the hot paths leave, and their answers.

They are decoded into requests and handed to the handlers. The answers are one class an operation.

The outer status of an answer always equals the inner one.

A missing sub-message counts as one with default values, as the reference treats it.

Threads: event loop only.

Source: docs/internals/wire-protocol.md, sections 4 to 6 and 8.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from bookie_pod.server.tcp.joined import add_refused, joined, read_ended
from bookie_pod.server.tcp.replies import CountedRead, WireReply, status_of
from bookie_pod.server.tcp.request_log import RequestId
from bookie_pod.server.tcp.requests import AddRequest, ReadRequest, Reply
from bookie_pod.server.tcp.security import Session
from bookie_pod.server.tcp.wire import Wire
from bookie_pod.telemetry.tracing import JoinedRequest
from bookie_protocol.entry import LAST_ENTRY, read_lac_packet, read_prefix
from bookie_protocol.errors import BadRequest, BadVersion, ProtocolViolation, V3Status
from bookie_protocol.keys import NO_KEY, NO_LIFE, life_of, life_of_copies
from bookie_protocol.traffic_class import is_batch
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire.v3 import (
    DEFERRED_SYNC,
    MANY_FIELDS,
    encode_frame,
    has_many_fields,
    header_copied,
    new_response,
    parse_request,
    status_code,
)

_Serve = Callable[[Session, pb.Request, Reply], None]


def cold_v3(session: Session, body: bytes) -> bool:
    """Serve one frame body; False if it is no v3 request. Raises ProtocolViolation when the connection must close."""
    if has_many_fields(body):
        raise ProtocolViolation(f"a request of {len(body)} bytes that has more than {MANY_FIELDS} fields")
    request = parse_request(body)
    if request is None:
        return False
    operation = request.header.operation
    if not session.wire.authenticated:
        session.early(len(body))
    if operation in (pb.AUTH, pb.START_TLS) or not session.wire.authenticated:
        session.opens(len(body))
    if operation == pb.AUTH:
        session.auth_v3(request)
    elif operation == pb.START_TLS:
        session.start_tls(request)
    elif not session.wire.authenticated:
        session.refused()
        session.wire.send(encode_frame(header_copied(request, V3Status.EUA)))
    else:
        served = _OPERATIONS.get(operation)
        if served is None:
            session.wire.send(encode_frame(header_copied(request, V3Status.EBADREQ)))
        elif request.header.version != pb.VERSION_THREE:
            new_reply, _ = served
            version = request.header.version
            new_reply(session.wire, request).error(BadVersion(f"protocol version {version} inside a version 3 message"))
        else:
            new_reply, serve = served
            serve(session, request, new_reply(session.wire, request))
    return True


def _add(session: Session, request: pb.Request, reply: Reply) -> None:
    add = request.addRequest
    longest = session.wire.context.max_entry_bytes
    try:
        if len(add.body) > longest:
            raise BadRequest(f"an entry of {len(add.body)} bytes: nettyMaxFrameSizeBytes lets {longest} in")
        ledger_id, entry_id, lac = read_prefix(add.body)
    except BadRequest as error:
        reply.error(error)
        return
    recovery = add.HasField("flag") and add.flag == pb.AddRequest.RECOVERY_ADD
    session.handlers.add(
        session.wire,
        AddRequest(
            ledger_id,
            entry_id,
            lac,
            add.masterKey or NO_KEY,
            add.body,
            recovery=recovery,
            high_priority=request.header.priority > 0,
            deferred_sync=bool(add.writeFlags & DEFERRED_SYNC),
            life=life_of(add.life) or (life_of_copies(add.lifeOfCopies) if recovery else NO_LIFE),
        ),
        reply,
    )


def _read(session: Session, request: pb.Request, reply: Reply) -> None:
    read = request.readRequest
    flag = read.flag if read.HasField("flag") else 0
    fencing = flag == pb.ReadRequest.FENCE_LEDGER
    long_poll = read.HasField("previousLAC") and not fencing
    session.handlers.read(
        session.wire,
        ReadRequest(
            read.ledgerId,
            read.entryId,
            fence_key=_fence_key(read) if fencing else None,
            life=life_of_copies(read.lifeOfCopies),
            high_priority=request.header.priority > 0,
            previous_lac=read.previousLAC if long_poll else None,
            timeout_ms=read.timeOut if read.HasField("timeOut") else None,
            piggyback=flag == pb.ReadRequest.ENTRY_PIGGYBACK,
            wants_lac=not fencing,
            batch_class=bool(request.requestContext) and is_batch(request),
        ),
        reply,
    )


def _fence_key(read: pb.ReadRequest) -> bytes:
    """Return the master key; no bytes if there is none, which is not the same as an empty one."""
    return (read.masterKey or NO_KEY) if read.HasField("masterKey") else b""


def _write_lac(session: Session, request: pb.Request, reply: Reply) -> None:
    write = request.writeLacRequest
    try:
        ledger_id = read_lac_packet(write.body).ledger_id
    except BadRequest as error:
        reply.error(error)
        return
    session.handlers.write_lac(
        session.wire, ledger_id, write.masterKey or NO_KEY, life_of(write.life), write.body, reply
    )


def _read_lac(session: Session, request: pb.Request, reply: Reply) -> None:
    session.handlers.read_lac(request.readLacRequest.ledgerId, reply)


def _force(session: Session, request: pb.Request, reply: Reply) -> None:
    session.handlers.force(session.wire, request.forceLedgerRequest.ledgerId, reply)


def _bookie_info(session: Session, request: pb.Request, reply: Reply) -> None:
    wanted = request.getBookieInfoRequest.requested
    session.handlers.bookie_info(
        total=bool(wanted & pb.GetBookieInfoRequest.TOTAL_DISK_CAPACITY),
        free=bool(wanted & pb.GetBookieInfoRequest.FREE_DISK_SPACE),
        reply=reply,
    )


def _entry_list(session: Session, request: pb.Request, reply: Reply) -> None:
    session.handlers.entry_list(request.getListOfEntriesOfLedgerRequest.ledgerId, reply)


class _Reply(WireReply):
    __slots__ = ("_request",)

    def __init__(self, wire: Wire, request: pb.Request) -> None:
        self._wire = wire
        self._request = request


class _TimedReply(_Reply):
    """A reply that is observed when it is sent, by the name of its operation."""

    __slots__ = ("_since",)
    kind: ClassVar[str]
    asked: ClassVar[str] = ""
    """The field of the request that names the ledger; empty: none does."""
    told: ClassVar[str]
    """The field of the answer."""

    def __init__(self, wire: Wire, request: pb.Request) -> None:
        super().__init__(wire, request)
        self._since = time.perf_counter()
        wire.request_began()

    def error(self, error: BaseException) -> None:
        self._answer(status_of(error, self._wire))

    def _answer(self, status: V3Status, **found: object) -> None:
        """Answer with what was found; what is None is absent."""
        response = new_response(self._request, status)
        inner = getattr(response, self.told)
        inner.status = status_code(status)
        if self.asked:
            inner.ledgerId = getattr(self._request, self.asked).ledgerId
        for name, value in found.items():
            if value is not None:
                setattr(inner, name, value)
        elapsed_ms = (time.perf_counter() - self._since) * 1000
        self._wire.context.metrics.read_done(self.kind, elapsed_ms, response.status == pb.EOK)
        self._wire.request_ended()
        self._wire.send(encode_frame(response))


class _AddReply(_Reply):
    """ADD_ENTRY."""

    __slots__ = ("_joined",)

    def __init__(self, wire: Wire, request: pb.Request) -> None:
        super().__init__(wire, request)
        self._joined = joined(wire.context, request, wire.received_at, wire.peer, self._identity)

    @property
    def joined(self) -> JoinedRequest | None:
        return self._joined

    def added(self) -> bytes:
        return self._encode(V3Status.EOK)

    def error(self, error: BaseException) -> None:
        wire = self._wire
        if not wire.closed:
            wire.context.request_log.add_failed(wire.peer, self._identity(), error)
        wire.send(self._encode(status_of(error, wire)))
        if self._joined is not None:
            add_refused(wire.context, self._joined)

    def _identity(self) -> RequestId:
        add = self._request.addRequest
        return RequestId(add.ledgerId, add.entryId, self._request.header.txnId)

    def _encode(self, status: V3Status) -> bytes:
        add, response = self._request.addRequest, new_response(self._request, status)
        response.addResponse.status = status_code(status)
        response.addResponse.ledgerId = add.ledgerId
        response.addResponse.entryId = add.entryId
        return encode_frame(response)


class _ReadReply(CountedRead):
    """READ_ENTRY: ordinary, fencing and long-poll reads."""

    __slots__ = ("_joined", "_request")

    def __init__(self, wire: Wire, request: pb.Request) -> None:
        self._request = request
        self._joined = joined(wire.context, request, wire.received_at, wire.peer, self._identity)
        # Last, because it counts the read: only a reply ends that.
        super().__init__(wire, _kind(request), last_entry=request.readRequest.entryId == LAST_ENTRY)

    def entry(
        self,
        body: bytes | None,
        *,
        entry_id: int | None = None,
        max_lac: int | None = None,
        lac_time_ms: int | None = None,
    ) -> None:
        response = self._response(V3Status.EOK)
        read = response.readResponse
        if entry_id is not None:
            read.entryId = entry_id
        if body is not None:
            read.body = body
        if max_lac is not None:
            read.maxLAC = max_lac
        if lac_time_ms is not None:
            read.lacUpdateTimestamp = lac_time_ms
        frame = encode_frame(response)
        elapsed_ms = self._done(len(frame), success=True, entries=() if body is None else (body,))
        self._wire.send(frame)
        if self._joined is not None:
            read_ended(self._wire.context, self._joined, self._kind, elapsed_ms, None)

    def _identity(self) -> RequestId:
        read = self._request.readRequest
        return RequestId(read.ledgerId, read.entryId, self._request.header.txnId)

    def error(self, error: BaseException) -> None:
        elapsed_ms = self._done(0, success=False, error=error)
        self._wire.send(encode_frame(self._response(status_of(error, self._wire))))
        if self._joined is not None:
            read_ended(self._wire.context, self._joined, self._kind, elapsed_ms, error)

    def _response(self, status: V3Status) -> pb.Response:
        read, response = self._request.readRequest, new_response(self._request, status)
        response.readResponse.status = status_code(status)
        response.readResponse.ledgerId = read.ledgerId
        response.readResponse.entryId = read.entryId
        return response


class _WriteLacReply(_TimedReply):
    """WRITE_LAC."""

    __slots__ = ()
    kind, asked, told = "write_lac", "writeLacRequest", "writeLacResponse"

    def lac_written(self) -> None:
        self._answer(V3Status.EOK)


class _ReadLacReply(_TimedReply):
    """READ_LAC. A status other than EOK may come with a packet or an entry."""

    __slots__ = ()
    kind, asked, told = "read_lac", "readLacRequest", "readLacResponse"

    def lac_read(self, status: BaseException | None, packet: bytes | None, last_entry: bytes | None) -> None:
        code = V3Status.EOK if status is None else status_of(status)
        self._answer(code, lacBody=packet, lastEntryBody=last_entry)


class _ForceReply(_TimedReply):
    """FORCE_LEDGER."""

    __slots__ = ()
    kind, asked, told = "force", "forceLedgerRequest", "forceLedgerResponse"

    def forced(self) -> None:
        self._answer(V3Status.EOK)


class _BookieInfoReply(_TimedReply):
    """GET_BOOKIE_INFO; what was not asked for is absent."""

    __slots__ = ()
    kind, told = "bookie_info", "getBookieInfoResponse"

    def bookie_info(self, total: int | None, free: int | None) -> None:
        self._answer(V3Status.EOK, totalDiskCapacity=total, freeDiskSpace=free)


class _EntryListReply(_TimedReply):
    """GET_LIST_OF_ENTRIES_OF_LEDGER."""

    __slots__ = ()
    kind, asked = "entry_list", "getListOfEntriesOfLedgerRequest"
    told = "getListOfEntriesOfLedgerResponse"

    def entry_list(self, availability: bytes) -> None:
        self._answer(V3Status.EOK, availabilityOfEntriesOfLedger=availability)


def _kind(request: pb.Request) -> str:
    read = request.readRequest
    if read.HasField("flag") and read.flag == pb.ReadRequest.FENCE_LEDGER:
        return "fence"
    if read.HasField("previousLAC"):
        return "long_poll"
    return "batch_class" if request.requestContext and is_batch(request) and not request.header.priority else "read"


_OPERATIONS: dict[int, tuple[Callable[[Wire, pb.Request], Reply], _Serve]] = {
    pb.ADD_ENTRY: (_AddReply, _add),
    pb.READ_ENTRY: (_ReadReply, _read),
    pb.WRITE_LAC: (_WriteLacReply, _write_lac),
    pb.READ_LAC: (_ReadLacReply, _read_lac),
    pb.FORCE_LEDGER: (_ForceReply, _force),
    pb.GET_BOOKIE_INFO: (_BookieInfoReply, _bookie_info),
    pb.GET_LIST_OF_ENTRIES_OF_LEDGER: (_EntryListReply, _entry_list),
}
