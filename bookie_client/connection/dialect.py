"""Wire dialects as the client speaks them: v3 (protobuf) and v2 (binary). Bytes in, answers out, no I/O.

Invariants
- A request's key is the bytes by which its answer is found: in v3 the transaction id's varint as it is
  echoed, in v2 the header word and the ids. So the answer to an add costs two slices and no decoding.
- A frame does not name the bookie: one frame serves all replicas of an add.
- `acknowledged` accepts exactly the common answer to an add that succeeded; everything else goes through
  `decode`.

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
from bookie_protocol.wire import v2, v3, v3_encode
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
        """Key and frame of a read. `fence_key`: the master key, to fence the ledger first; `recovery`: with
        high priority."""

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
    """Protobuf, whose common cases need no message objects."""

    add_overhead = 96

    def add_encoder(self, ledger_id: int, master_key: bytes, *, recovery: bool = False) -> AddEncoder:
        flags = v3_encode.RECOVERY_ADD | v3_encode.HIGH_PRIORITY if recovery else 0

        def encode(txn_id: int, entry_id: int, entry: bytes) -> tuple[bytes, bytes]:
            pieces = v3_encode.add_request(txn_id, ledger_id, entry_id, master_key, entry, flags)
            return encode_varint(txn_id), b"".join(pieces)

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
        flags = v3_encode.HIGH_PRIORITY if recovery else 0
        if fence_key is not None:
            flags |= v3_encode.FENCE
        frame = v3_encode.read_request(txn_id, ledger_id, entry_id, flags, fence_key or b"")
        return encode_varint(txn_id), frame

    def acknowledged(self, data: bytes, start: int, end: int) -> bytes | None:
        # header{VERSION_THREE, ADD_ENTRY, txn}, status EOK, addResponse{status EOK, ...}
        if data[start + 2 : start + 7] != b"\x08\x03\x10\x02\x18":
            return None
        body = start + 2 + data[start + 1]
        if body + 7 > end or data[body : body + 4] != b"\x10\x00\xaa\x06" or data[body + 5 : body + 7] != b"\x08\x00":
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

    add_overhead = v2.ADD_ENTRY_OFFSET + v2.LENGTH.size
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
