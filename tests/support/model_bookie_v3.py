"""A model bookie's answers in protocol version 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bookie_protocol.errors import BadRequest, PodkeeperError, V3Status
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v3
from bookie_protocol.wire.availability import encode_availability

if TYPE_CHECKING:
    from tests.support.model_bookie import ModelBookie

DEFERRED_SYNC = 1


def serve_v3(bookie: ModelBookie, request: pb.Request) -> pb.Response:
    """Carry a request out, and answer."""
    serve, answer_of = _OPERATIONS.get(request.header.operation, (None, None))
    done = pb.Response()
    status = V3Status.EOK
    try:
        if serve is None:
            raise BadRequest("the model bookie does not serve this operation")
        serve(bookie, request, done)
    except PodkeeperError as error:
        status, done = error.v3, pb.Response()
    response = v3.new_response(request, status)
    response.MergeFrom(done)
    if answer_of is not None:
        asked, answered = answer_of(request), answer_of(response)
        answered.status = v3.status_code(status)
        answered.ledgerId = asked.ledgerId
        if hasattr(answered, "entryId"):
            answered.entryId = asked.entryId
    return response


def _add(bookie, request, done) -> None:
    add = request.addRequest
    deferred = bool(add.writeFlags & DEFERRED_SYNC)
    bookie.add(add.masterKey, add.body, recovery=add.HasField("flag"), deferred=deferred)


def is_long_poll(request: pb.Request) -> bool:
    """Whether the request waits for the LAC, and asks for the entry behind it."""
    read = request.readRequest
    return request.header.operation == pb.READ_ENTRY and read.HasField("previousLAC")


def _read(bookie, request, done) -> None:
    read = request.readRequest
    if read.HasField("previousLAC"):
        assert read.flag == pb.ReadRequest.ENTRY_PIGGYBACK
        entry, done.readResponse.maxLAC = bookie.long_poll(read.ledgerId, read.previousLAC)
        if entry is not None:
            done.readResponse.body = entry
        return
    fence = read.HasField("flag") and read.flag == pb.ReadRequest.FENCE_LEDGER
    entry, lac = bookie.read(read.ledgerId, read.entryId, read.masterKey if fence else None)
    done.readResponse.body, done.readResponse.maxLAC = entry, lac


def _write_lac(bookie, request, done) -> None:
    write = request.writeLacRequest
    bookie.write_lac(write.masterKey, write.ledgerId, write.body)


def _read_lac(bookie, request, done) -> None:
    explicit, last_entry = bookie.read_lac(request.readLacRequest.ledgerId)
    if explicit is not None:
        done.readLacResponse.lacBody = explicit
    if last_entry is not None:
        done.readLacResponse.lastEntryBody = last_entry


def _force(bookie, request, done) -> None:
    bookie.force(request.forceLedgerRequest.ledgerId)


def _bookie_info(bookie, request, done) -> None:
    answer = done.getBookieInfoResponse
    answer.status = v3.status_code(V3Status.EOK)
    answer.totalDiskCapacity, answer.freeDiskSpace = bookie.total_bytes, bookie.free_bytes


def _list_entries(bookie, request, done) -> None:
    held = bookie.list_entries(request.getListOfEntriesOfLedgerRequest.ledgerId)
    done.getListOfEntriesOfLedgerResponse.availabilityOfEntriesOfLedger = encode_availability(held)


def _part(name):
    """The operation's part of a request or response."""
    return lambda message: getattr(message, name + ("Request" if isinstance(message, pb.Request) else "Response"))


_OPERATIONS = {
    pb.ADD_ENTRY: (_add, _part("add")),
    pb.READ_ENTRY: (_read, _part("read")),
    pb.WRITE_LAC: (_write_lac, _part("writeLac")),
    pb.READ_LAC: (_read_lac, _part("readLac")),
    pb.FORCE_LEDGER: (_force, _part("forceLedger")),
    pb.GET_BOOKIE_INFO: (_bookie_info, None),
    pb.GET_LIST_OF_ENTRIES_OF_LEDGER: (_list_entries, _part("getListOfEntriesOfLedger")),
}
