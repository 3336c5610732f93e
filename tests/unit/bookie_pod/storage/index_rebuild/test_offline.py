"""Rebuilding databases and index files: from sound disks, damaged ones, and ones whose index is gone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bookie_pod.cli.disk.read_only import ReadOnlyStores
from bookie_pod.node.recovery import replay_journals
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.entry_log.format import split_location
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.index.ledger_data import LedgerRecord, encode
from bookie_pod.storage.index.rocksdb_store import RocksStores
from bookie_pod.storage.index.store import StoreKind
from bookie_pod.storage.index_rebuild.index_files import IndexFilesRebuild, IndexFilesReport
from bookie_pod.storage.index_rebuild.ledgers import LedgerRebuildReport
from bookie_pod.storage.index_rebuild.locations import RebuildReport, oldest_first
from bookie_pod.storage.index_rebuild.offline import OfflineLedgers, OfflineLocations
from bookie_pod.storage.index_rebuild.swap import DiskStores, backup_suffix, finish, free_backup_suffix, swap
from bookie_pod.storage.inspect.index import FileIndex
from bookie_pod.storage.inspect.layout import DiskLayout
from bookie_pod.storage.inspect.logs import StoredLogs
from bookie_pod.storage.inspect.space import StoredSpaces
from bookie_pod.storage.journal.directory import journal_path
from bookie_pod.storage.journal.format import deletion_record, entry_record, fence_record, header_bytes, key_record
from bookie_pod.storage.journal.marks import LogMark, MarkFiles
from bookie_pod.storage.log_ids import MAX_LOG_ID
from bookie_protocol.errors import InvalidConfiguration, ResourcesShort, StorageFault
from bookie_protocol.keys import NO_LIFE, life_of
from tests.support.storage_engine import KEY, entry, put
from tests.support.stored_disks import contents, golden_disk, open_engine_on, write_disk

FILES = PosixFiles()


def _current(layout: DiskLayout) -> Path:
    return Path(layout.ledgers[0])


def _carry_out(rebuilding: OfflineLocations | OfflineLedgers, logs: StoredLogs) -> None:
    try:
        while rebuilding.step():
            pass
        rebuilding.commit()
    finally:
        rebuilding.close()
        logs.close()


def _rebuild_locations(layout: DiskLayout) -> RebuildReport:
    logs = StoredLogs(FILES, layout.ledgers[:1])
    rebuilding = OfflineLocations(FILES, DiskStores(FILES), ReadOnlyStores(), layout.ledgers[0], logs)
    _carry_out(rebuilding, logs)
    return rebuilding.report


def _rebuild_ledgers(layout: DiskLayout, journals: tuple[str, ...] = ()) -> LedgerRebuildReport:
    logs = StoredLogs(FILES, layout.ledgers[:1])
    rebuilding = OfflineLedgers(
        FILES, DiskStores(FILES), ReadOnlyStores(), layout.ledgers[0], logs, journals, number=0, count=1
    )
    _carry_out(rebuilding, logs)
    return rebuilding.report


def _all_rows(layout: DiskLayout) -> dict[tuple[int, int], int]:
    with StoredSpaces(FILES, ReadOnlyStores(), layout) as spaces:
        (space,) = spaces.spaces
        return {(ledger, row[0]): row[1] for ledger in space.ledger_ids() for row in space.rows(ledger, 0)}


def _records(layout: DiskLayout) -> dict[int, LedgerRecord | None]:
    with StoredSpaces(FILES, ReadOnlyStores(), layout) as spaces:
        (space,) = spaces.spaces
        return {ledger: space.index.record(ledger) for ledger in space.ledger_ids()}


def _open_db(layout: DiskLayout) -> DbLedgerStorage:
    storage = open_engine_on(layout, "db")
    assert isinstance(storage, DbLedgerStorage)
    return storage


def _journal(folder: Path, *records: list[bytes]) -> tuple[str, ...]:
    """A journal with these records, in a folder of its own."""
    (folder / "j").mkdir()
    data = header_bytes(6) + b"".join(piece for record in records for piece in record)
    Path(journal_path(str(folder / "j"), 1)).write_bytes(data)
    return (str(folder / "j"),)


def _damage(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset : offset + 8] = b"\x7f" * 8
    path.write_bytes(data)


# --- locations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["nothing", "all", "tables"])
def test_locations_of_the_reference_come_back(lost: str, tmp_path: Path) -> None:
    layout = golden_disk("db", tmp_path)
    rows = _all_rows(layout)
    locations = _current(layout) / "locations"
    if lost == "all":
        shutil.rmtree(locations)
    elif lost == "tables":
        (locations / "CURRENT").write_bytes(b"junk")
    report = _rebuild_locations(layout)
    rebuilt = _all_rows(layout)
    assert rebuilt.keys() == rows.keys()
    same = [place for place in rows if rebuilt[place] == rows[place]]
    assert len(same) >= len(rows) - 1, "the reference keeps one older copy at most"
    assert (report.entries, report.lost, report.damaged_logs) == (80, 0, 0)
    backups = [path.name for path in _current(layout).glob("*.BACKUP-*")]
    assert len(backups) == (lost != "all")
    assert not list(_current(layout).glob("*.building"))


def test_deleted_ledgers_stay_deleted(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 5, 2: 5})
    storage = open_engine_on(layout, "db")
    storage.delete_ledger(2)
    storage.flush()
    storage.close()
    report = _rebuild_locations(layout)
    assert report.unknown_ledger_entries == 5
    assert sorted(ledger for ledger, _ in _all_rows(layout)) == [1] * 5


def test_the_newest_copy_of_an_entry_counts(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 5}, log_size=300)
    storage = open_engine_on(layout, "db")
    put(storage, entry(1, 2, 100, b"new"))
    storage.flush()
    storage.close()
    _rebuild_locations(layout)
    assert contents(layout, "db")[1][1][2] == entry(1, 2, 100, b"new")


def test_of_an_index_that_has_lost_its_end_no_row_keeps_a_newer_copy_away(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 5})
    older = shutil.copytree(_current(layout) / "locations", tmp_path / "older")
    storage = _open_db(layout)
    put(storage, entry(1, 2, 100, b"new"))
    storage.flush()
    storage.close()
    shutil.rmtree(_current(layout) / "locations")
    older.rename(_current(layout) / "locations")
    _rebuild_locations(layout)
    assert contents(layout, "db")[1][1][2] == entry(1, 2, 100, b"new")


def test_rows_behind_damage_are_kept_from_the_old_index(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 50})
    rows = _all_rows(layout)
    log_id, position = split_location(rows[1, 20])
    _damage(_current(layout) / f"{log_id:x}.log", position - 4)
    report = _rebuild_locations(layout)
    assert (report.damaged_logs, report.salvaged, report.lost) == (1, 29, 1)
    assert report.damages[0].position == position - 4
    assert _all_rows(layout) == rows, (
        "without its row the lost entry would be denied, and a recovery could close before it"
    )


@pytest.mark.parametrize("engine", ["db", "sorted"])
def test_what_the_machine_lacks_is_no_loss(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row whose entry cannot be read for want of a descriptor would be dropped, and its entry denied."""
    layout = write_disk(engine, tmp_path, {1: 50})
    rows = _all_rows(layout)
    log_id, position = split_location(rows[1, 20])
    _damage(_current(layout) / f"{log_id:x}.log", position - 4)

    def short(*_: object) -> bytes:
        raise ResourcesShort("too many open files")

    with monkeypatch.context() as patched, pytest.raises(ResourcesShort):
        patched.setattr(StoredLogs, "read", short)
        _rebuild_locations(layout) if engine == "db" else _rebuild_files(layout, {1})
    assert _all_rows(layout) == rows


