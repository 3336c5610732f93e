"""The data of a bookie's ledgers besides their entries: key, life, fence, limbo, explicit LAC; as bytes, and in memory.

The bytes are the value of a row of the `ledgers` database: the protobuf message `LedgerData`, encoded by hand.

    1 exists       bool   required, true
    2 fenced       bool   required
    3 masterKey    bytes  required; empty or all zero = no client has presented a key yet
    4 explicitLac  bytes  optional: the last WRITE_LAC packet
    5 limbo        bool   optional
    15             bool   optional, ours: in limbo, and surely not fenced. The reference keeps what it does not know
    2000           fixed32, ours, optional: the first entry log that may hold entries of this life of the ledger. The
                   reference keeps fields that it does not know
    2001           fixed64, ours, optional: the life that its writer named (`bookie_protocol.keys`), as in an add
    2002           fixed64, ours, optional: the life that copies named; never together with 2001
    2003, 2004     as 2001 and 2002, in their place: something that names no life came under it

A ledger in limbo without field 15 counts as fenced: the reference and earlier releases do not say whether it is.

Fields are written in number order and optional ones only when set, so the bytes equal the reference's. By hand because
every ledger of a bookie is decoded at start-up, and nearly all rows have the same 26 bytes but for the key.

In memory every index keeps its ledgers in `LedgerRecords` and adds the files behind it: the `ledgers` database
(`ledgers`), or the headers of the index files (`ledger_cache`).

Invariants
- All ledgers are in memory, so that the event loop may ask; the files follow at each checkpoint, and the journal covers
  the gap.
- `take_dirty` runs where changes are made, so no change falls between it and the write that follows.
- A deletion begins here: whatever else is known of the ledger is forgotten afterwards, and before its next life.
- A record says in which logs entries of its life may lie (`first_log`). Logs keep entries of ledgers that were deleted,
  and applications that choose ids use them again: what lies in older logs is never the living ledger's.

Threads: changes and `take_dirty` on the event loop (or on the replaying thread, before the loop serves); everything
else from any thread.

Source: docs/internals/on-disk-formats.md, section 8.3.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

from bookie_pod.storage.log_ids import is_before, later_of, two_behind
from bookie_protocol.errors import BadRequest, StorageFault, Unauthorized
from bookie_protocol.keys import (
    LIFE_SIZE,
    NO_LIFE,
    STORED_LIFE_TAGS,
    is_unknown_key,
    takes_the_place_of,
)

MAX_KEY_BYTES: Final = 512
"""Bytes of the longest master key that a bookie takes; that of every client is a hash of 20 bytes."""
MAX_EXPLICIT_LAC_BYTES: Final = 480
"""Bytes of the longest explicit LAC packet that a bookie takes; those of clients have some 40 bytes."""

_PLAIN: Final = b"\x08\x01\x10\x00\x1a"
_FENCED: Final = b"\x08\x01\x10\x01\x1a"
_HEADS: Final = {_PLAIN: False, _FENCED: True}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIRST_LOG_FIELD: Final = 2000
_FIRST_LOG: Final = struct.Struct("<2sI")
_FIRST_LOG_TAG: Final = b"\x85\x7d"
"""Number and wire type of the field, as a varint."""
_LIFE_TAGS: Final = tuple(STORED_LIFE_TAGS.values())
_NO_TOKEN: Final = bytes(8)
_WIRE_TYPES: Final = {
    1: _VARINT,
    2: _VARINT,
    3: _BYTES,
    4: _BYTES,
    5: _VARINT,
    15: _VARINT,
    _FIRST_LOG_FIELD: _FIXED32,
    **dict.fromkeys(STORED_LIFE_TAGS, _FIXED64),
}
_T = TypeVar("_T")
_MOST_SHARED: Final = 1 << 14
_MOST_DEAD: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """The data of a ledger directory about a ledger, besides its entries."""

    key: bytes
    """Master key; empty or all zero: unknown yet."""
    fenced: bool = False
    """Ordinary adds are refused: it was fenced, or the store lost data and cannot tell whether it was."""
    limbo: bool = False
    """The store lost data and cannot tell which entries it held: what is not found is unknown. Adds are not concerned;
    who puts a ledger in limbo says beside it whether its fence may be among what was lost."""
    explicit_lac: bytes | None = None
    """The last WRITE_LAC packet, if there was one."""
    first_log: int | None = field(default=None, compare=False)
    """The first entry log that may hold entries of this life of the ledger; 0: any may, as far as is known; None: not
    said. Of a ledger that is known it never changes."""
    life: bytes = field(default=NO_LIFE, compare=False)
    """The life that its writer, or copies of its entries, named and the metadata service confirmed; `NO_LIFE`: none is
    known."""


def check_storable(key: bytes, explicit_lac: bytes | None = None) -> None:
    """`BadRequest` for a master key, or an explicit LAC, that is longer than a bookie takes.

    To be asked before either is journaled or put into a `LedgerRecord`: whatever was acknowledged has to fit into the
    records of every engine, each of which is held in memory, and those of index files in a header of 1024 bytes.
    """
    if len(key) > MAX_KEY_BYTES:
        raise BadRequest(f"a master key of {len(key)} bytes: a bookie takes at most {MAX_KEY_BYTES}")
    if explicit_lac is not None and len(explicit_lac) > MAX_EXPLICIT_LAC_BYTES:
        raise BadRequest(
            f"an explicit LAC of {len(explicit_lac)} bytes: a bookie takes at most {MAX_EXPLICIT_LAC_BYTES}"
        )


def encode(record: LedgerRecord) -> bytes:
    """`LedgerData` of a record."""
    head = _FENCED if record.fenced else _PLAIN
    pieces = [head, _varint(len(record.key)), record.key]
    if record.explicit_lac is not None:
        pieces += (b"\x22", _varint(len(record.explicit_lac)), record.explicit_lac)
    if record.limbo:
        pieces.append(b"\x28\x01" if record.fenced else b"\x28\x01\x78\x01")
    if record.first_log:
        pieces.append(_FIRST_LOG.pack(_FIRST_LOG_TAG, record.first_log))
    pieces.append(record.life)
    return b"".join(pieces)


def decode(value: bytes) -> LedgerRecord:
    """Return the record in a `LedgerData`; `StorageFault` if it does not parse or lacks a required field."""
    if len(value) > 5 and value[5] < 0x80 and (fenced := _HEADS.get(value[:5])) is not None:
        end = at = 6 + value[5]
        first_log = 0
        if value.startswith(_FIRST_LOG_TAG, at) and len(value) >= at + _FIRST_LOG.size:
            first_log = _FIRST_LOG.unpack_from(value, at)[1]
            at += _FIRST_LOG.size
        life = value[at:]
        is_life = len(life) == LIFE_SIZE and life.startswith(_LIFE_TAGS) and not life.endswith(_NO_TOKEN)
        if len(value) == at or is_life:
            return LedgerRecord(value[6:end], fenced, first_log=first_log, life=life)
    return _decode_fields(value)


def _decode_fields(value: bytes) -> LedgerRecord:
    """Decode as `decode` does, at a tenth of its speed, whatever fields there are."""
    try:
        fields = _fields(value)
        missing = [number for number in (1, 2, 3) if number not in fields]
        if missing:
            raise ValueError(f"required field {missing[0]} is missing")
        lac, limbo = fields.get(4), bool(fields.get(5, 0))
        return LedgerRecord(
            key=_as_bytes(fields[3]),
            fenced=bool(fields[2]) or (limbo and not fields.get(15, 0)),
            limbo=limbo,
            explicit_lac=None if lac is None else _as_bytes(lac),
            first_log=_fixed(fields, _FIRST_LOG_FIELD),
            life=next(
                (tag + _as_bytes(fields[at]) for at, tag in STORED_LIFE_TAGS.items() if _fixed(fields, at)), NO_LIFE
            ),
        )
    except (ValueError, IndexError) as error:
        raise StorageFault(f"LedgerData of {len(value)} bytes does not parse: {error}") from error


def _fixed(fields: dict[int, int | bytes], number: int) -> int:
    return int.from_bytes(_as_bytes(fields.get(number, b"")), "little")


def _as_bytes(field: int | bytes) -> bytes:
    return field if isinstance(field, bytes) else b""


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 63:
            raise ValueError("a varint has more than ten bytes")


def _fields(data: bytes) -> dict[int, int | bytes]:
    """Last value of each field; unknown fields are skipped. Raises `ValueError` or `IndexError`."""
    fields: dict[int, int | bytes] = {}
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        value: int | bytes
        if wire_type == _VARINT:
            value, at = _read_varint(data, at)
        else:
            length, at = _length(data, at, wire_type)
            value = data[at : at + length]
            at += length
            if at > len(data):
                raise ValueError(f"field {number} is cut off")
        if number == 0 or _WIRE_TYPES.get(number, wire_type) != wire_type:
            raise ValueError(f"field {number} has wire type {wire_type}")
        fields[number] = value
    return fields


def _length(data: bytes, at: int, wire_type: int) -> tuple[int, int]:
    if wire_type == _BYTES:
        return _read_varint(data, at)
    if wire_type == _FIXED64:
        return 8, at
    if wire_type == _FIXED32:
        return 4, at
    raise ValueError(f"wire type {wire_type} is unknown")


class Shared(Generic[_T]):
    """One object for values that are equal, of up to some thousands that differ: ledgers of one application differ in
    nothing but their ids."""

    def __init__(self) -> None:
        self._known: dict[_T, _T] = {}

    def __call__(self, value: _T) -> _T:
        known = self._known.get(value)
        if known is None:
            known = value
            if len(self._known) < _MOST_SHARED:
                self._known[value] = value
        return known


class Life:
    """One life of a ledger; the same object as long as it is referenced and the ledger is not deleted."""

    __slots__ = ("__weakref__",)


class FirstLogs:
    """The first log of each life that begins.

    Logs of earlier processes are older than any log that may still take entries. The logs of this process may hold
    entries of a ledger that this process deleted, so the next ledger of that id begins in a log that is not there yet:
    the one after the next, since an entry that is being written during the deletion may be the first of the next log.
    That next log is, for a ledger that has not reached its own first log yet, this one.

    The record of the deletion says where the next life may begin, so it has to bind later processes too: who reads it
    takes a ledger that begins earlier for the one that died. The journals tell the next process as long as no mark has
    passed the record (`deleted_before`); before one does, the logs of later processes begin there (`reserve`).

    Threads: the event loop (or the replaying thread, before the loop serves).
    """

    def __init__(
        self, oldest_open: Callable[[], int], newest: Callable[[], int], reserve: Callable[[int], None]
    ) -> None:
        """`oldest_open`: a log that is not newer than any that may take entries, 0 only if none is older; `newest`: the
        newest log of all; `reserve`: lets later processes begin no log before this one."""
        self._oldest_open = oldest_open
        self._newest = newest
        self._reserve = reserve
        self._next: dict[int, int] = {}
        """Ledgers that were deleted and did not come back, and where their next lives may begin."""
        self._prune_at = 1024
        self._next_of_others = 0
        """The first log in which the next lives may begin of deleted ledgers that are not listed."""

    def died(self, ledger_id: int, first_log: int) -> int:
        """A ledger, whose life began in this log, is deleted now; the first log of its next life, at the earliest."""
        newest = self._newest()
        next_log = two_behind(first_log if is_before(newest, first_log) else newest)
        self.deleted_before(ledger_id, next_log)
        return next_log

    def deleted_before(self, ledger_id: int, next_log: int) -> None:
        """A ledger was deleted, whose next life begins in this log at the earliest."""
        self._reserve(next_log)
        self._next[ledger_id] = later_of(self._next.get(ledger_id, 0), next_log)
        if len(self._next) >= self._prune_at:
            oldest = self._oldest_open()
            self._next = {dead: log_id for dead, log_id in self._next.items() if is_before(oldest, log_id)}
            if len(self._next) > _MOST_DEAD:
                self._next_of_others = reduce(later_of, self._next.values(), self._next_of_others)
                self._next = {}
            self._prune_at = max(1024, 2 * len(self._next))

    def of_new(self, ledger_id: int) -> int:
        """Return the first log of a ledger that becomes known now."""
        return later_of(self._oldest_open(), self._next.pop(ledger_id, self._next_of_others))


class LedgerRecords:
    """Ledger id to `LedgerRecord`, and which of them changed."""

    def __init__(self) -> None:
        self._ledgers: dict[int, LedgerRecord] = {}
        self._shared = Shared[tuple[LedgerRecord, int | None]]()
        self._first_logs: FirstLogs | None = None
        self._dirty: set[int] = set()
        self.on_limbo: Callable[[int], None] = lambda ledger_id: None
        """Called when a ledger gets into limbo: its rows may lack entries."""
        self._lives: WeakValueDictionary[int, Life] = WeakValueDictionary()
        self._lives_lock = threading.Lock()

    def _loaded(self, ledger_id: int, record: LedgerRecord) -> None:
        """Take a record that a file holds: known, not changed."""
        self._ledgers[ledger_id] = self._share(record)

    def _share(self, record: LedgerRecord) -> LedgerRecord:
        is_unlike_others = record.explicit_lac is not None or record.life
        return record if is_unlike_others else self._shared((record, record.first_log))[0]

    # --- look-ups -------------------------------------------------------------------------------------------

    def get(self, ledger_id: int) -> LedgerRecord | None:
        """The ledger's record, or None if it is not known here."""
        return self._ledgers.get(ledger_id)

    def life(self, ledger_id: int) -> Life | None:
        """Return the life that the ledger has now; None if it is not known here.

        A caller that looks at several things takes it before the first and after the last. If it differs then, the
        results are not of one life.
        """
        with self._lives_lock:
            if ledger_id not in self._ledgers:
                return None
            return self._lives.setdefault(ledger_id, Life())

    def ledger_ids(self) -> list[int]:
        """Ids of all ledgers, in no order."""
        return list(self._ledgers)

    def has_limbo(self) -> bool:
        """Return whether a ledger is in limbo."""
        return any(record.limbo for record in list(self._ledgers.values()))

    def __len__(self) -> int:
        return len(self._ledgers)

    # --- changes --------------------------------------------------------------------------------------------

    def name_logs(self, first_logs: FirstLogs) -> None:
        """Set the source of the logs in which ledgers begin their lives from now on."""
        self._first_logs = first_logs

    def put(self, ledger_id: int, record: LedgerRecord) -> None:
        """Replace the record in memory; durable with the next checkpoint.

        A ledger that was unknown, or of which no file has a record yet, begins a life, unless the record says in which
        logs its entries may lie (0: in any).
        """
        known = self._ledgers.get(ledger_id)
        first_log = None if known is None else known.first_log
        if first_log is None:
            first_log = self._new_first_log(ledger_id, record)
        if record.first_log != first_log:
            record = replace(record, first_log=first_log)
        if record.limbo and (known is None or not known.limbo):
            self.on_limbo(ledger_id)  # first: no thread sees, or writes, the record before that
        self._ledgers[ledger_id] = self._share(record)
        self._dirty.add(ledger_id)

    def _new_first_log(self, ledger_id: int, record: LedgerRecord) -> int:
        if self._first_logs is None or record.first_log is not None:
            return record.first_log or 0
        return self._first_logs.of_new(ledger_id)

    def first_log(self, ledger_id: int) -> int:
        """The first log that may hold entries of the ledger as it is now; 0: any may, or it is not known here."""
        record = self._ledgers.get(ledger_id)
        return 0 if record is None else record.first_log or 0

    def set_master_key(self, ledger_id: int, key: bytes) -> LedgerRecord:
        """Check or store the key that a client presents; create the ledger if it is unknown.

        An unknown stored key is replaced, an unknown given key changes nothing (but zeros replace no bytes), and two
        keys that differ raise `Unauthorized` (the reference's storage reports an I/O error there). `BadRequest` for a
        key that is longer than a bookie takes: nothing has changed.
        """
        check_storable(key)
        record = self._ledgers.get(ledger_id)
        if record is None:
            record = LedgerRecord(key)
        elif takes_the_place_of(key, record.key):
            record = replace(record, key=key)
        elif record.key == key or is_unknown_key(key):
            return record
        else:
            raise Unauthorized(f"ledger {ledger_id}: the master key differs from the ledger's")
        self.put(ledger_id, record)
        return self._ledgers[ledger_id]

    def delete(self, ledger_id: int) -> int:
        """Forget the ledger; what the files hold of it goes with the next checkpoint. The first log of its next life,
        at the earliest; 0: the ledger is not known."""
        with self._lives_lock:
            known = self._ledgers.pop(ledger_id, None)
            self._lives.pop(ledger_id, None)
        if known is None:
            return 0
        self._dirty.add(ledger_id)
        return 0 if self._first_logs is None else self._first_logs.died(ledger_id, known.first_log or 0)

    def deleted_before(self, ledger_id: int, next_log: int) -> None:
        """See `FirstLogs`."""
        if self._first_logs is not None:
            self._first_logs.deleted_before(ledger_id, next_log)

    def take_dirty(self) -> set[int]:
        """Ids of ledgers changed or deleted since the last call. Event loop."""
        dirty, self._dirty = self._dirty, set()
        return dirty
