"""Logs written with direct I/O: aligned writes, padding, and reading by either logger."""

from __future__ import annotations

import errno
import mmap
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from bookie_pod.storage.entry_log import split_location
from bookie_pod.storage.entry_log.direct import DirectLogWriter, DirectWriterFactory
from bookie_pod.storage.files import Files
from bookie_pod.storage.files_posix import PosixFiles
from bookie_protocol.errors import StorageFault
from tests.support.entry_logs import FOLDER, entry, open_logger, run
from tests.support.largest_file import largest_file
from tests.support.memory_files import MemoryFiles

LOG = f"{FOLDER}/0.log"
DIRECT = {"direct_io_entry_logger": True, "direct_buffer_bytes": 8192, "log_size_limit_bytes": 1 << 20}


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def test_the_first_entry_lies_behind_a_block(files: MemoryFiles) -> None:
    logger = open_logger(files, **DIRECT)
    locations = logger.append_run(7, [0, 1], [entry(7, 0), entry(7, 1)])
    assert [split_location(location) for location in locations] == [(0, 4100), (0, 4204)]
    logger.sync()
    data = files.read_bytes(LOG)
    assert len(data) == 8192
    assert data[4096 + 208 : 8192] == b"\xf0" * (4096 - 208)
    assert not any(data[8192:])
    following = logger.append_run(7, [2], [entry(7, 2)])
    assert split_location(following[0]) == (0, 8196)
    logger.close()


def test_a_closed_log_has_its_true_size_a_map_and_a_header(files: MemoryFiles) -> None:
    logger = open_logger(files, **DIRECT)
    ids, entries = run(7, 100, size=333)
    logger.append_run(7, ids, entries)
    logger.rotate()
    logger.sync()
    found = logger.ledgers_map(0)
    assert (found.end, found.ledgers) == (None, {7: 100 * 337})
    assert files.size(LOG) % 4096 == 0
    assert files.size(LOG) < 60_000
    logger.close()


@given(runs=st.lists(st.lists(st.integers(16, 9000), min_size=1, max_size=8), min_size=1, max_size=6))
def test_round_trip_through_either_logger(runs: list[list[int]]) -> None:
    files = MemoryFiles()
    logger = open_logger(files, direct_io_entry_logger=True, direct_buffer_bytes=8192, log_size_limit_bytes=50_000)
    expected = {}
    for ledger_id, sizes in enumerate(runs):
        entries = [entry(ledger_id, i, size) for i, size in enumerate(sizes)]
        for location, i, body in zip(
            logger.append_run(ledger_id, range(len(sizes)), entries), range(len(sizes)), entries, strict=True
        ):
            expected[location] = (ledger_id, i, body)
            assert logger.read(location, ledger_id, i) == body
        if ledger_id % 2:
            logger.flush()
    logger.close()
    reader = open_logger(files)
    scanned = {}
    for log_id in reader.log_ids():
        scan = reader.scan(log_id)
        scanned.update({location: (ledger, i, body) for location, ledger, i, body in scan})
        assert scan.end.clean
        assert reader.ledgers_map(log_id).end is None
    assert scanned == expected
    for ledger_id, sizes in enumerate(runs):
        first = min(location for location, (ledger, _, _) in expected.items() if ledger == ledger_id)
        ahead = reader.read_run(first, ledger_id, 0, 1000, 1 << 30)
        in_first_log = [1 for loc, (led, _, _) in expected.items() if led == ledger_id and loc >> 32 == first >> 32]
        assert len(ahead) == len(in_first_log) <= len(sizes)
    reader.close()


def test_an_unclosed_log_scans_clean(files: MemoryFiles) -> None:
    logger = open_logger(files, **DIRECT)
    ids, entries = run(7, 50)
    logger.append_run(7, ids, entries)
    logger.sync()
    again = open_logger(files.restart())
    found = again.ledgers_map(0)
    assert found.complete
    assert found.end is not None
    assert found.ledgers == {7: 5200}
    again.close()
    logger.close()


