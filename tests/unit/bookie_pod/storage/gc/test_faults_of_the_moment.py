"""Compaction while disks fail for a moment: what cannot be read is not absent, and what is not durable is not moved."""

from __future__ import annotations

import errno
import random
from dataclasses import replace

import pytest

from bookie_pod.storage.entry_log.format import split_location
from bookie_pod.storage.gc.schedule import Compaction
from bookie_protocol.errors import StorageFault
from tests.support.gc_rig import FAST, MAJOR, GcRig
from tests.support.memory_files import MemoryFiles
from tests.support.memtable_engine import ENGINES as MEMTABLE_ENGINES
from tests.support.memtable_engine import MemTableBookie
from tests.support.storage_engine import MemoryBookie, entry, put

ENGINES = ["db", *MEMTABLE_ENGINES]
FORMS = pytest.mark.parametrize("transactional", [True, False], ids=["transactional", "plain"])
KEPT = (2, 3)


def _mostly_dead(engine: str, transactional: bool) -> tuple[GcRig, int]:
    """A log of ten ledgers of which two are left, on a bookie whose index has a disk of its own."""
    bookie: MemoryBookie | MemTableBookie = MemoryBookie()
    if engine != "db":
        files = MemoryFiles(volumes={"/index0": 1 << 30})
        bookie = MemTableBookie(engine, ("/ledgers0",), ("/index0",), files=files)
    rig = GcRig(replace(FAST, transactional_compaction=transactional), bookie)
    log_id = rig.write(range(2, 12), 20)
    rig.gc.run_pass()
    rig.delete(*range(4, 12))
    rig.gc.run_pass()
    return rig, log_id


@FORMS
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("times", [1, None], ids=["once", "for ever"])
def test_a_log_stays_until_what_was_moved_out_of_it_is_durable(
    engine: str, transactional: bool, times: int | None
) -> None:
    rig, log_id = _mostly_dead(engine, transactional)
    if engine == "db":
        rig.bookie.faults.fail("sync", path="/locations", times=times)
    else:
        rig.bookie.faults.fail("pwrite", path=".idx", times=times)
    for _ in range(3):
        rig.force(MAJOR)
        for seed in range(6):
            storage = rig.bookie.crash(random.Random(seed)).open()
            for ledger_id in KEPT:
                assert [storage.read(ledger_id, each) for each in range(20)] == [
                    entry(ledger_id, each, 100) for each in range(20)
                ]
            storage.close()
    assert rig.logs.exists(log_id) is (times is None)


@FORMS
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_a_copy_that_cannot_be_read_just_now_is_not_replaced(engine: str, transactional: bool, number: int) -> None:
    rig = GcRig(replace(FAST, transactional_compaction=transactional), engine=engine)
    source = rig.write(range(1, 12), 10)
    where, at = split_location(rig.parts.location_of(1, 5))
    rig.flip(where, at + 60)
    sound = entry(1, 5, 100)
    put(rig.storage, sound)  # the scrubber's repair, in another log
    rig.storage.flush()
    rig.logs.rotate()
    rig.logs.sync()
    repaired = split_location(rig.parts.location_of(1, 5))[0]
    rig.gc.run_pass()
    rig.delete(*range(3, 12))
    rig.gc.run_pass()
    rig.restart()
    rig.bookie.faults.fail("open", path=f"/{repaired:x}.log", errno=number)
    assert rig.force(MAJOR).errors
    rig.bookie.faults.clear()
    assert rig.logs.exists(source)
    assert rig.storage.read(1, 5) == sound
    assert rig.force(MAJOR).logs_compacted >= 1
    assert not rig.logs.exists(source)
    assert rig.storage.read(1, 5) == sound


@pytest.mark.parametrize("engine", ENGINES)
def test_a_log_that_cannot_be_read_just_now_is_not_quarantined(engine: str) -> None:
    rig = GcRig(engine=engine)
    for part in (range(5), range(5, 10)):  # two flushes, one log: neighbours lie apart
        for ledger_id in range(1, 12):
            rig.metadata.ledgers[ledger_id] = None
            put(rig.storage, *(entry(ledger_id, each, 100) for each in part))
        rig.storage.flush()
    rig.logs.rotate()
    rig.logs.sync()
    log_id = rig.flushed[-1]
    rig.gc.run_pass()
    rig.delete(*range(3, 12))
    rig.gc.run_pass()
    for after in range(3):
        rig.restart()
        rig.bookie.faults.fail("open", path=f"/{log_id:x}.log", errno=errno.EMFILE, after=after, times=1)
        rig.force(MAJOR)
        rig.bookie.faults.clear()
        assert not rig.gc.state().quarantined
    rig.force(MAJOR)
    assert not rig.logs.exists(log_id)
    assert [len(rig.readable(ledger_id)) for ledger_id in (1, 2)] == [10, 10]


def test_a_flush_without_entries_settles_a_move_that_failed() -> None:
    rig, _ = _mostly_dead("db", False)
    rig.bookie.faults.fail("sync", path="/locations", times=1)
    with pytest.raises(StorageFault):
        rig.parts.move([])
    rig.bookie.faults.fail("sync", path="/locations", times=1)
    with pytest.raises(StorageFault):
        rig.storage.flush()
    rig.storage.flush()


@pytest.mark.parametrize(("transactional", "failing"), [(True, "write"), (False, "sync")])
def test_a_compaction_that_could_not_move_the_index_stays_due(transactional: bool, failing: str) -> None:
    """For the very next pass, also after a restart, not for one that is an interval later."""
    rig, log_id = _mostly_dead("db", transactional)
    rig.now += 1000 * (FAST.major_compaction_interval_s + 1)
    rig.bookie.faults.fail(failing, path="/locations", times=None)
    result = rig.gc.run_pass()
    assert (result.compaction, result.logs_compacted) == (Compaction.MAJOR, 0)
    assert result.errors
    assert rig.gc.state().major_count == 0
    rig.gc.run_pass()  # this one finds rows of which nobody knows whether they will stand
    assert rig.gc.state().major_count == 0
    rig.bookie.faults.clear()
    rig.restart()
    result = rig.gc.run_pass()
    assert (result.compaction, result.errors) == (Compaction.MAJOR, [])
    assert rig.gc.state().major_count == 1
    assert not rig.logs.exists(log_id)
