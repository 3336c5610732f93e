"""Binary frames that are not hot adds: decoded into requests and handed to the handlers.

Threads: event loop only.

Source: docs/internals/wire-protocol.md, sections 3 and 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from bookie_pod.server.tcp.request_log import RequestId
from bookie_pod.server.tcp.requests import (
    AddRequest,
    BatchReadRequest,
    CountedRead,
    ReadRequest,
    Reply,
    code_of,
)
from bookie_protocol.entry import LAST_ENTRY, read_prefix
from bookie_protocol.errors import BadRequest, ProtocolViolation, V2Code
from bookie_protocol.wire import v2
from bookie_protocol.wire.v2 import ACCEPTED_VERSIONS, Flag, OpCode

if TYPE_CHECKING:
    from bookie_pod.server.tcp.connection import Connection


# Plain numbers: what is done with members of `IntFlag` costs several times as much.
_DO_FENCING: Final = int(Flag.DO_FENCING)
_HIGH_PRIORITY: Final = int(Flag.HIGH_PRIORITY)
_BATCH_CLASS: Final = int(Flag.BATCH_CLASS)
_SERVED_AS: Final = _BATCH_CLASS | _HIGH_PRIORITY | _DO_FENCING


def cold_v2(conn: Connection, body: bytes) -> None:
    """Serve one frame body. Raises ProtocolViolation when the connection must close."""
    if not conn.authenticated:
        conn.security.early(len(body))
    request = v2.decode_request(body)
    if isinstance(request, v2.AuthFrame):
        conn.security.auth_v2(request)
        return
    opcode = _opcode(request)
    if not conn.authenticated:
        if isinstance(request, v2.BatchReadRequest):
            raise ProtocolViolation("batch read before authentication")
        conn.security.refused()
        code = V2Code.EUA
    elif request.version not in ACCEPTED_VERSIONS:
        code = V2Code.EBADVERSION
    else:
        _dispatch(conn, request)
        return
    if isinstance(request, v2.BatchReadRequest):
        conn.send(_batch_error(request, code))
    else:
        conn.send(v2.encode_response(request.version, opcode, code, request.ledger_id, request.entry_id))


def _dispatch(conn: Connection, request: v2.AddRequest | v2.ReadRequest | v2.BatchReadRequest) -> None:
    handlers = conn.context.handlers
    flags = request.flags
    high_priority = bool(flags & _HIGH_PRIORITY)
    if isinstance(request, v2.AddRequest):
        _add(conn, request, high_priority)
        return
    fence_key = (request.master_key or b"") if flags & _DO_FENCING else None
    reply = _ReadReply(conn, request)
    if isinstance(request, v2.ReadRequest):
        read = ReadRequest(
            request.ledger_id,
            request.entry_id,
            fence_key,
            high_priority,
            batch_class=bool(flags & _BATCH_CLASS),
        )
        handlers.read(conn, read, reply)
    else:
        handlers.read_batch(
            conn,
            BatchReadRequest(
                request.ledger_id,
                request.entry_id,
                request.max_count,
                request.max_size,
                fence_key,
                high_priority,
                bool(flags & _BATCH_CLASS),
                request.step,
            ),
            reply,
        )


def _add(conn: Connection, request: v2.AddRequest, high_priority: bool) -> None:
    reply = _AddReply(conn, request)
    try:
        _, _, lac = read_prefix(request.entry)
    except BadRequest as error:
        reply.error(error)
        return
    recovery = bool(request.flags & Flag.RECOVERY_ADD)
    conn.context.handlers.add(
        conn,
        AddRequest(
            request.ledger_id,
            request.entry_id,
            lac,
            request.master_key,
            request.entry,
            recovery,
            high_priority,
        ),
        reply,
    )


def _opcode(request: v2.AddRequest | v2.ReadRequest | v2.BatchReadRequest) -> OpCode:
    if isinstance(request, v2.AddRequest):
        return OpCode.ADDENTRY
    return OpCode.READENTRY if isinstance(request, v2.ReadRequest) else OpCode.BATCH_READ_ENTRY


def _batch_error(request: v2.BatchReadRequest, code: V2Code) -> bytes:
    pieces = v2.encode_batch_read_response(
        request.version, code, request.ledger_id, request.entry_id, request.request_id, ()
    )
    return b"".join(pieces)


class _AddReply(Reply):
    """Answers one ADDENTRY."""

    __slots__ = ("_conn", "_request")

    def __init__(self, conn: Connection, request: v2.AddRequest) -> None:
        self._conn = conn
        self._request = request

    def added(self) -> bytes:
        return self._encode(V2Code.EOK)

    def error(self, error: BaseException) -> None:
        request, conn = self._request, self._conn
        conn.context.request_log.add_failed(conn.peer, RequestId(request.ledger_id, request.entry_id), error)
        conn.send(self._encode(code_of(error, conn)))

    def _encode(self, code: V2Code) -> bytes:
        request = self._request
        return v2.encode_response(request.version, OpCode.ADDENTRY, code, request.ledger_id, request.entry_id)


class _ReadReply(CountedRead):
    """Answers one READENTRY or BATCH_READ_ENTRY."""

    __slots__ = ("_request",)

    def __init__(self, conn: Connection, request: v2.ReadRequest | v2.BatchReadRequest) -> None:
        self._request = request
        most = 0
        kind = "read"
        if isinstance(request, v2.BatchReadRequest):
            kind, most = "batch", min(request.max_size, conn.context.options.max_batch_read_size_bytes)
        if request.flags & _SERVED_AS == _BATCH_CLASS:
            kind = "batch_class"
        super().__init__(conn, kind, last_entry=request.entry_id == LAST_ENTRY, most=most)

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
        request, code = self._request, code_of(error, self._conn)
        self._done(0, success=False, error=error)
        if isinstance(request, v2.BatchReadRequest):
            self._conn.send(_batch_error(request, code))
        else:
            opcode = OpCode.READENTRY
            self._conn.send(v2.encode_response(request.version, opcode, code, request.ledger_id, request.entry_id))

    def _send(self, pieces: list[bytes], entries: Sequence[bytes]) -> None:
        answer = b"".join(pieces)
        self._done(len(answer), success=True, entries=entries)
        self._conn.send(answer)
