"""Bytes of a journal file: header, records, padding (reference on-disk formats, section 2).

All integers are big-endian and signed.

    file      header, then groups of records, each group followed by padding (versions 5 and 6)
    header    "BKLG", version i32, zeros up to 512 bytes (versions 5 and 6) or nothing more (2 to 4); none (1)
    record    length i32 > 0, ledger id i64, entry id i64, rest
                entry id >= 0       an entry as the client sent it
                entry id -0x1000    master key of the ledger: key length i32, key          (since version 3);
                                    ours: the life as `LedgerData` has it. The reference does not look there
                entry id -0x2000    the ledger is fenced                                   (since version 4)
                entry id -0x8000    explicit LAC: packet length i32, packet                (since version 6)
                entry id -0x10000   the ledger was deleted: first log of its next life, u32 (earlier releases: nothing;
                                    0: any); ours, the reference skips what it does not know
    padding   marker i32 -0x100, length i32, that many bytes, so that the next group starts aligned

Group checks. The reference gives a journal no checksum, and it looks neither at header bytes 8 to 511 nor
at the bytes inside a padding record. A journal written with group checks says so in its header:

    8   4   "PKG2"
    12  8   id of the file that was written before this one; -1 if there was none
    20  4   CRC32C of journal id i64 and the 20 bytes above

and starts the inside of every padding record with a group check:

    0   4   "PKG2"
    4   8   offset at which the group starts
    12  8   offset below which this file was known to be synced when the group was written
    20  8   offset at which the group before starts; of the first group: where the records of the file before end
    28  4   CRC32C of the group's records
    32  4   CRC32C of journal id i64, offset of the padding marker i64, marker, length and the 32 bytes above

So each byte that decides where a replay goes next is covered, groups and files name what came before them, and a
replay tells a torn tail from damage: a group that does not match its check is a torn tail unless a later check proves
that it had been synced. Files of the reference implementation carry none, and it reads ours.

Files of earlier releases say "PKGC" in header and checks. There the header has no further fields, and a check has
neither the offset of what came before nor the padding's marker and length under its checksum.

Pure functions: any thread.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum

import google_crc32c

from bookie_protocol.keys import LIFE_SIZE, NO_LIFE, STORED_LIFE_TAGS

MAGIC = b"BKLG"
CHECKS_MAGIC = b"PKG2"
OLD_CHECKS_MAGIC = b"PKGC"
OLDEST_VERSION, NEWEST_VERSION = 1, 6
OLDEST_VERSION_WRITTEN = 4
FIRST_VERSION_WITH_KEYS = 3
FIRST_VERSION_WITH_FENCES = 4
FIRST_VERSION_WITH_PADDING = 5
FIRST_VERSION_WITH_EXPLICIT_LAC = 6

SHORT_HEADER_LENGTH = 8
HEADER_LENGTH = 512
SECTOR = 512
"""Smallest alignment, and the unit that a disk writes whole."""

PADDING_MARKER = -0x100
KEY_ENTRY_ID = -0x1000
FENCE_ENTRY_ID = -0x2000
FORCE_ENTRY_ID = -0x4000
EXPLICIT_LAC_ENTRY_ID = -0x8000
DELETION_ENTRY_ID = -0x10000

SMALLEST_RECORD = 16
"""Bytes of the ledger id and the entry id, which every record has."""

LENGTH = struct.Struct(">i")
IDS = struct.Struct(">qq")
RECORD_HEAD = struct.Struct(">iqq")
PADDING_HEAD = struct.Struct(">ii")
_HEADER = struct.Struct(">4si")
_CHECKED_HEADER = struct.Struct(">4si4sq")
_CHECK_FIELDS = struct.Struct(">4sqqqI")
_OLD_CHECK_FIELDS = struct.Struct(">4sqqI")
_CHECK_PLACE = struct.Struct(">qq")
_ID = struct.Struct(">q")
_CRC = struct.Struct(">I")
_IDS_AND_LENGTH = struct.Struct(">qqi")
_DELETION = struct.Struct(">qqI")
_LIFE_TAGS = tuple(STORED_LIFE_TAGS.values())

CHECK_LENGTH = 36
OLD_CHECK_LENGTH = 28
HEADER_FIELDS_LENGTH = 24
"""Bytes of a header that may differ from zero."""

NO_FILE = -1
"""Id in a header: no file was written before this one."""

assert LENGTH.size == 4
assert IDS.size == SMALLEST_RECORD
assert RECORD_HEAD.size == 20
assert PADDING_HEAD.size == 8
assert _HEADER.size == SHORT_HEADER_LENGTH
assert _CHECKED_HEADER.size + _CRC.size == HEADER_FIELDS_LENGTH
assert _CHECK_FIELDS.size + _CRC.size == CHECK_LENGTH
assert _OLD_CHECK_FIELDS.size + _CRC.size == OLD_CHECK_LENGTH
assert _IDS_AND_LENGTH.size == 20


class RecordKind(Enum):
    """The meaning of a record, chosen by its entry id."""

    ENTRY = "entry"
    KEY = "ledger key"
    FENCE = "fence"
    FORCE = "force"
    EXPLICIT_LAC = "explicit LAC"
    DELETION = "deletion"
    UNKNOWN = "unknown"


_KINDS = {
    KEY_ENTRY_ID: RecordKind.KEY,
    FENCE_ENTRY_ID: RecordKind.FENCE,
    FORCE_ENTRY_ID: RecordKind.FORCE,
    EXPLICIT_LAC_ENTRY_ID: RecordKind.EXPLICIT_LAC,
    DELETION_ENTRY_ID: RecordKind.DELETION,
}

FIRST_VERSION_WITH = {
    RecordKind.KEY: FIRST_VERSION_WITH_KEYS,
    RecordKind.FENCE: FIRST_VERSION_WITH_FENCES,
    RecordKind.EXPLICIT_LAC: FIRST_VERSION_WITH_EXPLICIT_LAC,
}
"""Kinds of records that older versions do not know."""


def kind_of(entry_id: int) -> RecordKind:
    """Return the kind of a record with this entry id."""
    return RecordKind.ENTRY if entry_id >= 0 else _KINDS.get(entry_id, RecordKind.UNKNOWN)


# --- records: each is [length prefix, body], the pieces of a `JournalBatch` --------------------------------


def entry_record(entry: bytes) -> list[bytes]:
    """An add: the entry as the client sent it (it starts with ledger id and entry id)."""
    return _record(entry)


def key_record(ledger_id: int, key: bytes, life: bytes = NO_LIFE) -> list[bytes]:
    """Return the master key of a ledger and its life, to be queued before its first entry of this process."""
    return _record(_IDS_AND_LENGTH.pack(ledger_id, KEY_ENTRY_ID, len(key)) + key + life)


def fence_record(ledger_id: int) -> list[bytes]:
    return _record(IDS.pack(ledger_id, FENCE_ENTRY_ID))


def deletion_record(ledger_id: int, next_log: int) -> list[bytes]:
    """Return a record that ends a life of the ledger: records before it are of that life.

    It has to be queued before anything of the next life. `next_log` is the first entry log that the next life may have;
    0: any.
    """
    return _record(_DELETION.pack(ledger_id, DELETION_ENTRY_ID, next_log))


def next_log_of(body: bytes) -> int:
    """Return what the body of a deletion record says of the next life."""
    return int(_DELETION.unpack_from(body)[2]) if len(body) >= _DELETION.size else 0


def explicit_lac_record(ledger_id: int, packet: bytes) -> list[bytes]:
    """`packet` as the client sent it: ledger id, LAC, digest."""
    return _record(_IDS_AND_LENGTH.pack(ledger_id, EXPLICIT_LAC_ENTRY_ID, len(packet)) + packet)


def _record(body: bytes) -> list[bytes]:
    return [LENGTH.pack(len(body)), body]


def tail_of_special_record(body: bytes) -> bytes:
    """Key or packet in the body of a ledger-key or explicit-LAC record. `ValueError` if its length is impossible."""
    if len(body) < _IDS_AND_LENGTH.size:
        raise ValueError(f"it has {len(body)} bytes, needs {_IDS_AND_LENGTH.size}")
    length = _IDS_AND_LENGTH.unpack_from(body)[2]
    available = len(body) - _IDS_AND_LENGTH.size
    if not 0 <= length <= available:
        raise ValueError(f"its inner length is {length} where {available} bytes are left")
    return bytes(body[_IDS_AND_LENGTH.size : _IDS_AND_LENGTH.size + length])


def life_behind_key(body: bytes) -> bytes:
    """Return the life in the body of a ledger-key record whose key can be read; `NO_LIFE` if there is none."""
    life = bytes(body[_IDS_AND_LENGTH.size + _IDS_AND_LENGTH.unpack_from(body)[2] :])
    return life if len(life) == LIFE_SIZE and life.startswith(_LIFE_TAGS) else NO_LIFE


def without_explicit_lacs(data: bytes) -> bytes:
    """`data` (whole records, no padding) without explicit-LAC records, which versions below 6 do not know."""
    kept: list[bytes] = []
    offset = 0
    while offset < len(data):
        length, _, entry_id = RECORD_HEAD.unpack_from(data, offset)
        end = offset + LENGTH.size + length
        if entry_id != EXPLICIT_LAC_ENTRY_ID:
            kept.append(data[offset:end])
        offset = end
    return b"".join(kept)


# --- header -----------------------------------------------------------------------------------------------


def header_length(version: int) -> int:
    """Offset of the first record."""
    if version >= FIRST_VERSION_WITH_PADDING:
        return HEADER_LENGTH
    return SHORT_HEADER_LENGTH if version > 1 else 0


def header_bytes(version: int) -> bytes:
    """Header of a new file without group checks."""
    _check_version(version)
    return _HEADER.pack(MAGIC, version).ljust(header_length(version), b"\0")


def checked_header_bytes(version: int, journal_id: int, previous: int) -> bytes:
    """Header of a new file with group checks, and hence padding; `previous`: id of the file before, or `NO_FILE`."""
    _check_version(version)
    if version < FIRST_VERSION_WITH_PADDING:
        raise ValueError(f"journal version {version} has no padding, hence no group checks")
    fields = _CHECKED_HEADER.pack(MAGIC, version, CHECKS_MAGIC, previous)
    return (fields + _CRC.pack(crc32c(_ID.pack(journal_id) + fields))).ljust(header_length(version), b"\0")


def _check_version(version: int) -> None:
    if not OLDEST_VERSION_WRITTEN <= version <= NEWEST_VERSION:
        raise ValueError(f"journal version {version} cannot be written, only 4, 5 and 6")


class Checks(Enum):
    """The form of the checks of a file's groups, if it has any."""

    NONE = "no group checks"
    OLD = "group checks of an earlier release"
    CHAINED = "group checks"


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """Parsed header. `previous` is the id of the file before, `NO_FILE`, or None where the header does not say."""

    version: int
    checks: Checks = Checks.NONE
    previous: int | None = None

    @property
    def length(self) -> int:
        return header_length(self.version)


