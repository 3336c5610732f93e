"""The consistency check: every kind of finding on damaged disks, nothing on sound ones."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from bookie_pod.cli.disk.read_only import ReadOnlyStores
from bookie_pod.node.storage_start import check_consistency
from bookie_pod.storage.entry_log import logger
from bookie_pod.storage.entry_log.format import encode_header, split_location
from bookie_pod.storage.files import File
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.gc.storage import collected
from bookie_pod.storage.index.locations import LocationIndex, LocationRun
from bookie_pod.storage.index.rocksdb_store import RocksStores
from bookie_pod.storage.index.store import StoreKind
from bookie_pod.storage.inspect.layout import DiskLayout
from bookie_pod.storage.inspect.space import StoredSpaces
from bookie_pod.storage.integrity import consistency
from bookie_pod.storage.integrity.consistency import ConsistencyCheck, ConsistencyReport, FindingKind
from bookie_protocol.errors import ResourcesShort, StorageFault
from tests.support.gc_rig import GcRig
from tests.support.stored_disks import golden_disk, open_engine_on, write_disk

FILES = PosixFiles()


def _check(layout: DiskLayout, *, logs: bool = True, keep: int = 1000) -> ConsistencyReport:
    with StoredSpaces(FILES, ReadOnlyStores(), layout) as spaces:
        return ConsistencyCheck(spaces.spaces, logs=logs, max_findings=keep).run()


def _rows(layout: DiskLayout, ledger_id: int) -> dict[int, int]:
    with StoredSpaces(FILES, ReadOnlyStores(), layout) as spaces:
        return dict(spaces.of(ledger_id).rows(ledger_id, 0))


def _change(layout: DiskLayout, change: Callable[[LocationIndex], None]) -> None:
    index = LocationIndex(RocksStores(FILES).open(f"{layout.ledgers[0]}/locations", StoreKind.LOCATIONS))
    change(index)
    index.close()


@pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])
def test_disks_of_the_reference_are_sound(engine: str, tmp_path: Path) -> None:
    report = _check(golden_disk(engine, tmp_path))
    assert report.sound
    assert (report.ledgers, report.rows) == (8, 79)
    assert report.entries >= 79


@pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])
def test_disks_of_ours_are_sound(engine: str, tmp_path: Path) -> None:
    report = _check(write_disk(engine, tmp_path, {1: 700, 2: 3}, log_size=20_000))
    assert report.sound
    assert (report.rows, report.entries) == (703, 703)
    assert report.logs >= 2


def test_a_row_that_leads_to_another_entry(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 5})
    rows = _rows(layout, 1)
    _change(layout, lambda index: index.write([LocationRun(1, [3], [rows[4]])]))
    report = _check(layout)
    (finding,) = report.findings
    assert (finding.kind, finding.ledger_id, finding.entry_id) == (FindingKind.WRONG_ENTRY, 1, 3)
    assert report.damages == 1


def test_a_log_that_is_gone(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 5})
    log_id = split_location(_rows(layout, 1)[0])[0]
    (Path(layout.ledgers[0]) / f"{log_id:x}.log").unlink()
    assert _check(layout).counts == {FindingKind.MISSING_LOG: 5}


def test_a_log_that_was_cut(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 5})
    log_id, position = split_location(_rows(layout, 1)[4])
    path = Path(layout.ledgers[0]) / f"{log_id:x}.log"
    path.write_bytes(path.read_bytes()[: position + 50])
    report = _check(layout)
    assert report.counts == {FindingKind.WRONG_ENTRY: 1}
    assert report.torn_logs == 1


@pytest.mark.parametrize("engine", ["db", "sorted"])
def test_what_cannot_be_read_for_want_of_descriptors_is_no_finding(engine: str) -> None:
    rig = GcRig(engine=engine)
    log_id = rig.write([1, 2], 3)
    rig.restart()
    rig.bookie.faults.fail("open", path=f"/{log_id:x}.log", errno=errno.EMFILE)
    check = ConsistencyCheck(collected(rig.storage))
    with pytest.raises(ResourcesShort):
        check.run()
    assert check.report.sound


def test_damage_in_a_log(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 5})
    log_id, position = split_location(_rows(layout, 1)[2])
    path = Path(layout.ledgers[0]) / f"{log_id:x}.log"
    data = bytearray(path.read_bytes())
    data[position - 4 : position + 4] = b"\x7f" * 8
    path.write_bytes(data)
    report = _check(layout)
    assert report.counts == {FindingKind.WRONG_ENTRY: 1, FindingKind.DAMAGED_LOG: 1}
    assert _check(layout, logs=False).counts == {FindingKind.WRONG_ENTRY: 1}


@pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])
def test_what_a_failed_write_has_left_at_the_end_of_a_log_is_no_damage(engine: str, tmp_path: Path) -> None:
    layout = write_disk(engine, tmp_path, {1: 5})
    rest = struct.pack(">i", 2_002_598_472) + b"\x77" * 5000
    (Path(layout.ledgers[0]) / "1f.log").write_bytes(encode_header() + rest)
    report = _check(layout)
    assert (report.sound, report.torn_logs) == (True, 1)


def test_a_log_whose_header_cannot_be_read_any_more_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = GcRig()
    log_id = rig.write([1, 2], 3)
    rig.restart()
    position = split_location(rig.parts.location_of(2, 2))[1]
    rig.forget_map(log_id)
    rig.bookie.files.corrupt(rig.path(log_id), position - 4, b"\x7f" * 4)
    rig.drop_row(2, 2)
    heads = logger.synced_end

    def fails(file: File) -> int | None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(logger, "synced_end", fails)
    report = ConsistencyCheck(collected(rig.storage)).run()
    assert report.counts == {FindingKind.DAMAGED_LOG: 1}
    monkeypatch.setattr(logger, "synced_end", heads)
    report = ConsistencyCheck(collected(rig.storage)).run()
    assert (report.counts, report.torn_logs) == ({}, 1)
    rig.storage.close()


def test_entries_without_a_row_are_no_damage_by_themselves(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 5, 2: 5})

    def lose(index: LocationIndex) -> None:
        index.delete_ledger(2)
        index.write([], index.pending_deletions())

    _change(layout, lose)
    report = _check(layout)
    assert report.counts == {FindingKind.NO_ROW: 5}
    assert (report.damages, report.unindexed, report.sound) == (0, 5, False)


def test_entries_of_deleted_ledgers_are_none_of_its_business(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 5, 2: 5})
    storage = open_engine_on(layout, "db")
    storage.delete_ledger(2)
    storage.flush()
    storage.close()
    report = _check(layout)
    assert report.sound
    assert report.unknown_ledger_entries == 5


def test_an_index_file_that_cannot_be_read(tmp_path: Path) -> None:
    layout = write_disk("sorted", tmp_path, {1: 5, 2: 5})
    (Path(layout.ledgers[0]) / "0/1/1.idx").write_bytes(b"junk" * 300)
    report = _check(layout)
    assert report.counts[FindingKind.INDEX] >= 1
    assert all(finding.ledger_id == 1 for finding in report.findings)


def test_findings_are_counted_beyond_what_is_kept(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 50})
    for path in Path(layout.ledgers[0]).glob("*.log"):
        path.unlink()
    report = _check(layout, keep=3)
    assert len(report.findings) == 3
    assert report.damages == 50


def test_a_step_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consistency, "STEP_ENTRIES", 10)
    layout = write_disk("db", tmp_path, {1: 105})
    with StoredSpaces(FILES, ReadOnlyStores(), layout) as spaces:
        check = ConsistencyCheck(spaces.spaces)
        seen = 0
        while check.step():
            now = check.report.rows + check.report.entries
            assert now - seen <= 20
            seen = now
        assert check.report.rows == 105


# --- at the start of a bookie ---------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])
def test_the_check_at_the_start_passes_and_fails(engine: str, tmp_path: Path) -> None:
    layout = write_disk(engine, tmp_path, {1: 20, 2: 3})
    storage = open_engine_on(layout, engine)
    assert check_consistency(storage).rows == 23
    storage.close()
    log_id, position = split_location(_rows(layout, 1)[7])
    path = Path(layout.ledgers[0]) / f"{log_id:x}.log"
    data = bytearray(path.read_bytes())
    data[position : position + 16] = bytes(16)
    path.write_bytes(data)
    storage = open_engine_on(layout, engine)
    with pytest.raises(StorageFault, match=r"localConsistencyCheckOnStartup .* 1 damages") as caught:
        check_consistency(storage)
    assert "\n" not in str(caught.value)
    storage.close()


def test_the_check_at_the_start_can_be_given_up(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 2000})
    storage = open_engine_on(layout, "db")
    with pytest.raises(StorageFault, match="interrupted"):
        check_consistency(storage, lambda: True)
    storage.close()