def test_without_a_ledger_database_nothing_is_changed(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 5})
    shutil.rmtree(_current(layout) / "ledgers")
    before = sorted(path.name for path in _current(layout).iterdir())
    with pytest.raises(StorageFault, match="rebuild-ledgers` first"):
        _rebuild_locations(layout)
    assert sorted(path.name for path in _current(layout).iterdir()) == before


def test_ledgers_that_the_ledger_database_has_lost_are_found_before_their_entries(tmp_path: Path) -> None:
    """Both lost their ends: entries of a ledger that is not known yet would be left out, and denied for good."""
    layout = write_disk("db", tmp_path, {1: 5})
    older = {kind: shutil.copytree(_current(layout) / kind.value, tmp_path / kind.value) for kind in StoreKind}
    storage = _open_db(layout)
    put(storage, entry(2, 0), entry(1, 5))
    storage.flush()
    storage.close()
    for kind, copy in older.items():
        shutil.rmtree(_current(layout) / kind.value)
        copy.rename(_current(layout) / kind.value)
    with pytest.raises(StorageFault, match="rebuild-ledgers"):
        _open_db(layout)
    with pytest.raises(StorageFault, match="rebuild-ledgers"):
        _rebuild_locations(layout)
    _rebuild_ledgers(layout)
    with pytest.raises(StorageFault, match="rebuild-locations"):
        _open_db(layout)
    _rebuild_locations(layout)
    assert {ledger: sorted(found) for ledger, (_, found) in contents(layout, "db").items()} == {1: [*range(6)], 2: [0]}