def test_a_failed_direct_write_is_repeated(files: MemoryFiles) -> None:
    logger = open_logger(files, **DIRECT)
    ids, entries = run(7, 300)
    files.faults.fail("pwrite", errno=errno.ENOSPC, after=1, times=1)
    with pytest.raises(StorageFault):
        logger.append_run(7, ids, entries)
    locations = logger.append_run(7, ids, entries)
    logger.sync()
    assert [logger.read(location, 7, i) for location, i in zip(locations, ids, strict=True)] == entries
    logger.close()


@pytest.mark.parametrize("refusal", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_without_direct_io_is_named_once(files: MemoryFiles, refusal: int) -> None:
    files.faults.fail("create_direct", errno=refusal)
    logger = open_logger(files, **DIRECT)
    with capture_logs() as logs:
        locations = logger.append_run(7, [0], [entry(7, 0)])
        logger.rotate()
        logger.append_run(7, [1], [entry(7, 1)])
    told = [line for line in logs if "dbStorage_directIOEntryLogger" in line["event"]]
    assert len(told) == 1
    assert told[0]["directory"] == FOLDER
    assert split_location(locations[0]) == (0, 1028)
    logger.close()


def test_the_log_grows_as_it_is_written(files: MemoryFiles) -> None:
    logger = open_logger(files, **DIRECT)
    assert split_location(logger.append_run(7, [0], [entry(7, 0)])[0]) == (0, 4100)
    logger.sync()
    assert files.size(LOG) == 8192
    logger.close()


def test_a_full_disk_is_no_refusal(files: MemoryFiles) -> None:
    files.faults.fail("create_direct", errno=errno.ENOSPC)
    logger = open_logger(files, **DIRECT)
    with pytest.raises(StorageFault, match="space"):
        logger.append_run(7, [0], [entry(7, 0)])
    logger.close()


def test_on_the_real_file_system(tmp_path: object) -> None:
    files: Files = PosixFiles()
    logger = open_logger(files, f"{tmp_path}/current", **DIRECT)
    ids, entries = run(7, 3000, size=700)
    locations = logger.append_run(7, ids, entries)
    logger.sync()
    assert [logger.read(location, 7, i) for location, i in zip(locations, ids, strict=True)] == entries
    logger.close()
    again = open_logger(files, f"{tmp_path}/current")
    assert sum(again.ledgers_map(log_id).ledgers[7] for log_id in again.log_ids()) == 3000 * 704
    again.close()


def test_closing_a_log_frees_its_buffer(files: MemoryFiles) -> None:
    files.makedirs(FOLDER)
    aligned = mmap.mmap(-1, 8192)
    log = DirectLogWriter(0, FOLDER, files.create_direct(LOG), aligned)
    log.append(7, [entry(7, 0)], 0, 1 << 20, [])
    log.flush()
    log.close()
    aligned.close()  # nothing refers to it any more
    assert files.open_files == 0


def test_a_log_closes_while_the_error_of_a_write_is_kept(tmp_path: Path) -> None:
    aligned = mmap.mmap(-1, 1 << 20)
    log = DirectLogWriter(0, str(tmp_path), PosixFiles().create_direct(f"{tmp_path}/0.log"), aligned)
    log.append(7, [bytes(300_000)], 0, 1 << 30, [])
    with largest_file(50 * 4096), pytest.raises(OSError) as kept:  # the kernel takes a part
        log.flush()
    log.close()
    aligned.close()
    assert kept.value.errno == errno.EFBIG


def test_no_file_is_made_without_memory_to_write_it_from(files: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.makedirs(FOLDER)
    error = OSError(errno.ENOMEM, "no memory")
    monkeypatch.setattr("bookie_pod.storage.entry_log.direct.mmap.mmap", Mock(side_effect=error))
    with pytest.raises(OSError):
        DirectWriterFactory()(files, 0, FOLDER, 65_536)
    assert files.open_files == 0
    assert files.listdir(FOLDER) == []
