"""Digests of entries and LAC packets: one manager per digest type.

The digest covers the 32 header bytes followed by the payload (for a LAC packet: its 16 header bytes); the
digest field itself is left out (reference wire protocol, section 7.2). Field by type, big-endian:

    CRC32   8 bytes   i64 whose low 32 bits are the zlib CRC-32
    MAC    20 bytes   HMAC-SHA1, keyed with the MAC key of the ledger's password
    CRC32C  4 bytes   CRC-32C (Castagnoli)
    DUMMY   0 bytes   nothing is verified

Invariants
- `encode` copies the payload once, `verify` copies it once.
- `verify` returns a payload only when length, digest, ledger id and entry id are all right; anything else is
  DigestMismatch, which a reader answers by asking another replica.

Managers hold no changing state: any thread may share one.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from abc import ABC, abstractmethod
from enum import IntEnum
from typing import ClassVar, Final

import google_crc32c

from bookie_protocol.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE, ENTRY_IDS, LAC_PACKET_HEADER_SIZE
from bookie_protocol.errors import BadRequest, DigestMismatch
from bookie_protocol.keys import mac_key

Buffer = bytes | bytearray | memoryview


def as_bytes(payload: Buffer) -> bytes:
    """Return the payload as it is now, and immutable. Raises `TypeError` for what is not bytes."""
    if type(payload) is bytes:
        return payload
    try:
        return bytes(memoryview(payload))
    except TypeError:
        given: object = payload
        remedy = ": use .encode()" if isinstance(given, str) else ""
        raise TypeError(f"an entry is bytes, not {type(given).__name__}{remedy}") from None


_pack_crc32c: Final = struct.Struct(">I").pack
_crc32c: Final = google_crc32c.value
_extend: Final = google_crc32c.extend


class DigestType(IntEnum):
    """Names of the client API; numbers of `LedgerMetadataFormat.DigestType` (where MAC is called HMAC)."""

    CRC32 = 1
    MAC = 2
    CRC32C = 3
    DUMMY = 4

    @property
    def metadata_name(self) -> str:
        """Return the name that ledger metadata use."""
        return "HMAC" if self is DigestType.MAC else self.name

    @classmethod
    def parse(cls, name: str) -> DigestType:
        """Parse an API name or a metadata name, in any case; raises BadRequest for another word."""
        upper = name.strip().upper()
        try:
            return cls["MAC" if upper == "HMAC" else upper]
        except KeyError:
            raise BadRequest(f"unknown digest type {name!r}: use CRC32, CRC32C, MAC (HMAC) or DUMMY") from None


class DigestManager(ABC):
    """Builds and verifies entries and LAC packets of one digest type."""

    type: ClassVar[DigestType]
    size: ClassVar[int]
    """Bytes of the digest field."""

    @abstractmethod
    def digest(self, header: bytes, payload: bytes) -> bytes:
        """Return the digest field for `header` followed by `payload`."""

    @property
    def overhead(self) -> int:
        """Bytes that an entry has beyond its payload."""
        return ENTRY_HEADER_SIZE + self.size

    def encode(self, ledger_id: int, entry_id: int, lac: int, length: int, payload: Buffer) -> bytes:
        """Return the whole entry as it is sent and stored. `length` counts the ledger's payload bytes up to and
        including this entry."""
        body = bytes(payload)
        return self.front(ledger_id, entry_id, lac, length, body) + body

    def front(self, ledger_id: int, entry_id: int, lac: int, length: int, payload: bytes) -> bytes:
        """Return the bytes before the payload: header and digest."""
        header = ENTRY_HEADER.pack(ledger_id, entry_id, lac, length)
        return header + self.digest(header, payload)

    def verify(self, entry: Buffer, ledger_id: int, entry_id: int | None) -> bytes:
        """Return the payload of `entry`, if it is entry `entry_id` of `ledger_id` and undamaged.

        `entry_id` None accepts any entry id (a read of the last entry). Raises DigestMismatch naming
        ledger, entry and what differs.
        """
        start = ENTRY_HEADER_SIZE + self.size
        if len(entry) < start:
            raise _mismatch(ledger_id, entry_id, f"{len(entry)} bytes are fewer than the {start} of header and digest")
        header = bytes(entry[:ENTRY_HEADER_SIZE])
        payload = bytes(entry[start:])
        found = bytes(entry[ENTRY_HEADER_SIZE:start])
        self._compare(header, payload, found, ledger_id, entry_id)
        found_ledger, found_entry = ENTRY_IDS.unpack_from(header)
        if found_ledger != ledger_id:
            raise _mismatch(ledger_id, entry_id, f"the bytes belong to ledger {found_ledger}")
        if entry_id is not None and found_entry != entry_id:
            raise _mismatch(ledger_id, entry_id, f"the bytes belong to entry {found_entry}")
        return payload

    def encode_lac(self, ledger_id: int, lac: int) -> bytes:
        """The LAC packet that WRITE_LAC carries."""
        header = ENTRY_IDS.pack(ledger_id, lac)
        return header + self.digest(header, b"")

    def verify_lac(self, packet: Buffer, ledger_id: int) -> int:
        """The LAC of a packet, if the packet is `ledger_id`'s and undamaged; DigestMismatch otherwise."""
        size = LAC_PACKET_HEADER_SIZE + self.size
        if len(packet) < size:
            raise _mismatch(ledger_id, None, f"a LAC packet of {len(packet)} bytes is shorter than {size}")
        header = bytes(packet[:LAC_PACKET_HEADER_SIZE])
        self._compare(header, b"", bytes(packet[LAC_PACKET_HEADER_SIZE:size]), ledger_id, None)
        found_ledger, lac = ENTRY_IDS.unpack(header)
        if found_ledger != ledger_id:
            raise _mismatch(ledger_id, None, f"the LAC packet belongs to ledger {found_ledger}")
        return int(lac)

    def _compare(self, header: bytes, payload: bytes, found: bytes, ledger_id: int, entry_id: int | None) -> None:
        expected = self.digest(header, payload)
        if found != expected:
            raise _mismatch(
                ledger_id,
                entry_id,
                f"{self.type.name} digest is {found.hex()}, the bytes give {expected.hex()}",
            )