def test_the_order_of_logs() -> None:
    assert oldest_first([3, 1, 2]) == [1, 2, 3]
    assert oldest_first([0, 1, MAX_LOG_ID - 1, MAX_LOG_ID]) == [MAX_LOG_ID - 1, MAX_LOG_ID, 0, 1]
    assert oldest_first([0, 5, 900]) == [0, 5, 900]
    assert oldest_first([7]) == [7]
    assert oldest_first([]) == []


# --- ledgers --------------------------------------------------------------------------------------------------


def test_records_that_can_be_read_are_kept(tmp_path: Path) -> None:
    layout = golden_disk("db", tmp_path)
    records = _records(layout)
    report = _rebuild_ledgers(layout, layout.journals)
    assert _records(layout) == records
    assert (report.kept, report.fenced_in_doubt, report.without_key) == (8, 0, 0)


def test_without_the_old_database_keys_come_from_the_journal_and_everything_is_fenced(tmp_path: Path) -> None:
    layout = golden_disk("db", tmp_path)
    records = _records(layout)
    shutil.rmtree(_current(layout) / "ledgers")
    report = _rebuild_ledgers(layout, layout.journals)
    rebuilt = _records(layout)
    assert rebuilt.keys() == records.keys()
    for ledger_id, record in rebuilt.items():
        assert record is not None
        old = records[ledger_id]
        assert old is not None
        assert record.fenced, ledger_id
        # Nobody added to ledger 27: it was fenced at once, and a journal has no key for that.
        assert record.key == (b"" if ledger_id == 27 else old.key), ledger_id
        assert record.explicit_lac == old.explicit_lac
    assert report.kept == 0
    assert (report.fenced_in_doubt, report.without_key) == (8, 1)


