"""The seal of the databases says that they are complete while that is proved, and no longer, wherever power goes."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import replace

import google_crc32c
import pytest

from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.single_directory import SingleDirectoryStorage
from bookie_pod.storage.entry_log.format import split_location
from bookie_pod.storage.index.ledger_data import encode
from bookie_pod.storage.index.locations import EntryMove
from bookie_pod.storage.index.seal import NAME, IndexEndLost, IndexSeal
from bookie_pod.storage.index.store import StoreKind
from bookie_pod.storage.index_rebuild.offline import OfflineLocations
from bookie_pod.storage.index_rebuild.online import LogsDamaged
from bookie_pod.storage.inspect.logs import StoredLogs
from bookie_protocol.errors import StorageFault
from tests.support.index_rebuilds import ENTRIES, LEDGER, filled_rig, leave_foreign_log, rebuild, write_entries
from tests.support.memory_files import Died, MemoryFiles
from tests.support.rebuild_rig import RebuildRig
from tests.support.storage_engine import KEY, MemoryBookie, entry, put

SEAL = f"/ledgers0/{NAME}"


def is_complete(storage: object) -> bool:
    assert isinstance(storage, DbLedgerStorage)
    return storage.directories[0].is_index_complete


def as_an_older_release(files: MemoryFiles) -> None:
    """The same seal, without a word of completeness."""
    rows = b"PKSEAL01" + files.read_bytes(SEAL)[8:40]
    files.write_bytes(SEAL, rows + struct.pack(">I", google_crc32c.value(rows)))


def set_limbo(storage: DbLedgerStorage, *, limbo: bool) -> None:
    record = storage.set_master_key(1, KEY)
    storage.set_ledger(1, replace(record, limbo=limbo))


def test_a_directory_that_was_new_here_is_complete_in_every_later_process() -> None:
    bookie = MemoryBookie()
    storage = bookie.open()
    for number in range(3):
        assert is_complete(storage)
        put(storage, entry(1, number))
        if number:
            storage.flush()
        storage.directories[0].logs.force_close()
        bookie = bookie.restart()
        storage = bookie.open()
    storage.close()


def test_an_older_seal_counts_and_does_not_tell_whether_the_index_is_complete() -> None:
    bookie = MemoryBookie()
    storage = bookie.open()
    put(storage, entry(1, 0))
    storage.flush()
    storage.close()
    as_an_older_release(bookie.files)
    for _ in range(2):
        storage = bookie.open()
        assert not is_complete(storage)
        put(storage, entry(1, 1))
        storage.flush()
        storage.close()
    assert bookie.stores is not None
    older = bookie.stores.stores["/ledgers0/locations"]._rows.copy()
    as_an_older_release(bookie.files)
    storage = bookie.open()
    put(storage, entry(1, 2))
    storage.flush()
    storage.close()
    as_an_older_release(bookie.files)
    bookie.stores.stores["/ledgers0/locations"]._rows = older
    with pytest.raises(IndexEndLost):
        bookie.open()


def _limbo_that_comes_and_goes(storage: DbLedgerStorage) -> None:
    set_limbo(storage, limbo=True)
    set_limbo(storage, limbo=False)


def _row_that_is_missing(storage: DbLedgerStorage) -> None:
    storage.directories[0].may_lack_rows()
    set_limbo(storage, limbo=False)


@pytest.mark.parametrize("happens", [_limbo_that_comes_and_goes, _row_that_is_missing])
def test_wherever_the_power_goes_the_seal_has_withdrawn_before_a_record_tells_of_no_limbo(
    happens: Callable[[DbLedgerStorage], None],
) -> None:
    after = set()
    for at in range(40):
        bookie = MemoryBookie()
        storage = bookie.open()
        put(storage, entry(2, 0))
        storage.flush()
        happens(storage)
        bookie.faults.die_at(bookie.faults.mutations + at)
        try:
            storage.flush()
        except Died:
            later = bookie.crash(random.Random(at)).open()
            after.add((later.ledger(1) is not None, is_complete(later)))
            later.close()
        else:
            assert not is_complete(storage)
            assert after == {(False, True), (False, False), (True, False)}
            return
    raise AssertionError("the flush never came to its end")


def test_an_index_that_was_rebuilt_beside_damage_is_not_complete_once_it_is_sealed() -> None:
    """Its ledgers are in limbo until they were compared; what it lacks, it lacks for good."""
    rig = _damaged()
    assert rig.rebuild(ledgers=False, accept_damage=True).damages
    for _ in range(2):
        record = rig.storage.ledger(LEDGER)
        assert record is not None
        rig.storage.set_ledger(LEDGER, replace(record, limbo=False))  # as the comparison does
        rig.storage.flush()
        assert not is_complete(rig.storage)
        rig.storage.close()
        rig.open()
    rig.storage.close()


def test_a_rebuild_that_has_read_all_logs_proves_that_the_index_is_complete() -> None:
    rig = _damaged()
    with pytest.raises(LogsDamaged):
        rig.rebuild(ledgers=False)
    assert not is_complete(rig.storage)
    damaged = rig.path(split_location(rig.parts.location_of(LEDGER, 2))[0])
    rig.storage.close()
    rig.files.unlink(damaged)
    rig.open()
    assert not rig.rebuild(ledgers=False).damages
    assert is_complete(rig.storage)
    rig.storage.close()
    rig.open()
    assert is_complete(rig.storage)
    rig.storage.close()


def test_a_doubt_in_the_middle_of_a_rebuild_is_not_proved_away() -> None:
    rig = filled_rig("online")
    assert isinstance(rig, RebuildRig)

    def doubt() -> None:
        rig.directory.put_in_limbo([LEDGER])
        rig.between = lambda: None

    rig.between = doubt
    rig.rebuild(ledgers=False)
    assert not is_complete(rig.storage)
    rig.storage.close()


def test_a_rebuild_of_a_stopped_bookie_asks_whether_the_old_index_is_complete() -> None:
    rig = filled_rig("db")
    assert isinstance(rig, RebuildRig)
    rig.directory.may_lack_rows()
    rig.storage.flush()
    rig.storage.close()
    rebuild(rig, "db")
    assert not is_complete(rig.storage)
    rig.storage.close()


def _damaged() -> RebuildRig:
    """A bookie whose first log is damaged, and whose index is not known to be complete."""
    rig = filled_rig("online")
    assert isinstance(rig, RebuildRig)
    write_entries(rig, ENTRIES)
    rig.directory.may_lack_rows()
    rig.storage.flush()
    log_id, position = split_location(rig.parts.location_of(LEDGER, 2))
    rig.files.corrupt(rig.path(log_id), position - 4, b"\x7f\xff\xff\xff")
    return rig


def _put_in_limbo_by_a_tool(bookie: MemoryBookie, ledger_id: int) -> None:
    """The bookie is stopped; the seal knows nothing of it."""
    storage = bookie.open()
    record = storage.set_master_key(ledger_id, KEY)
    storage.close()
    assert bookie.stores is not None
    store = bookie.stores.open("/ledgers0/ledgers", StoreKind.LEDGERS)
    batch = store.batch()
    batch.put(struct.pack(">q", ledger_id), encode(replace(record, limbo=True)))
    batch.commit()
    store.close()


def test_limbo_that_is_found_at_the_start_is_withdrawn() -> None:
    bookie = MemoryBookie()
    storage = bookie.open()
    put(storage, entry(1, 0))
    storage.flush()
    storage.close()
    _put_in_limbo_by_a_tool(bookie, 1)
    storage = bookie.open()
    assert not is_complete(storage)
    set_limbo(storage, limbo=False)
    storage.flush()
    storage.close()
    storage = bookie.open()
    assert not is_complete(storage)
    storage.close()


def test_a_rebuild_of_a_stopped_bookie_does_not_believe_the_seal_of_one_with_limbo() -> None:
    rig = filled_rig("db")
    assert isinstance(rig, RebuildRig)
    rig.storage.close()
    assert isinstance(rig.bookie, MemoryBookie)
    _put_in_limbo_by_a_tool(rig.bookie, LEDGER)
    logs = StoredLogs(rig.files, [rig.folder])
    rebuilding = OfflineLocations(rig.files, rig.tool_stores, rig.tool_stores.stores, rig.folder, logs)
    while rebuilding.step():
        pass
    rebuilding.commit()
    logs.close()
    store = rig.tool_stores.open(f"{rig.folder}/locations", StoreKind.LOCATIONS)
    assert not IndexSeal(rig.files, rig.folder).proves_complete(store)
    store.close()


def test_a_rebuild_does_not_prove_an_index_while_a_ledger_is_in_limbo() -> None:
    rig = filled_rig("online")
    assert isinstance(rig, RebuildRig)
    rig.directory.put_in_limbo([LEDGER])
    assert not rig.rebuild(ledgers=False).damages
    assert not is_complete(rig.storage)
    rig.storage.close()


def test_an_index_is_not_known_to_be_complete_behind_a_log_of_another_program() -> None:
    bookie = MemoryBookie()
    storage = bookie.open()
    put(storage, entry(1, 0))
    storage.flush()
    newest = storage.directories[0].logs.newest_log_id
    storage.close()
    leave_foreign_log(bookie.files, "/ledgers0", newest + 1, entry(1, 1))
    for number in (2, 3):
        storage = bookie.open()
        assert not is_complete(storage)
        put(storage, entry(1, number))
        storage.flush()
        storage.close()
        if number == 2:
            bookie.files.unlink(f"/ledgers0/{newest + 1:x}.log")


def test_a_rebuild_that_has_read_the_logs_of_another_program_proves_what_lies_in_them() -> None:
    rig = filled_rig("online")
    assert isinstance(rig, RebuildRig)
    rig.storage.close()
    leave_foreign_log(rig.files, rig.folder, rig.logs.newest_log_id + 1)
    rig.open()
    assert not is_complete(rig.storage)
    rig.rebuild(ledgers=False)
    for _ in range(2):
        assert is_complete(rig.storage)
        rig.storage.close()
        rig.open()
    rig.storage.close()


def test_a_seal_that_is_far_behind_its_database_tells_nothing_of_completeness() -> None:
    """The directory was elsewhere meanwhile, and this is what it left here."""
    bookie = MemoryBookie()
    storage = bookie.open()
    put(storage, entry(1, 0))
    storage.flush()
    older = bookie.files.read_bytes(SEAL)
    for number in range(1, 4):
        put(storage, entry(1, number))
        storage.flush()
    storage.close()
    bookie.files.write_bytes(SEAL, older)
    storage = bookie.open()
    assert not is_complete(storage)
    storage.close()


@pytest.mark.parametrize(
    "write",
    [
        lambda directory: directory.ledgers.set_flags(0),
        lambda directory: directory.ledgers.write({1: directory.ledgers.get(1)}),
        lambda directory: directory.locations.move([EntryMove(1, 7, 0, 1 << 40)]),
        lambda directory: directory.locations.drop(1, [0]),
        lambda directory: directory.locations.write([]),
    ],
    ids=["flags", "record", "move", "drop", "rows"],
)
def test_nothing_is_written_to_a_database_before_the_seal_has_withdrawn(
    write: Callable[[SingleDirectoryStorage], None],
) -> None:
    bookie = MemoryBookie()
    storage = bookie.open()
    put(storage, entry(1, 0))
    storage.flush()
    directory = storage.directories[0]
    directory.may_lack_rows()
    bookie.faults.fail("write", path=NAME, times=1)
    with pytest.raises(StorageFault):
        write(directory)
    assert directory.locations.get(1, 0)
    assert not directory.locations.get(1, 7)
    write(directory)
    assert not is_complete(bookie.crash(random.Random(1)).open())


@pytest.mark.parametrize("seed", range(8))
def test_a_word_that_may_have_been_written_though_that_failed_is_taken_back(seed: int) -> None:
    bookie = MemoryBookie()
    storage = bookie.open()
    directory = storage.directories[0]
    directory.may_lack_rows()
    put(storage, entry(1, 0))
    storage.flush()
    directory.prove_index(directory.index_withdrawals)
    bookie.faults.fail("sync_directory", path="/ledgers0", times=1)
    with pytest.raises(StorageFault):
        directory.seal()
    directory.may_lack_rows()
    bookie.faults.fail("sync_directory", path="/ledgers0", times=2)
    put(storage, entry(1, 1))
    for _ in range(2):
        with pytest.raises(StorageFault):
            directory.flush()
    directory.flush()
    assert not is_complete(bookie.crash(random.Random(seed)).open())