def parse_header(start: bytes, journal_id: int) -> JournalHeader:
    """Header from the first `HEADER_FIELDS_LENGTH` bytes (or fewer) of a file. Another magic means version 1, which
    has no header.

    Raises `ValueError` for a header that is damaged, and for a version that is not 2 to 6.
    """
    if len(start) < SHORT_HEADER_LENGTH or start[:4] != MAGIC:
        if len(start) >= SHORT_HEADER_LENGTH and _differing_bits(start[:4], MAGIC) == 1:
            raise ValueError("its header is damaged, as if one bit of it had changed")
        return JournalHeader(1)
    version = _HEADER.unpack_from(start)[1]
    if not OLDEST_VERSION < version <= NEWEST_VERSION:
        raise ValueError(f"its version is {version}, known are 1 to {NEWEST_VERSION}")
    magic = start[8:12]
    if magic not in (CHECKS_MAGIC, OLD_CHECKS_MAGIC):
        return _unchecked_header(version, start)
    if version < FIRST_VERSION_WITH_PADDING:
        raise ValueError(f"its header has version {version} and announces group checks, which that version has not")
    if magic == OLD_CHECKS_MAGIC:
        return JournalHeader(version, Checks.OLD)
    fields = start[: _CHECKED_HEADER.size]
    own = start[_CHECKED_HEADER.size : HEADER_FIELDS_LENGTH]
    if own != _CRC.pack(crc32c(_ID.pack(journal_id) + fields)):
        raise ValueError("its header does not match its checksum")
    return JournalHeader(version, Checks.CHAINED, _CHECKED_HEADER.unpack(fields)[3])


