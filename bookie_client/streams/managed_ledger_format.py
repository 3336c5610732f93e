"""What Pulsar stores of a managed ledger: protobuf messages, plain or compressed.

Compressed: the bytes 0x47 0x78, a length of 4 bytes (big-endian), so many bytes of protobuf {`compressionType` 1,
`uncompressedSize` 2}, then the compressed message. LZ4 and Snappy are raw blocks.

| message | fields that are read |
|---|---|
| `ManagedLedgerInfo` | `ledgerInfo` 1, `terminatedPosition` 2 {as `PositionInfo`}, `properties` 3 {key 1, value 2} |
| `LedgerInfo` | `ledgerId` 1, `entries` 2, `size` 3, `timestamp` 4, `offloadContext` 5 |
| `OffloadContext` | `uidMsb` 1, `uidLsb` 2, `complete` 3, `bookkeeperDeleted` 4 |
| `ManagedCursorInfo` | `cursorsLedgerId` 1, `markDeleteLedgerId` 2, `markDeleteEntryId` 3 |
| `PositionInfo` (last entry of a cursor's ledger) | `ledgerId` 1, `entryId` 2 |

Pure; any thread.

Source: reference metadata layout, section 15; reference client protocol, section 25, item 5.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final
from uuid import UUID

from bookie_client.streams.model import StreamPosition
from bookie_protocol.compression import decompressed
from bookie_protocol.errors import MetadataDamaged
from bookie_protocol.wire.varint import decode_uint64, varint_size

_MAGIC: Final = b"\x47\x78"
_LENGTH: Final = struct.Struct(">I")
assert _LENGTH.size == 4
MAX_UNCOMPRESSED: Final = 256 * 1024 * 1024
"""Bytes; a greater size in the header is damage."""


class Compression(IntEnum):
    """`compressionType`."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


@dataclass(frozen=True, slots=True)
class OffloadedLedger:
    """A ledger that Pulsar puts, or has put, into tiered storage."""

    ledger_id: int
    uuid: str
    is_complete: bool
    is_deleted: bool
    """No longer in BookKeeper: it cannot be read from here."""


@dataclass(frozen=True, slots=True)
class ListedLedger:
    """`LedgerInfo`; entries, bytes and time are 0 of a ledger that is being written."""

    ledger_id: int
    entries: int
    nbytes: int
    closed_ms: int
    offloaded: OffloadedLedger | None


@dataclass(frozen=True, slots=True)
class StoredManagedLedger:
    """`ManagedLedgerInfo`."""

    ledgers: tuple[ListedLedger, ...]
    terminated: StreamPosition | None
    """Behind the last entry."""
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StoredCursor:
    """`ManagedCursorInfo`. `position`: behind the last entry marked deleted, as far as the node tells."""

    cursors_ledger_id: int
    """Where the position is; -1: in the node itself."""
    position: StreamPosition


def decode_managed_ledger(name: str, data: bytes) -> StoredManagedLedger:
    """Raises `MetadataDamaged`."""
    message = _Message(f"managed ledger {name}", uncompressed(f"managed ledger {name}", data))
    properties = {each.text(1): each.text(2) for each in message.messages(3)}
    terminated = [_behind(each) for each in message.messages(2)]
    return StoredManagedLedger(
        tuple(_listed(each) for each in message.messages(1)), terminated[-1] if terminated else None, properties
    )


def decode_cursor(name: str, data: bytes) -> StoredCursor:
    """Raises `MetadataDamaged`."""
    message = _Message(f"cursor {name}", uncompressed(f"cursor {name}", data))
    position = StreamPosition(message.integer(2, -1), message.integer(3, -1) + 1)
    return StoredCursor(message.integer(1, -1), position)


def decode_position(name: str, data: bytes) -> StreamPosition:
    """Behind the last entry marked deleted, from an entry of a cursor's ledger. Raises `MetadataDamaged`."""
    return _behind(_Message(f"cursor {name}", uncompressed(f"cursor {name}", data)))


