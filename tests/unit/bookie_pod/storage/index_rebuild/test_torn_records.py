"""A record that a power cut has torn takes no other copy's place in a rebuild, and is neither an entry nor damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bookie_pod.storage.engines.memtable_storage import MemTableStorage
from bookie_pod.storage.entry_log.format import HEADER_SIZE, encode_header, make_location, split_location
from bookie_pod.storage.entry_log.reader import EntryReader
from bookie_pod.storage.index.index_file import slot_offset
from bookie_pod.storage.index.seal import NAME as SEAL
from bookie_pod.storage.index.seal import IndexSeal
from bookie_pod.storage.index_rebuild.state import RebuildPhase
from bookie_pod.storage.inspect.index import FileIndex
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import NotThere, StorageFault
from tests.support.gc_rig import GcRig
from tests.support.index_rebuilds import ENTRIES, FOREIGN_HEADER, KINDS, LEDGER, rebuild
from tests.support.index_rebuilds import filled_rig as _rig
from tests.support.index_rebuilds import store_entries as _store
from tests.support.index_rebuilds import write_entries as _write
from tests.support.rebuild_rig import RebuildRig
from tests.support.scrub_rig import signed
from tests.support.storage_engine import MemoryBookie


def _leave_log(rig: GcRig, *entries: bytes, header: bytes = encode_header()) -> int:
    """The bookie is stopped; a log with these records is left by a power cut."""
    rig.storage.close()
    log_id = max(rig.logs.log_ids()) + 1
    framed = b"".join(len(entry).to_bytes(4, "big") + entry for entry in entries)
    rig.bookie.files.write_bytes_synced(f"{rig.bookie.directories[0]}/{log_id:x}.log", header + framed)
    return log_id


def _torn(entry: bytes) -> bytes:
    return entry[:-20] + bytes(20)


def _rebuild(rig: GcRig, kind: str, *, lost: bool = False, ledger_id: int = LEDGER) -> int:
    return rebuild(rig, kind, lost=lost, ledger_id=ledger_id).damages


@KINDS
@pytest.mark.parametrize("lost", [False, True])
def test_a_torn_copy_takes_the_place_of_no_synced_one(kind: str, lost: bool) -> None:
    rig = _rig(kind)
    entries = [signed(LEDGER, entry_id) for entry_id in range(ENTRIES)]
    _leave_log(rig, entries[1], _torn(entries[2]), entries[3])
    _rebuild(rig, kind, lost=lost)
    assert [rig.storage.read(LEDGER, entry_id) for entry_id in range(ENTRIES)] == entries
    rig.storage.close()


@KINDS
def test_a_copy_that_only_its_client_can_judge_takes_the_place_of_no_synced_one(kind: str) -> None:
    rig = _rig(kind)
    _leave_log(rig, signed(LEDGER, 2, 120, DigestType.MAC), signed(LEDGER, ENTRIES, 100, DigestType.MAC))
    _rebuild(rig, kind, lost=True)
    assert rig.storage.read(LEDGER, 2) == signed(LEDGER, 2)
    rig.storage.close()


@pytest.mark.parametrize("kind", ["db", "online"])
def test_a_torn_record_that_was_never_synced_gets_no_row(kind: str) -> None:
    rig = _rig(kind)
    _leave_log(rig, signed(LEDGER, ENTRIES), _torn(signed(LEDGER, ENTRIES + 1)), signed(LEDGER, ENTRIES + 2))
    assert _rebuild(rig, kind) == 0
    assert rig.storage.read(LEDGER, ENTRIES + 2) == signed(LEDGER, ENTRIES + 2)
    with pytest.raises(NotThere):
        rig.storage.read(LEDGER, ENTRIES + 1)
    rig.storage.close()


@KINDS
def test_a_torn_record_in_a_log_of_another_program_gets_its_row(kind: str) -> None:
    """That program may have synced it, and the index may have lost the row: it does not know our seal."""
    rig = _rig(kind)
    torn = _torn(signed(LEDGER, ENTRIES + 1))
    _leave_log(rig, signed(LEDGER, ENTRIES), torn, signed(LEDGER, ENTRIES + 2), header=FOREIGN_HEADER)
    _rebuild(rig, kind)
    assert rig.storage.read(LEDGER, ENTRIES + 1) == torn
    rig.storage.close()


def test_a_torn_record_gets_its_row_if_the_index_is_not_complete_any_more_when_all_logs_were_read() -> None:
    rig = _rig("online")
    assert isinstance(rig, RebuildRig)
    torn = _torn(signed(LEDGER, ENTRIES + 1))
    _leave_log(rig, signed(LEDGER, ENTRIES), torn, signed(LEDGER, ENTRIES + 2))
    rig.open()

    def doubt() -> None:
        if rig.rebuilding.state.phase is RebuildPhase.ROWS:
            rig.directory.may_lack_rows()

    rig.between = doubt
    rig.rebuild(ledgers=False)
    assert rig.storage.read(LEDGER, ENTRIES + 1) == torn
    rig.storage.close()


@KINDS
def test_a_record_is_not_denied_where_its_index_is_lost(kind: str) -> None:
    rig = _rig(kind)
    log_id = _leave_log(rig, _torn(signed(LEDGER, ENTRIES)), signed(LEDGER, ENTRIES + 1, 90, DigestType.MAC))
    _rebuild(rig, kind, lost=True)
    place = make_location(log_id, HEADER_SIZE + 4)
    assert rig.parts.location_of(LEDGER, ENTRIES) == place
    assert rig.storage.read(LEDGER, ENTRIES + 1) == signed(LEDGER, ENTRIES + 1, 90, DigestType.MAC)
    rig.storage.close()


def _lose_the_middle(data: bytes) -> bytes:
    return data[:50] + bytes(300) + data[350:]


@pytest.mark.parametrize("kind", ["db", "online"])
@pytest.mark.parametrize("damage", [_lose_the_middle, lambda data: data[:-7]])
def test_the_rest_of_a_power_cut_is_no_damage(kind: str, damage: Callable[[bytes], bytes]) -> None:
    rig = _rig(kind)
    rest = b"".join(len(entry).to_bytes(4, "big") + entry for entry in (signed(LEDGER, at) for at in range(6, 12)))
    log_id = _leave_log(rig, signed(LEDGER, ENTRIES))
    path = f"{rig.bookie.directories[0]}/{log_id:x}.log"
    rig.bookie.files.write_bytes_synced(path, rig.bookie.files.read_bytes(path) + damage(rest))
    assert _rebuild(rig, kind) == 0
    assert rig.storage.read(LEDGER, ENTRIES) == signed(LEDGER, ENTRIES)
    rig.storage.close()


@pytest.mark.parametrize("kind", ["db", "online"])
def test_a_log_that_lost_what_the_index_names_is_damaged(kind: str) -> None:
    rig = _rig(kind)
    _write(rig, ENTRIES)
    log_id, position = split_location(rig.parts.location_of(LEDGER, ENTRIES))
    path = rig.path(log_id)
    rig.storage.close()
    rig.forget_map(log_id)
    rig.bookie.files.corrupt(path, position + 50, bytes(300))
    assert _rebuild(rig, kind) == 1
    rig.storage.close()


@KINDS
@pytest.mark.parametrize("digest", [DigestType.MAC, DigestType.DUMMY, DigestType.CRC32C])
def test_what_a_replay_put_behind_a_torn_record_counts(kind: str, digest: DigestType) -> None:
    """A password or no digest at all: nothing here can judge either copy, but one is torn, and the other is newer."""
    rig = _rig(kind)
    entry = signed(LEDGER, ENTRIES, 100, digest)
    _leave_log(rig, _torn(entry))
    rig.open()
    _leave_log(rig, entry)
    _rebuild(rig, kind, lost=True)
    assert rig.storage.read(LEDGER, ENTRIES) == entry
    rig.storage.close()


@KINDS
def test_a_sound_copy_counts_where_the_index_names_a_damaged_one(kind: str) -> None:
    rig = _rig(kind)
    entry = signed(LEDGER, 2)
    _store(rig, entry)
    log_id, position = split_location(rig.parts.location_of(LEDGER, 2))
    path = rig.path(log_id)
    rig.storage.close()
    rig.forget_map(log_id)
    rig.bookie.files.corrupt(path, position + 60, b"rot")
    _rebuild(rig, kind)
    assert rig.storage.read(LEDGER, 2) == entry
    rig.storage.close()


@pytest.mark.parametrize("kind", ["db", "online"])
def test_a_log_that_ends_before_what_the_index_names_is_damaged_though_its_end_looks_whole(kind: str) -> None:
    rig = _rig(kind)
    _write(rig, ENTRIES)
    log_id, position = split_location(rig.parts.location_of(LEDGER, ENTRIES + 2))
    path = rig.path(log_id)
    rig.storage.close()
    rig.forget_map(log_id)
    rig.bookie.files.write_bytes_synced(path, rig.bookie.files.read_bytes(path)[: position - 4])
    assert _rebuild(rig, kind) == 1
    rig.storage.close()


def test_an_index_whose_seal_cannot_be_read_may_have_lost_anything() -> None:
    rig = _rig("db")
    rig.storage.close()
    files, folder = rig.bookie.files, rig.bookie.directories[0]

    class Unreadable:
        path = "locations"

        def get(self, key: bytes) -> bytes:
            raise StorageFault("block checksum mismatch")

    assert not IndexSeal(files, folder).proves_complete(Unreadable())  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["sorted", "interleaved"])
@pytest.mark.parametrize("is_proved", [False, True])
def test_entries_behind_a_broken_size_are_kept(kind: str, is_proved: bool) -> None:
    """The scan cannot reach them; the old index file leads to them."""
    rig = _rig(kind)
    log_id, position = split_location(rig.parts.location_of(LEDGER, 2))
    path = rig.path(log_id)
    rig.storage.close()
    if not is_proved:
        rig.forget_map(log_id)
    rig.bookie.files.corrupt(path, position - 4, b"\x01")
    damages = _rebuild(rig, kind)
    assert damages == 1 or not is_proved
    assert [rig.storage.read(LEDGER, each) for each in (3, 4)] == [signed(LEDGER, each) for each in (3, 4)]
    rig.storage.close()


@KINDS
@pytest.mark.parametrize("digest", [DigestType.CRC32C, DigestType.MAC, DigestType.DUMMY])
def test_a_good_copy_that_cannot_be_read_once_keeps_its_row(
    kind: str, digest: DigestType, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = _rig(kind)
    entries = [signed(LEDGER, entry_id, 140, digest) for entry_id in range(ENTRIES, 2 * ENTRIES)]
    _store(rig, *entries)
    place = rig.parts.location_of(LEDGER, ENTRIES + 2)
    _leave_log(rig, entries[1], _torn(entries[2]), entries[3])
    faults = _fail_reads(monkeypatch, place)
    _rebuild(rig, kind)
    assert not faults
    assert [rig.storage.read(LEDGER, ENTRIES + at) for at in range(ENTRIES)] == entries
    rig.storage.close()


def _fail_reads(monkeypatch: pytest.MonkeyPatch, place: int) -> list[StorageFault]:
    """Let the next read of this place fail; the fault that was not raised yet."""
    faults, read = [StorageFault("Input/output error")], EntryReader.read

    def read_or_fail(self: EntryReader, location: int, ledger_id: int, entry_id: int) -> bytes:
        if location == place and faults:
            raise faults.pop()
        return read(self, location, ledger_id, entry_id)

    monkeypatch.setattr(EntryReader, "read", read_or_fail)
    return faults


@KINDS
@pytest.mark.parametrize("digest", [DigestType.MAC, DigestType.DUMMY, DigestType.CRC32C])
def test_an_entry_of_an_earlier_ledger_takes_the_place_of_no_living_one(kind: str, digest: DigestType) -> None:
    """Nothing says which logs are of which ledger, as in directories of Apache BookKeeper."""
    rig = _rig(kind)
    rig.storage.delete_ledger(LEDGER)
    rig.storage.flush()
    entries = [signed(LEDGER, entry_id, 140, digest) for entry_id in range(ENTRIES)]
    _store(rig, *entries)
    records: Any = (
        rig.storage.cache.records if isinstance(rig.storage, MemTableStorage) else rig.storage.directories[0].ledgers
    )
    records._ledgers[LEDGER] = replace(records._ledgers[LEDGER], first_log=0)
    records._dirty.add(LEDGER)
    rig.storage.flush()
    log_id = split_location(rig.parts.location_of(LEDGER, 0))[0]
    rig.storage.close()
    rig.forget_map(log_id)
    _rebuild(rig, kind)
    assert [rig.storage.read(LEDGER, entry_id) for entry_id in range(ENTRIES)] == entries
    rig.storage.close()


@KINDS
def test_a_sound_copy_counts_where_the_index_names_damaged_ones_alone(kind: str) -> None:
    """Nothing else of the ledger shows that its digests need no password."""
    rig = _rig(kind)
    entries = [signed(9, entry_id) for entry_id in range(2)]
    _store(rig, *entries)
    _store(rig, *entries)
    places = [split_location(rig.parts.location_of(9, entry_id)) for entry_id in range(2)]
    path = rig.path(places[0][0])
    rig.storage.close()
    rig.forget_map(places[0][0])
    for _, position in places:
        rig.bookie.files.corrupt(path, position + 60, b"rot")
    _rebuild(rig, kind, ledger_id=9)
    assert [rig.storage.read(9, entry_id) for entry_id in range(2)] == entries
    rig.storage.close()


@KINDS
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("digest", [DigestType.MAC, DigestType.DUMMY])
def test_a_record_whose_ids_are_torn_takes_the_place_of_no_other_entry(
    kind: str, lost: bool, digest: DigestType
) -> None:
    rig = RebuildRig() if kind in ("db", "online") else GcRig(engine=kind)
    entries = [signed(LEDGER, entry_id, 1500, digest) for entry_id in range(ENTRIES)]
    _store(rig, *entries)
    torn = bytearray(signed(LEDGER, ENTRIES, 1500, digest))
    torn[8:520] = bytes(512)  # a sector that begins within the ids
    _leave_log(rig, bytes(torn))
    _rebuild(rig, kind, lost=lost)
    assert [rig.storage.read(LEDGER, entry_id) for entry_id in range(ENTRIES)] == entries
    rig.storage.close()


@KINDS
@pytest.mark.parametrize("digest", [DigestType.MAC, DigestType.DUMMY])
def test_a_torn_copy_takes_the_place_of_no_copy_in_the_same_log(kind: str, digest: DigestType) -> None:
    rig = _rig(kind)
    entry = signed(LEDGER, ENTRIES, 100, digest)
    _leave_log(rig, entry, _torn(entry))
    _rebuild(rig, kind, lost=True)
    assert rig.storage.read(LEDGER, ENTRIES) == entry
    rig.storage.close()


@pytest.mark.parametrize(("kind", "ledgers"), [("online", False), ("online", True), ("db", False)])
def test_the_rest_of_a_power_cut_is_no_damage_to_the_process_that_follows_a_rebuild(kind: str, ledgers: bool) -> None:
    rig = _with_remains(kind)
    if kind == "online":
        rig.open()
        rig.metadata.ledgers[LEDGER] = None
        assert not rig.rebuild(ledgers=ledgers).damages
    else:
        assert _rebuild(rig, kind) == 0
    assert isinstance(rig.bookie, MemoryBookie)
    after = RebuildRig(rig.bookie.restart())  # before a checkpoint
    assert not after.rebuild(ledgers=False).damages
    after.storage.close()


def test_a_rebuild_of_an_index_that_may_have_lost_rows_does_not_count_as_complete() -> None:
    rig = _with_remains("db")
    rig.files.unlink(f"{rig.folder}/{SEAL}")
    _rebuild(rig, "db")
    assert not rig.directory.is_index_complete
    rig.storage.close()


def _with_remains(kind: str) -> RebuildRig:
    """A stopped bookie; a power cut has left records behind zeros in its last log."""
    rig = _rig(kind)
    assert isinstance(rig, RebuildRig)
    rest = b"".join(len(entry).to_bytes(4, "big") + entry for entry in (signed(LEDGER, at) for at in range(6, 12)))
    log_id = _leave_log(rig, signed(LEDGER, ENTRIES))
    path = f"{rig.folder}/{log_id:x}.log"
    rig.files.write_bytes_synced(path, rig.files.read_bytes(path) + _lose_the_middle(rest))
    return rig


@pytest.mark.parametrize("engine", ["sorted", "interleaved"])
@pytest.mark.parametrize(
    "case", ["nothing names it", "no seal", "a row leads there", "was in limbo", "lacked a row", "foreign"]
)
def test_zeros_in_a_log_that_nothing_proves_are_no_damage_if_the_old_file_names_nothing_there(
    engine: str, case: str
) -> None:
    rig = _rig(engine)
    files, folder = rig.bookie.files, rig.bookie.directories[0]
    log_id = split_location(rig.parts.location_of(LEDGER, 0))[0] + 1
    old = FileIndex(files, [folder]).path(LEDGER)
    _hurt(rig, case)
    rig.storage.close()
    first, second = (len(each).to_bytes(4, "big") + each for each in (signed(LEDGER, 6), signed(LEDGER, 7)))
    data = (FOREIGN_HEADER if case == "foreign" else encode_header()) + first + bytes(300)
    files.write_bytes_synced(f"{folder}/{log_id:x}.log", data + second)
    if case == "no seal":
        files.unlink(f"{folder}/index-files-seal")
    elif case == "a row leads there":
        assert old is not None
        files.corrupt(old, slot_offset(7), make_location(log_id, len(data) + 4).to_bytes(8, "big"))
    assert rebuild(rig, engine).damages == (0 if case == "nothing names it" else 1)
    assert rig.storage.read(LEDGER, 4) == signed(LEDGER, 4)
    record = rig.storage.ledger(LEDGER)
    assert record is not None
    assert record.limbo is (case != "nothing names it")
    rig.storage.close()


def _hurt(rig: GcRig, case: str) -> None:
    """The ledger is in limbo no more, but its rows were not proved to be complete since."""
    record = rig.storage.ledger(LEDGER)
    assert record is not None
    if case == "was in limbo":
        rig.storage.set_ledger(LEDGER, replace(record, limbo=True))
        rig.storage.set_ledger(LEDGER, record)
    elif case == "lacked a row":
        rig.parts.may_lack_rows(LEDGER)
    rig.storage.flush()
