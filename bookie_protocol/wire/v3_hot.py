"""Adds and plain reads of protocol version 3 decoded without message objects: the server's hot path.

The decoders accept exactly one sequence of fields each, the one that BookKeeper clients write, and give None for
everything else, which protobuf might read differently; the caller then parses with `v3.parse_request`. They never
raise. The frames, with the bytes of a number as <name> and optional fields in brackets:

    add     0a HL 08 03 10 02 18 <txn> [20 PR] aa 06 LEN 08 <ledger> 10 <entry> 1a 14 <key> [89 7d <life>] 22 LEN
            and behind this head: body [28 WF] [a0 06 01]; copies have 91 7d in the place of 89 7d
    read    0a HL 08 03 10 01 18 <txn> [20 PR] a2 06 LEN 08 <ledger> 10 <entry>

Requests of one *shape* (same frame length, same width of every varint, same optional fields) have their fixed bytes at
fixed places. A shape holds the head of the frame as one big integer with a mask over all fixed bits: tags, lengths, and
the continuation bit of every varint byte. One AND and one comparison prove that a frame has the shape, and one
`Struct.unpack_from` takes it apart. Only the bits of numbers, the key, the life and the entry are free.

Invariants
- A number is echoed as it came, so the answer names the ids that the request's envelope named, whatever the entry says.
- The caches of shapes are bounded: they are emptied when they hold `MAX_SHAPES`.

The caches are shared: call the decoders from one thread, the event loop.

Source: docs/internals/wire-protocol.md, section 4.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from bookie_protocol.entry import ENTRY_PREFIX_SIZE
from bookie_protocol.keys import COPIES_TAG, LIFE_SIZE, LIFE_TAG, MASTER_KEY_SIZE
from bookie_protocol.wire.add_runs import Echo, RunShape
from bookie_protocol.wire.framing import LENGTH_SIZE
from bookie_protocol.wire.v3_encode import DEFERRED_SYNC, HIGH_PRIORITY, RECOVERY_ADD, add_response_parts
from bookie_protocol.wire.varint import MAX_VARINT_SIZE, decode_int64, encode_varint, varint_size

MAX_SHAPES: Final = 8192

RECOVERY_FIELD: Final = b"\xa0\x06\x01"
WRITE_FLAGS_TAG: Final = 0x28
_PRIORITY_TAG: Final = 0x20
_add_shapes: dict[int, AddShape] = {}
_add_families: dict[_Layout, _AddFamily] = {}
_recent_families: deque[_AddFamily] = deque(maxlen=3)
_run_shapes: dict[tuple[_Layout, int], RunShape] = {}
ReadFields = tuple[bytes, bytes, bytes, int, int, int]
"""Transaction id, ledger id and entry id as raw varints for `v3_encode`, ledger id, entry id, flags."""
_ReadShape = tuple[int, int, Callable[..., tuple[Any, ...]], int]
"""Mask, expected, unpack, flags."""
READ_HEADER: Final = b"\x08\x03\x10\x01\x18"
"""Bytes from the third one of the body of every read that is handled here; also of some that are not."""
_READ_FIELD: Final = b"\xa2\x06"
_read_shapes: dict[int, _ReadShape] = {}
_read_layouts: dict[tuple[bytes, int, int, int], _ReadShape] = {}
_decoded: Final = lru_cache(maxsize=65536)(decode_int64)


def parse_header(frame: bytes, header: bytes, field: bytes) -> tuple[bytes, int, int]:
    """Priority field, width of the transaction id, offset behind the tag of `field`; width 0 when it is no
    such request."""
    at = 2 + len(header)
    txn = varint_size(frame, at)
    at += txn
    priority = frame[at : at + 2]
    if len(priority) < 2 or priority[0] != _PRIORITY_TAG or priority[1] > 0x7F:
        priority = b""
    at += len(priority)
    if frame[2 : 2 + len(header)] != header or frame[at : at + 2] != field:
        return b"", 0, at
    return priority, txn, at + len(field)


def free(width: int) -> bytes:
    """Return a varint of this width with all number bits clear."""
    return b"\x80" * (width - 1) + b"\0"


def mask_of(before: bytes, txn_width: int, txn_offset: int) -> bytes:
    """Return the mask over the bytes before the request's own fields: all bits but the transaction id's numbers."""
    rest = len(before) - txn_offset - txn_width
    return b"\xff" * txn_offset + b"\x80" * txn_width + b"\xff" * rest


def flags_of(priority: bytes, tail: bytes) -> int:
    """Flags of the binary protocol, and `DEFERRED_SYNC`, from the priority field and what follows the entry."""
    flags = HIGH_PRIORITY if priority and priority[1] else 0
    if tail.endswith(RECOVERY_FIELD):
        flags |= RECOVERY_ADD
    if tail and tail[0] == WRITE_FLAGS_TAG and tail[1] & 1:
        flags |= DEFERRED_SYNC
    return flags


AddFields = tuple[bytes, int, int, int, bytes, int, int, int]
"""Response frame of success, ledger id, entry id and LAC of the entry, master key with the life behind it if there is
one, where the entry starts and ends in the buffer, flags."""

MAX_RUN_SHAPES: Final = 1024
"""Layouts and lengths of frames whose runs are remembered, all clients together: a client chooses both."""

_ADD_HEADER: Final = b"\x08\x03\x10\x02\x18"
_ADD_FIELD: Final = b"\xaa\x06"
_KEY_FIELD: Final = b"\x1a\x14"
_BODY_FIELD: Final = b"\x22"
_LIFE_TAGS: Final = (LIFE_TAG, COPIES_TAG)
_FREE_TOKEN: Final = bytes(LIFE_SIZE - len(LIFE_TAG))
_LIFE_MASK: Final = b"\xff" * len(LIFE_TAG) + _FREE_TOKEN
assert _KEY_FIELD[1] == MASTER_KEY_SIZE


class _Layout(NamedTuple):
    """The common layout of the adds of one family; frames of a family differ in the length of the body."""

    priority: bytes
    txn_width: int
    field_width: int
    """Bytes of the length of field 101."""
    ledger_width: int
    entry_width: int
    body_width: int
    """Bytes of the body's length."""
    life_tag: bytes
    """Tag of the life; empty: there is none."""
    tail: bytes


