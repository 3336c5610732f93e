"""Packed sizes per ledger: they behave like the dict that they replace, in a tenth of its memory.

The ledgers map: from the tail if all of it fits, else by a scan that says how it ended.
"""

from __future__ import annotations

import struct
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.storage.entry_log import ScanOutcome, ledger_sizes
from bookie_pod.storage.entry_log import format as fmt
from bookie_pod.storage.entry_log.ledger_sizes import LedgerSizes, LedgerSizesBuilder, read_ledgers_map
from bookie_protocol.errors import StorageFault
from tests.support.entry_logs import FOLDER, entry, open_logger, run
from tests.support.memory_files import MemoryFiles

_IDS = st.integers(min_value=0, max_value=2**63 - 1)


@given(st.lists(st.tuples(_IDS, st.integers(1, 2**40)), max_size=60))
def test_sums_per_ledger(pairs: list[tuple[int, int]]) -> None:
    expected: Counter[int] = Counter()
    builder = LedgerSizesBuilder()
    for ledger_id, nbytes in pairs:
        expected[ledger_id] += nbytes
        builder.add(ledger_id, nbytes)
    sizes = builder.build()
    assert sizes == expected
    assert list(sizes.pairs()) == sorted(expected.items())
    assert sizes.total == sum(expected.values())
    assert all(ledger_id not in sizes or ledger_id in expected for ledger_id in (0, 1, 2**63 - 1))


def test_a_ledger_takes_16_bytes() -> None:
    builder = LedgerSizesBuilder()
    ids = np.arange(100_000, dtype=np.int64)
    builder.add_array(np.stack([ids, ids + 1], axis=1))
    sizes = builder.build()
    assert len(sizes) == 100_000
    assert sizes[99_999] == 100_000
    assert sizes.nbytes == 1_600_000


