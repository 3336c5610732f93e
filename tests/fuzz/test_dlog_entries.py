"""Fuzz: whatever an entry holds, `decode=dlog` gives its log records or the one error that says that it cannot."""

from __future__ import annotations

import struct
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_bookie.common.errors import UndecodableEntry
from pyspark_bookie.source.dlog import MAX_BLOCK, MAX_ENTRY, RECORD_BYTES, LogRecord, log_records
from tests.support.dlog_entries import COMPRESSIONS, RECORD_SET, control, end_of_stream, entry, record, record_set
from tests.support.mutations import mutated

COMPRESSION = st.sampled_from(sorted(COMPRESSIONS))
TRANSACTION = st.integers(-(2**63), 2**63 - 1)
POSITION = st.integers(0, 2**32 - 1)
VALUE = st.binary(max_size=30) | st.integers(0, 3000).map(lambda size: b"a" * size)
SIZE = st.sampled_from([0, 1, 4, 20, MAX_BLOCK, MAX_BLOCK + 1, 2**31 - 1, 2**31, 2**32 - 1]) | st.integers(0, 300)


@st.composite
def written(draw: st.DrawFn) -> tuple[bytes, list[LogRecord]]:
    """An entry as a writer makes it, and its records."""
    parts: list[bytes] = []
    found: list[LogRecord] = []
    slot = 0
    for kind in draw(st.lists(st.sampled_from(["record", "control", "end", "set"]), max_size=6)):
        transaction, position = draw(TRANSACTION), draw(st.integers(0, 2**31))
        values = draw(st.lists(VALUE, max_size=5)) if kind == "set" else [draw(VALUE)]
        if kind == "set":
            parts.append(record_set(transaction, values, position, draw(COMPRESSION)))
        elif kind == "record":
            parts.append(record(transaction, values[0], position))
        else:
            parts.append(control(transaction, position) if kind == "control" else end_of_stream(position))
        if kind in ("set", "record"):
            found += [
                LogRecord(transaction, position + place, slot + place, value) for place, value in enumerate(values)
            ]
        slot += len(values)
    if parts and draw(st.booleans()):
        return b"".join(parts), found
    return entry(*parts, compression=draw(COMPRESSION)), found


@st.composite
def claimed(draw: st.DrawFn) -> bytes:
    """Headers in their places, whose sizes are any."""
    content = draw(st.binary(max_size=100))
    for _ in range(draw(st.integers(0, 3))):
        flags = draw(st.sampled_from([0, 1, 2, RECORD_SET, RECORD_SET | 1]))
        if flags & RECORD_SET:
            sizes = draw(SIZE), draw(SIZE), draw(SIZE | st.just(len(content)))
            content = struct.pack(">IIII", draw(st.sampled_from([0x1000, 0x1001, 0x1002])), *sizes) + content
        length = draw(SIZE | st.just(len(content)))
        content = struct.pack(">QqI", draw(POSITION) << 16 | flags, draw(TRANSACTION), length) + content
    size, stored = draw(SIZE | st.just(len(content))), draw(SIZE | st.just(len(content)))
    return struct.pack(">BIII", 1, draw(st.integers(0, 3)), size, stored) + content


def decoded(data: bytes) -> list[LogRecord] | None:
    """None: it cannot be."""
    try:
        found = log_records(data)
    except UndecodableEntry:
        return None
    assert sum(len(each.value) + RECORD_BYTES for each in found) <= MAX_ENTRY
    slots = [each.slot_id for each in found]
    assert slots == sorted(set(slots))
    return found


@settings(max_examples=150, deadline=None)
@given(written())
def test_what_was_written(made: tuple[bytes, list[LogRecord]]) -> None:
    data, records = made
    assert log_records(data) == records


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda data: b"\0" + data))
def test_arbitrary_bytes(data: bytes) -> None:
    found = decoded(data)
    assert found is None or sum(len(each.value) for each in found) <= 255 * len(data)


@settings(max_examples=200, deadline=None)
@given(written().flatmap(lambda made: mutated(made[0])))
def test_damaged_entries(data: bytes) -> None:
    decoded(data)


@settings(max_examples=150, deadline=None)
@given(written(), st.integers(0, 10_000))
def test_an_entry_that_was_cut_off(made: tuple[bytes, list[LogRecord]], end: int) -> None:
    data, records = made
    found = decoded(data[: end % (len(data) + 1)])
    assert found is None or found == records[: len(found)]


@settings(max_examples=200, deadline=None)
@given(claimed())
def test_claimed_sizes_take_no_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        decoded(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * MAX_BLOCK + 1024 * 1024
