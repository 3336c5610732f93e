"""Entries of DistributedLog logs as log records."""

from __future__ import annotations

import re
import struct

import pytest

from pyspark_bookie.common.errors import UndecodableEntry
from pyspark_bookie.source.dlog import MAX_BLOCK, MAX_ENTRY, LogRecord, log_records
from tests.support.dlog_entries import COMPRESSIONS, RECORD_SET, control, end_of_stream, entry, record, record_set

COMPRESSION = pytest.mark.parametrize("compression", COMPRESSIONS)
SET = pytest.mark.parametrize("of_set", COMPRESSIONS)


def test_every_field_of_an_entry_written_out():
    made = bytes.fromhex(
        "01 00000000 0000002e 0000002e"  # version, no compression, sizes
        "0000 00000007 0000 0000000000000063 00000003 616263"  # position 7, transaction 99, b"abc"
        "0000 00000008 0000 fffffffffffffffe 00000003 646566"  # position 8, transaction -2, b"def"
    )
    assert log_records(made) == [LogRecord(99, 7, 0, b"abc"), LogRecord(-2, 8, 1, b"def")]
    assert made == entry(record(99, b"abc", 7), record(-2, b"def", 8)), "the tests' own writer"


def test_a_record_set_written_out():
    made = bytes.fromhex(
        "01 00000000 0000002d 0000002d"
        "0000 00000005 0004 0000000000000063 00000019"  # position 5, a record set, transaction 99
        "00001000 00000002 00000009 00000009"  # version, no compression, two records, sizes
        "00000001 61 00000000"  # b"a", b""
    )
    assert log_records(made) == [LogRecord(99, 5, 0, b"a"), LogRecord(99, 6, 1, b"")]
    assert made == entry(record_set(99, [b"a", b""], 5)), "the tests' own writer"


@COMPRESSION
@SET
def test_slots_go_on_over_everything(compression, of_set):
    made = entry(
        record(10, b"one", 1),
        record(11, b"", 2),
        control(11, 2),
        record_set(12, [b"x" * 1000, b"", b"z"], 3, of_set),
        record(13, b"y" * 5000, 6),
        end_of_stream(6),
        compression=compression,
    )
    assert log_records(made) == [
        LogRecord(10, 1, 0, b"one"),
        LogRecord(11, 2, 1, b""),
        LogRecord(12, 3, 3, b"x" * 1000),
        LogRecord(12, 4, 4, b""),
        LogRecord(12, 5, 5, b"z"),
        LogRecord(13, 6, 6, b"y" * 5000),
    ]


@COMPRESSION
def test_what_is_not_of_an_application_is_left_out(compression):
    assert log_records(entry(control(5, 3), compression=compression)) == []
    assert log_records(entry(end_of_stream(3), compression=compression)) == []


def test_nothing_in_an_envelope_and_nothing_in_a_set():
    assert log_records(entry()) == []
    made = entry(record_set(1, []), record(2, b"behind"))
    assert log_records(made) == [LogRecord(2, 0, 0, b"behind")], "an empty set has no slot"


def test_an_old_segment_has_no_envelopes():
    made = record(1, b"one", 1) + control(1, 1) + record_set(2, [b"two", b"three"], 2, "lz4")
    assert log_records(made) == [LogRecord(1, 1, 0, b"one"), LogRecord(2, 2, 2, b"two"), LogRecord(2, 3, 3, b"three")]


def test_the_greatest_position_and_flags_of_no_meaning():
    metadata = 0xFFFF << 48 | 0xFFFFFFFF << 16 | 0xFFF8
    made = entry(struct.pack(">QqI", metadata, 2**63 - 1, 1) + b"v")
    made = made[:1] + struct.pack(">I", 0xFFFFFFFC) + made[5:]
    assert log_records(made) == [LogRecord(2**63 - 1, 2**32 - 1, 0, b"v")]


ONE = entry(record(1, b"value"))
SQUEEZED = entry(record(1, b"value" * 100), compression="lz4")


def envelope(flags, size, stored, block, version=1):
    return struct.pack(">BIII", version, flags, size, stored) + block


def a_set(metadata, count, size, stored, block):
    return entry(record(1, struct.pack(">IIII", metadata, count, size, stored) + block, flags=RECORD_SET))


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (b"", "empty"),
        (b"just some bytes", "version 106"),
        (envelope(0, 0, 0, b"", version=2), "version 2"),
        (ONE[:12], "DistributedLog"),
        (ONE[:-1], "where 24 are"),
        (ONE + b"?", "where 26 are"),
        (envelope(0, 5, 4, b"1234"), "5 bytes, "),
        (envelope(2, 4, 4, b"1234"), "compression 2 is"),
        (envelope(3, 4, 4, b"1234"), "compression 3 is"),
        (envelope(1, 2**31, 4, b"1234"), f"size of {2**31} bytes"),
        (envelope(1, MAX_BLOCK + 1, 4, b"1234"), f"size of {MAX_BLOCK + 1} bytes"),
        (envelope(1, 521, len(SQUEEZED) - 13, SQUEEZED[13:]), "521 bytes of lz4_raw"),
        (envelope(1, 519, len(SQUEEZED) - 13, SQUEEZED[13:]), "no 519 bytes of lz4_raw"),
        (envelope(1, 0, len(SQUEEZED) - 13, SQUEEZED[13:]), "no 0 bytes of lz4_raw"),
        (entry(record(1, b"value")[:-1]), "record of 5 bytes"),
        (entry(record(1, b""), b"\0" * 19), "DistributedLog"),
        (entry(struct.pack(">QqI", 0, 1, 2**32 - 1)), "record of 4294967295 bytes"),
        (a_set(0x2000, 0, 0, 0, b""), "0x2000"),
        (a_set(0x1002, 0, 0, 0, b""), "compression 2 is"),
        (a_set(0x1000, 1, 4, 4, b"\0\0\0\1"), "record of 1 bytes"),
        (a_set(0x1000, 2, 4, 4, b"\0\0\0\0"), "DistributedLog"),
        (a_set(0x1000, 0, 4, 4, b"\0\0\0\0"), "4 bytes"),
        (a_set(0x1000, 1, 4, 5, b"\0\0\0\0"), "block of 5 bytes"),
        (a_set(0x1001, 1, 2**32 - 1, 4, b"\0\0\0\0"), "size of 4294967295 bytes"),
    ],
)
def test_what_cannot_be_decoded_says_why(made, told):
    with pytest.raises(UndecodableEntry, match=re.escape(told)):
        log_records(made)


def test_an_entry_is_decoded_whole_or_not_at_all():
    with pytest.raises(UndecodableEntry, match="of 5 bytes"):
        log_records(entry(record(1, b"good"), record(2, b"value")[:-1]))


@COMPRESSION
def test_sets_that_grow_beyond_all_measure_are_refused(compression):
    """A bomb: each set is some KB and stands for megabytes."""
    one = record_set(1, [bytes(1024 * 1024)] * 3, compression="lz4")
    most = MAX_ENTRY // (3 * 1024 * 1024)
    assert len(log_records(entry(*[one] * most, compression=compression))) == 3 * most
    bomb = entry(*[one] * (most + 1), compression=compression)
    with pytest.raises(UndecodableEntry, match=f"than {MAX_ENTRY} bytes"):
        log_records(bomb)


def test_records_of_nothing_are_bounded_as_well():
    one = record_set(1, [b""] * 100_000, compression="lz4")
    assert len(one) < 10_000
    with pytest.raises(UndecodableEntry, match="more"):
        log_records(entry(*[one] * 6))
