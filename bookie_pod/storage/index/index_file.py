"""The index file of one ledger, `<id>.idx`, of InterleavedLedgerStorage and SortedLedgerStorage.

Path below an index directory: `<a>/<b>/<id>.idx`, all in lower-case hex without padding; a = bits 8 to 15 of the id,
b = bits 0 to 7. `<id>.idx.rloc` is the copy of a move that did not finish.

Header, the first 1024 bytes, written whole and zero-padded (big-endian):

    0     4  "BKLE"
    4     4  version i32: 0, or 1 = current
    8     4  length L of the master key, i32, not negative
    12    L  master key
    12+L  4  state bits i32: 1 = fenced; ours, since the reference keeps bits that it does not know: 2 = limbo, 4 = in
             limbo and surely not fenced (in limbo without it is fenced), 16 = something that names no life came
             under the life
    16+L  4  version 1 only: length of the explicit LAC packet i32, 0 = none, else at least 16
    20+L     version 1 only: the packet
    484   8  ours, with the check: the creation token u64 of the life that copies of the ledger named, and its writer
             has not (`bookie_protocol.keys`), 0 = none
    492   8  likewise that which its writer named
    500   4  ours, with the check: the first log that may hold entries of this life of the ledger, u32, 0 = any
    504   8  ours, where the fields leave room for it: "PKHC", and CRC32C of the 504 bytes before, u32. In the sector of
             what it covers, so that a crash leaves both or neither. The reference writes zeros there, and never looks

Slots: entry e at 1024 + 8 * e, i64 location, 0 = absent. Pages of slots are written whole, so a file ends at the end of
a page; what lies behind its end reads as absent.

Invariants
- A file keeps the version that it has. Version 0 has no room for an explicit LAC.
- An explicit LAC that does not fit into 1024 bytes is left out: it is only a lower bound of the LAC. So is a life for
  which key and explicit LAC leave no room, which those of real clients do: the bookie asks for it again.

Pure functions; any thread.

Source: docs/internals/on-disk-formats.md, section 9.
"""

from __future__ import annotations

import struct
from typing import Final

import google_crc32c

from bookie_pod.storage.index.ledger_data import MAX_EXPLICIT_LAC_BYTES, MAX_KEY_BYTES, LedgerRecord
from bookie_protocol.errors import StorageFault
from bookie_protocol.keys import (
    creation_token_of,
    has_unnamed,
    is_named_by_copies,
    life_of,
    life_of_copies,
    with_unnamed,
)

HEADER_BYTES: Final = 1024
MAGIC: Final = b"BKLE"
CURRENT_VERSION: Final = 1
SLOT_BYTES: Final = 8
MAX_ENTRY_ID: Final = (1 << 40) - 1
"""Entries above it have no slot: their file would be longer than most file systems allow (8 TiB here)."""
SUFFIX: Final = ".idx"
MOVING_SUFFIX: Final = ".idx.rloc"

_FENCED: Final = 0x1
_LIMBO: Final = 0x2
_NOT_FENCED: Final = 0x4
_HAS_UNNAMED: Final = 0x10
_MIN_LAC_BYTES: Final = 16
_HEAD: Final = struct.Struct(">4sii")
_INT: Final = struct.Struct(">i")
assert _HEAD.size == 12
assert _INT.size == 4
assert _HEAD.size + MAX_KEY_BYTES + 2 * _INT.size + MAX_EXPLICIT_LAC_BYTES <= HEADER_BYTES
_SECTOR: Final = 512
_CHECK: Final = struct.Struct(">4sI")
_CHECK_TAG: Final = b"PKHC"
_CHECK_AT: Final = _SECTOR - _CHECK.size
_FIRST_LOG: Final = struct.Struct(">I")
_FIRST_LOG_AT: Final = _CHECK_AT - _FIRST_LOG.size
_LIVES: Final = struct.Struct(">QQ")
_LIVES_AT: Final = _FIRST_LOG_AT - _LIVES.size
_UNSIGNED: Final = (1 << 64) - 1


def encode_header(record: LedgerRecord, version: int = CURRENT_VERSION) -> bytes:
    """Return the 1024 bytes of a ledger's header. `StorageFault` if the key does not fit."""
    if len(record.key) > HEADER_BYTES - _HEAD.size - 2 * _INT.size:
        raise StorageFault(f"a master key of {len(record.key)} bytes does not fit into the header of an index file")
    bits = _FENCED if record.fenced else 0
    if record.limbo:
        bits |= _LIMBO if record.fenced else _LIMBO | _NOT_FENCED
    if has_unnamed(record.life):
        bits |= _HAS_UNNAMED
    data = _HEAD.pack(MAGIC, version, len(record.key)) + record.key + _INT.pack(bits)
    lac = record.explicit_lac
    if version > 0 and lac is not None and _MIN_LAC_BYTES <= len(lac) <= HEADER_BYTES - len(data) - _INT.size:
        data += _INT.pack(len(lac)) + lac
    if len(data) <= _CHECK_AT:
        if len(data) <= _LIVES_AT and record.life:
            token = creation_token_of(record.life)
            lives = (token, 0) if is_named_by_copies(record.life) else (0, token)
            data = data.ljust(_LIVES_AT, b"\0") + _LIVES.pack(*lives)
        if len(data) <= _FIRST_LOG_AT:
            data = data.ljust(_FIRST_LOG_AT, b"\0") + _FIRST_LOG.pack(record.first_log or 0)
        data = data.ljust(_CHECK_AT, b"\0")
        data += _CHECK.pack(_CHECK_TAG, google_crc32c.value(data))
    return data.ljust(HEADER_BYTES, b"\0")


