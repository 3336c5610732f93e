"""Protocol version 3 (protobuf) as the client speaks it. Adds and plain reads need no message objects.

The usual answer to an add is recognised without a message object too, one or many. Such a frame is
header{VERSION_THREE, ADD_ENTRY, transaction id}, status EOK, addResponse{status EOK, ledger id, entry id}, in this
order. Anything else is no such answer here, and is decoded as a message.

Invariants
- In frames that are whole messages `added_run` finds what `added_key` finds in each; only how they look differs.

Pure; any thread.

Source: docs/internals/wire-protocol.md, sections 4, 8 and 12.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from bookie_client.connection.dialect import AddEncoder, Dialect, KeyAndFrame
from bookie_client.connection.request import Answer, BookieInfo, LacAnswer, SplitAdd, error_for
from bookie_protocol.columns import byte_column
from bookie_protocol.digest import DigestManager
from bookie_protocol.entry import ENTRY_HEADER
from bookie_protocol.errors import V3Status
from bookie_protocol.keys import NO_LIFE, creation_token_of, life_of, life_of_copies
from bookie_protocol.versioned import LedgerLife
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v3, v3_encode
from bookie_protocol.wire.auth import AuthMessage, from_protobuf, to_protobuf
from bookie_protocol.wire.availability import decode_availability
from bookie_protocol.wire.framing import LENGTH, LENGTH_SIZE
from bookie_protocol.wire.varint import consecutive_varints, decode_uint64, encode_varint

_HEADER: Final = b"\x08\x03\x10\x02\x18"
_KEY_OFFSET: Final = LENGTH_SIZE + 2 + len(_HEADER)
_STATUS_SIZE: Final = 7
"""Bytes behind the transaction id up to the ledger id: both states, and what is around them."""
MIN_COLUMNS: Final = 32
"""Answers from which looking at their columns costs less than a look at each."""

_VARINT: Final = rb"[\x80-\xff]*[\x00-\x7f]"
_FRAME: Final = re.compile(
    rb"\x00\x00\x00([\x00-\x7f])\x0a[\x00-\x7f]"
    + re.escape(_HEADER)
    + b"("
    + _VARINT
    + rb")\x10\x00\xaa\x06[\x00-\x7f]\x08\x00\x10"
    + _VARINT
    + rb"\x18"
    + _VARINT
)


def added_key(data: bytes, start: int, end: int) -> bytes | None:
    """Return the transaction id, when the frame body `data[start:end]` is such an answer."""
    if data[start + 2 : start + 7] != _HEADER:
        return None
    body = start + 2 + data[start + 1]
    if body + 7 > end or data[body : body + 4] != b"\x10\x00\xaa\x06" or data[body + 5 : body + 7] != b"\x08\x00":
        return None
    return data[start + 7 : body]


def added_run(data: bytes) -> tuple[Sequence[bytes], int] | None:
    """The transaction ids, when `data` begins with whole frames that are such answers, and how many bytes these take;
    None: look at each frame."""
    if not data.startswith(_HEADER, LENGTH_SIZE + 2):
        return None
    return run_of_one_shape(data) or run_of_any_shape(data)


def run_of_one_shape(data: bytes) -> tuple[Sequence[bytes], int] | None:
    """Return the same as `added_run` for many frames of the same length as the first, which is the usual case.

    If the bytes that `added_key` checks are equal in all of them, they are what the first one is."""
    size = LENGTH_SIZE + LENGTH.unpack_from(data)[0]
    count = len(data) // size
    key = added_key(data, LENGTH_SIZE, size) if count >= MIN_COLUMNS else None
    if key is None:
        return None
    taken, key_end = count * size, _KEY_OFFSET + len(key)
    for column in (*range(_KEY_OFFSET), *range(key_end, key_end + _STATUS_SIZE)):
        if data[column:taken:size] != data[column : column + 1] * count:
            return None
    return byte_column(data, _KEY_OFFSET, len(key), size, count), taken


def run_of_any_shape(data: bytes) -> tuple[Sequence[bytes], int] | None:
    """Return the same as `added_run` for few frames, or frames of several lengths."""
    parts = _FRAME.split(data)
    rest = parts.pop()
    # What was found must be all of it, from the start and without a gap, and the length words must agree.
    taken = len(data) - len(rest)
    lengths = parts[1::3]
    if not lengths or any(parts[::3]) or sum(b"".join(lengths)) + LENGTH_SIZE * len(lengths) != taken:
        return None
    return parts[2::3], taken


_pack_header: Final = ENTRY_HEADER.pack
_TOTAL_AND_FREE: Final = pb.GetBookieInfoRequest.TOTAL_DISK_CAPACITY | pb.GetBookieInfoRequest.FREE_DISK_SPACE

MAX_SHAPES: Final = 256
"""Shapes of adds (entry size, widths of the numbers) that one encoder remembers."""


class V3AddEncoder:
    """The adds of one ledger; their key is the transaction id's varint."""

    def __init__(self, ledger_id: int, master_key: bytes, flags: int, life: bytes) -> None:
        self._ledger_id = ledger_id
        self._master_key = master_key
        self._flags = flags
        self._life = life
        self._shapes: dict[int, tuple[bytes, bytes, bytes]] = {}
        self.tail = v3_encode.add_request_tail(flags)

    def __call__(self, txn_id: int, entry_id: int, front: bytes, rest: bytes = b"", /) -> KeyAndFrame:
        txn, number = encode_varint(txn_id), encode_varint(entry_id)
        before, between, behind = self._parts(len(front) + len(rest) << 8 | len(txn) << 4 | len(number))
        return txn, b"".join((before, txn, between, number, behind, front, rest, self.tail))

    def make_heads(self, adds: Sequence[SplitAdd], lac: int, digest: DigestManager, txn_ids: Iterator[int], /) -> None:
        count, first = len(adds), adds[0].entry_id
        first_txn, *_ = islice(txn_ids, count)
        self._make_heads(adds, consecutive_varints(first_txn, count), consecutive_varints(first, count), lac, digest)

    def _make_heads(
        self, adds: Sequence[SplitAdd], txns: list[bytes], numbers: list[bytes], lac: int, digest: DigestManager
    ) -> None:
        widths = len(txns[0]) << 4 | len(numbers[0])
        if widths != len(txns[-1]) << 4 | len(numbers[-1]):  # one of the two gets longer on the way, which is rare
            half = len(adds) // 2
            self._make_heads(adds[:half], txns[:half], numbers[:half], lac, digest)
            self._make_heads(adds[half:], txns[half:], numbers[half:], lac, digest)
            return
        ledger_id, overhead, last = self._ledger_id, digest.overhead, -1
        before = between = behind = b""
        for add, txn, number in zip(adds, txns, numbers, strict=True):
            body = add.body
            size = len(body)
            if size != last:
                last = size
                before, between, behind = self._parts(overhead + size << 8 | widths)
            header = _pack_header(ledger_id, add.entry_id, lac, add.length)
            add.key = txn
            add.head = b"".join((before, txn, between, number, behind, header, digest.digest(header, body)))

    def _parts(self, shape: int) -> tuple[bytes, bytes, bytes]:
        """`shape`: entry size << 8 | width of the transaction id << 4 | width of the entry id."""
        parts = self._shapes.get(shape)
        if parts is None:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            parts = v3_encode.add_request_parts(
                self._ledger_id, self._master_key, shape >> 8, shape >> 4 & 15, shape & 15, self._flags, self._life
            )
            self._shapes[shape] = parts
        return parts


