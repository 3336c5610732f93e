"""What a process finds in index files that another one wrote may be in the page cache alone: of that nothing is durable
until this process has written it, and nothing goes on its word."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from bookie_pod.storage.engines.memtable_storage import MemTableStorage
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_protocol.errors import StorageFault
from tests.support.gc_rig import FAST, GcRig
from tests.support.memory_faults import Died
from tests.support.memory_files import MemoryFiles
from tests.support.memtable_engine import ENGINES, Checkpoints, MemTableBookie
from tests.support.scrub_rig import ScrubRig, signed
from tests.support.storage_engine import MemoryBookie, entry, put

LIVE = 3
ENTRIES = 20
OTHERS = (4, 5, 6, 7, 8)
DAYS = 3 * 86_400_000


def mostly_garbage(engine: str, transactional: bool) -> GcRig:
    """A log in which one of six ledgers lives."""
    rig = GcRig(replace(FAST, transactional_compaction=transactional), engine=engine)
    rig.write([LIVE, *OTHERS], ENTRIES)
    for ledger_id in OTHERS:
        del rig.metadata.ledgers[ledger_id]
    rig.gc.run_pass()
    rig.now += DAYS
    return rig


def restart(rig: GcRig) -> None:
    """The process is gone; the machine, and its page cache, live on."""
    rig.bookie = rig.bookie.on(rig.bookie.files.restart())
    rig.open()


def finish(rig: GcRig) -> int:
    """Logs that two passes remove."""
    deleted = 0
    for _ in range(2):
        rig.now += DAYS
        deleted += rig.gc.run_pass().logs_deleted
    return deleted


def check_after_power_cuts(rig: GcRig) -> None:
    for seed in range(8):
        storage = rig.bookie.crash(random.Random(seed)).open()
        assert [storage.read(LIVE, entry_id) for entry_id in range(ENTRIES)] == [
            entry(LIVE, entry_id, 100) for entry_id in range(ENTRIES)
        ]


@pytest.mark.parametrize("transactional", [True, False], ids=["transactional", "plain"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_compaction_of_a_killed_process_is_not_finished_on_the_word_of_the_page_cache(
    engine: str, transactional: bool
) -> None:
    rig = mostly_garbage(engine, transactional)
    rig.bookie.faults.kill("datasync", f"/{LIVE:x}.idx")
    with pytest.raises(Died):
        rig.gc.run_pass()
    restart(rig)
    assert finish(rig) >= 1
    check_after_power_cuts(rig)


@pytest.mark.parametrize("transactional", [True, False], ids=["transactional", "plain"])
@pytest.mark.parametrize("engine", ENGINES)
def test_nor_is_one_whose_sync_has_failed(engine: str, transactional: bool) -> None:
    """The kernel calls those pages clean, so that no sync brings them to the disk any more."""
    rig = mostly_garbage(engine, transactional)
    rig.bookie.faults.fail("datasync", path=f"/{LIVE:x}.idx", times=1)
    assert rig.gc.run_pass().errors
    rig.bookie.faults.clear()
    restart(rig)
    assert finish(rig) >= 1
    check_after_power_cuts(rig)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("left", ["killed", "failed sync"])
def test_what_a_replay_finds_in_place_is_written_again(engine: str, left: str) -> None:
    """Key, fence and the file's own name: the mark moves behind the replay, and the journal goes."""
    bookie = MemTableBookie(engine, files=MemoryFiles(strict_names=True))
    storage = bookie.open()
    storage.start(Checkpoints())
    _begin_ledger(storage)
    if left == "killed":
        bookie.faults.kill("datasync", f"/{LIVE:x}.idx")
    else:
        bookie.faults.fail("datasync", path=f"/{LIVE:x}.idx", times=1)
    with pytest.raises((Died, StorageFault)):
        storage.flush()
    bookie = bookie.on(bookie.files.restart())
    storage = bookie.open()
    _begin_ledger(storage)  # as the replay does
    storage.flush()
    for seed in range(8):
        found = bookie.crash(random.Random(seed)).open()
        assert found.ledger(LIVE) == LedgerRecord(b"key", fenced=True)
        assert found.read(LIVE, 1000) == entry(LIVE, 1000)


def _begin_ledger(storage: MemTableStorage) -> None:
    record = storage.set_master_key(LIVE, b"key")
    put(storage, entry(LIVE, 1000))
    if not record.fenced:
        storage.set_ledger(LIVE, replace(record, fenced=True))


@pytest.mark.parametrize("engine", ["db", *ENGINES])
def test_a_scrub_gives_no_row_to_what_a_killed_process_left_in_the_page_cache(engine: str) -> None:
    """But for entries that it has made durable: else the power fails, and rows lead to nothing."""
    bookie = MemoryBookie() if engine == "db" else MemTableBookie(engine)
    rig = ScrubRig(bookie)
    rig.storage.set_master_key(LIVE, b"key")
    put(rig.storage, signed(LIVE, 0))
    rig.storage.flush()
    put(rig.storage, *(signed(LIVE, entry_id) for entry_id in range(1, 9)))
    bookie.faults.kill("datasync", ".log")
    with pytest.raises((Died, StorageFault)):
        rig.storage.flush()
    rig = ScrubRig(bookie.restart())
    assert rig.run() == []
    restored = [entry_id for entry_id in range(1, 9) if rig.part.location_of(LIVE, entry_id)]
    assert restored == list(range(1, 9))
    rig.storage.flush()
    for seed in range(8):
        after = ScrubRig(rig.bookie.crash(random.Random(seed)))
        assert after.run() == []
        for entry_id in restored:
            assert after.storage.read(LIVE, entry_id) == signed(LIVE, entry_id)
