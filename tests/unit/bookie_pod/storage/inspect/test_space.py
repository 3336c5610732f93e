"""Reading the disks of stopped bookies: those of the reference, and ours."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from bookie_pod.cli.disk.read_only import ReadOnlyStores
from bookie_pod.storage.entry_log.scan import ScanEnd, ScanOutcome
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.gc import deleted_ledgers, fenced_deleted, state_file
from bookie_pod.storage.index.index_file import encode_header
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_pod.storage.inspect.index import FileIndex
from bookie_pod.storage.inspect.layout import DiskLayout, FileKind, IndexKind, kind_of, list_files
from bookie_pod.storage.inspect.logs import LogRecord, StoredLogs, read_log
from bookie_pod.storage.inspect.space import StoredSpaces
from bookie_protocol.errors import InvalidConfiguration, StorageFault, WrongStorageEngine
from tests.support.stored_disks import GOLDEN, contents, golden_disk, write_disk

FILES = PosixFiles()


def _snapshot(directory: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in directory.rglob("*") if path.is_file()
    }


def _spaces(layout: DiskLayout) -> StoredSpaces:
    return StoredSpaces(FILES, ReadOnlyStores(), layout)


def _expected_entries(engine: str) -> set[tuple[int, int]]:
    rows = json.loads((GOLDEN / "disk-db/rocksdb.json").read_text())["locations"]["rows"]
    return {struct.unpack(">qq", bytes.fromhex(row["key"])) for row in rows}


@pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])
def test_a_disk_of_the_reference_is_read_whole_and_left_as_it_is(engine: str, tmp_path: Path) -> None:
    layout = golden_disk(engine, tmp_path)
    before = _snapshot(tmp_path)
    with _spaces(layout) as spaces:
        assert spaces.kind is (IndexKind.DATABASES if engine == "db" else IndexKind.FILES)
        (space,) = spaces.spaces
        ledgers = sorted(space.ledger_ids())
        assert ledgers == [0, 1, 7, 8, 9, 10, 17, 27]
        found = {(ledger_id, entry_id) for ledger_id in ledgers for entry_id, _ in space.rows(ledger_id, 0)}
        assert found == _expected_entries(engine)
        for ledger_id, entry_id in found:
            entry = space.logs.read(space.location_of(ledger_id, entry_id), ledger_id, entry_id)
            assert struct.unpack_from(">qq", entry) == (ledger_id, entry_id)
        fenced = space.index.record(27)
        assert fenced is not None
        assert fenced.fenced
        assert space.index.record(28) is None
        assert not space.has_ledger(28)
        assert space.location_of(7, 5) == 0
        assert [row[0] for row in space.rows(7, 4)] == [4, 9]
    assert _snapshot(tmp_path) == before


@pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])
def test_what_is_read_is_what_the_engine_serves(engine: str, tmp_path: Path) -> None:
    layout = write_disk(engine, tmp_path, {3: 5, 4: 0, 900: 300}, fenced=(3,), log_size=10_000)
    served = contents(layout, engine)
    with _spaces(layout) as spaces:
        (space,) = spaces.spaces
        seen = {}
        for ledger_id in space.ledger_ids():
            rows = {row[0]: space.logs.read(row[1], ledger_id, row[0]) for row in space.rows(ledger_id, 0)}
            seen[ledger_id] = (space.index.record(ledger_id), rows)
    assert seen == {ledger_id: found for ledger_id, found in served.items() if ledger_id != 4}
    assert 3 in seen


def test_each_directory_of_db_storage_is_a_space(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {0: 1, 1: 2, 2: 3}, directories=2)
    with _spaces(layout) as spaces:
        assert [sorted(space.ledger_ids()) for space in spaces.spaces] == [[0, 2], [1]]
        assert spaces.of(1).folders == (layout.ledgers[1],)
    with pytest.raises(InvalidConfiguration, match="many"):
        _spaces(DiskLayout((), layout.ledgers, layout.ledgers[:1]))


def test_a_folder_without_an_index_is_refused(tmp_path: Path) -> None:
    (tmp_path / "current").mkdir()
    with pytest.raises(WrongStorageEngine, match="no index"):
        _spaces(DiskLayout((), (str(tmp_path / "current"),)))


def test_two_indexes_are_refused(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 1})
    tree = Path(layout.ledgers[0]) / "0/1"
    tree.mkdir(parents=True)
    (tree / "1.idx").write_bytes(encode_header(LedgerRecord(b"k" * 20)))
    with pytest.raises(WrongStorageEngine, match="both"):
        _spaces(layout)


def test_an_unfinished_swap_is_refused(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 1})
    (Path(layout.ledgers[0]) / "index-swap.json").write_text("{}")
    with pytest.raises(WrongStorageEngine, match="finish"):
        _spaces(layout)


def test_a_lost_database_is_named(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 1})
    (Path(layout.ledgers[0]) / "locations").rename(tmp_path / "away")
    with pytest.raises(WrongStorageEngine, match="rebuild-locations"):
        _spaces(layout)


def test_index_files_in_doubt_are_refused(tmp_path: Path) -> None:
    layout = write_disk("sorted", tmp_path, {5: 3})
    index = FileIndex(FILES, layout.ledgers)
    path = Path(index.path(5) or "")
    moving = path.with_name("5.idx.rloc")
    path.rename(moving)
    assert list(index.ledger_ids()) == [5], "the finished copy of a move counts"
    assert len(list(index.rows(5))) == 3
    path.write_bytes(moving.read_bytes())
    assert list(index.ledger_ids()) == [5]
    (path.parent / "6.idx").write_bytes(b"")
    with pytest.raises(StorageFault, match="ledger 6 belongs"):
        list(index.ledger_ids())
    (path.parent / "6.idx").rename(path.parent / "x.idx")
    with pytest.raises(StorageFault, match="not an"):
        list(index.ledger_ids())


def test_of_two_copies_of_a_move_nobody_knows_which_is_whole(tmp_path: Path) -> None:
    index = FileIndex(FILES, [f"{tmp_path}/a", f"{tmp_path}/b"])
    for folder in index.folders:
        tree = Path(folder) / "0/5"
        tree.mkdir(parents=True)
        (tree / "5.idx.rloc").write_bytes(b"")
    with pytest.raises(StorageFault, match="two"):
        index.path(5)


def test_files_are_told_apart(tmp_path: Path) -> None:
    layout = golden_disk("interleaved", tmp_path)
    kinds = {}
    for file in list_files(FILES, layout):
        kinds.setdefault(file.kind, []).append(Path(file.path).name)
    assert kinds[FileKind.ENTRY_LOG] == ["0.log", "1.log", "2.log"]
    assert len(kinds[FileKind.INDEX]) == 8
    assert kinds[FileKind.COOKIE] == ["VERSION", "VERSION"]
    assert FileKind.OTHER not in kinds
    expected = {
        "locations/000004.sst": FileKind.INDEX,
        "locations.BACKUP-20260101-000000/CURRENT": FileKind.BACKUP,
        "rebuilt.building/locations/CURRENT": FileKind.TEMPORARY,
        "a/b/ab.idx": FileKind.INDEX,
        "a/b/ab.txt": FileKind.OTHER,
        "3.log.compacting": FileKind.COMPACTION,
        "4.log.3.compacted": FileKind.COMPACTION,
        "lastMark.3": FileKind.MARK,
        "DIRTY": FileKind.STATE,
        **dict.fromkeys((state_file.NAME, deleted_ledgers.NAME, fenced_deleted.NAME), FileKind.STATE),
        "holiday.jpg": FileKind.OTHER,
    }
    assert {name: kind_of(name) for name in expected} == expected


# --- logs ---------------------------------------------------------------------------------------------------


def _log(tmp_path: Path) -> tuple[Path, list[LogRecord]]:
    layout = write_disk("db", tmp_path, {1: 40, 2: 40})
    path = next(path for path in Path(layout.ledgers[0]).glob("*.log") if path.stat().st_size > 5000)
    records = [found for found in read_log(FILES, str(path), 0) if isinstance(found, LogRecord)]
    assert len(records) == 80
    return path, records


def test_reading_stops_at_damage_and_says_where(tmp_path: Path) -> None:
    path, records = _log(tmp_path)
    broken = records[10].position - 4
    data = bytearray(path.read_bytes())
    data[broken : broken + 20] = b"\x7f" * 20
    path.write_bytes(data)
    *before, end = read_log(FILES, str(path), 0)
    assert before == records[:10]
    assert isinstance(end, ScanEnd)
    assert (end.outcome, end.position) == (ScanOutcome.DAMAGED, broken)


def test_reading_can_go_on_behind_damage(tmp_path: Path) -> None:
    path, records = _log(tmp_path)
    data = bytearray(path.read_bytes())
    for at in (10, 30):
        broken = records[at].position - 4
        data[broken : broken + 8] = b"\x7f" * 8
    path.write_bytes(data)
    found = list(read_log(FILES, str(path), 0, resync=True))
    ends = [end for end in found if isinstance(end, ScanEnd)]
    assert [end.outcome for end in ends] == [ScanOutcome.DAMAGED, ScanOutcome.DAMAGED, ScanOutcome.CLEAN]
    entries = [record for record in found if isinstance(record, LogRecord)]
    assert entries == records[:10] + records[11:30] + records[31:]


def test_damage_up_to_the_end_ends_the_reading(tmp_path: Path) -> None:
    path, records = _log(tmp_path)
    data = path.read_bytes()[: records[70].position - 4] + b"\x7f" * 500
    path.write_bytes(data)
    found = list(read_log(FILES, str(path), 0, resync=True))
    assert [record for record in found if isinstance(record, LogRecord)] == records[:70]


@pytest.mark.parametrize("engine", ["db", "interleaved"])
def test_ledgers_maps_of_the_reference(engine: str, tmp_path: Path) -> None:
    layout = golden_disk(engine, tmp_path)
    logs = StoredLogs(FILES, layout.ledgers)
    closed, active, empty = (logs.ledgers_map(log_id) for log_id in logs.log_ids())
    assert closed.end is None
    assert closed.ledgers.total == 28_507
    assert active.end is not None
    assert active.end.clean
    assert not active.closed
    assert not empty.ledgers
    assert logs.header(2) is None
    counted = {}
    for _, ledger_id, _, size in logs.scan_sizes(0):
        counted[ledger_id] = counted.get(ledger_id, 0) + size + 4
    assert dict(closed.ledgers) == counted
    logs.close()