@dataclass(frozen=True, slots=True)
class AddShape:
    """The mark of adds of one shape, and the places of their parts. No tuple: slots are read as fast as variables."""

    length: int
    """The bytes of a frame's body."""
    mask: int
    expected: int
    """The first `head` bytes as a number, without those that `mask` leaves out."""
    head: int
    unpack: Callable[..., tuple[Any, ...]]
    """Transaction, ledger and entry as they are on the wire, key and life, ledger id, entry id, LAC."""
    body_at: int
    body_end: int
    tail: bytes
    """Bytes that follow the body."""
    flags: int
    response_before: bytes
    response_between: bytes
    """The answer but for the three numbers on the wire: before the transaction, and between it and the ledger."""
    run_shape: Callable[[int], RunShape]
    """Shape of runs of such frames, by the length of one."""


def decode_add_request(buffer: bytes, start: int, end: int) -> AddFields | None:
    """Return the add whose frame body is `buffer[start:end]`, or None.

    The first field of the answer is the whole frame to send on success. Master keys of other than 20 bytes and entries
    below 24 bytes give None.
    """
    shape = _add_shapes.get(end - start)
    if (
        shape is not None
        and end <= len(buffer)
        and int.from_bytes(buffer[start : start + shape.head]) & shape.mask == shape.expected
        and (not shape.tail or buffer[start + shape.body_end : end] == shape.tail)
    ):
        txn, ledger, entry, key, ledger_id, entry_id, lac = shape.unpack(buffer, start)
        answer = b"".join((shape.response_before, txn, shape.response_between, ledger, b"\x18", entry))
        return answer, ledger_id, entry_id, lac, key, start + shape.body_at, start + shape.body_end, shape.flags
    if end > len(buffer) or not _learn_add(buffer, start, end):
        return None
    return decode_add_request(buffer, start, end)


def _takes_nothing(*_: object) -> tuple[Any, ...]:
    raise AssertionError("no frame has this shape")


def _has_no_runs(_: int) -> RunShape:
    raise AssertionError("no frame has this shape")


NO_SHAPE: Final = AddShape(-1, 0, 1, 0, _takes_nothing, 0, 0, b"", 0, b"", b"", _has_no_runs)
"""Fits no frame, since nothing masked with 0 is 1."""


def add_shape(length: int) -> AddShape | None:
    """The shape that frame bodies of this length had lately, for a loop that takes many frames of one shape apart
    without a call for each."""
    return _add_shapes.get(length)


