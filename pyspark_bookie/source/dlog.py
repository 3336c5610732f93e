"""The log records in the entries of a DistributedLog log, as rows (`decode=dlog`).

A log is a sequence of log segments, each a ledger. Every entry is an envelope (big-endian):

    version u8 (1)  flags u32  size u32  stored u32  block

`stored` are the bytes of the block as it lies there, `size` those that it stands for; `flags & 3` is its compression: 0
none, 1 LZ4, a raw block without a frame. In segments whose metadata are of version 3 or older there is no envelope: the
entry begins with a record, whose first byte is 0. Uncompressed a block is records, one behind the other:

    metadata u64  transaction_id i64  length u32  payload

| bits of `metadata` | |
|---|---|
| 0 | control record: DistributedLog's own, written so that readers see what is in front of it |
| 1 | end of stream: the log was sealed |
| 2 | record set: the payload holds records of its own |
| 16 to 47 | position in the log segment: 1 for its first user record; 0 from a writer that does not count |

The payload of a record set:

    metadata u32  count u32  size u32  stored u32  block

`metadata & 0xf000` is its version (0x1000), `metadata & 3` the compression. The block is `count` times `length u32
payload`: records with the transaction id of the set, whose positions go on from that of the set.

Slots number the records of an entry from 0. A record set has as many as it has records; control records have one, too.
(log segment sequence number, entry id, slot id) is the DLSN of a record; the first of them is known to the metadata of
the log segment alone, and neither to its entries nor to its ledger.

Invariants
- All of an entry's records are returned, or none.
- Control records and the end of the stream are not returned, as readers of DistributedLog keep them from applications.
- What an entry takes in memory is bounded, whatever sizes it claims.

Pure; any thread. Source: the log record format of Apache DistributedLog.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bookie_protocol.compression import decompressed
from pyspark_bookie.common.errors import UndecodableEntry
from pyspark_bookie.source.planning import LedgerSnapshot

_ENVELOPE: Final = struct.Struct(">BIII")
_RECORD: Final = struct.Struct(">QqI")
_RECORD_SET: Final = struct.Struct(">IIII")
_LENGTH: Final = struct.Struct(">I")

_BARE, _ENVELOPED = 0, 1
_INTERNAL: Final = 0x1 | 0x2
_SET: Final = 0x4
_POSITION_SHIFT: Final = 16
_POSITION_MASK: Final = 0xFFFFFFFF
_SET_VERSION_MASK: Final = 0xF000
_SET_VERSION: Final = 0x1000
_COMPRESSION_MASK: Final = 0x3
_NONE, _LZ4 = 0, 1

MAX_BLOCK: Final = 4 * 1024 * 1024
"""Bytes of an uncompressed block; a greater size is damage. Writers stop at 1 MiB - 4 KiB."""
MAX_ENTRY: Final = 64 * 1024 * 1024
"""Bytes of an entry's records, all record sets uncompressed,"""
RECORD_BYTES: Final = 128
"""each counted with so many more."""


class LogRecord(NamedTuple):
    """A record that an application wrote."""

    transaction_id: int
    position: int
    slot_id: int
    value: bytes


def log_records(entry: bytes) -> list[LogRecord]:
    """Return the records of an entry; none if it has only DistributedLog's own. Raises `UndecodableEntry`."""
    found: list[LogRecord] = []
    left = MAX_ENTRY
    try:
        for slot_id, (metadata, transaction_id, position, value) in enumerate(_slots(_content(entry))):
            left -= len(value) + RECORD_BYTES
            if left < 0:
                raise ValueError(f"it holds more than {MAX_ENTRY} bytes of records")
            if not metadata & _INTERNAL:
                found.append(LogRecord(transaction_id, position, slot_id, value))
    except UndecodableEntry:
        raise
    except (ValueError, struct.error) as error:
        raise UndecodableEntry(f"it is not an entry of a DistributedLog log: {error}") from None
    return found


# --- inside -----------------------------------------------------------------------------------------------------


def _content(entry: bytes) -> bytes:
    """The records, out of their envelope."""
    version = entry[0] if entry else None
    if version == _BARE:
        return entry
    if version != _ENVELOPED:
        raise ValueError("it is empty" if version is None else f"its envelope has version {version}")
    _, flags, size, stored = _ENVELOPE.unpack_from(entry)
    return _block(entry[_ENVELOPE.size :], flags, size, stored)


def _slots(content: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Metadata, transaction id, position and payload of each slot."""
    at = 0
    while at < len(content):
        metadata, transaction_id, length = _RECORD.unpack_from(content, at)
        payload, at = _sized(content, at + _RECORD.size, length)
        position = metadata >> _POSITION_SHIFT & _POSITION_MASK
        if not metadata & _SET:
            yield metadata, transaction_id, position, payload
            continue
        for place, value in enumerate(_of_set(payload)):
            yield 0, transaction_id, position + place, value


def _of_set(payload: bytes) -> Iterator[bytes]:
    metadata, count, size, stored = _RECORD_SET.unpack_from(payload)
    if metadata & _SET_VERSION_MASK != _SET_VERSION:
        raise ValueError(f"a record set with the metadata {metadata:#x}")
    content = _block(payload[_RECORD_SET.size :], metadata, size, stored)
    at = 0
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(content, at)
        value, at = _sized(content, at + _LENGTH.size, length)
        yield value
    if at != len(content):
        raise ValueError(f"{len(content) - at} bytes behind the last record of a set")


def _block(block: bytes, flags: int, size: int, stored: int) -> bytes:
    """A block, uncompressed."""
    if len(block) != stored:
        raise ValueError(f"a block of {stored} bytes, where {len(block)} are left")
    compression = flags & _COMPRESSION_MASK
    if compression == _NONE:
        if size != stored:
            raise ValueError(f"{size} bytes, not compressed, in {stored}")
        return block
    if compression != _LZ4:
        raise UndecodableEntry(f"compression {compression} is not known")
    if size > MAX_BLOCK:
        raise ValueError(f"an uncompressed size of {size} bytes")
    return decompressed("lz4_raw", block, size)


def _sized(content: bytes, at: int, length: int) -> tuple[bytes, int]:
    end = at + length
    if end > len(content):
        raise ValueError(f"a record of {length} bytes, where {len(content) - at} are left")
    return content[at:end], end


class DlogDecoder:
    """`decode=dlog`. Columns: `pyspark_bookie.source.schema`."""

    def records(self, entry: bytes) -> Sequence[LogRecord]:
        """Raises `UndecodableEntry`."""
        return log_records(entry)

    def columns(self, record: LogRecord) -> Mapping[str, Any]:
        return record._asdict()

    def ledger_columns(self, ledger: LedgerSnapshot) -> Mapping[str, Any]:
        return {"stream": ledger.stream}