class V3Dialect(Dialect):
    """See the module."""

    version = 3
    add_overhead = 100

    def add_encoder(
        self,
        ledger: LedgerLife,
        master_key: bytes,
        *,
        recovery: bool = False,
        background: bool = False,
        restored: bool = False,
        deferred_sync: bool = False,
    ) -> AddEncoder:
        flags = v3_encode.RECOVERY_ADD if recovery or background or restored else 0
        if recovery:
            flags |= v3_encode.HIGH_PRIORITY
        if deferred_sync:
            flags |= v3_encode.DEFERRED_SYNC
        life = life_of_copies(ledger.token) if recovery or background else life_of(ledger.token)
        return V3AddEncoder(ledger.ledger_id, master_key, flags, life)

    def read(
        self,
        txn_id: int,
        ledger_id: int,
        entry_id: int,
        *,
        fence_key: bytes | None = None,
        life: bytes = NO_LIFE,
        recovery: bool = False,
        batch_class: bool = False,
    ) -> KeyAndFrame:
        flags = v3_encode.HIGH_PRIORITY if recovery else v3_encode.BATCH_CLASS if batch_class else 0
        if fence_key is not None:
            flags |= v3_encode.FENCE
        frame = v3_encode.read_request(txn_id, ledger_id, entry_id, flags, fence_key or b"", life)
        return encode_varint(txn_id), frame

    def long_poll(
        self, txn_id: int, ledger_id: int, entry_id: int, previous_lac: int, timeout_ms: int, *, piggyback: bool
    ) -> KeyAndFrame:
        request = v3.new_request(pb.READ_ENTRY, txn_id)
        read = request.readRequest
        read.ledgerId, read.entryId = ledger_id, entry_id
        read.previousLAC, read.timeOut = previous_lac, timeout_ms
        if piggyback:
            read.flag = pb.ReadRequest.ENTRY_PIGGYBACK
        return _framed(request)

    def read_lac(self, txn_id: int, ledger_id: int) -> KeyAndFrame:
        request = v3.new_request(pb.READ_LAC, txn_id)
        request.readLacRequest.ledgerId = ledger_id
        return _framed(request)

    def write_lac(
        self, txn_id: int, ledger_id: int, master_key: bytes, lac: int, packet: bytes, life: bytes = NO_LIFE
    ) -> KeyAndFrame:
        request = v3.new_request(pb.WRITE_LAC, txn_id)
        write = request.writeLacRequest
        write.ledgerId, write.lac, write.masterKey, write.body = ledger_id, lac, master_key, packet
        if life:
            write.life = creation_token_of(life)
        return _framed(request)

    def force_ledger(self, txn_id: int, ledger_id: int) -> KeyAndFrame:
        request = v3.new_request(pb.FORCE_LEDGER, txn_id)
        request.forceLedgerRequest.ledgerId = ledger_id
        return _framed(request)

    def bookie_info(self, txn_id: int) -> KeyAndFrame:
        request = v3.new_request(pb.GET_BOOKIE_INFO, txn_id)
        request.getBookieInfoRequest.requested = _TOTAL_AND_FREE
        return _framed(request)

    def entries_of_ledger(self, txn_id: int, ledger_id: int) -> KeyAndFrame:
        request = v3.new_request(pb.GET_LIST_OF_ENTRIES_OF_LEDGER, txn_id)
        request.getListOfEntriesOfLedgerRequest.ledgerId = ledger_id
        return _framed(request)

    def shown_key(self, key: bytes) -> str:
        return f"txn {decode_uint64(key)}"

    def auth(self, txn_id: int, message: AuthMessage) -> KeyAndFrame:
        request = v3.new_request(pb.AUTH, txn_id)
        request.authRequest.CopyFrom(to_protobuf(message))
        return _framed(request)

    def start_tls(self, txn_id: int) -> KeyAndFrame:
        """Ask for TLS: whatever follows the answer is encrypted. Version 2 has no such request, so its clients
        send this one first."""
        request = v3.new_request(pb.START_TLS, txn_id)
        request.startTLSRequest.SetInParent()
        return _framed(request)

    def acknowledged_run(self, data: bytes) -> tuple[Sequence[bytes], int] | None:
        return added_run(data)

    def acknowledged(self, data: bytes, start: int, end: int) -> bytes | None:
        return added_key(data, start, end)

    def decode(self, body: bytes) -> Answer:
        response = v3.parse_response(body)
        key = encode_varint(response.header.txnId)
        decode = _DECODERS.get(response.header.operation)
        return Answer(key, error_for(response.status)) if decode is None else decode(key, response)


