"""Protocol version 2 (binary) as the client speaks it: adds, reads, batch reads, authentication.

It has no transaction ids: two adds, or two reads, of the same entry share a key, and either's answer may end
either. That is harmless for requests that ask for the same thing; `operations` keeps fencing reads apart from
plain ones.

Pure; any thread.

Source: docs/internals/wire-protocol.md, sections 3 and 12.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from bookie_client.connection.dialect import AddEncoder, Dialect, KeyAndFrame
from bookie_client.connection.request import Answer, SplitAdd, error_for
from bookie_protocol.digest import DigestManager
from bookie_protocol.entry import ENTRY_HEADER, ENTRY_IDS
from bookie_protocol.keys import NO_LIFE
from bookie_protocol.versioned import LedgerLife
from bookie_protocol.wire import v2
from bookie_protocol.wire.auth import AuthMessage
from bookie_protocol.wire.framing import LENGTH
from bookie_protocol.wire.v2 import ADD_ENTRY_OFFSET, CURRENT_VERSION, Flag, OpCode, header_word

_pack_header: Final = ENTRY_HEADER.pack
_REQUEST_ID: Final = struct.Struct(">q")


@lru_cache(maxsize=64)
def _word(opcode: OpCode, version: int = CURRENT_VERSION) -> bytes:
    return LENGTH.pack(header_word(version, opcode))


def _read_flags(recovery: bool, batch_class: bool) -> Flag:
    if recovery:
        return Flag.HIGH_PRIORITY
    return Flag.BATCH_CLASS if batch_class else Flag.NONE


_ADDED: Final = _word(OpCode.ADDENTRY) + LENGTH.pack(0)
_ADDED_START: Final = LENGTH.pack(len(_ADDED) + ENTRY_IDS.size) + _ADDED
_ADDED_FRAME: Final = re.compile(re.escape(_ADDED_START) + b"(.{16})", re.DOTALL)

assert ENTRY_IDS.size == 16


class V2AddEncoder:
    """The adds of one ledger; their key is the two ids."""

    tail: Final = b""

    def __init__(self, ledger_id: int, master_key: bytes, flags: int) -> None:
        self._ledger_id = ledger_id
        self._master_key = master_key
        self._flags = flags

    def __call__(self, txn_id: int, entry_id: int, front: bytes, rest: bytes = b"", /) -> KeyAndFrame:
        head = v2.add_request_head(self._master_key, len(front) + len(rest), self._flags)
        return ENTRY_IDS.pack(self._ledger_id, entry_id), b"".join((head, front, rest))

    def make_heads(self, adds: Sequence[SplitAdd], lac: int, digest: DigestManager, txn_ids: Iterator[int], /) -> None:
        ledger_id, overhead, last, before = self._ledger_id, digest.overhead, -1, b""
        for add in adds:
            body = add.body
            size = len(body)
            if size != last:
                last = size
                before = v2.add_request_head(self._master_key, overhead + size, self._flags)
            header = _pack_header(ledger_id, add.entry_id, lac, add.length)
            add.key = header[: ENTRY_IDS.size]
            add.head = b"".join((before, header, digest.digest(header, body)))


class V2Dialect(Dialect):
    """See the module."""

    version = 2
    add_overhead = ADD_ENTRY_OFFSET + LENGTH.size

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
        if deferred_sync:
            raise self._cannot("add with deferred sync", 3)
        flags = Flag.RECOVERY_ADD if recovery or background or restored else Flag.NONE
        if recovery:
            flags |= Flag.HIGH_PRIORITY
        return V2AddEncoder(ledger.ledger_id, master_key, flags)

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
        flags = _read_flags(recovery, batch_class)
        if fence_key is not None:
            flags |= Flag.DO_FENCING
        frame = v2.encode_read_request(ledger_id, entry_id, flags, fence_key or b"")
        return _word(OpCode.READENTRY) + ENTRY_IDS.pack(ledger_id, entry_id), frame

    def batch_read(
        self,
        txn_id: int,
        ledger_id: int,
        first_entry_id: int,
        max_count: int,
        max_bytes: int,
        *,
        recovery: bool,
        batch_class: bool = False,
        step: int = 1,
    ) -> KeyAndFrame:
        flags = _read_flags(recovery, batch_class)
        frame = v2.encode_batch_read_request(ledger_id, first_entry_id, txn_id, max_count, max_bytes, flags, step=step)
        return _word(OpCode.BATCH_READ_ENTRY) + _REQUEST_ID.pack(txn_id), frame

    def auth(self, txn_id: int, message: AuthMessage) -> KeyAndFrame:
        return _word(OpCode.AUTH), v2.encode_auth(message)

    def acknowledged_run(self, data: bytes) -> tuple[Sequence[bytes], int] | None:
        if not data.startswith(_ADDED_START):
            return None
        parts = _ADDED_FRAME.split(data)
        rest = parts.pop()
        return None if not parts or any(parts[::2]) else (parts[1::2], len(data) - len(rest))

    def acknowledged(self, data: bytes, start: int, end: int) -> bytes | None:
        if data[start : start + 8] != _ADDED:
            return None
        return data[start + 8 : end]

    def decode(self, body: bytes) -> Answer:
        response = v2.decode_response(body)
        if isinstance(response, v2.AuthFrame):
            return Answer(_word(OpCode.AUTH, response.version), None, detail=response.message)
        if isinstance(response, v2.BatchReadResponse):
            key = _word(OpCode.BATCH_READ_ENTRY, response.version) + _REQUEST_ID.pack(response.request_id)
            return Answer(key, error_for(response.code), detail=response.entries)
        key = ENTRY_IDS.pack(response.ledger_id, response.entry_id)
        if response.opcode != OpCode.ADDENTRY:
            key = _word(response.opcode, response.version) + key
        error = error_for(response.code)
        return Answer(key, error, response.entry if error is None else b"")