@pytest.mark.parametrize("old", ["whole", "unreadable", "without its end"])
def test_what_journals_say_before_a_deletion_is_of_an_earlier_life(tmp_path: Path, old: str) -> None:
    """Its key, its fence, and the record of the old database if that is surely as old: of a whole one none is, unless
    the replay comes to its deletion."""
    layout = write_disk("db", tmp_path, dict.fromkeys(range(1, 7), 5))
    ledgers = _current(layout) / "ledgers"
    if old == "without its end":
        older = shutil.copytree(ledgers, tmp_path / "older")
        storage = _open_db(layout)
        storage.set_ledger(1, LedgerRecord(KEY, fenced=True))
        storage.flush()
        storage.close()
        shutil.rmtree(ledgers)
        older.rename(ledgers)
    later = KEY[::-1]
    store = RocksStores(FILES).open(str(ledgers), StoreKind.LEDGERS)
    batch = store.batch()
    batch.put((1).to_bytes(8, "big"), encode(LedgerRecord(later, first_log=5)))
    batch.put((2).to_bytes(8, "big"), encode(LedgerRecord(KEY, first_log=3)))
    batch.delete((3).to_bytes(8, "big"))
    batch.put((6).to_bytes(8, "big"), encode(LedgerRecord(later, first_log=4)))  # no life that died begins as late
    if old == "unreadable":
        batch.put((9).to_bytes(8, "big"), b"\xff\xff")
    batch.commit()
    store.close()
    records = [each for ledger_id in range(1, 7) for each in (key_record(ledger_id, KEY), fence_record(ledger_id))]
    records += [deletion_record(ledger_id, 5) for ledger_id in range(1, 7)]
    records += [key_record(ledger_id, later, life_of(ledger_id)) for ledger_id in (2, 3)]
    report = _rebuild_ledgers(layout, _journal(tmp_path, *records))
    lost = old == "without its end"
    expected = {
        1: LedgerRecord(later, fenced=lost, limbo=lost),
        2: LedgerRecord(later if lost else KEY, fenced=lost, limbo=lost),
        3: LedgerRecord(later, fenced=True, limbo=True),
        4: LedgerRecord(KEY, fenced=lost, limbo=lost),
        5: LedgerRecord(KEY, fenced=lost, limbo=lost),
        6: LedgerRecord(later, fenced=lost, limbo=lost),
    }
    assert _records(layout) == expected
    lives = [record.life for record in _records(layout).values() if record]
    assert lives == [NO_LIFE, life_of(2), life_of(3), NO_LIFE, NO_LIFE, NO_LIFE]
    first_logs = [record.first_log for record in _records(layout).values() if record]
    assert first_logs == [5, 5 if lost else 3, 5, 0, 0, 4]
    assert (report.kept, report.from_journals, report.from_entries, report.without_key) == (5 - lost, 1 + lost, 0, 0)
    assert report.kept_in_doubt == (4 if lost else 0)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_replay_deletes_what_a_rebuild_met_before_it(tmp_path: Path, lost: bool, again: bool) -> None:
    """The bookie was killed behind a deletion, before a checkpoint: rows of the earlier life are in the location
    index, and the new database of ledgers has either its record or, if that was lost, one of the life behind it."""
    layout = write_disk("db", tmp_path, {8: 1})
    storage = _open_db(layout)
    put(storage, *(entry(4, each, 100) for each in range(5)))
    storage.flush()
    storage.close()
    before = [key_record(4, KEY), *(entry_record(entry(4, each, 100)) for each in range(5))]
    after = [key_record(4, KEY), *(entry_record(entry(4, each, 120)) for each in range(2))]
    journals = _journal(tmp_path, *before, deletion_record(4, 3), *(after if again else ()))
    mark = len(header_bytes(6)) + sum(len(piece) for record in before for piece in record)
    MarkFiles(FILES, layout.ledgers, 0, 1).write(LogMark(1, mark), layout.ledgers)
    if lost:
        shutil.rmtree(_current(layout) / "ledgers")
    _rebuild_ledgers(layout, journals)
    storage = _open_db(layout)
    replay_journals(FILES, storage, journal_folders=journals, ledger_folders=layout.ledgers)
    record = storage.ledger(4)
    if again or lost:
        assert record == LedgerRecord(KEY if again else b"", fenced=lost, limbo=lost)
        assert list(storage.entry_ids(4)) == ([0, 1] if again else [])
        assert [len(storage.read(4, each)) for each in storage.entry_ids(4)] == ([120, 120] if again else [])
    else:
        assert record is None
    storage.close()


@pytest.mark.parametrize("rebuilt", [False, True])
def test_entries_in_a_journal_tell_that_their_ledger_is_here(tmp_path: Path, rebuilt: bool) -> None:
    """The journal with its key is gone, since a checkpoint; in the logs it has no entry. A recovery fenced it first."""
    layout = write_disk("db", tmp_path, {2: 3})
    storage = _open_db(layout)
    storage.set_ledger(7, LedgerRecord(KEY, fenced=True))
    storage.flush()
    storage.close()
    journals = _journal(tmp_path, entry_record(entry(7, 0, 100)), entry_record(entry(9, 0)), deletion_record(9, 2))
    if rebuilt:
        shutil.rmtree(_current(layout) / "ledgers")
        _rebuild_ledgers(layout, journals)
    storage = _open_db(layout)
    replay_journals(FILES, storage, journal_folders=journals, ledger_folders=layout.ledgers)
    assert storage.read(7, 0) == entry(7, 0, 100)
    assert sorted(storage.ledger_ids()) == [2, 7]
    storage.close()


