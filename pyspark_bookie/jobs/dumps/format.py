"""The bytes of a dump: one ledger, with its entry ids, in one stream.

    b"PKLEDGER", version 1 (2 bytes), length of the header (4), its CRC32C (4), the header
    for each entry: entry id (8), length of the payload (4), CRC32C of the payload (4), the payload
    end: entry id -1 (8), 0 (4), 0 (4), entries (8), payload bytes (8), `Counts.payload_crc` (4), `lengths_crc` (4)

All numbers big-endian. The header is JSON: {"ledger_id": 7, "entries": 9, "bytes": 50, "ledger": {...}}, where `ledger`
is that of an archive's manifest. Entry ids begin at 0 and have no gaps. There is no password in it.

Invariants
- A dump without its end was not written to its end. Whatever is changed in one is found when it is read.

Pure but for the streams that are given; any thread.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import google_crc32c

from bookie_protocol.archive import Counts
from bookie_protocol.errors import EntryDamaged
from pyspark_bookie.archive.checksum import Counter
from pyspark_bookie.archive.manifest import LedgerShape

_MAGIC: Final = b"PKLEDGER"
_VERSION: Final = 1
_START: Final = struct.Struct(">8sHII")
_ENTRY: Final = struct.Struct(">qII")
_END: Final = struct.Struct(">qqII")
_MAX_HEADER: Final = 16 * 1024 * 1024
_END_ID: Final = -1
_BATCH_BYTES: Final = 1024 * 1024
_BATCH_ENTRIES: Final = 1000

assert (_START.size, _ENTRY.size, _END.size) == (18, 16, 24)


class Readable(Protocol):
    """A stream that `read` takes from; it gives less than asked for at its end only."""

    def read(self, nbytes: int, /) -> bytes: ...


class Writable(Protocol):
    """A stream that takes all of what is written."""

    def write(self, data: bytes, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class DumpHeader:
    """What stands at the beginning."""

    ledger_id: int
    entries: int
    nbytes: int
    shape: LedgerShape


def write_dump(stream: Writable, header: DumpHeader, batches: Iterable[list[bytes]]) -> Counts:
    """Write a whole dump. Raises `EntryDamaged` when the payloads are not as many as the header says."""
    row = {
        "ledger_id": header.ledger_id,
        "entries": header.entries,
        "bytes": header.nbytes,
        "ledger": header.shape.as_json(),
    }
    text = json.dumps(row).encode()
    stream.write(_START.pack(_MAGIC, _VERSION, len(text), google_crc32c.value(text)) + text)
    counter = Counter()
    for payloads in batches:
        first = counter.entries
        counter.add(payloads)
        pieces: list[bytes] = []
        for entry_id, payload in enumerate(payloads, first):
            pieces += (_ENTRY.pack(entry_id, len(payload), google_crc32c.value(payload)), payload)
        stream.write(b"".join(pieces))
    counts = counter.counts()
    if (counts.entries, counts.nbytes) != (header.entries, header.nbytes):
        raise EntryDamaged(f"ledger {header.ledger_id} gave {counts.entries} entries instead of {header.entries}")
    stream.write(_ENTRY.pack(_END_ID, 0, 0))
    stream.write(_END.pack(counts.entries, counts.nbytes, counts.payload_crc, counts.lengths_crc))
    return counts


def read_header(stream: Readable, name: str) -> DumpHeader:
    """The header. Raises `EntryDamaged`, naming the file."""
    magic, version, length, crc = _START.unpack(_exactly(stream, _START.size, name))
    if magic != _MAGIC or version != _VERSION or length > _MAX_HEADER:
        raise EntryDamaged(f"{name} is not a dump of a ledger, or of a version that is not known here")
    text = _exactly(stream, length, name)
    if google_crc32c.value(text) != crc:
        raise EntryDamaged(f"{name}: its header is damaged")
    try:
        row = json.loads(text)
        return DumpHeader(
            int(row["ledger_id"]), int(row["entries"]), int(row["bytes"]), LedgerShape.from_json(row["ledger"])
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise EntryDamaged(f"{name}: its header cannot be read: {error!r}") from error


def read_payloads(stream: Readable, header: DumpHeader, name: str) -> Iterator[list[bytes]]:
    """The payloads behind the header, in order. Raises `EntryDamaged` for whatever is not as it was written; the dump
    is known to be whole when the iterator has ended."""
    counter = Counter()
    waiting: list[bytes] = []
    nbytes = 0
    while True:
        entry_id, length, crc = _ENTRY.unpack(_exactly(stream, _ENTRY.size, name))
        if (entry_id, length, crc) == (_END_ID, 0, 0):
            break
        if entry_id != counter.entries + len(waiting) or length > header.nbytes:
            raise EntryDamaged(f"{name}: entry {entry_id} in place of {counter.entries + len(waiting)}")
        payload = _exactly(stream, length, name)
        if google_crc32c.value(payload) != crc:
            raise EntryDamaged(f"{name}: entry {entry_id} is damaged")
        waiting.append(payload)
        nbytes += length
        if nbytes >= _BATCH_BYTES or len(waiting) >= _BATCH_ENTRIES:
            counter.add(waiting)
            yield waiting
            waiting, nbytes = [], 0
    if waiting:
        counter.add(waiting)
        yield waiting
    counts = counter.counts()
    if Counts(*_END.unpack(_exactly(stream, _END.size, name))) != counts or stream.read(1):
        raise EntryDamaged(f"{name}: its end does not fit its entries")
    if (counts.entries, counts.nbytes) != (header.entries, header.nbytes):
        raise EntryDamaged(f"{name}: {counts.entries} entries instead of {header.entries}")


def _exactly(stream: Readable, nbytes: int, name: str) -> bytes:
    data = bytes(stream.read(nbytes))
    if len(data) != nbytes:
        raise EntryDamaged(f"{name} ends in the middle: it was not written to its end, or was cut")
    return data