def _learn_add(buffer: bytes, start: int, end: int) -> bool:
    """Makes the shape of this frame the one for its length; False when it is no add of the known sequence."""
    size = end - start
    for family in _recent_families:
        shape = family.shape(size)
        if shape is not None and _fits_add(shape, buffer, start, end):
            _remember_add(size, shape)
            return True
    layout = _parse_add(buffer[start:end])
    if layout is None:
        return False
    known = _add_families.get(layout)
    if known is None:
        if len(_add_families) >= MAX_SHAPES:
            _add_families.clear()
        known = _add_families[layout] = _AddFamily(layout)
    shape = known.shape(size)
    if shape is None or not _fits_add(shape, buffer, start, end):
        return False
    if known not in _recent_families:
        _recent_families.appendleft(known)
    _remember_add(size, shape)
    return True


def _remember_add(size: int, shape: AddShape) -> None:
    if len(_add_shapes) >= MAX_SHAPES:
        _add_shapes.clear()
    _add_shapes[size] = shape


def _fits_add(shape: AddShape, buffer: bytes, start: int, end: int) -> bool:
    head = int.from_bytes(buffer[start : start + shape.head])
    return head & shape.mask == shape.expected and buffer[start + shape.body_end : end] == shape.tail


class _AddFamily:
    """Builds shapes of one layout for any frame length."""

    def __init__(self, layout: _Layout) -> None:
        self._layout = layout
        priority, txn, field, ledger, entry, body, life_tag, tail = layout
        key, key_mask = bytes(MASTER_KEY_SIZE), bytes(MASTER_KEY_SIZE)
        if life_tag:
            key, key_mask = key + life_tag + _FREE_TOKEN, key_mask + _LIFE_MASK
        after_field = b"".join((b"\x08", free(ledger), b"\x10", free(entry), _KEY_FIELD))
        header_size = len(_ADD_HEADER) + txn + len(priority)
        self._before = b"".join((b"\x0a", bytes((header_size,)), _ADD_HEADER, free(txn), priority, _ADD_FIELD))
        self._middle = after_field + key + _BODY_FIELD
        self._field_end = len(self._before) + field
        self._head = self._field_end + len(self._middle) + body
        before_key = b"".join(
            (
                mask_of(self._before, txn, 2 + len(_ADD_HEADER)),
                b"\xff" * field,
                b"".join((b"\xff", b"\x80" * ledger, b"\xff", b"\x80" * entry, b"\xff" * 2)),
            )
        )
        behind_key = b"\xff" * (1 + body)
        self._mask = int.from_bytes(b"".join((before_key, key_mask, behind_key)))
        self._same_in_runs = b"".join((b"\xff" * LENGTH_SIZE, before_key, b"\xff" * len(key), behind_key))
        self._unpack = struct.Struct(
            f">{2 + len(_ADD_HEADER)}x{txn}s{len(priority) + 2 + field + 1}x{ledger}sx{entry}s2x"
            f"{len(key)}s{1 + body}xqqq"
        ).unpack_from
        self._flags = flags_of(priority, tail)
        self._response = add_response_parts(txn, ledger, entry)

    def shape(self, size: int) -> AddShape | None:
        """Return the shape of this family's frames of `size` bytes; None when no frame of that size belongs to
        it."""
        layout = self._layout
        body_size = size - self._head - len(layout.tail)
        if body_size < ENTRY_PREFIX_SIZE:
            return None
        field_length = encode_varint(size - self._field_end)
        body_length = encode_varint(body_size)
        if len(field_length) != layout.field_width or len(body_length) != layout.body_width:
            return None
        expected = int.from_bytes(b"".join((self._before, field_length, self._middle, body_length)))
        body_end = size - len(layout.tail)
        return AddShape(
            size,
            self._mask,
            expected,
            self._head,
            self._unpack,
            self._head,
            body_end,
            layout.tail,
            self._flags,
            *self._response,
            self.run_shape,
        )

    def run_shape(self, size: int) -> RunShape:
        """The shape of runs of frames of `size` bytes, for which there is a `shape`."""
        known = _run_shapes.get((self._layout, size))
        if known is None:
            if len(_run_shapes) >= MAX_RUN_SHAPES:
                _run_shapes.clear()
            known = _run_shapes[self._layout, size] = self._make_run_shape(size)
        return known

    def _make_run_shape(self, size: int) -> RunShape:
        _, txn, _, ledger, entry, _, _, tail = self._layout
        part1, part2 = self._response
        answer = b"".join((part1, bytes(txn), part2, bytes(ledger), b"\x18", bytes(entry)))
        ledger_at, answer_ledger_at = LENGTH_SIZE + self._field_end + 1, len(part1) + txn + len(part2)
        echoes = (
            Echo(len(part1), LENGTH_SIZE + 2 + len(_ADD_HEADER), txn),
            Echo(answer_ledger_at, ledger_at, ledger),
            Echo(answer_ledger_at + ledger + 1, ledger_at + ledger + 1, entry),
        )
        return RunShape(self._same_in_runs, size - self._head - len(tail), len(tail), answer, echoes)


