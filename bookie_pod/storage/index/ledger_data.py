"""What a bookie knows of its ledgers besides their entries: key, fence, limbo, explicit LAC; as bytes, and in memory.

The bytes are the value of a row of the `ledgers` database: the protobuf message `LedgerData`, encoded by hand.

    1 exists       bool   required, true
    2 fenced       bool   required
    3 masterKey    bytes  required; empty or all zero = nobody has presented a key yet
    4 explicitLac  bytes  optional: the last WRITE_LAC packet
    5 limbo        bool   optional

Fields are written in number order and optional ones only when set, so the bytes equal the reference's. By hand because
every ledger of a bookie is decoded at start-up, and nearly all rows have the same 26 bytes but for the key.

In memory every index keeps its ledgers in `LedgerRecords` and adds the files behind it: the `ledgers` database
(`ledgers`), or the headers of the index files (`ledger_cache`).

Invariants
- All ledgers are in memory, so that the event loop may ask; the files follow at each checkpoint, and the journal covers
  the gap.
- `take_dirty` runs where changes are made, so no change falls between it and the write that follows.
- A deletion begins here: whatever else is known of the ledger is forgotten afterwards, and before its next life.

Threads: changes and `take_dirty` on the event loop (or on the replaying thread, before the loop serves); everything
else from any thread.

Source: reference on-disk formats, section 8.3.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

from bookie_protocol.errors import BadRequest, StorageFault, Unauthorized
from bookie_protocol.keys import is_unknown_key, takes_the_place_of

MAX_KEY_BYTES: Final = 512
"""Longest master key that a bookie takes; that of every client is a hash of 20 bytes."""
MAX_EXPLICIT_LAC_BYTES: Final = 480
"""Longest packet of an explicit LAC that a bookie takes; those of clients have some 40 bytes."""

_PLAIN: Final = b"\x08\x01\x10\x00\x1a"
_FENCED: Final = b"\x08\x01\x10\x01\x1a"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIRE_TYPES: Final = {1: _VARINT, 2: _VARINT, 3: _BYTES, 4: _BYTES, 5: _VARINT}


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """What a ledger directory knows of a ledger besides its entries."""

    key: bytes
    """Master key; empty or all zero: unknown yet."""
    fenced: bool = False
    limbo: bool = False
    """The store lost data and cannot tell which entries it held."""
    explicit_lac: bytes | None = None
    """The last WRITE_LAC packet, if there was one."""


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
        pieces.append(b"\x28\x01")
    return b"".join(pieces)


def decode(value: bytes) -> LedgerRecord:
    """The record in a `LedgerData`; `StorageFault` if it does not parse or lacks a required field."""
    if len(value) > 5 and len(value) == 6 + value[5] and value[5] < 0x80:
        head = value[:5]
        if head == _PLAIN:
            return LedgerRecord(value[6:])
        if head == _FENCED:
            return LedgerRecord(value[6:], True)
    try:
        fields = _fields(value)
        missing = [number for number in (1, 2, 3) if number not in fields]
        if missing:
            raise ValueError(f"required field {missing[0]} is missing")
        lac = fields.get(4)
        return LedgerRecord(
            key=_as_bytes(fields[3]),
            fenced=bool(fields[2]),
            limbo=bool(fields.get(5, 0)),
            explicit_lac=None if lac is None else _as_bytes(lac),
        )
    except (ValueError, IndexError) as error:
        raise StorageFault(f"LedgerData of {len(value)} bytes does not parse: {error}") from error


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


_T = TypeVar("_T")
_MOST_SHARED: Final = 1 << 14


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
    """One life of a ledger; the same object as long as somebody holds on to it and the ledger is not deleted."""

    __slots__ = ("__weakref__",)


class LedgerRecords:
    """Ledger id to `LedgerRecord`, and which of them changed."""

    def __init__(self) -> None:
        self._ledgers: dict[int, LedgerRecord] = {}
        self._shared = Shared[LedgerRecord]()
        self._dirty: set[int] = set()
        self._lives: WeakValueDictionary[int, Life] = WeakValueDictionary()
        self._lives_lock = threading.Lock()

    def _loaded(self, ledger_id: int, record: LedgerRecord) -> None:
        """Take a record that a file holds: known, not changed."""
        self._ledgers[ledger_id] = self._share(record)

    def _share(self, record: LedgerRecord) -> LedgerRecord:
        return record if record.explicit_lac is not None else self._shared(record)

    # --- look-ups -------------------------------------------------------------------------------------------

    def get(self, ledger_id: int) -> LedgerRecord | None:
        """The ledger's record, or None if it is not known here."""
        return self._ledgers.get(ledger_id)

    def life(self, ledger_id: int) -> Life | None:
        """The life that the ledger has now; None if it is not known here. Whoever looks at several things takes it
        before the first and after the last: if it is another one then, what was found is not of one life."""
        with self._lives_lock:
            if ledger_id not in self._ledgers:
                return None
            return self._lives.setdefault(ledger_id, Life())

    def ledger_ids(self) -> list[int]:
        """Ids of all ledgers, in no order."""
        return list(self._ledgers)

    def __len__(self) -> int:
        return len(self._ledgers)

    # --- changes --------------------------------------------------------------------------------------------

    def put(self, ledger_id: int, record: LedgerRecord) -> None:
        """Replace the record in memory; durable with the next checkpoint."""
        self._ledgers[ledger_id] = self._share(record)
        self._dirty.add(ledger_id)

    def set_master_key(self, ledger_id: int, key: bytes) -> LedgerRecord:
        """Check or take note of the key that somebody presents; makes the ledger if it is unknown.

        An unknown stored key is replaced, an unknown given key changes nothing (but zeros replace no bytes), and
        two keys that differ raise `Unauthorized` (the reference's storage reports an I/O error there). `BadRequest`
        for a key that is longer than a bookie takes: nothing has changed.
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
        return record

    def delete(self, ledger_id: int) -> None:
        """Forget the ledger; what the files hold of it goes with the next checkpoint."""
        with self._lives_lock:
            known = self._ledgers.pop(ledger_id, None)
            self._lives.pop(ledger_id, None)
        if known is not None:
            self._dirty.add(ledger_id)

    def take_dirty(self) -> set[int]:
        """Ids of ledgers changed or deleted since the last call. Event loop."""
        dirty, self._dirty = self._dirty, set()
        return dirty
