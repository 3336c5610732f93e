"""The seal of the databases says that they are complete while that is proved, and no longer, wherever power goes."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import replace

import google_crc32c
import pytest

from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.entry_log.format import split_location
from bookie_pod.storage.index.seal import NAME, IndexEndLost
from bookie_pod.storage.index_rebuild.online import LogsDamaged
from tests.support.index_rebuilds import ENTRIES, LEDGER, filled_rig, rebuild, write_entries
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
