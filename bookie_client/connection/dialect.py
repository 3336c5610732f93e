"""Wire dialects as the client speaks them: v3 (protobuf) and v2 (binary). Bytes in, answers out, no I/O.

Invariants
- A request's key is the bytes by which its answer is found: in v3 the transaction id's varint as it is echoed, in v2
  the header word and the ids. So the answer to an add costs two slices and no decoding.
- A frame does not name the bookie: one frame serves all replicas of an add.
- `acknowledged` accepts exactly the common answer to an add that succeeded; everything else goes through `decode`.

Transaction ids come from the caller and are unique for one client. Pure; any thread.

Source: reference wire protocol, sections 3, 4 and 12.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from bookie_client.connection.request import Answer, error_for
from bookie_protocol.entry import ENTRY_IDS
from bookie_protocol.errors import ProtocolViolation
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v2, v3
from bookie_protocol.wire.framing import LENGTH
from bookie_protocol.wire.varint import encode_varint

AddEncoder = Callable[[int, int, bytes], tuple[bytes, bytes]]
"""(transaction id, entry id, entry) -> (key, frame)."""


class Dialect(ABC):
    """One protocol version."""

    add_overhead: int
    """Bytes that the frame of an add has beyond its entry, at most."""

    @abstractmethod
    def add_encoder(self, ledger_id: int, master_key: bytes, *, recovery: bool = False) -> AddEncoder:
        """The encoder of all adds of one ledger. `recovery`: adds that a fenced ledger accepts."""

    @abstractmethod
    def read(
        self,
        txn_id: int,
        ledger_id: int,
        entry_id: int,
        *,
        fence_key: bytes | None = None,
        recovery: bool = False,
    ) -> tuple[bytes, bytes]:
        """Key and frame of a read. `fence_key`: the master key, to fence the ledger first; `recovery`: with high
        priority."""

    @abstractmethod
    def acknowledged(self, data: bytes, start: int, end: int) -> bytes | None:
        """The key, when the frame body `data[start:end]` is the usual answer to an add that succeeded."""

    @abstractmethod
    def decode(self, body: bytes) -> Answer:
        """Any answer to an add or a read. Raises ProtocolViolation."""


def dialect(version: int) -> Dialect:
    """The dialect of protocol version 2 or 3."""
    return V3Dialect() if version == 3 else V2Dialect()


class V3Dialect(Dialect):
    """Protobuf. The frame of an add is put together by hand; the rest uses the generated messages."""

    add_overhead: Final = 96

    def add_encoder(self, ledger_id: int, master_key: bytes, *, recovery: bool = False) -> AddEncoder:
        ids = b"\x08" + encode_varint(ledger_id) + b"\x10"
        key_field = b"\x1a" + encode_varint(len(master_key)) + master_key + b"\x22"
        priority = b"\x20" + encode_varint(v3.HIGH_PRIORITY) if recovery else b""
        tail = b"\xa0\x06\x01" if recovery else b""
        fixed = len(ids) + len(key_field) + len(tail)
        head_fixed = 5 + len(priority)
        pack_length = LENGTH.pack

        def encode(txn_id: int, entry_id: int, entry: bytes) -> tuple[bytes, bytes]:
            txn = encode_varint(txn_id)
            entry_field = encode_varint(entry_id)
            entry_size = encode_varint(len(entry))
            size = fixed + len(entry_field) + len(entry_size) + len(entry)
            body_size = encode_varint(size)
            header = head_fixed + len(txn)
            frame = b"".join(
                (
                    pack_length(4 + header + len(body_size) + size),
                    b"\x0a",
                    encode_varint(header),
                    b"\x08\x03\x10\x02\x18",
                    txn,
                    priority,
                    b"\xaa\x06",
                    body_size,
                    ids,
                    entry_field,
                    key_field,
                    entry_size,
                    entry,
                    tail,
                )
            )
            return txn, frame

        return encode

    def read(
        self,
        txn_id: int,
        ledger_id: int,
        entry_id: int,
        *,
        fence_key: bytes | None = None,
        recovery: bool = False,
    ) -> tuple[bytes, bytes]:
        request = v3.new_request(pb.READ_ENTRY, txn_id, v3.HIGH_PRIORITY if recovery else 0)
        request.readRequest.ledgerId = ledger_id
        request.readRequest.entryId = entry_id
        if fence_key is not None:
            request.readRequest.masterKey = fence_key
            request.readRequest.flag = pb.ReadRequest.FENCE_LEDGER
        return encode_varint(txn_id), v3.encode_frame(request)

    def acknowledged(self, data: bytes, start: int, end: int) -> bytes | None:
        # header{VERSION_THREE, ADD_ENTRY, txn}, status EOK, addResponse{status EOK, ...}
        if data[start + 2 : start + 7] != b"\x08\x03\x10\x02\x18":
            return None
        body = start + 2 + data[start + 1]
        if data[body : body + 4] != b"\x10\x00\xaa\x06" or data[body + 5 : body + 7] != b"\x08\x00":
            return None
        return data[start + 7 : body]

    def decode(self, body: bytes) -> Answer:
        response = v3.parse_response(body)
        key = encode_varint(response.header.txnId)
        operation = response.header.operation
        if operation == pb.READ_ENTRY:
            read = response.readResponse
            error = error_for(v3.response_status(response, read.status))
            max_lac = read.maxLAC if read.HasField("maxLAC") else None
            return Answer(key, error, read.body if error is None else b"", max_lac)
        if operation == pb.ADD_ENTRY:
            return Answer(key, error_for(v3.response_status(response, response.addResponse.status)))
        return Answer(key, error_for(response.status))


class V2Dialect(Dialect):
    """Binary. It has no transaction ids: two requests for the same entry share a key."""

    add_overhead: Final = v2.ADD_ENTRY_OFFSET + v2.LENGTH.size
    _ADDED: Final = LENGTH.pack(v2.header_word(v2.CURRENT_VERSION, v2.OpCode.ADDENTRY)) + LENGTH.pack(0)

    def add_encoder(self, ledger_id: int, master_key: bytes, *, recovery: bool = False) -> AddEncoder:
        flags = v2.Flag.RECOVERY_ADD | v2.Flag.HIGH_PRIORITY if recovery else v2.Flag.NONE
        word = LENGTH.pack(v2.header_word(v2.CURRENT_VERSION, v2.OpCode.ADDENTRY))

        def encode(txn_id: int, entry_id: int, entry: bytes) -> tuple[bytes, bytes]:
            frame = b"".join(v2.encode_add_request(master_key, entry, flags))
            return word + ENTRY_IDS.pack(ledger_id, entry_id), frame

        return encode

    def read(
        self,
        txn_id: int,
        ledger_id: int,
        entry_id: int,
        *,
        fence_key: bytes | None = None,
        recovery: bool = False,
    ) -> tuple[bytes, bytes]:
        flags = v2.Flag.HIGH_PRIORITY if recovery else v2.Flag.NONE
        if fence_key is not None:
            flags |= v2.Flag.DO_FENCING
        word = LENGTH.pack(v2.header_word(v2.CURRENT_VERSION, v2.OpCode.READENTRY))
        frame = v2.encode_read_request(ledger_id, entry_id, flags, fence_key or b"")
        return word + ENTRY_IDS.pack(ledger_id, entry_id), frame

    def acknowledged(self, data: bytes, start: int, end: int) -> bytes | None:
        if data[start : start + 8] != self._ADDED:
            return None
        return data[start : start + 4] + data[start + 8 : end]

    def decode(self, body: bytes) -> Answer:
        response = v2.decode_response(body)
        if not isinstance(response, v2.Response):
            raise ProtocolViolation(f"{type(response).__name__} answers no request of this client")
        word = LENGTH.pack(v2.header_word(response.version, response.opcode))
        key = word + ENTRY_IDS.pack(response.ledger_id, response.entry_id)
        return Answer(key, error_for(response.code), response.entry)