def _framed(request: pb.Request) -> KeyAndFrame:
    return encode_varint(request.header.txnId), v3.encode_frame(request)


# --- answers ------------------------------------------------------------------------------------------------


def _read(key: bytes, response: pb.Response) -> Answer:
    read = response.readResponse
    error = error_for(v3.response_status(response, read.status))
    max_lac = read.maxLAC if read.HasField("maxLAC") else None
    return Answer(key, error, read.body if error is None else b"", max_lac)


def _add(key: bytes, response: pb.Response) -> Answer:
    return Answer(key, error_for(v3.response_status(response, response.addResponse.status)))


def _write_lac(key: bytes, response: pb.Response) -> Answer:
    return Answer(key, error_for(v3.response_status(response, response.writeLacResponse.status)))


def _force(key: bytes, response: pb.Response) -> Answer:
    return Answer(key, error_for(v3.response_status(response, response.forceLedgerResponse.status)))


def _read_lac(key: bytes, response: pb.Response) -> Answer:
    answer = response.readLacResponse
    explicit = answer.lacBody if answer.HasField("lacBody") else None
    last_entry = answer.lastEntryBody if answer.HasField("lastEntryBody") else None
    status = v3.response_status(response, answer.status)
    if status == V3Status.EIO and explicit is not None:
        return Answer(key, None, detail=LacAnswer(explicit, last_entry, complete=False))
    error = error_for(status)
    return Answer(key, error, detail=LacAnswer(explicit, last_entry) if error is None else None)


def _bookie_info(key: bytes, response: pb.Response) -> Answer:
    answer = response.getBookieInfoResponse
    error = error_for(v3.response_status(response, answer.status))
    known = answer.HasField("totalDiskCapacity") and answer.HasField("freeDiskSpace")
    return Answer(key, error, detail=BookieInfo(answer.totalDiskCapacity, answer.freeDiskSpace) if known else None)


def _entries_of_ledger(key: bytes, response: pb.Response) -> Answer:
    answer = response.getListOfEntriesOfLedgerResponse
    error = error_for(v3.response_status(response, answer.status))
    detail = decode_availability(answer.availabilityOfEntriesOfLedger) if error is None else None
    return Answer(key, error, detail=detail)


def _auth(key: bytes, response: pb.Response) -> Answer:
    detail = from_protobuf(response.authResponse) if response.HasField("authResponse") else None
    return Answer(key, error_for(response.status), detail=detail)


_DECODERS: Final[dict[int, Callable[[bytes, pb.Response], Answer]]] = {
    pb.READ_ENTRY: _read,
    pb.ADD_ENTRY: _add,
    pb.WRITE_LAC: _write_lac,
    pb.READ_LAC: _read_lac,
    pb.FORCE_LEDGER: _force,
    pb.GET_BOOKIE_INFO: _bookie_info,
    pb.GET_LIST_OF_ENTRIES_OF_LEDGER: _entries_of_ledger,
    pb.AUTH: _auth,
}