def _unchecked_header(version: int, start: bytes) -> JournalHeader:
    """Two readings have to agree: behind the version a header of 512 bytes has zeros, one of 8 bytes a record."""
    behind = start[SHORT_HEADER_LENGTH:]
    if version >= FIRST_VERSION_WITH_PADDING and behind.strip(b"\0"):
        raise ValueError(f"its header has version {version} and is not empty behind it")
    return JournalHeader(version)


def _differing_bits(one: bytes, other: bytes) -> int:
    return (int.from_bytes(one) ^ int.from_bytes(other)).bit_count()


# --- padding ----------------------------------------------------------------------------------------------


def padding_length(position: int, alignment: int, *, inside: int = 0) -> int:
    """Bytes that a padding record at `position` holds besides its two words, at least `inside`; -1: no
    padding.

    Without a check none is needed at an aligned position; with one there always is a padding record.
    """
    rest = alignment - position % alignment
    if rest == alignment and inside == 0:
        return -1
    while rest < PADDING_HEAD.size + inside:
        rest += alignment
    return rest - PADDING_HEAD.size


def padding(position: int, alignment: int) -> bytes:
    """The padding record of the reference: zeros up to a multiple of `alignment`."""
    length = padding_length(position, alignment)
    return b"" if length < 0 else PADDING_HEAD.pack(PADDING_MARKER, length) + bytes(length)


