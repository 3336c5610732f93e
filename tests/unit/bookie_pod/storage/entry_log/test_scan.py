"""Scans: what they yield, and that their end tells clean, torn and damaged apart."""

from __future__ import annotations

import struct

import pytest

from bookie_pod.storage.entry_log import ScanOutcome
from bookie_pod.storage.entry_log.format import PAD_BYTE, encode_direct_header, encode_header
from bookie_pod.storage.entry_log.scan import CHUNK_BYTES
from bookie_protocol.errors import StorageFault
from tests.support.entry_logs import FOLDER, entry, logger_with, make_folders, open_logger, run
from tests.support.memory_files import MemoryFiles

LOG = f"{FOLDER}/0.log"


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def _scan(data: bytes) -> tuple[list[tuple[int, int]], ScanOutcome, int]:
    logger = logger_with(data)
    bodies = logger.scan(0)
    found = [(ledger, entry_id) for _, ledger, entry_id, _ in bodies]
    sizes = logger.scan_sizes(0)
    assert [(ledger, entry_id) for _, ledger, entry_id, _ in sizes] == found
    assert sizes.end == bodies.end
    assert LOG in bodies.end.detail
    logger.close()
    return found, bodies.end.outcome, bodies.end.position


GOOD = encode_header() + _framed(entry(7, 0)) + _framed(entry(8, 5))
END = len(GOOD)
BOTH = [(7, 0), (8, 5)]
CLEAN, TORN, DAMAGED = ScanOutcome.CLEAN, ScanOutcome.TORN, ScanOutcome.DAMAGED


@pytest.mark.parametrize(
    ("data", "found", "outcome", "position"),
    [
        (b"", [], CLEAN, 0),
        (b"B", [], TORN, 1),
        (encode_header()[:1023], [], TORN, 1023),
        (encode_header(), [], CLEAN, 1024),
        (GOOD, BOTH, CLEAN, END),
        (GOOD + bytes(3), BOTH, TORN, END),
        (GOOD + bytes(4), BOTH, CLEAN, END),
        (GOOD + bytes(3_000_000), BOTH, CLEAN, END),
        (GOOD + bytes(9000) + b"x", BOTH, DAMAGED, END),
        (GOOD + _framed(entry(7, 1))[:3], BOTH, TORN, END),
        (GOOD + _framed(entry(7, 1))[:19], BOTH, TORN, END),
        (GOOD + _framed(entry(7, 1))[:-1], BOTH, TORN, END),
        (GOOD + struct.pack(">iqq", 15, 7, 1) + bytes(50), BOTH, DAMAGED, END),
        (GOOD + struct.pack(">iqq", -5, 7, 1) + bytes(50), BOTH, DAMAGED, END),
        (GOOD + struct.pack(">iqq", 100, -2, 1) + bytes(90), BOTH, DAMAGED, END),
        (GOOD + struct.pack(">iqq", 100, 7, -1) + bytes(90), BOTH, DAMAGED, END),
        (GOOD + struct.pack(">iqq", 2**31 - 1, 7, 1) + bytes(90), BOTH, DAMAGED, END),
        (GOOD.ljust(4096, PAD_BYTE), BOTH, CLEAN, 4096),
        (GOOD.ljust(4096, PAD_BYTE) + _framed(entry(9, 9)), [*BOTH, (9, 9)], CLEAN, 4096 + 104),
        (GOOD.ljust(4095, PAD_BYTE) + b"x" + _framed(entry(9, 9)), BOTH, DAMAGED, END),
        (GOOD.ljust(4096, PAD_BYTE) + PAD_BYTE * 4096, BOTH, DAMAGED, 4096),
        (encode_direct_header() + _framed(entry(9, 9)), [(9, 9)], CLEAN, 4096 + 104),
    ],
)
def test_ends(data: bytes, found: list[tuple[int, int]], outcome: ScanOutcome, position: int) -> None:
    assert _scan(data) == (found, outcome, position)


@pytest.mark.parametrize("gap", [1, 2, 3, 19, 20])
def test_padding_shorter_than_a_head(gap: int) -> None:
    body = entry(7, 0, 4096 - 1024 - 4 - gap)
    data = (encode_header() + _framed(body)).ljust(4096, PAD_BYTE) + _framed(entry(9, 9))
    assert _scan(data) == ([(7, 0), (9, 9)], CLEAN, 4096 + 104)


def test_map_batches_are_stepped_over() -> None:
    files = MemoryFiles()
    logger = open_logger(files)
    logger.append_run(7, [0], [entry(7, 0)])
    logger.rotate()
    scan = logger.scan(0)
    assert [(ledger, i, body) for _, ledger, i, body in scan] == [(7, 0, entry(7, 0))]
    assert scan.end.clean
    assert scan.end.position == files.size(LOG)
    logger.close()