def _parse_add(frame: bytes) -> _Layout | None:
    """Return the widths of an add's fields, read one after the other; the shape built from them is the proof."""
    priority, txn, at = parse_header(frame, _ADD_HEADER, _ADD_FIELD)
    field = varint_size(frame, at)
    ledger = varint_size(frame, at + field + 1)
    entry = varint_size(frame, at + field + 1 + ledger + 1)
    at += field + 1 + ledger + 1 + entry + len(_KEY_FIELD) + MASTER_KEY_SIZE
    life_tag = next((tag for tag in _LIFE_TAGS if frame.startswith(tag, at)), b"")
    at += (LIFE_SIZE if life_tag else 0) + len(_BODY_FIELD)
    body = varint_size(frame, at)
    widths = (txn, field, ledger, entry, body)
    # 10 bytes would be a negative number (or a transaction id above 2^63): rare enough for protobuf.
    if not all(0 < width < MAX_VARINT_SIZE for width in widths):
        return None
    body_end = at + body + decode_int64(frame[at : at + body])
    tail = frame[body_end:]
    rest = tail.removesuffix(RECOVERY_FIELD)
    if body_end > len(frame) or (rest and (len(rest) != 2 or rest[0] != WRITE_FLAGS_TAG or rest[1] > 0x7F)):
        return None
    return _Layout(priority, txn, field, ledger, entry, body, life_tag, tail)


def decode_read_request(buffer: bytes, start: int, end: int) -> ReadFields | None:
    """Return the plain read whose frame body is `buffer[start:end]`, or None.

    Fencing reads and long polls give None.
    """
    shape = _read_shapes.get(end - start)
    if shape is not None and end <= len(buffer):
        mask, expected, unpack, flags = shape
        if int.from_bytes(buffer[start:end]) & mask == expected:
            txn, ledger, entry = unpack(buffer, start)
            return txn, ledger, entry, _value(ledger), _value(entry), flags
    if end > len(buffer) or not _learn_read(buffer[start:end]):
        return None
    return decode_read_request(buffer, start, end)


def _learn_read(frame: bytes) -> bool:
    priority, txn, at = parse_header(frame, READ_HEADER, _READ_FIELD)
    ledger = varint_size(frame, at + 2)
    entry = varint_size(frame, at + 2 + ledger + 1)
    if not (0 < txn < MAX_VARINT_SIZE and 0 < ledger < MAX_VARINT_SIZE and entry > 0):
        return False
    if at + 2 + ledger + 1 + entry != len(frame):
        return False
    layout = (priority, txn, ledger, entry)
    shape = _read_layouts.get(layout)
    if shape is None:
        if len(_read_layouts) >= MAX_SHAPES:
            _read_layouts.clear()
        shape = _read_layouts[layout] = _read_shape(*layout)
    mask, expected, _, _ = shape
    if int.from_bytes(frame) & mask != expected:
        return False
    # Bounded by the longest frame of this form.
    _read_shapes[len(frame)] = shape
    return True


def _read_shape(priority: bytes, txn: int, ledger: int, entry: int) -> _ReadShape:
    header_size = len(READ_HEADER) + txn + len(priority)
    before = b"".join((b"\x0a", bytes((header_size,)), READ_HEADER, free(txn), priority, _READ_FIELD))
    field_size = 2 + ledger + entry
    # The tenth byte of a negative number is 1; it is fixed.
    negative = entry == MAX_VARINT_SIZE
    entry_bytes = free(entry)[:-1] + b"\x01" if negative else free(entry)
    entry_mask = b"\x80" * (entry - 1) + (b"\xff" if negative else b"\x80")
    expected = b"".join((before, bytes((field_size,)), b"\x08", free(ledger), b"\x10", entry_bytes))
    mask = b"".join((mask_of(before, txn, 2 + len(READ_HEADER)), b"\xff" * 2, b"\x80" * ledger, b"\xff", entry_mask))
    assert len(mask) == len(expected)
    unpack = struct.Struct(f">{2 + len(READ_HEADER)}x{txn}s{len(priority) + 2 + 2}x{ledger}sx{entry}s").unpack_from
    return int.from_bytes(mask), int.from_bytes(expected), unpack, flags_of(priority, b"")


def _value(raw: bytes) -> int:
    return raw[0] if len(raw) == 1 else _decoded(raw)