def test_ledgers_that_come_again_and_again_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a log of many flushes: what waits to be added up does not grow with the entries."""
    monkeypatch.setattr(ledger_sizes, "CHUNK", 64)
    builder = LedgerSizesBuilder()
    most = 0
    for _ in range(20):
        for ledger_id in range(1000):
            builder.add(ledger_id, ledger_id + 1)
            most = max(most, sum(map(len, builder._packed)))
    assert most <= 1000 * 5 // 4 + 5 * 64
    assert builder.build() == {ledger_id: 20 * (ledger_id + 1) for ledger_id in range(1000)}


@given(st.dictionaries(_IDS, st.integers(20, 2**14), min_size=1, max_size=50))
def test_map_round_trip(ledgers: dict[int, int]) -> None:
    files = MemoryFiles()
    files.makedirs("/d")
    file = files.create("/d/0.log")
    offset = fmt.HEADER_SIZE + sum(ledgers.values())
    header = fmt.HEADER.pack(fmt.MAGIC, fmt.VERSION, offset, len(ledgers))
    file.pwrite(header.ljust(fmt.HEADER_SIZE, b"\0"), 0)
    file.pwrite(b"".join(fmt.encode_ledgers_map(ledgers)), offset)
    assert read_ledgers_map(file) == (ledgers, False)


LOG = f"{FOLDER}/0.log"
COUNT_OFFSET = 16


def _closed_log(ledgers: int = 3) -> MemoryFiles:
    files = MemoryFiles()
    logger = open_logger(files)
    for ledger_id in range(ledgers):
        logger.append_run(ledger_id, [0], [entry(ledger_id, 0, 36)])
    logger.close()
    return files


def test_25000_ledgers_make_three_batches() -> None:
    """Scenario A21."""
    files = _closed_log(25_000)
    data = files.read_bytes(LOG)
    offset, count = struct.unpack_from(">qi", data, 8)
    assert (offset, count) == (1024 + 25_000 * 40, 25_000)
    sizes = []
    while offset < len(data):
        size, ledger_id, entry_id, batch = struct.unpack_from(">iqqi", data, offset)
        assert (ledger_id, entry_id, size) == (-1, -2, 20 + 16 * batch)
        sizes.append(batch)
        offset += 4 + size
    assert sizes == [10_000, 10_000, 5_000]
    logger = open_logger(files)
    found = logger.ledgers_map(0)
    assert found.end is None
    assert found.ledgers == dict.fromkeys(range(25_000), 40)
    logger.close()


MAP_AT = 1024 + 3 * 40


@pytest.mark.parametrize("proved", [True, False])
@pytest.mark.parametrize(
    ("offset", "data"),
    [
        (4, struct.pack(">i", 0)),  # a version without maps
        (8, struct.pack(">q", 0)),  # never closed
        (8, struct.pack(">q", 1024)),  # points to an entry
        (8, struct.pack(">q", MAP_AT + 1)),
        (8, struct.pack(">q", 2**62)),
        (COUNT_OFFSET, struct.pack(">i", 2)),
        (COUNT_OFFSET, struct.pack(">i", 4)),
        (COUNT_OFFSET, struct.pack(">i", -1)),
        (MAP_AT, struct.pack(">i", 69)),  # leftover byte in the batch
        (MAP_AT, struct.pack(">i", 0)),
        (MAP_AT + 4, struct.pack(">q", 5)),
        (MAP_AT + 12, struct.pack(">q", 5)),
        (MAP_AT + 20, struct.pack(">i", 2)),
        (MAP_AT + 20, struct.pack(">i", 2**31 - 1)),
        (MAP_AT + 20, struct.pack(">i", -3)),
        (MAP_AT + 24, struct.pack(">q", -3)),
        (MAP_AT + 24, struct.pack(">q", 1)),  # a ledger twice
        (MAP_AT + 32, struct.pack(">q", 0)),
        (MAP_AT + 32, struct.pack(">q", 41)),  # more bytes than the log has
        (MAP_AT + 32, struct.pack(">q", 2**63 - 1)),
    ],
)
def test_a_map_that_does_not_fit_is_replaced_by_a_scan(offset: int, data: bytes, proved: bool) -> None:
    files = _closed_log()
    files.corrupt(LOG, offset, data)
    if not proved:
        files.corrupt(LOG, 20, bytes(8))
    logger = open_logger(files)
    found = logger.ledgers_map(0)
    assert found.end is not None
    assert found.ledgers == {0: 40, 1: 40, 2: 40}
    logger.close()


@pytest.mark.parametrize(("named", "batches", "believed"), [(2, 2, True), (1, 2, False), (1, 1, True)])
def test_a_map_has_as_many_ledgers_as_the_header_says(named: int, batches: int, believed: bool) -> None:
    """In all of its batches together, even if one ledger is in two of them."""
    files = _closed_log()
    files.corrupt(LOG, 20, bytes(8))
    files.corrupt(LOG, COUNT_OFFSET, struct.pack(">i", named))
    ids = (1, 2) if named == 2 else (1, 1)
    ledgers_map = b"".join(b"".join(fmt.encode_ledgers_map({ledger: 40})) for ledger in ids[:batches])
    files.corrupt(LOG, MAP_AT, ledgers_map.ljust(24 + 3 * 16, b"\0"))
    files.truncate_to(LOG, MAP_AT + len(ledgers_map))
    logger = open_logger(files)
    found = logger.ledgers_map(0)
    assert (found.end is None) == believed
    logger.close()


@pytest.mark.parametrize("length", [MAP_AT + 2, MAP_AT + 10, MAP_AT + 24, MAP_AT + 40])
def test_a_map_that_breaks_off(length: int) -> None:
    files = _closed_log()
    file = files.open(LOG, writable=True)
    file.truncate(length)
    file.close()
    logger = open_logger(files)
    found = logger.ledgers_map(0)
    assert found.end is not None
    assert found.end.outcome is ScanOutcome.TORN
    assert not found.complete
    assert found.ledgers == {0: 40, 1: 40, 2: 40}
    logger.close()


@pytest.mark.parametrize("direct_io", [False, True])
def test_every_flipped_bit_of_a_map_or_of_what_points_to_it_is_noticed(direct_io: bool) -> None:
    files = MemoryFiles()
    logger = open_logger(files, direct_io_entry_logger=direct_io)
    for ledger_id in range(3):
        logger.append_run(ledger_id, [0], [entry(ledger_id, 0, 36)])
    logger.close()
    whole = files.read_bytes(LOG)
    (offset,) = struct.unpack_from(">q", whole, 8)
    logger = open_logger(files)
    assert logger.ledgers_map(0).checked
    for at in (*range(4, 28), *range(offset, offset + 24 + 3 * 16)):
        for bit in range(at % 3, 8, 3):
            files.corrupt(LOG, at, bytes([whole[at] ^ 1 << bit]))
            found = logger.ledgers_map(0)
            # The magic of the check sum lost: no more than a log of the reference, whose map is not proved.
            assert not found.checked or at in (4, 5, 6, 7), (at, bit)
            assert found.ledgers == {0: 40, 1: 40, 2: 40}, (at, bit)
        files.corrupt(LOG, at, whole[at : at + 1])
    logger.close()


def test_a_log_of_the_reference_has_a_map_that_nothing_proves() -> None:
    files = _closed_log()
    files.corrupt(LOG, 20, bytes(8))
    logger = open_logger(files)
    found = logger.ledgers_map(0)
    assert (found.end, found.checked, found.ledgers) == (None, False, {0: 40, 1: 40, 2: 40})
    files.corrupt(LOG, MAP_AT + 24, struct.pack(">q", 9))
    assert logger.ledgers_map(0).ledgers == {9: 40, 1: 40, 2: 40}  # as the reference would believe
    logger.close()


@pytest.mark.parametrize(("length", "missing_from"), [(MAP_AT - 40, MAP_AT - 40), (1024, 1024), (MAP_AT, None)])
def test_a_closed_log_that_was_cut_between_two_entries_is_not_complete(length: int, missing_from: int | None) -> None:
    files = _closed_log()
    file = files.open(LOG, writable=True)
    file.truncate(length)
    file.close()
    logger = open_logger(files)
    found = logger.ledgers_map(0)
    assert (found.missing_from, found.complete) == (missing_from, missing_from is None)
    logger.close()


def test_a_damaged_log_without_a_map_is_never_complete() -> None:
    files = _closed_log()
    files.corrupt(LOG, 8, bytes(12))
    files.corrupt(LOG, 1024 + 40, struct.pack(">i", 7))
    logger = open_logger(files)
    found = logger.ledgers_map(0)
    assert not found.complete
    assert found.ledgers == {0: 40}
    assert found.end is not None
    assert found.end.position == 1064
    logger.close()


def test_an_empty_file_holds_nothing_and_is_complete() -> None:
    """What preallocation leaves after a crash."""
    files = MemoryFiles()
    files.makedirs(FOLDER)
    files.create(LOG).close()
    logger = open_logger(files)
    found = logger.ledgers_map(0)
    assert (found.ledgers, found.complete) == ({}, True)
    logger.close()


def test_a_missing_log_and_a_failing_disk_are_faults() -> None:
    files = _closed_log()
    logger = open_logger(files)
    with pytest.raises(StorageFault, match=r"3\.log is .*none"):
        logger.ledgers_map(3)
    files.faults.fail("pread")
    with pytest.raises(StorageFault, match="read"):
        logger.ledgers_map(0)
    logger.close()


@pytest.mark.parametrize(("size", "paid"), [(16, [(1024, 1024 * 20), (476, 476 * 20)]), (1400, None)])
def test_a_counting_scan_is_paid_for_as_it_goes(size: int, paid: list[tuple[int, int]] | None) -> None:
    files = MemoryFiles()
    logger = open_logger(files)
    ids, entries = run(7, 1500, size)
    logger.append_run(7, ids, entries)
    logger.flush()
    told: list[tuple[int, int]] = []
    found = logger.ledgers_map(0, lambda *spent: told.append(spent))
    assert found.ledgers == {7: 1500 * (size + 4)}
    if paid:
        assert told == paid
    else:
        assert told == [(747, 747 * 1404), (747, 747 * 1404), (6, 6 * 1404)], "a megabyte at a time"
    logger.rotate()
    logger.sync()
    told.clear()
    assert logger.ledgers_map(0, lambda *spent: told.append(spent)).end is None
    assert told == [], "the log has its map"
    counted = logger.ledgers_map(0, lambda *spent: told.append(spent), scan=True)
    assert counted.end is not None
    assert counted.end.clean
    assert counted.closed
    assert sum(entries for entries, _ in told) == 1500
    assert logger.ledgers_map(0, scan=True).ledgers == found.ledgers
    logger.close()


def test_the_same_sizes() -> None:
    def sizes(**pairs: int) -> LedgerSizes:
        builder = LedgerSizesBuilder()
        for ledger, nbytes in pairs.items():
            builder.add(int(ledger[1:]), nbytes)
        return builder.build()

    assert sizes(l1=5, l2=6).same_as(sizes(l2=6, l1=5))
    for other in (sizes(l1=5), sizes(l1=5, l2=7), sizes(l1=5, l3=6), sizes()):
        assert not sizes(l1=5, l2=6).same_as(other)


def test_a_map_that_ends_in_the_middle_of_a_pair() -> None:
    with pytest.raises(ValueError, match=r"31 bytes .* 2 ledgers"):
        ledger_sizes._decode_pairs(bytes(31), 2)