@pytest.mark.parametrize("source", ["logs", "locations"])
def test_a_directory_that_holds_ledgers_of_another_one_is_refused(tmp_path: Path, source: str) -> None:
    """Directories were named in another order, or not all of them. Its ledgers would all be left out."""
    layout = write_disk("db", tmp_path, {2: 3, 4: 3})
    if source == "locations":
        (_current(layout) / "0.log").unlink()
    logs = StoredLogs(FILES, layout.ledgers)
    rebuilding = OfflineLedgers(
        FILES, DiskStores(FILES), ReadOnlyStores(), layout.ledgers[0], logs, (), number=1, count=2
    )
    with pytest.raises(InvalidConfiguration) as refused:
        _carry_out(rebuilding, logs)
    assert "--leave-out 2" in str(refused.value)
    assert sorted(_records(layout)) == [2, 4]


@pytest.mark.parametrize("source", ["logs", "locations"])
def test_stray_ledger_of_another_directory_can_be_left_out(tmp_path: Path, source: str) -> None:
    layout = write_disk("db", tmp_path, {2: 3, 3: 3})
    if source == "locations":
        (_current(layout) / "0.log").unlink()
    (_current(layout) / "ledgers/CURRENT").write_bytes(b"junk")
    logs = StoredLogs(FILES, layout.ledgers)
    rebuilding = OfflineLedgers(
        FILES, DiskStores(FILES), ReadOnlyStores(), layout.ledgers[0], logs, (), number=0, count=2, left_out={3}
    )
    _carry_out(rebuilding, logs)
    assert sorted(_records(layout)) == [2]


def test_of_logs_that_no_check_sum_proves_ledgers_of_other_directories_are_left_out(tmp_path: Path) -> None:
    """Damage may have changed an id."""
    layout = golden_disk("db", tmp_path)
    (_current(layout) / "1.log").unlink()  # it has a single ledger, of the other directory
    for kind in StoreKind:
        shutil.rmtree(_current(layout) / kind.value)
    logs = StoredLogs(FILES, layout.ledgers)
    rebuilding = OfflineLedgers(
        FILES, DiskStores(FILES), ReadOnlyStores(), layout.ledgers[0], logs, (), number=0, count=2
    )
    _carry_out(rebuilding, logs)
    store = RocksStores(FILES).open(str(_current(layout) / "ledgers"), StoreKind.LEDGERS)
    found = [int.from_bytes(key[:8], "big") for key, _ in store.scan(b"", b"\x80")]
    store.close()
    assert found
    assert not [each for each in found if each % 2]


def test_without_journals_entries_and_locations_tell_which_ledgers_there_are(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 5, 2: 5})
    (_current(layout) / "ledgers/CURRENT").write_bytes(b"junk")
    report = _rebuild_ledgers(layout)
    assert _records(layout) == dict.fromkeys((1, 2), LedgerRecord(b"", fenced=True, limbo=True))
    assert (report.from_entries, report.without_key) == (2, 2)
    served = contents(layout, "db")
    assert [len(entries) for _, entries in served.values()] == [5, 5]


def test_a_record_that_does_not_parse_is_made_anew(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 5, 2: 5})
    store = RocksStores(FILES).open(str(_current(layout) / "ledgers"), StoreKind.LEDGERS)
    batch = store.batch()
    batch.put((2).to_bytes(8, "big"), b"\xff\xff")
    batch.put((3).to_bytes(8, "big") + bytes(8), encode(LedgerRecord(b"", fenced=True)))  # of a repair tool
    batch.commit()
    store.close()
    report = _rebuild_ledgers(layout)
    assert _records(layout) == {
        1: LedgerRecord(KEY),
        2: LedgerRecord(b"", fenced=True, limbo=True),
        3: LedgerRecord(b"", fenced=True),
    }
    assert report.old_unreadable is not None
    assert "ledger 2" in report.old_unreadable