def is_newer(header: bytes) -> bool:
    """Return whether a later release wrote the header, one of those that `decode_header` refuses."""
    return _check_fits(header) and header.startswith(MAGIC) and _HEAD.unpack_from(header)[1] > CURRENT_VERSION


def _check_fits(header: bytes) -> bool:
    """True too if there is none."""
    if len(header) < _SECTOR:
        return True
    tag, check = _CHECK.unpack_from(header, _CHECK_AT)
    return bool(tag != _CHECK_TAG or check == google_crc32c.value(header[:_CHECK_AT]))


def decode_header(data: bytes) -> tuple[int, LedgerRecord] | None:
    """(version, record) of a header; `StorageFault` if it holds something else.

    None if it was never written: the file is empty, too short, or a crash kept its length but not its first bytes.
    """
    if len(data) < _HEAD.size or not any(data[:_SECTOR]):
        return None
    if not _check_fits(data):
        raise StorageFault("has another checksum than its bytes have")
    magic, version, key_length = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise StorageFault(f"begins with {magic.hex()}, not with {MAGIC.hex()}")
    if not 0 <= version <= CURRENT_VERSION:
        raise StorageFault(f"has version {version}, known are 0 to {CURRENT_VERSION}")
    if key_length < 0:
        raise StorageFault(f"has a master key of {key_length} bytes")
    at = _HEAD.size + key_length
    lac_at = at + _INT.size
    end = lac_at + _INT.size + _lac_length(data, lac_at) if version else lac_at
    if len(data) < end:
        if len(data) < HEADER_BYTES:
            return None
        raise StorageFault(f"has fields up to byte {end}, but a header has {HEADER_BYTES}")
    key = data[_HEAD.size : at]
    (bits,) = _INT.unpack_from(data, at)
    lac = data[lac_at + _INT.size : end] or None if version else None
    limbo = bool(bits & _LIMBO)
    fenced = bool(bits & _FENCED) or (limbo and not bits & _NOT_FENCED)
    checked = data[_CHECK_AT : _CHECK_AT + len(_CHECK_TAG)] == _CHECK_TAG
    first_log = _FIRST_LOG.unpack_from(data, _FIRST_LOG_AT)[0] if checked and end <= _FIRST_LOG_AT else 0
    of_copies, of_writer = _LIVES.unpack_from(data, _LIVES_AT) if checked and end <= _LIVES_AT else (0, 0)
    life = life_of(of_writer) or life_of_copies(of_copies)
    if bits & _HAS_UNNAMED:
        life = with_unnamed(life)
    return version, LedgerRecord(key, fenced, limbo, lac, first_log, life)


def _lac_length(data: bytes, at: int) -> int:
    if len(data) < at + _INT.size:
        return 0
    length: int = _INT.unpack_from(data, at)[0]
    if length < 0 or 0 < length < _MIN_LAC_BYTES:
        raise StorageFault(f"has an explicit LAC of {length} bytes, a packet has at least {_MIN_LAC_BYTES}")
    return length


def relative_path(ledger_id: int) -> str:
    """The file's path below an index directory."""
    return f"{relative_folder(ledger_id)}/{ledger_id & _UNSIGNED:x}{SUFFIX}"


def relative_folder(ledger_id: int) -> str:
    """Return the two levels of folders that a ledger's file is in."""
    return f"{ledger_id >> 8 & 0xFF:x}/{ledger_id & 0xFF:x}"


def parse_name(name: str) -> int:
    """Ledger id of `<id>.idx` or `<id>.idx.rloc`. `ValueError` for any other name."""
    stem = name.removesuffix(MOVING_SUFFIX).removesuffix(SUFFIX)
    ledger_id = int(stem, 16)
    if stem == name or ledger_id != ledger_id & _UNSIGNED or f"{ledger_id:x}" != stem:
        raise ValueError(f"{name} is not a valid name of an index file")
    return ledger_id - (1 << 64) if ledger_id >> 63 else ledger_id


def slot_offset(entry_id: int) -> int:
    """Return the offset in the file of an entry's location."""
    return HEADER_BYTES + SLOT_BYTES * entry_id
