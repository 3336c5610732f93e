"""Conversions between the engines, on disks of the reference and of ours."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bookie_pod.cli.disk.read_only import ReadOnlyStores
from bookie_pod.storage.entry_log.format import make_location, split_location
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.index.index_file import HEADER_BYTES, slot_offset
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_pod.storage.index.ledgers import NEEDS_INTEGRITY_CHECK
from bookie_pod.storage.index.store import StoreKind
from bookie_pod.storage.index_rebuild.convert import ConversionReport, ToDatabases, conversion
from bookie_pod.storage.index_rebuild.swap import DiskStores
from bookie_pod.storage.inspect.index import FileIndex
from bookie_pod.storage.inspect.layout import DiskLayout, IndexKind
from bookie_pod.storage.inspect.logs import StoredLogs
from bookie_pod.storage.inspect.space import StoredSpaces
from bookie_protocol.errors import InvalidConfiguration, NotThere, StorageFault, WrongStorageEngine
from tests.support.gc_rig import GcRig
from tests.support.memory_store import MemoryStores
from tests.support.memory_tool_stores import MemoryToolStores
from tests.support.scrub_rig import ScrubRig, signed
from tests.support.storage_engine import MemoryBookie, entry, put
from tests.support.stored_disks import GOLDEN, contents, golden_disk, open_engine_on, write_disk

FILES = PosixFiles()


def _convert(layout: DiskLayout, target: IndexKind) -> ConversionReport:
    with StoredSpaces(FILES, ReadOnlyStores(), layout) as spaces:
        space = spaces.spaces[0]
        converting = conversion(FILES, DiskStores(FILES), layout, space.index, space.logs, target)
        try:
            report = converting.run()
            converting.commit()
        finally:
            converting.close()
    return report


@pytest.mark.parametrize("source", ["sorted", "interleaved"])
def test_a_disk_of_the_reference_goes_to_databases_and_back(source: str, tmp_path: Path) -> None:
    layout = golden_disk(source, tmp_path)
    before = contents(layout, source)
    report = _convert(layout, IndexKind.DATABASES)
    assert (report.ledgers, report.compared, report.entries) == (8, 8, 79)
    assert contents(layout, "db") == before
    with pytest.raises(WrongStorageEngine, match="written by DbLedgerStorage"):
        open_engine_on(layout, source)
    _convert(layout, IndexKind.FILES)
    assert contents(layout, source) == before
    current = Path(layout.ledgers[0])
    for path in (GOLDEN / f"disk-{source}").rglob("*.idx"):
        relative = path.relative_to(GOLDEN / f"disk-{source}")
        ours = (current / relative).read_bytes()
        assert ours[:504] + bytes(8) + ours[512:] == path.read_bytes(), relative  # but for our check
    with pytest.raises(WrongStorageEngine):
        open_engine_on(layout, "db")


def test_a_database_disk_of_the_reference_goes_to_index_files(tmp_path: Path) -> None:
    layout = golden_disk("db", tmp_path)
    before = contents(layout, "db")
    _convert(layout, IndexKind.FILES)
    assert contents(layout, "interleaved") == before
    assert contents(layout, "sorted") == before


@pytest.mark.parametrize("source", ["db", "sorted"])
def test_a_converted_disk_is_written_on(source: str, tmp_path: Path) -> None:
    ledgers = {1: 600, 70_000: 5, 9: 1}
    layout = write_disk(source, tmp_path, ledgers, fenced=(9,), log_size=10_000)
    before = contents(layout, source)
    target = "interleaved" if source == "db" else "db"
    _convert(layout, IndexKind.FILES if source == "db" else IndexKind.DATABASES)
    assert contents(layout, target) == before
    storage = open_engine_on(layout, target)
    put(storage, entry(1, 600, 60), entry(5, 0, 60))
    storage.flush()
    storage.close()
    after = contents(layout, target)
    assert len(after[1][1]) == 601
    assert after[5][1] == {0: entry(5, 0, 60)}


def test_an_index_without_ledgers_is_converted_too(tmp_path: Path) -> None:
    layout = write_disk("sorted", tmp_path, {1: 2})
    storage = open_engine_on(layout, "sorted")
    storage.delete_ledger(1)
    storage.flush()
    storage.close()
    _convert(layout, IndexKind.DATABASES)
    assert contents(layout, "db") == {}
    _convert(layout, IndexKind.FILES)
    assert contents(layout, "sorted") == {}


@pytest.mark.parametrize("engine", ["sorted", "interleaved"])
@pytest.mark.parametrize("empty", ["0", "0/0", "1", "1/2c"])
def test_empty_folders_in_the_place_of_the_new_files_are_replaced(engine: str, empty: str, tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 3, 2: 3, 300: 3})
    before = contents(layout, "db")
    (Path(layout.ledgers[0]) / empty).mkdir(parents=True)
    _convert(layout, IndexKind.FILES)
    assert contents(layout, engine) == before
    assert not list(Path(layout.ledgers[0]).glob("*.building"))


@pytest.mark.parametrize("path", ["0/mine", "0/0/mine", "1/2c/mine"])
def test_a_foreign_file_in_the_place_of_the_new_files_is_not_thrown_away(path: str, tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 3, 2: 3, 300: 3})
    before = contents(layout, "db")
    foreign = Path(layout.ledgers[0]) / path
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"mine")
    with pytest.raises(StorageFault):
        _convert(layout, IndexKind.FILES)
    assert foreign.read_bytes() == b"mine"
    assert contents(layout, "db") == before
    foreign.unlink()
    _convert(layout, IndexKind.FILES)
    assert contents(layout, "sorted") == before


def test_flags_of_the_storage_go_along(tmp_path: Path) -> None:
    layout = write_disk("sorted", tmp_path, {1: 2})
    storage = open_engine_on(layout, "sorted")
    storage.set_flags(NEEDS_INTEGRITY_CHECK)
    storage.close()
    _convert(layout, IndexKind.DATABASES)
    storage = open_engine_on(layout, "db")
    assert storage.flags() == NEEDS_INTEGRITY_CHECK
    storage.close()
    _convert(layout, IndexKind.FILES)
    storage = open_engine_on(layout, "interleaved")
    assert storage.flags() == NEEDS_INTEGRITY_CHECK
    storage.close()


def test_flags_that_an_earlier_engine_left_are_not_taken_for_those_of_the_databases(tmp_path: Path) -> None:
    layout = write_disk("sorted", tmp_path, {1: 2})
    storage = open_engine_on(layout, "sorted")
    storage.set_flags(NEEDS_INTEGRITY_CHECK)
    storage.close()
    _convert(layout, IndexKind.DATABASES)
    storage = open_engine_on(layout, "db")
    storage.set_flags(0)
    storage.close()
    _convert(layout, IndexKind.FILES)
    storage = open_engine_on(layout, "sorted")
    assert storage.flags() == 0
    storage.close()


@pytest.mark.parametrize("kind", list(StoreKind))
def test_databases_that_have_lost_their_end_are_refused(kind: StoreKind, tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 2})
    database = Path(layout.ledgers[0]) / kind.value
    older = shutil.copytree(database, tmp_path / "older")
    storage = open_engine_on(layout, "db")
    put(storage, entry(1, 2), entry(2, 0))
    storage.flush()
    storage.close()
    shutil.rmtree(database)
    older.rename(database)
    with pytest.raises(StorageFault, match=f"rebuild-{kind.value}"):
        _convert(layout, IndexKind.FILES)


def _zero(first: int, count: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[:first] + bytes(count) + data[first + count :])

    return damage


@pytest.mark.parametrize(
    "damage",
    [_zero(slot_offset(2), 8), _zero(0, HEADER_BYTES), lambda path: os.truncate(path, HEADER_BYTES), Path.unlink],
    ids=["slot", "header", "cut", "gone"],
)
def test_index_files_that_have_lost_something_are_refused(damage: Callable[[Path], None], tmp_path: Path) -> None:
    layout = write_disk("sorted", tmp_path, {1: 5, 2: 5})
    damage(Path(layout.ledgers[0]) / "0/2/2.idx")
    with pytest.raises(StorageFault, match=r"ledgers: 1, .* 2"):
        _convert(layout, IndexKind.DATABASES)
    storage = open_engine_on(layout, "sorted")
    put(storage, *(entry(2, each) for each in range(5)))  # it is healed, or in limbo
    storage.flush()
    storage.close()
    before = contents(layout, "sorted")
    _convert(layout, IndexKind.DATABASES)
    assert contents(layout, "db") == before


@pytest.mark.parametrize("engine", ["sorted", "interleaved"])
def test_a_ledger_whose_header_is_gone_is_fenced_where_no_seal_tells_of_it(engine: str, tmp_path: Path) -> None:
    layout = write_disk(engine, tmp_path, {1: 3, 2: 3}, fenced=(1,))
    current = Path(layout.ledgers[0])
    (current / "index-files-seal").unlink()
    _zero(0, HEADER_BYTES)(current / "0/1/1.idx")
    _convert(layout, IndexKind.DATABASES)
    records = {ledger_id: record for ledger_id, (record, _) in contents(layout, "db").items()}
    assert isinstance(records[1], LedgerRecord)
    assert isinstance(records[2], LedgerRecord)
    assert (records[1].fenced, records[1].limbo) == (True, True)
    assert (records[2].fenced, records[2].limbo) == (False, False)


def test_several_directories_are_refused_before_anything_is_touched(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {0: 1, 1: 1}, directories=2)
    before = sorted(map(str, tmp_path.rglob("*")))
    with pytest.raises(InvalidConfiguration, match="decommission"):
        _convert(layout, IndexKind.FILES)
    assert sorted(map(str, tmp_path.rglob("*"))) == before


def test_a_damaged_index_file_is_refused_before_anything_is_swapped(tmp_path: Path) -> None:
    layout = write_disk("sorted", tmp_path, {1: 5, 2: 5})
    before = contents(layout, "sorted")
    damaged = Path(layout.ledgers[0]) / "0/2/2.idx"
    whole = damaged.read_bytes()
    damaged.write_bytes(b"junk" + whole[4:])
    with pytest.raises(StorageFault, match=r"2\.idx"):
        _convert(layout, IndexKind.DATABASES)
    assert not (Path(layout.ledgers[0]) / "locations").exists()
    damaged.write_bytes(whole)
    assert contents(layout, "sorted") == before


def _with_open_log(engine: str, behind: bytes) -> tuple[GcRig, int]:
    """A stopped bookie whose log was open when the power went: `behind` follows its last record, and entry 5 of ledger
    3 has a row for the place behind that; the place."""
    rig = GcRig(engine=engine)
    put(rig.storage, *(signed(3, entry_id) for entry_id in range(5)))
    rig.storage.flush()
    rig.logs.rotate()
    rig.logs.sync()
    rig.storage.flush()
    log_id = split_location(rig.parts.location_of(3, 4))[0]
    path, end = rig.path(log_id), rig.map_offset(log_id)
    rig.storage.close()
    rig.forget_map(log_id)
    files, folder = rig.bookie.files, rig.bookie.directories[0]
    files.corrupt(path, end, behind)
    index_file = FileIndex(files, [folder]).path(3)
    assert index_file is not None
    place = make_location(log_id, end + len(behind) + 4)
    files.corrupt(index_file, slot_offset(5), place.to_bytes(8, "big"))
    return rig, place


def _to_databases(rig: GcRig) -> tuple[ScrubRig, int]:
    """Convert; the bookie on the databases, and the rows that were left out."""
    files, folder = rig.bookie.files, rig.bookie.directories[0]
    stores = MemoryStores(files.faults)
    logs = StoredLogs(files, [folder])
    converting = ToDatabases(files, MemoryToolStores(files, stores), folder, FileIndex(files, [folder]), logs)
    report = converting.run()
    converting.commit()
    logs.close()
    return ScrubRig(MemoryBookie(files=files, stores=stores)), report.left_out


@pytest.mark.parametrize("engine", ["sorted", "interleaved"])
@pytest.mark.parametrize("behind", [b"", bytes(200), b"\0\0\0\x64abc"])
def test_a_row_that_ran_ahead_of_its_log_is_no_damage_to_the_databases(engine: str, behind: bytes) -> None:
    rig, _ = _with_open_log(engine, behind)
    after, left_out = _to_databases(rig)
    assert left_out == 1
    assert after.run() == []
    with pytest.raises(NotThere):
        after.storage.read(3, 5)
    assert [after.storage.read(3, each) for each in range(5)] == [signed(3, each) for each in range(5)]
    after.storage.close()


def _with_cut_log(engine: str, *, sealed: bool) -> GcRig:
    """A stopped bookie whose open log has lost entries 3 and 4 of ledger 3, which were synced."""
    rig = GcRig(engine=engine)
    put(rig.storage, *(signed(3, entry_id) for entry_id in range(5)))
    rig.storage.flush()
    rig.logs.rotate()
    rig.logs.sync()
    rig.storage.flush()
    log_id, position = split_location(rig.parts.location_of(3, 3))
    path = rig.path(log_id)
    rig.storage.close()
    rig.forget_map(log_id)
    files = rig.bookie.files
    files.write_bytes_synced(path, files.read_bytes(path)[: position - 4])
    if not sealed:
        files.unlink(f"{rig.bookie.directories[0]}/index-files-seal")
    return rig


@pytest.mark.parametrize("engine", ["sorted", "interleaved"])
@pytest.mark.parametrize("sealed", [True, False])
def test_a_row_that_was_durable_is_not_left_out(engine: str, sealed: bool) -> None:
    after, left_out = _to_databases(_with_cut_log(engine, sealed=sealed))
    assert left_out == (0 if sealed else 2)
    assert [after.storage.read(3, each) for each in range(3)] == [signed(3, each) for each in range(3)]
    for entry_id in (3, 4):
        with pytest.raises(StorageFault if sealed else NotThere):
            after.storage.read(3, entry_id)
    after.storage.close()


@pytest.mark.parametrize("engine", ["sorted", "interleaved"])
@pytest.mark.parametrize("sealed", [True, False])
def test_the_scrub_finds_a_row_that_was_durable_and_leads_nowhere(engine: str, sealed: bool) -> None:
    rig = ScrubRig(_with_cut_log(engine, sealed=sealed).bookie)
    assert [each.entry_id for each in rig.run()] == ([3, 4] if sealed else [])
    rig.storage.close()


@pytest.mark.parametrize("engine", ["sorted", "interleaved"])
def test_a_row_behind_damage_in_an_open_log_is_kept(engine: str) -> None:
    rig, place = _with_open_log(engine, b"\xff" * 100)
    after, left_out = _to_databases(rig)
    assert (left_out, after.part.location_of(3, 5)) == (0, place)
    with pytest.raises(StorageFault):
        after.storage.read(3, 5)
    after.storage.close()