def uncompressed(what: str, data: bytes) -> bytes:
    """The message itself. Raises `MetadataDamaged`, also when pyarrow is needed and not installed."""
    if not data.startswith(_MAGIC):
        return data
    try:
        (length,) = _LENGTH.unpack_from(data, len(_MAGIC))
        start = len(_MAGIC) + _LENGTH.size
        header = _Message(what, data[start : start + length])
        compression = Compression(header.integer(1))
        size = header.integer(2)
        if not 0 <= size <= MAX_UNCOMPRESSED:
            raise ValueError(f"an uncompressed size of {size} bytes")
        plain = _decompress(what, compression, data[start + length :], size)
        if len(plain) != size:
            raise ValueError(f"{len(plain)} bytes instead of {size}")
    except (ValueError, OSError, struct.error, zlib.error) as error:
        raise MetadataDamaged(f"{what}: its compressed metadata cannot be read: {error}") from error
    return plain


def _decompress(what: str, compression: Compression, data: bytes, size: int) -> bytes:
    if compression is Compression.NONE:
        return data
    if compression is Compression.ZLIB:
        return zlib.decompressobj().decompress(data, size + 1)
    codec = "lz4_raw" if compression is Compression.LZ4 else compression.name.lower()
    try:
        return decompressed(codec, data, size)
    except ImportError as error:
        raise MetadataDamaged(
            f"{what}: its metadata are compressed with {compression.name}, and reading that needs pyarrow: install"
            " podkeeper[spark]"
        ) from error


def _listed(message: _Message) -> ListedLedger:
    ledger_id = message.integer(1)
    contexts = message.messages(5)
    offloaded = _offloaded(ledger_id, contexts[-1]) if contexts else None
    return ListedLedger(ledger_id, message.integer(2), message.integer(3), message.integer(4), offloaded)


def _offloaded(ledger_id: int, context: _Message) -> OffloadedLedger:
    bits = 1 << 64
    uuid = UUID(int=(context.integer(1) % bits) * bits + context.integer(2) % bits)
    return OffloadedLedger(ledger_id, str(uuid), bool(context.integer(3)), bool(context.integer(4)))


def _behind(message: _Message) -> StreamPosition:
    return StreamPosition(message.integer(1), message.integer(2) + 1)


class _Message:
    """The fields of a protobuf message by number, each as often as it comes: integers, and bytes."""

    def __init__(self, what: str, data: bytes) -> None:
        self._what = what
        self._integers: dict[int, int] = {}
        self._bytes: dict[int, list[bytes]] = {}
        at = 0
        while at < len(data):
            tag, at = self._varint(data, at)
            number, wire_type = tag >> 3, tag & 7
            if wire_type == 0:
                self._integers[number], at = self._varint(data, at)
            elif wire_type == 2:
                length, at = self._varint(data, at)
                self._bytes.setdefault(number, []).append(self._take(data, at, length))
                at += length
            elif wire_type in (1, 5):
                size = 8 if wire_type == 1 else 4
                self._take(data, at, size)
                at += size
            else:
                raise self._damaged(f"wire type {wire_type}")

    def integer(self, number: int, default: int = 0) -> int:
        """An int64."""
        value = self._integers.get(number, default)
        return value - (1 << 64) if value >= 1 << 63 else value

    def text(self, number: int) -> str:
        return self._bytes.get(number, [b""])[-1].decode(errors="replace")

    def messages(self, number: int) -> list[_Message]:
        return [_Message(self._what, each) for each in self._bytes.get(number, [])]

    def _take(self, data: bytes, at: int, length: int) -> bytes:
        if at + length > len(data):
            raise self._damaged("it ends within a field")
        return data[at : at + length]

    def _varint(self, data: bytes, at: int) -> tuple[int, int]:
        size = varint_size(data, at)
        if not size:
            raise self._damaged("a number that does not end")
        return decode_uint64(data[at : at + size]), at + size

    def _damaged(self, why: str) -> MetadataDamaged:
        return MetadataDamaged(f"{self._what}: its metadata cannot be read: {why}")
