"""A ledger id that is used again: what entry logs still hold of the earlier ledger never gets a row."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from bookie_pod.storage.engines.memtable_storage import MemTableStorage
from bookie_pod.storage.gc.schedule import GcConfig
from bookie_pod.storage.gc.storage import collected
from bookie_pod.storage.gc.throttle import ScrubPace
from bookie_pod.storage.index.locations import LocationIndex
from bookie_pod.storage.index.store import StoreKind
from bookie_pod.storage.index_rebuild.index_files import IndexFilesRebuild
from bookie_pod.storage.index_rebuild.locations import LocationRebuild, put_chosen
from bookie_pod.storage.inspect.index import FileIndex
from bookie_pod.storage.inspect.logs import StoredLogs
from bookie_pod.storage.integrity.ledger_scrub import LedgerScrub
from tests.support.gc_rig import FAST, GcRig
from tests.support.memory_store import MemoryStores
from tests.support.scrub_rig import FixedDigests, signed
from tests.support.storage_engine import put

FIRST, SECOND = 10, 3
"""Entries of the first and of the second ledger 1; ledger 2 shares its log and lives."""


def _two_lives(engine: str) -> GcRig:
    rig = GcRig(engine=engine)
    for entry_id in range(FIRST):
        for ledger_id in (1, 2):
            rig.metadata.ledgers.setdefault(ledger_id, None)
            put(rig.storage, signed(ledger_id, entry_id))
    rig.storage.flush()
    rig.logs.rotate()
    rig.logs.sync()
    rig.gc.run_pass()
    rig.delete(1)
    assert rig.gc.run_pass().ledgers_deleted == 1
    rig.metadata.ledgers[1] = None
    put(rig.storage, *(signed(1, entry_id) for entry_id in range(SECOND)))
    rig.storage.flush()
    return rig


def _assert_second_life(rig: GcRig) -> None:
    assert list(rig.storage.entry_ids(1)) == list(range(SECOND))
    assert list(rig.storage.entry_ids(2)) == list(range(FIRST))


@pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_scrub_gives_it_none(engine: str, restarted: bool) -> None:
    rig = _two_lives(engine)
    if restarted:
        rig.restart()
    scrub = _scrub(rig)
    assert scrub.register.damages() == []
    _assert_second_life(rig)


@pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])
def test_nor_where_an_earlier_release_made_the_second(engine: str) -> None:
    rig = _made_by_an_earlier_release(engine)
    _scrub(rig)
    _assert_second_life(rig)


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])
def test_nor_does_a_compaction(engine: str, transactional: bool) -> None:
    rig = _made_by_an_earlier_release(engine, replace(FAST, transactional_compaction=transactional))
    rig.delete(2)
    assert rig.force().logs_compacted == 1
    assert list(rig.storage.entry_ids(1)) == list(range(SECOND))


def _made_by_an_earlier_release(engine: str, options: GcConfig = FAST) -> GcRig:
    """Its record does not say in which log its life begins, the list of the deleted does."""
    rig = _two_lives(engine)
    rig.gc.run_pass()
    records = rig.storage.cache.records if isinstance(rig.storage, MemTableStorage) else rig.parts._owner.ledgers  # type: ignore[union-attr]
    records._ledgers[1] = replace(records._ledgers[1], first_log=0)
    records._dirty.add(1)
    rig.storage.flush()
    rig.options = options
    rig.restart()
    record = rig.storage.ledger(1)
    assert record is not None
    assert record.first_log == 0
    return rig


@pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])
def test_a_log_that_collection_no_longer_looks_at_is_not_forgotten(engine: str) -> None:
    rig = _two_lives(engine)
    rig.gc._usages.quarantine(rig.flushed[0], "as if its end were damaged")
    rig.gc.run_pass()
    _scrub(rig)
    _assert_second_life(rig)


def _scrub(rig: GcRig) -> LedgerScrub:
    scrub = LedgerScrub(
        collected(rig.storage)[0],
        rig.bookie.files,
        rig.bookie.directories[0],
        ScrubPace(threading.Event(), entries_per_second=0, bytes_per_second=0),
        FixedDigests(),
        now_ms=lambda: 1,
    )
    assert scrub.run()
    assert scrub.counts.restored == 0
    return scrub


def test_an_offline_rebuild_of_the_locations_gives_it_none() -> None:
    rig = _two_lives("db")
    new = LocationIndex(MemoryStores(rig.bookie.faults).open("/new/locations", StoreKind.LOCATIONS))

    def is_living(ledger_id: int, log_id: int) -> bool:
        return rig.parts.has_ledger(ledger_id) and not rig.parts.is_earlier_life(ledger_id, log_id)

    LocationRebuild(rig.logs, is_living, put_chosen(new)).run()
    assert list(new.entry_ids(1)) == list(range(SECOND))
    assert list(new.entry_ids(2)) == list(range(FIRST))


@pytest.mark.parametrize("engine", ["sorted", "interleaved"])
def test_a_rebuild_of_index_files_gives_it_none(engine: str) -> None:
    rig = _two_lives(engine)
    rig.storage.close()
    folders = rig.bookie.directories
    logs = StoredLogs(rig.bookie.files, folders)
    old = FileIndex(rig.bookie.files, folders)
    rebuilding = IndexFilesRebuild(rig.bookie.files, logs, old, folders[0], {1, 2}, {})
    rebuilding.run()
    rebuilding.commit(".BACKUP-1")
    rebuilding.close()
    old.close()
    logs.close()
    rig.open()
    _assert_second_life(rig)


@pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])
def test_a_compaction_that_is_finished_after_the_deletion_gives_it_none(engine: str) -> None:
    rig = GcRig(engine=engine)
    log_id = rig.write([1, 2], FIRST)
    rig.gc.run_pass()
    target = rig.logs.begin_compaction(log_id, 0)
    target.append_run(1, [rig.storage.read(1, entry_id) for entry_id in range(FIRST)])
    target.mark_compacted()
    rig.metadata.ledgers[99] = None
    rig.delete(1)
    rig.gc._ledgers.collect_deleted()
    put(rig.storage, *(signed(1, entry_id) for entry_id in range(SECOND)))
    rig.storage.flush()
    rig.metadata.ledgers[1] = None
    rig.gc._reclaimer._compactor.recover(())
    _assert_second_life(rig)