def test_of_a_database_that_has_lost_its_end_every_ledger_is_fenced(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 5, 2: 5})
    older = shutil.copytree(_current(layout) / "ledgers", tmp_path / "older")
    storage = _open_db(layout)
    storage.set_ledger(1, LedgerRecord(KEY, fenced=True))
    storage.flush()
    storage.close()
    shutil.rmtree(_current(layout) / "ledgers")
    older.rename(_current(layout) / "ledgers")
    with pytest.raises(StorageFault, match="rebuild-ledgers"):
        _open_db(layout)
    report = _rebuild_ledgers(layout)
    assert _records(layout) == dict.fromkeys((1, 2), LedgerRecord(KEY, fenced=True, limbo=True))
    assert (report.kept, report.fenced_in_doubt) == (2, 2)
    _open_db(layout).close()


def test_flags_of_the_storage_are_kept(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 5})
    storage = _open_db(layout)
    storage.directories[0].ledgers.set_flags(1)
    storage.close()
    _rebuild_ledgers(layout)
    storage = _open_db(layout)
    assert storage.directories[0].ledgers.flags() == 1
    storage.close()


# --- index files ----------------------------------------------------------------------------------------------


def _rebuild_files(
    layout: DiskLayout, ledgers: set[int], keys: dict[int, bytes] | None = None, *, commit: bool = True
) -> IndexFilesReport:
    logs = StoredLogs(FILES, layout.ledgers)
    rebuilding = IndexFilesRebuild(
        FILES,
        logs,
        FileIndex(FILES, layout.ledgers),
        layout.ledgers[0],
        ledgers,
        keys or {},
    )
    try:
        rebuilding.run()
        if commit:
            rebuilding.commit(".BACKUP-1")
        else:
            rebuilding.discard()
    finally:
        rebuilding.close()
        logs.close()
    return rebuilding.report


@pytest.mark.parametrize("engine", ["sorted", "interleaved"])
def test_index_files_of_the_reference_come_back_byte_for_byte(engine: str, tmp_path: Path) -> None:
    layout = golden_disk(engine, tmp_path)
    files = {path: path.read_bytes() for path in _current(layout).rglob("*.idx")}
    report = _rebuild_files(layout, {0, 1, 7, 8, 9, 10, 17, 27})
    assert (report.ledgers, report.fenced_in_doubt, report.empty) == (8, 0, 1)
    written = {path: path.read_bytes() for path in files}
    assert {path: data[:504] + bytes(8) + data[512:] for path, data in written.items()} == files  # but for our check
    assert all(path.with_name(path.name + ".BACKUP-1").read_bytes() == data for path, data in files.items())
    assert not list(_current(layout).rglob("*.building"))


def test_a_file_that_is_gone_takes_its_key_from_the_caller_and_is_fenced(tmp_path: Path) -> None:
    layout = golden_disk("sorted", tmp_path)
    before = contents(layout, "sorted")
    index = FileIndex(FILES, layout.ledgers)
    Path(index.path(8) or "").unlink()
    Path(index.path(9) or "").write_bytes(b"junk" * 1000)
    report = _rebuild_files(layout, {8, 9}, {8: KEY, 9: KEY})
    assert report.fenced_in_doubt == 2
    after = contents(layout, "sorted")
    for ledger_id in (8, 9):
        assert after[ledger_id] == (LedgerRecord(KEY, fenced=True, limbo=True), before[ledger_id][1])
    assert after[7] == before[7]


def test_a_dry_run_leaves_nothing_behind(tmp_path: Path) -> None:
    layout = golden_disk("sorted", tmp_path)
    before = sorted(map(str, _current(layout).rglob("*")))
    assert _rebuild_files(layout, {7, 999}, commit=False).empty == 1
    after = sorted(map(str, _current(layout).rglob("*")))
    assert [path for path in after if "." in Path(path).name] == [path for path in before if "." in Path(path).name]


def test_slots_behind_damage_are_kept_from_the_old_file(tmp_path: Path) -> None:
    layout = write_disk("sorted", tmp_path, {1: 50})
    rows = _all_rows(layout)
    log_id, position = split_location(rows[1, 20])
    _damage(_current(layout) / f"{log_id:x}.log", position - 4)
    report = _rebuild_files(layout, {1})
    assert (len(report.damages), report.salvaged, report.lost) == (1, 29, 1)
    assert _all_rows(layout) == rows, (
        "without its row the lost entry would be denied, and a recovery could close before it"
    )


