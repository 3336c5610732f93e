"""Answers of the protobuf protocol, one class an operation.

The outer status always equals the inner one.

Threads: event loop only.

Source: reference wire protocol, sections 4.2 and 4.4.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from bookie_pod.server.tcp.replies import ConnectionReply, ReadBudget, status_of
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import V3Status
from bookie_protocol.traffic_class import is_batch
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire.v3 import encode_frame, new_response, status_code

if TYPE_CHECKING:
    from bookie_pod.server.tcp.connection import Connection


class _Reply(ConnectionReply):
    __slots__ = ("_request",)

    def __init__(self, conn: Connection, request: pb.Request) -> None:
        self._conn = conn
        self._request = request

    def _send(self, response: pb.Response) -> None:
        self._conn.send(encode_frame(response))


class _TimedReply(_Reply):
    """A reply that is observed when it is sent, by the name of its operation."""

    __slots__ = ("_since",)
    kind: ClassVar[str]

    def __init__(self, conn: Connection, request: pb.Request) -> None:
        super().__init__(conn, request)
        self._since = time.perf_counter()
        conn.request_began()

    def _send(self, response: pb.Response) -> None:
        elapsed_ms = (time.perf_counter() - self._since) * 1000
        self._conn.context.metrics.read_done(self.kind, elapsed_ms, response.status == pb.EOK)
        self._conn.request_ended()
        super()._send(response)


class AddReply(_Reply):
    """ADD_ENTRY."""

    __slots__ = ()

    def added(self) -> bytes:
        return self._encode(V3Status.EOK)

    def error(self, error: BaseException) -> None:
        self._conn.send(self._encode(status_of(error, self._conn)))

    def _encode(self, status: V3Status) -> bytes:
        add, response = self._request.addRequest, new_response(self._request, status)
        response.addResponse.status = status_code(status)
        response.addResponse.ledgerId = add.ledgerId
        response.addResponse.entryId = add.entryId
        return encode_frame(response)


class ReadReply(_Reply):
    """READ_ENTRY: ordinary, fencing and long-poll reads."""

    __slots__ = ("_budget",)

    def __init__(self, conn: Connection, request: pb.Request) -> None:
        super().__init__(conn, request)
        self._budget = ReadBudget(conn, _kind(request), last_entry=request.readRequest.entryId == LAST_ENTRY)

    def wait(self) -> None:
        self._budget.pause()

    def go_on(self, *, newer: bool) -> None:
        self._budget.go_on(newer=newer)

    def entry_read(self, *, success: bool) -> None:
        self._budget.entry_read(success=success)

    def fenced(self, *, success: bool) -> None:
        self._budget.fenced(success=success)

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
        self._budget.done(len(frame), success=True, entries=() if body is None else (body,))
        self._conn.send(frame)

    def error(self, error: BaseException) -> None:
        self._budget.done(0, success=False, error=error)
        self._send(self._response(status_of(error, self._conn)))

    def _response(self, status: V3Status) -> pb.Response:
        read, response = self._request.readRequest, new_response(self._request, status)
        response.readResponse.status = status_code(status)
        response.readResponse.ledgerId = read.ledgerId
        response.readResponse.entryId = read.entryId
        return response


class WriteLacReply(_TimedReply):
    """WRITE_LAC."""

    __slots__ = ()
    kind = "write_lac"

    def lac_written(self) -> None:
        self._answer(V3Status.EOK)

    def error(self, error: BaseException) -> None:
        self._answer(status_of(error, self._conn))

    def _answer(self, status: V3Status) -> None:
        response = new_response(self._request, status)
        response.writeLacResponse.status = status_code(status)
        response.writeLacResponse.ledgerId = self._request.writeLacRequest.ledgerId
        self._send(response)


class ReadLacReply(_TimedReply):
    """READ_LAC. A status other than EOK may come with a packet or an entry."""

    __slots__ = ()
    kind = "read_lac"

    def lac_read(self, status: BaseException | None, packet: bytes | None, last_entry: bytes | None) -> None:
        code = V3Status.EOK if status is None else status_of(status)
        response = new_response(self._request, code)
        inner = response.readLacResponse
        inner.status = status_code(code)
        inner.ledgerId = self._request.readLacRequest.ledgerId
        if packet is not None:
            inner.lacBody = packet
        if last_entry is not None:
            inner.lastEntryBody = last_entry
        self._send(response)

    def error(self, error: BaseException) -> None:
        self.lac_read(error, None, None)


class ForceReply(_TimedReply):
    """FORCE_LEDGER."""

    __slots__ = ()
    kind = "force"

    def forced(self) -> None:
        self._answer(V3Status.EOK)

    def error(self, error: BaseException) -> None:
        self._answer(status_of(error))

    def _answer(self, status: V3Status) -> None:
        response = new_response(self._request, status)
        response.forceLedgerResponse.status = status_code(status)
        response.forceLedgerResponse.ledgerId = self._request.forceLedgerRequest.ledgerId
        self._send(response)


class BookieInfoReply(_TimedReply):
    """GET_BOOKIE_INFO; what was not asked for is absent."""

    __slots__ = ()
    kind = "bookie_info"

    def bookie_info(self, total: int | None, free: int | None) -> None:
        response = new_response(self._request, V3Status.EOK)
        response.getBookieInfoResponse.status = status_code(V3Status.EOK)
        if total is not None:
            response.getBookieInfoResponse.totalDiskCapacity = total
        if free is not None:
            response.getBookieInfoResponse.freeDiskSpace = free
        self._send(response)

    def error(self, error: BaseException) -> None:
        response = new_response(self._request, status_of(error))
        response.getBookieInfoResponse.status = status_code(status_of(error))
        self._send(response)


class EntryListReply(_TimedReply):
    """GET_LIST_OF_ENTRIES_OF_LEDGER."""

    __slots__ = ()
    kind = "entry_list"

    def entry_list(self, availability: bytes) -> None:
        self._answer(V3Status.EOK, availability)

    def error(self, error: BaseException) -> None:
        self._answer(status_of(error), None)

    def _answer(self, status: V3Status, availability: bytes | None) -> None:
        response = new_response(self._request, status)
        inner = response.getListOfEntriesOfLedgerResponse
        inner.status = status_code(status)
        inner.ledgerId = self._request.getListOfEntriesOfLedgerRequest.ledgerId
        if availability is not None:
            inner.availabilityOfEntriesOfLedger = availability
        self._send(response)


def _kind(request: pb.Request) -> str:
    read = request.readRequest
    if read.HasField("flag") and read.flag == pb.ReadRequest.FENCE_LEDGER:
        return "fence"
    if read.HasField("previousLAC"):
        return "long_poll"
    return "batch_class" if request.requestContext and is_batch(request) and not request.header.priority else "read"
