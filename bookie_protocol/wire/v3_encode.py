"""Adds and reads of protocol version 3 encoded without message objects, for both sides.

Frames carry their length word. Frames with an entry come in pieces, so that the entry is not copied; the
caller joins or writes them in one go. Numbers that a server echoes are raw varints, as the hot decoders hand them
out.

Pure functions; any thread.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from bookie_protocol.errors import V3Status
from bookie_protocol.keys import NO_LIFE
from bookie_protocol.traffic_class import BATCH_CONTEXT
from bookie_protocol.wire.framing import LENGTH
from bookie_protocol.wire.varint import encode_varint

FENCE: Final = 0x1
"""Flag bit of a read: fence the ledger first. The value is that of the binary protocol's flag."""
RECOVERY_ADD: Final = 0x2
"""Flag bit of an add. The value is that of the binary protocol's flag."""
HIGH_PRIORITY: Final = 0x4
"""Flag bit of an add or read. The value is that of the binary protocol's flag."""
BATCH_CLASS: Final = 0x8
"""Flag bit of a read: the traffic class `batch`. The value is that of the binary protocol's flag."""
DEFERRED_SYNC: Final = 0x10000
"""Flag bit of an add: acknowledge before the sync. The binary protocol has no such flag."""

_PRIORITY_FIELD: Final = b"\x20\x64"
_RECOVERY_FIELD: Final = b"\xa0\x06\x01"
_FENCE_FIELD: Final = b"\xa0\x06\x01"
_DEFERRED_FIELD: Final = b"\x28\x01"


# --- server -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1000)
def add_response_parts(txn_width: int, ledger_width: int, entry_width: int) -> tuple[bytes, bytes]:
    """Return the fixed parts of a successful add's frame: before the transaction id, and between it and the ledger
    id. The byte 0x18 is between ledger id and entry id."""
    header = 5 + txn_width
    inner = 4 + ledger_width + entry_width
    size = 2 + header + 2 + 3 + inner
    part1 = LENGTH.pack(size) + bytes((0x0A, header)) + b"\x08\x03\x10\x02\x18"
    return part1, b"\x10\x00\xaa\x06" + bytes((inner,)) + b"\x08\x00\x10"


def read_response(txn: bytes, ledger: bytes, entry: bytes, body: bytes, max_lac: int | None = None) -> list[bytes]:
    """Return the frame of a successful read of the stored entry `body`, in pieces."""
    before, middle, body_head, tail = _read_response_parts(len(txn), len(ledger) + len(entry), len(body), max_lac)
    return [before, txn, middle, ledger, b"\x18", entry, body_head, body, tail]


@lru_cache(maxsize=1024)
def _read_response_parts(
    txn_size: int, ids_size: int, size: int, max_lac: int | None
) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the parts before the transaction id, between it and the ledger id, before the entry, and behind it."""
    body_length = encode_varint(size)
    tail = b"" if max_lac is None else b"\x28" + encode_varint(max_lac)
    inner = 5 + ids_size + len(body_length) + size + len(tail)
    inner_length = encode_varint(inner)
    header = 5 + txn_size
    before = LENGTH.pack(6 + header + len(inner_length) + inner) + bytes((0x0A, header)) + b"\x08\x03\x10\x01\x18"
    return before, b"\x10\x00\xa2\x06" + inner_length + b"\x08\x00\x10", b"\x22" + body_length, tail


def read_error(txn: bytes, ledger: bytes, entry: bytes, status: V3Status) -> bytes:
    """Return the frame of a read that failed."""
    code = encode_varint(status)
    inner = b"".join((b"\x08", code, b"\x10", ledger, b"\x18", entry))
    header = b"\x08\x03\x10\x01\x18" + txn
    body = b"".join((b"\x0a", bytes((len(header),)), header, b"\x10", code, b"\xa2\x06", bytes((len(inner),)), inner))
    return LENGTH.pack(len(body)) + body


# --- client -------------------------------------------------------------------------------------------------


def add_request_parts(
    ledger_id: int,
    master_key: bytes,
    size: int,
    txn_width: int,
    entry_width: int,
    flags: int = 0,
    life: bytes = NO_LIFE,
) -> tuple[bytes, bytes, bytes]:
    """Return the equal parts of the frames of all adds of one ledger whose entries have `size` bytes and whose two
    numbers have these widths.

    They are the parts before the transaction id, between it and the entry id, and between that and the entry. Flags:
    RECOVERY_ADD, HIGH_PRIORITY, DEFERRED_SYNC; `add_request_tail` follows the entry. `life` as in `keys`.
    """
    tail = add_request_tail(flags)
    priority = _PRIORITY_FIELD if flags & HIGH_PRIORITY else b""
    ledger = encode_varint(ledger_id)
    behind = b"".join((b"\x1a", encode_varint(len(master_key)), master_key, life, b"\x22", encode_varint(size)))
    inner = 2 + len(ledger) + entry_width + len(behind) + size + len(tail)
    inner_length = encode_varint(inner)
    header = 5 + txn_width + len(priority)
    length = LENGTH.pack(4 + header + len(inner_length) + inner)
    before = b"".join((length, bytes((0x0A, header)), b"\x08\x03\x10\x02\x18"))
    return before, b"".join((priority, b"\xaa\x06", inner_length, b"\x08", ledger, b"\x10")), behind


def add_request_tail(flags: int) -> bytes:
    """Return the bytes behind the entry in the frame of an add with these flags."""
    tail = _DEFERRED_FIELD if flags & DEFERRED_SYNC else b""
    return tail + _RECOVERY_FIELD if flags & RECOVERY_ADD else tail


def read_request(
    txn_id: int, ledger_id: int, entry_id: int, flags: int = 0, master_key: bytes = b"", life: bytes = NO_LIFE
) -> bytes:
    """The frame of a read. Flags: FENCE (with `master_key`, and `life` as copies name it), HIGH_PRIORITY, BATCH_CLASS.
    Long polls go through `v3`.
    """
    inner = _request_ids(ledger_id, entry_id)
    if flags & FENCE:
        inner = b"".join((inner, b"\x1a", encode_varint(len(master_key)), master_key, _FENCE_FIELD, life))
    header = _request_header(b"\x08\x03\x10\x01\x18", txn_id, flags)
    inner_length = encode_varint(len(inner))
    context = BATCH_CONTEXT if flags & BATCH_CLASS else b""
    length = LENGTH.pack(len(header) + 2 + len(inner_length) + len(inner) + len(context))
    return b"".join((length, header, b"\xa2\x06", inner_length, inner, context))


def _request_header(start: bytes, txn_id: int, flags: int) -> bytes:
    header = start + encode_varint(txn_id)
    if flags & HIGH_PRIORITY:
        header += _PRIORITY_FIELD
    return bytes((0x0A, len(header))) + header


def _request_ids(ledger_id: int, entry_id: int) -> bytes:
    return b"".join((b"\x08", encode_varint(ledger_id), b"\x10", encode_varint(entry_id)))