class Crc32Digest(DigestManager):
    """CRC-32 of zlib in an i64."""

    type = DigestType.CRC32
    size = 8
    _field: Final = struct.Struct(">q")

    def digest(self, header: bytes, payload: bytes) -> bytes:
        return self._field.pack(zlib.crc32(payload, zlib.crc32(header)))


class Crc32cDigest(DigestManager):
    """CRC-32C, in hardware where the machine has it."""

    type = DigestType.CRC32C
    size = 4

    def digest(self, header: bytes, payload: bytes) -> bytes:
        return _pack_crc32c(_extend(_crc32c(header), payload))


class MacDigest(DigestManager):
    """HMAC-SHA1 with the ledger's MAC key."""

    type = DigestType.MAC
    size = 20

    def __init__(self, password: bytes) -> None:
        self._keyed = hmac.new(mac_key(password), digestmod=hashlib.sha1)

    def digest(self, header: bytes, payload: bytes) -> bytes:
        # A copy of the keyed state saves the two key blocks of every entry.
        mac = self._keyed.copy()
        mac.update(header)
        mac.update(payload)
        return mac.digest()

    def _compare(self, header: bytes, payload: bytes, found: bytes, ledger_id: int, entry_id: int | None) -> None:
        # In constant time, and the right MAC of forged bytes never appears in a message.
        if not hmac.compare_digest(found, self.digest(header, payload)):
            raise _mismatch(ledger_id, entry_id, "MAC digest differs: damaged bytes or another password")


class DummyDigest(DigestManager):
    """A digest of no bytes; header and ids are still checked."""

    type = DigestType.DUMMY
    size = 0

    def digest(self, header: bytes, payload: bytes) -> bytes:
        return b""


def digest_manager(digest_type: DigestType, password: bytes) -> DigestManager:
    """Return the manager for a ledger of this digest type and password (only MAC uses the password)."""
    if digest_type is DigestType.MAC:
        return MacDigest(password)
    return _UNKEYED[digest_type]


_UNKEYED: Final[dict[DigestType, DigestManager]] = {
    manager.type: manager for manager in (Crc32Digest(), Crc32cDigest(), DummyDigest())
}


def _mismatch(ledger_id: int, entry_id: int | None, what: str) -> DigestMismatch:
    entry = "last entry" if entry_id is None else f"entry {entry_id}"
    return DigestMismatch(f"{entry} of ledger {ledger_id}: {what}")