@dataclass(frozen=True, slots=True)
class GroupCheck:
    """The check of a group, in the padding record behind it.

    `start` and `synced` are offsets of the file; `before` is that of the group before, or for the first group the end
    of the file before; None where the check does not say.
    """

    start: int
    synced: int
    before: int | None
    crc: int

    def padding(self, journal_id: int, position: int, alignment: int) -> bytes:
        """The padding record at `position` that carries this check."""
        length = padding_length(position, alignment, inside=CHECK_LENGTH)
        head = PADDING_HEAD.pack(PADDING_MARKER, length)
        fields = _CHECK_FIELDS.pack(CHECKS_MAGIC, self.start, self.synced, self.before, self.crc)
        own = crc32c(_CHECK_PLACE.pack(journal_id, position) + head + fields)
        return head + (fields + _CRC.pack(own)).ljust(length, b"\0")


def parse_group_check(padding: bytes, checks: Checks, journal_id: int, position: int) -> GroupCheck | None:
    """The check in the padding record at `position`, of which the first bytes are given, in a file with such checks;
    None if it is not intact."""
    head, inside = padding[: PADDING_HEAD.size], padding[PADDING_HEAD.size :]
    place = _CHECK_PLACE.pack(journal_id, position)
    if checks is Checks.CHAINED:
        magic, layout, covered = CHECKS_MAGIC, _CHECK_FIELDS, place + head
    else:
        magic, layout, covered = OLD_CHECKS_MAGIC, _OLD_CHECK_FIELDS, place
    fields = inside[: layout.size]
    if inside[:4] != magic or _CRC.pack(crc32c(covered + fields)) != inside[layout.size : layout.size + _CRC.size]:
        return None
    _, start, synced, *before, crc = layout.unpack(fields)
    return GroupCheck(start, synced, before[0] if before else None, crc)


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC32C of `data`, continuing from `crc`."""
    return int(google_crc32c.extend(crc, data))