@pytest.mark.parametrize("kind", list(StoreKind))
def test_a_database_that_has_lost_its_current_file_is_put_aside(kind: StoreKind, tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 3, 2: 3})
    (_current(layout) / kind.value / "CURRENT").unlink()
    if kind is StoreKind.LOCATIONS:
        _rebuild_locations(layout)
    else:
        _rebuild_ledgers(layout)
    (backup,) = _current(layout).glob(f"{kind.value}.BACKUP-*")
    assert not (backup / "CURRENT").exists()
    served = contents(layout, "db")
    assert {ledger_id: set(entries) for ledger_id, (_, entries) in served.items()} == {1: {0, 1, 2}, 2: {0, 1, 2}}


# --- swaps ----------------------------------------------------------------------------------------------------


def test_two_backups_of_one_second_get_different_names(tmp_path: Path) -> None:
    folder, names = str(tmp_path), ["ledgers", "locations"]
    first = free_backup_suffix(DiskStores(FILES), folder, names, 0)
    assert first == backup_suffix(0) == ".BACKUP-19700101-000000"
    (tmp_path / f"locations{first}").mkdir()
    assert free_backup_suffix(DiskStores(FILES), folder, names, 0) == first + "-2"


def _write_down(folder: Path, *moves: tuple[str, str]) -> None:
    content = {"version": 1, "purpose": "test", "moves": [list(each) for each in moves]}
    (folder / "index-swap.json").write_text(json.dumps(content))


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("present", [("a",), ("a", "b", "c"), ("a", "b", "x")])
def test_a_swap_that_could_not_be_ended_is_not_begun(present: tuple[str, ...], tmp_path: Path) -> None:
    for name in present:
        (tmp_path / name).mkdir()
    with pytest.raises(StorageFault):
        swap(FILES, DiskStores(FILES), str(tmp_path), "test", [("a", "x"), ("b", "c")])
    assert _names(tmp_path) == list(present)


def test_a_swap_whose_parts_are_gone_changes_nothing_more(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    _write_down(tmp_path, ("a", "x"), ("b", "c"))
    with pytest.raises(StorageFault, match="nor c"):
        finish(FILES, DiskStores(FILES), str(tmp_path))
    assert (tmp_path / "x").is_dir()
    (tmp_path / "b").mkdir()
    assert finish(FILES, DiskStores(FILES), str(tmp_path)) == "test"
    assert _names(tmp_path) == ["c", "x"]
    assert finish(FILES, DiskStores(FILES), str(tmp_path)) is None


def test_a_swap_throws_nothing_away_where_both_are_there(tmp_path: Path) -> None:
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
    _write_down(tmp_path, ("new", "old"))
    with pytest.raises(StorageFault):
        finish(FILES, DiskStores(FILES), str(tmp_path))
    assert _names(tmp_path) == ["index-swap.json", "new", "old"]
    (tmp_path / "old").rmdir()
    assert finish(FILES, DiskStores(FILES), str(tmp_path)) == "test"
    assert _names(tmp_path) == ["old"]


@pytest.mark.parametrize("done", range(3))
def test_a_swap_is_finished_from_wherever_it_was_left(done: int, tmp_path: Path) -> None:
    moves = [("locations", "backup"), ("built", "locations")]
    for name, what in (("locations", "old"), ("built", "new")):
        (tmp_path / name).mkdir()
        (tmp_path / name / what).touch()
    for source, target in moves[:done]:
        (tmp_path / source).rename(tmp_path / target)
    _write_down(tmp_path, *moves)
    assert finish(FILES, DiskStores(FILES), str(tmp_path)) == "test"
    assert _names(tmp_path) == ["backup", "locations"]
    assert (_names(tmp_path / "backup"), _names(tmp_path / "locations")) == (["old"], ["new"])


@pytest.mark.parametrize("content", ["", "{}", '{"version": 9, "moves": [], "purpose": ""}', "[1]", "[" * 100_000])
def test_a_swap_that_cannot_be_understood_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "index-swap.json").write_text(content)
    with pytest.raises(StorageFault, match="understood"):
        finish(FILES, DiskStores(FILES), str(tmp_path))