def test_only_the_ledgers_asked_for() -> None:
    logger = logger_with(GOOD + _framed(entry(7, 1)))
    scan = logger.scan(0, ledgers={7})
    assert [(ledger, i) for _, ledger, i, _ in scan] == [(7, 0), (7, 1)]
    assert scan.end.clean
    logger.close()


def test_sizes_are_those_of_the_entries() -> None:
    logger = logger_with(GOOD)
    assert list(logger.scan_sizes(0)) == [(1028, 7, 0, 100), (1028 + 104, 8, 5, 100)]
    logger.close()


@pytest.mark.parametrize("size", [1000, CHUNK_BYTES - 30, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_entries_across_chunks(size: int) -> None:
    entries = [entry(7, i, size) for i in range(5)]
    logger = logger_with(encode_header() + b"".join(map(_framed, entries)))
    assert [body for _, _, _, body in logger.scan(0)] == entries
    assert [found for _, _, _, found in logger.scan_sizes(0)] == [size] * 5
    logger.close()


def test_the_buffer_of_the_current_log_is_not_scanned() -> None:
    logger = open_logger(MemoryFiles(), write_buffer_size_bytes=10_000)
    ids, entries = run(7, 3)
    logger.append_run(7, ids, entries)
    scan = logger.scan(0)
    assert list(scan) == []
    assert scan.end.clean
    logger.flush()
    assert [i for _, _, i, _ in logger.scan(0)] == ids
    logger.close()


def test_the_end_is_known_at_the_end_only() -> None:
    logger = logger_with(GOOD)
    scan = logger.scan(0)
    with pytest.raises(RuntimeError, match=r"\bend\b"):
        _ = scan.end
    iterator = iter(scan)
    next(iterator)
    with pytest.raises(RuntimeError, match=r"\bend\b"):
        _ = scan.end
    assert len(list(iterator)) == 1
    assert scan.end.clean
    logger.close()


def test_a_broken_off_scan_closes_its_file() -> None:
    files = MemoryFiles()
    logger = open_logger(files)
    ids, entries = run(7, 3)
    logger.append_run(7, ids, entries)
    logger.rotate()
    logger.sync()
    iterator = iter(logger.scan(0))
    next(iterator)
    assert files.open_files == 1
    del iterator
    assert files.open_files == 0
    logger.close()


def test_a_failing_disk_is_no_end() -> None:
    files = MemoryFiles()
    logger = open_logger(files)
    logger.append_run(7, [0], [entry(7, 0)])
    logger.sync()
    files.faults.fail("pread")
    scan = logger.scan(0)
    with pytest.raises(StorageFault, match="scan"):
        list(scan)
    with pytest.raises(RuntimeError):
        _ = scan.end
    with pytest.raises(StorageFault, match=r"5\.log is .*none"):
        logger.scan(5)
    logger.close()


def test_a_log_that_becomes_shorter_during_its_scan_is_torn() -> None:
    files = MemoryFiles()
    logger = open_logger(files)
    large = CHUNK_BYTES + 100_000
    logger.append_run(7, [0, 1], [entry(7, 0), entry(7, 1, large)])
    logger.flush()
    scan = logger.scan(0)
    iterator = iter(scan)
    next(iterator)
    files.truncate_to(LOG, 1024 + 104 + large // 2)
    assert list(iterator) == []
    assert (scan.end.outcome, scan.end.position) == (TORN, 1024 + 104)
    logger.close()


def test_zeros_that_go_during_a_scan_are_no_damage() -> None:
    files = MemoryFiles()
    make_folders(files)
    files.write_bytes(LOG, GOOD + bytes(3 * CHUNK_BYTES))
    logger = open_logger(files)
    scan = logger.scan(0)
    iterator = iter(scan)
    next(iterator)
    files.truncate_to(LOG, END + CHUNK_BYTES)
    assert len(list(iterator)) == 1
    assert (scan.end.outcome, scan.end.position) == (CLEAN, END)
    logger.close()


def test_what_a_failed_write_left_behind_a_current_log_is_not_scanned() -> None:
    files = MemoryFiles()
    logger = open_logger(files, write_buffer_size_bytes=1)
    logger.append_run(7, [0], [entry(7, 0)])
    files.faults.fail("pwrite", times=1)
    with pytest.raises(StorageFault):
        logger.append_run(7, [1], [entry(7, 1)])
    assert files.size(LOG) > 1024 + 104
    scan = logger.scan(0)
    assert [i for _, _, i, _ in scan] == [0]
    assert scan.end.clean
    logger.close()
