"""Protobuf frames that the hot paths leave: decoded into requests and handed to the handlers.

A missing sub-message counts as one with default values, as the reference treats it.

Threads: event loop only.

Source: reference wire protocol, sections 4 to 6 and 8.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bookie_pod.server.tcp.replies_v3 import (
    AddReply,
    BookieInfoReply,
    EntryListReply,
    ForceReply,
    ReadLacReply,
    ReadReply,
    WriteLacReply,
)
from bookie_pod.server.tcp.requests import AddRequest, ReadRequest, Reply
from bookie_protocol.entry import read_lac_packet, read_prefix
from bookie_protocol.errors import BadRequest, BadVersion, ProtocolViolation, V3Status
from bookie_protocol.keys import NO_KEY
from bookie_protocol.traffic_class import is_batch
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire.v3 import (
    DEFERRED_SYNC,
    MANY_FIELDS,
    encode_frame,
    has_many_fields,
    header_copied,
    parse_request,
)

if TYPE_CHECKING:
    from bookie_pod.server.tcp.connection import Connection


def cold_v3(conn: Connection, body: bytes) -> bool:
    """Serve one frame body; False if it is no v3 request. Raises ProtocolViolation when the connection must close."""
    if has_many_fields(body):
        raise ProtocolViolation(f"a request of {len(body)} bytes that has more than {MANY_FIELDS} fields")
    request = parse_request(body)
    if request is None:
        return False
    if not conn.authenticated:
        conn.security.early(len(body))
    operation = request.header.operation
    if operation == pb.AUTH:
        conn.security.auth_v3(request)
    elif operation == pb.START_TLS:
        conn.security.start_tls(request)
    elif not conn.authenticated:
        conn.security.refused()
        conn.send(encode_frame(header_copied(request, V3Status.EUA)))
    else:
        served = _OPERATIONS.get(operation)
        if served is None:
            conn.send(encode_frame(header_copied(request, V3Status.EBADREQ)))
        elif request.header.version != pb.VERSION_THREE:
            new_reply, _ = served
            version = request.header.version
            new_reply(conn, request).error(BadVersion(f"protocol version {version} inside a version 3 message"))
        else:
            new_reply, serve = served
            serve(conn, request, new_reply(conn, request))
    return True


def _add(conn: Connection, request: pb.Request, reply: Reply) -> None:
    add = request.addRequest
    longest = conn.context.options.max_entry_bytes
    try:
        if len(add.body) > longest:
            raise BadRequest(f"an entry of {len(add.body)} bytes: nettyMaxFrameSizeBytes lets {longest} in")
        ledger_id, entry_id, lac = read_prefix(add.body)
    except BadRequest as error:
        reply.error(error)
        return
    conn.context.handlers.add(
        conn,
        AddRequest(
            ledger_id,
            entry_id,
            lac,
            add.masterKey or NO_KEY,
            add.body,
            recovery=add.HasField("flag") and add.flag == pb.AddRequest.RECOVERY_ADD,
            high_priority=request.header.priority > 0,
            deferred_sync=bool(add.writeFlags & DEFERRED_SYNC),
        ),
        reply,
    )


def _read(conn: Connection, request: pb.Request, reply: Reply) -> None:
    read = request.readRequest
    flag = read.flag if read.HasField("flag") else 0
    fencing = flag == pb.ReadRequest.FENCE_LEDGER
    long_poll = read.HasField("previousLAC") and not fencing
    conn.context.handlers.read(
        conn,
        ReadRequest(
            read.ledgerId,
            read.entryId,
            fence_key=_fence_key(read) if fencing else None,
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
    """No bytes: there is none, which is not the same as an empty one."""
    return (read.masterKey or NO_KEY) if read.HasField("masterKey") else b""


def _write_lac(conn: Connection, request: pb.Request, reply: Reply) -> None:
    write = request.writeLacRequest
    try:
        ledger_id = read_lac_packet(write.body).ledger_id
    except BadRequest as error:
        reply.error(error)
        return
    conn.context.handlers.write_lac(conn, ledger_id, write.masterKey or NO_KEY, write.body, reply)


def _read_lac(conn: Connection, request: pb.Request, reply: Reply) -> None:
    conn.context.handlers.read_lac(request.readLacRequest.ledgerId, reply)


def _force(conn: Connection, request: pb.Request, reply: Reply) -> None:
    conn.context.handlers.force(conn, request.forceLedgerRequest.ledgerId, reply)


def _bookie_info(conn: Connection, request: pb.Request, reply: Reply) -> None:
    wanted = request.getBookieInfoRequest.requested
    conn.context.handlers.bookie_info(
        total=bool(wanted & pb.GetBookieInfoRequest.TOTAL_DISK_CAPACITY),
        free=bool(wanted & pb.GetBookieInfoRequest.FREE_DISK_SPACE),
        reply=reply,
    )


def _entry_list(conn: Connection, request: pb.Request, reply: Reply) -> None:
    conn.context.handlers.entry_list(request.getListOfEntriesOfLedgerRequest.ledgerId, reply)


_Serve = Callable[["Connection", pb.Request, Reply], None]
_OPERATIONS: dict[int, tuple[Callable[[Connection, pb.Request], Reply], _Serve]] = {
    pb.ADD_ENTRY: (AddReply, _add),
    pb.READ_ENTRY: (ReadReply, _read),
    pb.WRITE_LAC: (WriteLacReply, _write_lac),
    pb.READ_LAC: (ReadLacReply, _read_lac),
    pb.FORCE_LEDGER: (ForceReply, _force),
    pb.GET_BOOKIE_INFO: (BookieInfoReply, _bookie_info),
    pb.GET_LIST_OF_ENTRIES_OF_LEDGER: (EntryListReply, _entry_list),
}
