"""Entry logs that a real Apache BookKeeper wrote, byte for byte."""

from __future__ import annotations

import json
import struct

import pytest

from bookie_pod.storage.entry_log import make_location
from bookie_pod.storage.entry_log.format import HEADER_SIZE, MAKER, MAKER_OFFSET, MAP_CHECK_OFFSET, map_checksum_in
from bookie_pod.storage.files import File
from tests.support.entry_logs import (
    FOLDER,
    GOLDEN,
    GOLDEN_DISKS,
    golden_description,
    golden_logs,
    make_folders,
    open_logger,
)
from tests.support.memory_files import MemoryFiles


def _write(files: MemoryFiles, path: str, data: bytes) -> None:
    file: File = files.create(path)
    file.write(data)
    file.sync()
    file.close()


@pytest.fixture(params=GOLDEN_DISKS)
def disk(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def files(disk: str) -> MemoryFiles:
    files = MemoryFiles()
    make_folders(files)
    for name, data in golden_logs(disk).items():
        _write(files, f"{FOLDER}/{name}", data)
    return files


def _entries(disk: str, name: str) -> list[dict[str, int]]:
    records = golden_description(disk)["entryLogs"].get(name, {}).get("records", [])
    return [record for record in records if record["kind"] == "entry"]


def test_scan_finds_every_record_and_ends_clean(disk: str, files: MemoryFiles) -> None:
    logger = open_logger(files)
    for name, data in golden_logs(disk).items():
        log_id = int(name.split(".")[0], 16)
        scan = logger.scan(log_id)
        found = list(scan)
        assert scan.end.clean
        assert scan.end.position == len(data)
        expected = _entries(disk, name)
        assert [(location & 0xFFFFFFFF, ledger, eid, len(body)) for location, ledger, eid, body in found] == [
            (record["offset"] + 4, record["ledgerId"], record["entryId"], record["size"]) for record in expected
        ]
        for location, _, _, body in found:
            position = location & 0xFFFFFFFF
            assert body == data[position : position + len(body)]
    logger.close()


def test_every_entry_reads_back(disk: str, files: MemoryFiles) -> None:
    logger = open_logger(files)
    count = 0
    for name, data in golden_logs(disk).items():
        log_id = int(name.split(".")[0], 16)
        for record in _entries(disk, name):
            position = record["offset"] + 4
            body = logger.read(make_location(log_id, position), record["ledgerId"], record["entryId"])
            assert body == data[position : position + record["size"]]
            count += 1
    assert count > 60
    logger.close()


def test_every_location_of_the_golden_index_leads_to_its_entry() -> None:
    files = MemoryFiles()
    make_folders(files)
    for name, data in golden_logs("disk-db").items():
        _write(files, f"{FOLDER}/{name}", data)
    logger = open_logger(files)
    rows = json.loads((GOLDEN / "disk-db" / "rocksdb.json").read_text())["locations"]["rows"]
    assert len(rows) > 60
    for row in rows:
        ledger_id, entry_id = struct.unpack(">qq", bytes.fromhex(row["key"]))
        body = logger.read(int(row["value"], 16), ledger_id, entry_id)
        assert struct.unpack_from(">qq", body) == (ledger_id, entry_id)
    logger.close()


def test_ledgers_map_from_the_tail_and_by_scan_agree(disk: str, files: MemoryFiles) -> None:
    logger = open_logger(files)
    logs = golden_description(disk)["entryLogs"]
    for name, described in logs.items():
        found = logger.ledgers_map(int(name.split(".")[0], 16))
        assert found.complete
        assert (found.end is None) == (described.get("ledgersMapOffset", 0) != 0)
        totals: dict[int, int] = {}
        for record in _entries(disk, name):
            totals[record["ledgerId"]] = totals.get(record["ledgerId"], 0) + record["size"] + 4
        assert found.ledgers == totals
    logger.close()


def test_our_log_of_the_same_entries_has_the_same_bytes(disk: str, files: MemoryFiles) -> None:
    """Up to the order of ledgers in the map, which the format leaves open, and to its check sum and the maker:
    these lie in a part of the header that the reference fills with zeros and ignores."""
    reader = open_logger(files)
    golden = golden_logs(disk)["0.log"]
    mine = MemoryFiles()
    writer = open_logger(mine, log_size_limit_bytes=1 << 30)
    for _, ledger_id, entry_id, body in reader.scan(0):
        writer.append_run(ledger_id, [entry_id], [body])
    described = golden_description(disk)["entryLogs"]["0.log"]
    writer.sync()
    closed = described["ledgersMapOffset"] > 0
    if closed:
        writer.rotate()
        writer.sync()
    ours = mine.read_bytes(f"{FOLDER}/0.log")
    assert (map_checksum_in(ours) is not None) == closed
    ours = _without_own(ours)
    end = described["ledgersMapOffset"] or len(golden)
    assert ours[:end] == golden[:end]
    assert len(ours) == len(golden)
    assert closed or ours == golden
    pairs = [golden[at : at + 16] for at in range(end + 24, len(golden), 16)]
    assert sorted(pairs) == sorted(ours[at : at + 16] for at in range(end + 24, len(ours), 16))
    assert ours[end : end + 24] == golden[end : end + 24]
    reader.close()
    writer.close()


def _without_own(log: bytes) -> bytes:
    """The log without what the reference does not write into its header."""
    end = MAKER_OFFSET + len(MAKER)
    return log[:MAP_CHECK_OFFSET] + bytes(end - MAP_CHECK_OFFSET) + log[end:]


def test_rotation_happens_where_the_reference_rotated() -> None:
    """The golden logs of DbLedgerStorage were written with logSizeLimit=30000."""
    files = MemoryFiles()
    make_folders(files)
    golden = golden_logs("disk-db")
    for name, data in golden.items():
        _write(files, f"{FOLDER}/{name}", data)
    reader = open_logger(files)
    mine = MemoryFiles()
    writer = open_logger(mine, log_size_limit_bytes=30_000)
    for log_id in (0, 1):
        for _, ledger_id, entry_id, body in reader.scan(log_id):
            writer.append_run(ledger_id, [entry_id], [body])
    writer.sync()
    assert mine.read_bytes(f"{FOLDER}/0.log")[HEADER_SIZE:29531] == golden["0.log"][HEADER_SIZE:29531]
    assert _without_own(mine.read_bytes(f"{FOLDER}/1.log")) == golden["1.log"]
    assert mine.read_bytes(f"{FOLDER}/lastId") == b"1\n"
    reader.close()
    writer.close()


def test_next_id_follows_the_reference(disk: str, files: MemoryFiles) -> None:
    logger = open_logger(files)
    last = max(logger.log_ids())
    logger.append_run(1, [0], [bytes(7) + b"\x01" + bytes(8)])
    assert logger.current_log_id() == last + 1
    logger.close()
