"""Protocol version 2 (binary) as the client speaks it: adds, reads, batch reads, authentication.

It has no transaction ids: two adds, or two reads, of the same entry share a key, and either's answer may end
either. That is harmless for requests that ask for the same thing; `operations` keeps fencing reads apart from
plain ones.

Pure; any thread.

Source: reference wire protocol, sections 3 and 12.
"""

from __future__ import annotations

import struct
from typing import Final

from bookie_client.connection.dialect import AddEncoder, Dialect, KeyAndFrame
from bookie_client.connection.request import Answer, error_for
from bookie_protocol.entry import ENTRY_IDS
from bookie_protocol.wire import v2
from bookie_protocol.wire.auth import AuthMessage
from bookie_protocol.wire.framing import LENGTH

_REQUEST_ID: Final = struct.Struct(">q")


def _word(opcode: v2.OpCode, version: int = v2.CURRENT_VERSION) -> bytes:
    return LENGTH.pack(v2.header_word(version, opcode))


class V2Dialect(Dialect):
    """See the module."""

    version = 2
    add_overhead = v2.ADD_ENTRY_OFFSET + v2.LENGTH.size
    _ADDED: Final = _word(v2.OpCode.ADDENTRY) + LENGTH.pack(0)

    def add_encoder(
        self,
        ledger_id: int,
        master_key: bytes,
        *,
        recovery: bool = False,
        background: bool = False,
        deferred_sync: bool = False,
    ) -> AddEncoder:
        if deferred_sync:
            raise self._cannot("add with deferred sync", 3)
        flags = v2.Flag.RECOVERY_ADD if recovery or background else v2.Flag.NONE
        if recovery:
            flags |= v2.Flag.HIGH_PRIORITY
        word = _word(v2.OpCode.ADDENTRY)

        def encode(txn_id: int, entry_id: int, front: bytes, rest: bytes = b"", /) -> KeyAndFrame:
            head = v2.add_request_head(master_key, len(front) + len(rest), flags)
            return word + ENTRY_IDS.pack(ledger_id, entry_id), b"".join((head, front, rest))

        return encode

    def read(
        self,
        txn_id: int,
        ledger_id: int,
        entry_id: int,
        *,
        fence_key: bytes | None = None,
        recovery: bool = False,
    ) -> KeyAndFrame:
        flags = v2.Flag.HIGH_PRIORITY if recovery else v2.Flag.NONE
        if fence_key is not None:
            flags |= v2.Flag.DO_FENCING
        frame = v2.encode_read_request(ledger_id, entry_id, flags, fence_key or b"")
        return _word(v2.OpCode.READENTRY) + ENTRY_IDS.pack(ledger_id, entry_id), frame

    def batch_read(
        self, txn_id: int, ledger_id: int, first_entry_id: int, max_count: int, max_bytes: int, *, recovery: bool
    ) -> KeyAndFrame:
        flags = v2.Flag.HIGH_PRIORITY if recovery else v2.Flag.NONE
        frame = v2.encode_batch_read_request(ledger_id, first_entry_id, txn_id, max_count, max_bytes, flags)
        return _word(v2.OpCode.BATCH_READ_ENTRY) + _REQUEST_ID.pack(txn_id), frame

    def auth(self, txn_id: int, message: AuthMessage) -> KeyAndFrame:
        return _word(v2.OpCode.AUTH), v2.encode_auth(message)

    def acknowledged(self, data: bytes, start: int, end: int) -> bytes | None:
        if data[start : start + 8] != self._ADDED:
            return None
        return data[start : start + 4] + data[start + 8 : end]

    def decode(self, body: bytes) -> Answer:
        response = v2.decode_response(body)
        if isinstance(response, v2.AuthFrame):
            return Answer(_word(v2.OpCode.AUTH, response.version), None, detail=response.message)
        if isinstance(response, v2.BatchReadResponse):
            key = _word(v2.OpCode.BATCH_READ_ENTRY, response.version) + _REQUEST_ID.pack(response.request_id)
            return Answer(key, error_for(response.code), detail=response.entries)
        key = _word(response.opcode, response.version) + ENTRY_IDS.pack(response.ledger_id, response.entry_id)
        error = error_for(response.code)
        return Answer(key, error, response.entry if error is None else b"")
