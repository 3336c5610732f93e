"""Binary frames that are not hot adds: decoded into requests and handed to the handlers.

Threads: event loop only.

Source: docs/internals/wire-protocol.md, sections 3 and 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from bookie_pod.server.tcp.replies import CountedRead, code_of
from bookie_pod.server.tcp.request_log import RequestId
from bookie_pod.server.tcp.requests import AddRequest, BatchReadRequest, ReadRequest, Reply
from bookie_pod.server.tcp.security import Session
from bookie_pod.server.tcp.wire import Wire
from bookie_protocol.entry import LAST_ENTRY, read_prefix
from bookie_protocol.errors import BadRequest, ProtocolViolation, V2Code
from bookie_protocol.wire import v2
from bookie_protocol.wire.v2 import ACCEPTED_VERSIONS, Flag, OpCode

# Plain numbers: what is done with members of `IntFlag` costs several times as much.
_DO_FENCING: Final = int(Flag.DO_FENCING)
_HIGH_PRIORITY: Final = int(Flag.HIGH_PRIORITY)
_BATCH_CLASS: Final = int(Flag.BATCH_CLASS)
_SERVED_AS: Final = _BATCH_CLASS | _HIGH_PRIORITY | _DO_FENCING


def cold_v2(session: Session, body: bytes) -> None:
    """Serve one frame body. Raises ProtocolViolation when the connection must close."""
    wire = session.wire
    if not wire.authenticated:
        session.early(len(body))
    request = v2.decode_request(body)
    if isinstance(request, v2.AuthFrame):
        session.auth_v2(request)
    elif not wire.authenticated:
        if isinstance(request, v2.BatchReadRequest):
            raise ProtocolViolation("batch read before authentication")
        session.refused()
        wire.send(_answer(request, V2Code.EUA))
    elif request.version not in ACCEPTED_VERSIONS:
        wire.send(_answer(request, V2Code.EBADVERSION))
    else:
        new_reply, serve = _OPERATIONS[type(request)]
        serve(session, request, new_reply(wire, request))


def _add(session: Session, request: v2.AddRequest, reply: Reply) -> None:
    try:
        _, _, lac = read_prefix(request.entry)
    except BadRequest as error:
        reply.error(error)
        return
    session.handlers.add(
        session.wire,
        AddRequest(
            request.ledger_id,
            request.entry_id,
            lac,
            request.master_key,
            request.entry,
            recovery=bool(request.flags & Flag.RECOVERY_ADD),
            high_priority=bool(request.flags & _HIGH_PRIORITY),
        ),
        reply,
    )


def _read(session: Session, request: v2.ReadRequest, reply: Reply) -> None:
    session.handlers.read(
        session.wire,
        ReadRequest(
            request.ledger_id,
            request.entry_id,
            fence_key=_fence_key(request),
            high_priority=bool(request.flags & _HIGH_PRIORITY),
            batch_class=bool(request.flags & _BATCH_CLASS),
        ),
        reply,
    )


def _read_batch(session: Session, request: v2.BatchReadRequest, reply: Reply) -> None:
    session.handlers.read_batch(
        session.wire,
        BatchReadRequest(
            request.ledger_id,
            request.entry_id,
            request.max_count,
            request.max_size,
            fence_key=_fence_key(request),
            high_priority=bool(request.flags & _HIGH_PRIORITY),
            batch_class=bool(request.flags & _BATCH_CLASS),
            step=request.step,
        ),
        reply,
    )


def _fence_key(request: v2.ReadRequest | v2.BatchReadRequest) -> bytes | None:
    """Return the master key of a fencing read; no bytes if it has none. None: the read is an ordinary one."""
    return (request.master_key or b"") if request.flags & _DO_FENCING else None


def _answer(request: v2.AddRequest | v2.ReadRequest | v2.BatchReadRequest, code: V2Code) -> bytes:
    """Return an answer that brings no entry."""
    if isinstance(request, v2.BatchReadRequest):
        return b"".join(
            v2.encode_batch_read_response(
                request.version, code, request.ledger_id, request.entry_id, request.request_id, ()
            )
        )
    opcode = OpCode.ADDENTRY if isinstance(request, v2.AddRequest) else OpCode.READENTRY
    return v2.encode_response(request.version, opcode, code, request.ledger_id, request.entry_id)


class _AddReply(Reply):
    """Answers one ADDENTRY."""

    __slots__ = ("_request", "_wire")

    def __init__(self, wire: Wire, request: v2.AddRequest) -> None:
        self._wire = wire
        self._request = request

    def added(self) -> bytes:
        return _answer(self._request, V2Code.EOK)

    def error(self, error: BaseException) -> None:
        request, wire = self._request, self._wire
        if not wire.closed:
            wire.context.request_log.add_failed(wire.peer, RequestId(request.ledger_id, request.entry_id), error)
        wire.send(_answer(request, code_of(error, wire)))


class _ReadReply(CountedRead):
    """Answers one READENTRY or BATCH_READ_ENTRY."""

    __slots__ = ("_request",)

    def __init__(self, wire: Wire, request: v2.ReadRequest | v2.BatchReadRequest) -> None:
        self._request = request
        most = 0
        kind = "read"
        if isinstance(request, v2.BatchReadRequest):
            kind, most = "batch", min(request.max_size, wire.context.options.max_batch_read_size_bytes)
        if request.flags & _SERVED_AS == _BATCH_CLASS:
            kind = "batch_class"
        super().__init__(wire, kind, last_entry=request.entry_id == LAST_ENTRY, most=most)

    def entry(
        self,
        body: bytes | None,
        *,
        entry_id: int | None = None,
        max_lac: int | None = None,
        lac_time_ms: int | None = None,
    ) -> None:
        request = self._request
        body = body or b""
        self._send(v2.encode_read_response(request.version, request.ledger_id, request.entry_id, body), (body,))

    def batch(self, entries: Sequence[bytes]) -> None:
        request = self._request
        assert isinstance(request, v2.BatchReadRequest)
        self._send(
            v2.encode_batch_read_response(
                request.version,
                V2Code.EOK,
                request.ledger_id,
                request.entry_id,
                request.request_id,
                entries,
                request.flags,
            ),
            entries,
        )

    def _identity(self) -> RequestId:
        return RequestId(self._request.ledger_id, self._request.entry_id)

    def error(self, error: BaseException) -> None:
        code = code_of(error, self._wire)
        self._done(0, success=False, error=error)
        self._wire.send(_answer(self._request, code))

    def _send(self, pieces: list[bytes], entries: Sequence[bytes]) -> None:
        answer = b"".join(pieces)
        self._done(len(answer), success=True, entries=entries)
        self._wire.send(answer)


_OPERATIONS: dict[type, tuple[Callable[[Wire, Any], Reply], Callable[[Session, Any, Reply], None]]] = {
    v2.AddRequest: (_AddReply, _add),
    v2.ReadRequest: (_ReadReply, _read),
    v2.BatchReadRequest: (_ReadReply, _read_batch),
}
