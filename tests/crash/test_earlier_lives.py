"""A ledger id that is used again, and a crash between its lives: nothing of the first ever comes back."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from bookie_pod.config.sections.journal import JournalConfig
from bookie_pod.node.recovery import ReplayIntoStorage, replay_journals
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.gc.throttle import ScrubPace
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_pod.storage.index.locations import LocationIndex
from bookie_pod.storage.integrity.ledger_scrub import LedgerScrub
from bookie_pod.storage.journal import Journal, JournalBatch
from bookie_pod.storage.journal.format import deletion_record, entry_record, fence_record, key_record
from bookie_pod.storage.log_ids import is_before
from tests.support.gc_rig import FAST, GcRig
from tests.support.memory_files import Died
from tests.support.memtable_engine import MemTableBookie, memtable_options
from tests.support.scrub_rig import FixedDigests
from tests.support.storage_engine import KEY, MemoryBookie, entry, put, small_options

ENGINES = pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])
JOURNAL = "/journal/current"
AGAIN, OTHER = 5, 7
"""The ledger that is made again, and one whose entries fill a write cache."""


def _rig(engine: str) -> GcRig:
    if engine == "db":
        options = small_options(half_bytes=20_000, log_size=1 << 20, read_cache_bytes=0)
        return GcRig(FAST, MemoryBookie(options=options))
    return GcRig(FAST, MemTableBookie(engine, options=memtable_options(memtable_bytes=20_000)))


def _restarted(rig: GcRig, *, replay: bool = False) -> GcRig:
    """After a power cut."""
    logs = rig.storage.directories[0].logs if isinstance(rig.storage, DbLedgerStorage) else rig.storage.logs
    logs.force_close()
    rig.bookie = rig.bookie.crash(random.Random(3))
    if replay:
        storage = rig.bookie.open()
        replay_journals(
            rig.bookie.files,
            storage,
            journal_folders=[JOURNAL],
            ledger_folders=list(rig.bookie.directories),
        )
        storage.close()
    rig.open()
    return rig


def _compact(rig: GcRig) -> None:
    rig.metadata.ledgers.pop(OTHER)
    rig.gc.run_pass()
    rig.now += 3 * 86_400_000
    rig.gc.run_pass()


def _scrub(rig: GcRig) -> None:
    pace = ScrubPace(threading.Event(), entries_per_second=0, bytes_per_second=0)
    LedgerScrub(
        rig.parts, rig.bookie.files, rig.bookie.directories[0], pace, FixedDigests(None), now_ms=lambda: 1
    ).run()


@ENGINES
@pytest.mark.parametrize("look", [_compact, _scrub])
def test_a_replay_that_flushes_in_its_middle_brings_nothing_back(engine: str, look) -> None:
    """The first life is above the mark, so the replay writes it into a new log before it meets its deletion."""
    rig = _rig(engine)
    rig.bookie.files.makedirs(JOURNAL)
    journal = Journal(JOURNAL, 0, rig.bookie.files, JournalConfig(max_group_wait_ms=0), lambda *_: None, pytest.fail)
    journal.start()

    def add(ledger_id: int, count: int, mark: bytes) -> None:
        rig.metadata.ledgers[ledger_id] = None
        journal.append(JournalBatch.of(key_record(ledger_id, KEY)))
        for entry_id in range(count):
            data = entry(ledger_id, entry_id, 1000, mark)
            put(rig.storage, data)
            journal.append(JournalBatch.of(entry_record(data)))
            if rig.storage.is_full(ledger_id):
                rig.storage.flush()

    add(AGAIN, 10, b"1")
    add(OTHER, 30, b"x")
    del rig.metadata.ledgers[AGAIN]
    rig.storage.on_ledger_deleted(
        lambda ledger_id, fenced, next_log: journal.append(JournalBatch.of(deletion_record(ledger_id, next_log)))
    )
    assert rig.gc.run_pass().ledgers_deleted == 1
    add(AGAIN, 3, b"2")
    journal.stop()
    rig = _restarted(rig, replay=True)
    assert list(rig.storage.entry_ids(AGAIN)) == [0, 1, 2]
    look(rig)
    assert list(rig.storage.entry_ids(AGAIN)) == [0, 1, 2]
    assert rig.storage.read(AGAIN, 1) == entry(AGAIN, 1, 1000, b"2")


@ENGINES
@pytest.mark.parametrize("look", [_compact, _scrub])
def test_a_deletion_that_is_durable_before_the_collector_has_noted_it_brings_nothing_back(engine: str, look) -> None:
    """A checkpoint comes by behind a deletion, then the power fails."""
    rig = _rig(engine)
    rig.write([AGAIN, OTHER], 10, mark=b"1")
    del rig.metadata.ledgers[AGAIN]
    rig.metadata.ledgers[99] = None

    def dies() -> None:
        rig.storage.flush()
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(rig.gc._collection_pass, "_write_deleted", dies)
        rig.gc.run_pass()
    rig = _restarted(rig)
    assert AGAIN not in rig.storage.ledger_ids()
    rig.metadata.ledgers[AGAIN] = None
    put(rig.storage, *(entry(AGAIN, entry_id, 100, b"2") for entry_id in range(3)))
    rig.storage.flush()
    look(rig)
    assert list(rig.storage.entry_ids(AGAIN)) == [0, 1, 2]


@ENGINES
@pytest.mark.parametrize("last_flush", ["before the deletion", "behind the deletion", "in the next life"])
def test_without_data_in_the_journal_the_next_life_keeps_its_key_its_entries_and_no_fence(
    engine: str, last_flush: str
) -> None:
    """With `journalWriteData` off the journal has keys, fences and deletions, but no entry that could come back."""
    rig = _rig(engine)
    rig.bookie.files.makedirs(JOURNAL)
    journal = Journal(JOURNAL, 0, rig.bookie.files, JournalConfig(max_group_wait_ms=0), lambda *_: None, pytest.fail)
    journal.start()
    rig.storage.on_ledger_deleted(
        lambda ledger_id, fenced, next_log: journal.append(JournalBatch.of(deletion_record(ledger_id, next_log)))
    )
    for life in range(3):
        key = b"%d" % life * 20
        rig.storage.set_master_key(AGAIN, key)
        journal.append(JournalBatch.of(key_record(AGAIN, key)))
        put(rig.storage, *(entry(AGAIN, entry_id, 100, b"%d" % life) for entry_id in range(10 - life)))
        if life == 2:
            break
        rig.storage.set_ledger(AGAIN, LedgerRecord(key, fenced=True))
        journal.append(JournalBatch.of(fence_record(AGAIN)))
        if not life or last_flush == "before the deletion":
            rig.storage.flush()
        rig.storage.delete_ledger(AGAIN)
        if life and last_flush == "behind the deletion":
            rig.storage.flush()
    if last_flush == "in the next life":
        rig.storage.flush()
    journal.stop()
    rig = _restarted(rig, replay=True)
    assert rig.storage.ledger(AGAIN) == LedgerRecord(b"2" * 20)
    assert list(rig.storage.entry_ids(AGAIN)) == (list(range(8)) if last_flush == "in the next life" else [])


@ENGINES
@pytest.mark.parametrize("end", ["stop", "power cut"])
@pytest.mark.parametrize("lives", [1, 3])
@pytest.mark.parametrize("journaled", [False, True])
def test_a_deletion_says_of_later_processes_too_where_the_next_life_begins(
    engine: str, end: str, lives: int, journaled: bool
) -> None:
    """No mark has passed the deletion (`journaled`), or one has; and no log was begun since. A rebuild of the index
    takes a record that begins earlier for one of the life before."""
    rig = _rig(engine)
    told: list[int] = []
    rig.storage.on_ledger_deleted(lambda ledger_id, fenced, next_log: told.append(next_log))
    for _ in range(lives):
        put(rig.storage, entry(AGAIN, 0))
        if not told:
            rig.storage.flush()
        rig.storage.delete_ledger(AGAIN)
    if journaled:
        rig.restart()
        ReplayIntoStorage(rig.storage).on_deletion(AGAIN, told[-1])
    rig.storage.flush()
    if end == "power cut":
        rig = _restarted(rig)
    else:
        rig.restart()
    put(rig.storage, entry(AGAIN, 0), entry(OTHER, 0))
    rig.storage.flush()
    record = rig.storage.ledger(AGAIN)
    assert record is not None
    assert record.first_log
    assert not is_before(record.first_log, told[-1])
    assert {rig.parts.location_of(each, 0) >> 32 for each in (AGAIN, OTHER)} == {record.first_log}


@pytest.mark.parametrize("deleted", [None, "before", "in the middle"])
def test_wherever_a_flush_ends_no_row_is_left_of_a_ledger_that_is_not_known(deleted: str | None) -> None:
    """It would be taken for one of the next ledger with that id. (Of Sorted and Interleaved one file has both.)"""
    write = LocationIndex.write
    for step in range(30):
        bookie = MemoryBookie(options=small_options(read_cache_bytes=0))
        storage = bookie.open()
        if deleted is not None:
            put(storage, *(entry(AGAIN, entry_id) for entry_id in range(3)))
            storage.flush()
        put(storage, entry(AGAIN, 3), entry(OTHER, 0))
        record = storage.ledger(AGAIN)
        assert record is not None
        storage.set_ledger(AGAIN, replace(record, fenced=True))
        if deleted == "before":
            storage.delete_ledger(AGAIN)

        def writes(index: LocationIndex, *arguments: Any, storage: LedgerStorage = storage) -> None:
            if deleted == "in the middle":
                storage.delete_ledger(AGAIN)
            write(index, *arguments)

        bookie.faults.die_at(bookie.faults.mutations + step)
        with pytest.MonkeyPatch.context() as patch, suppress(Died):
            patch.setattr(LocationIndex, "write", writes)
            storage.flush()
        ended = not bookie.faults.dead
        for after in (bookie.restart(), bookie.crash(random.Random(step))):
            found = after.open()
            (directory,) = found.directories
            for ledger_id in (AGAIN, OTHER):
                assert found.ledger(ledger_id) is not None or list(directory.locations.rows(ledger_id)) == []
            found.close()
        if ended:
            return
    raise AssertionError("the flush never came to its end")
