"""How much of each log lives: memory, torn logs, logs that nobody may touch, and disks that take nothing any more."""

from __future__ import annotations

import errno
import posixpath
import struct
from dataclasses import replace
from typing import NoReturn

import numpy as np
import pytest

from bookie_pod.storage.entry_log.directories import DiskState
from bookie_pod.storage.entry_log.ledger_sizes import LedgerSizes
from bookie_pod.storage.gc import reports
from bookie_pod.storage.gc.collector import GarbageCollector
from bookie_pod.storage.gc.state_file import GcStateFile
from bookie_pod.storage.gc.storage import collected
from tests.support.gc_rig import FAST, GcRig
from tests.support.memory_files import MemoryFiles
from tests.support.memtable_engine import ENGINES
from tests.support.production import changed
from tests.support.storage_engine import MemoryBookie, entry, put, small_options


def test_memory_is_bounded_and_what_does_not_fit_is_read_again() -> None:
    rig = GcRig(usage_memory_bytes=10 * 16)
    logs = [rig.write(range(4 * number, 4 * number + 4), 2) for number in range(6)]
    rig.metadata.ledgers[999] = None
    for _ in range(2):
        rig.gc.run_pass()
        assert len(rig.gc.usages()) == 6  # the sums are kept of all
        held = rig.gc._usages._sizes
        assert sum(sizes.nbytes for sizes in held.values()) == rig.gc._usages._nbytes <= 160
        assert 1 <= len(held) <= 2
    # The report on a log that memory does not hold looks into it.
    assert rig.gc._usages.peek(logs[0]) is None
    assert rig.gc.report(logs[0]).owners == [(3, 208), (2, 208), (1, 208), (0, 208)]
    rig.delete(*range(24))
    result = rig.gc.run_pass()
    assert (result.ledgers_deleted, result.logs_deleted) == (24, 6)
    assert rig.gc._usages._nbytes == 0


def test_one_log_is_kept_even_if_it_is_larger_than_the_memory() -> None:
    rig = GcRig(usage_memory_bytes=1)
    rig.write(range(50), 1)
    rig.gc.run_pass()
    assert len(rig.gc._usages._sizes) == 1


def test_usage_against_the_target_size() -> None:
    rig = GcRig(replace(FAST, use_target_entry_log_size=True))
    rig.write([1], 10)
    rig.write([1, 2], 10, first=10)
    rig.metadata.ledgers[99] = None
    rig.gc.run_pass()
    whole, _ = rig.gc.usages()
    assert whole.usage(1 << 20) == 1.0  # nothing to win
    rig.delete(2)
    rig.gc.run_pass()
    _, half = rig.gc.usages()
    assert half.usage() == 0.5
    assert half.usage(1 << 20) == pytest.approx(1040 / (1 << 20))


def test_empty_logs_that_a_crash_left_go() -> None:
    """A preallocated log is an empty file, or a header and nothing else."""
    rig = GcRig()
    keep = rig.write([1], 3)
    rig.storage.close()
    folder = rig.bookie.directories[0]
    for name, content in (("a1.log", b""), ("a2.log", b"BKLO\0\0\0\1".ljust(1024, b"\0")), ("a3.log", bytes(4096))):
        rig.bookie.files.write_bytes(f"{folder}/{name}", content)
    rig.open()
    assert rig.gc.run_pass().logs_deleted == 3
    assert rig.logs.log_ids() == [keep]


def test_a_log_in_which_there_are_zeros_and_something_else_stays() -> None:
    rig = GcRig()
    rig.storage.close()
    path = f"{rig.bookie.directories[0]}/a1.log"
    rig.bookie.files.write_bytes(path, bytes(4096) + entry(1, 0, 300))
    rig.open()
    rig.write([1], 3)
    # The index knows nothing of it: it ends where its zeros begin, and holds nothing.
    assert rig.gc.run_pass().logs_deleted == 1
    rig.storage.close()
    rig.bookie.files.write_bytes(path, bytes(4096) + struct.pack(">i", 300) + entry(1, 0, 300))
    rig.open()
    rig.set_row(1, 0, 0xA1 << 32 | 4100)
    rig.gc.run_pass()
    assert list(rig.gc.state().quarantined) == [0xA1]
    assert rig.storage.read(1, 0) == entry(1, 0, 300)


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_that_ran_ahead_of_a_log_are_no_damage(engine: str) -> None:
    """A power cut took entries that were never acknowledged; their rows were in the index already."""
    rig = GcRig(engine=engine)
    torn = rig.write([1, 2], 10)
    rig.restart()
    rig.cut(torn, 1024 + 19 * 104 + 50)
    rig.bookie.files.corrupt(rig.path(torn), 8, bytes(20))  # it was being written
    rig.metadata.ledgers[99] = None
    rig.delete(1)
    assert rig.force().logs_compacted == 1
    assert not rig.gc.state().quarantined
    assert {each: rig.storage.read(2, each) for each in range(9)} == {each: entry(2, each, 100) for each in range(9)}


@pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])
def test_the_log_that_is_written_is_counted_and_left_alone_while_all_in_it_lives(engine: str) -> None:
    rig = GcRig(engine=engine)
    rig.write([1], 3)
    put(rig.storage, entry(2, 0))
    rig.metadata.ledgers |= {2: None}
    rig.storage.flush()
    active = rig.logs.current_log_id()
    assert active is not None
    rig.gc.run_pass()
    assert active not in {usage.log_id for usage in rig.gc.usages()}
    assert [(each.log_id, each.total, each.usage()) for each in rig.gc.current_usages()] == [(active, 44, 1)]
    assert "being written" in rig.gc.report(active).reason
    assert rig.logs.current_log_id() == active
    rig.delete(2)
    rig.gc.run_pass()
    assert not rig.logs.exists(active)
    assert rig.gc.current_usages() == []


@pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])
def test_the_log_that_is_written_stays_while_anything_in_it_lives_and_is_counted(engine: str) -> None:
    rig = GcRig(engine=engine)
    put(rig.storage, entry(1, 0), entry(2, 0, 400))
    rig.metadata.ledgers |= {1: None, 2: None}
    rig.storage.flush()
    rig.delete(2)
    rig.gc.run_pass()
    (usage,) = rig.gc.current_usages()
    assert (usage.total, usage.remaining, usage.ledgers) == (448, 44, 1)
    assert rig.gc.buckets()[0] == 1
    assert rig.logs.current_log_id() == usage.log_id


@pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])
def test_superseded_entries_of_a_ledger_that_goes_do_not_count_for_others(engine: str) -> None:
    rig = GcRig(engine=engine)
    log_id = rig.write([1, 2], 10)
    put(rig.storage, *(entry(1, each, 100) for each in range(8)))
    rig.write([3], 1)
    rig.forget_map(log_id)
    rig.restart()

    def measured() -> tuple[int, int]:
        rig.gc.run_pass()
        usage = next(each for each in rig.gc.usages() if each.log_id == log_id)
        return usage.remaining // 104, usage.live_bytes // 104

    assert measured() == (20, 12)
    rig.delete(1)
    assert measured() == (10, 10)


# --- age ------------------------------------------------------------------------------------------------------


def test_every_log_has_an_age_and_the_oldest_is_told_whatever_is_wrong_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = GcRig()
    assert rig.gc.oldest_age_s() == 0
    logs = [rig.write([ledger_id], 3) for ledger_id in (1, 2, 3)]
    put(rig.storage, entry(4, 0))
    rig.metadata.ledgers[4] = None
    rig.storage.flush()
    written = {rig.path(log_id): rig.now - (300 - 100 * at) * 1000 for at, log_id in enumerate(logs)}
    monkeypatch.setattr(rig.bookie.files, "modified_ms", lambda path: written.get(path, rig.now))
    rig.gc.run_pass()
    assert [rig.gc.report(log_id).age_s for log_id in rig.logs.log_ids()] == [300, 200, 100, 0]
    assert rig.gc.forecast().buckets[-1].oldest_age_s == 300
    assert rig.gc.forecast().buckets[0].oldest_age_s == 0
    assert rig.gc.oldest_age_s() == 300
    rig.gc._usages.quarantine(logs[0], "damaged")
    rig.gc.run_pass()
    assert rig.gc.oldest_age_s() == 300
    rig.gc.excluded = lambda: {logs[0]: "damaged"}
    rig.gc.run_pass()
    assert rig.gc.oldest_age_s() == 300
    rig.logs.delete(logs[0])
    assert rig.gc.oldest_age_s() == 200

    def went(path: str) -> NoReturn:
        raise FileNotFoundError(path)

    monkeypatch.setattr(rig.bookie.files, "modified_ms", went)  # between the list and this question
    assert rig.gc.oldest_age_s() == 200  # known already
    assert rig.gc.forecast().buckets[-1].oldest_age_s == 0


def test_the_greatest_age_counts_whatever_the_number_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a log for each ledger a low number is written for as long as its ledger is."""
    rig = GcRig()
    logs = [rig.write([ledger_id], 20) for ledger_id in (1, 2, 3)]
    put(rig.storage, entry(4, 0, 2000))
    rig.storage.flush()
    ages = {rig.path(log_id): rig.now - age for log_id, age in zip(logs, (0, 300_000, 100_000), strict=True)}
    current = rig.now - 900_000
    monkeypatch.setattr(rig.bookie.files, "modified_ms", lambda path: ages.get(path, current))
    assert rig.gc.oldest_age_s() == 900
    current = rig.now
    assert rig.gc.oldest_age_s() == 300
    assert [log.log_id for log in rig.gc.logs()][:2] == [logs[1], logs[2]]


def test_a_report_names_no_owners_of_a_log_that_cannot_be_looked_at_now(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = GcRig()
    log_id = rig.write([1], 3)
    rig.restart()
    rig.bookie.faults.fail("open", path=f"/{log_id:x}.log", errno=errno.EMFILE)
    assert rig.gc.report(log_id).owners is None
    rig.bookie.faults.clear()
    rig.forget_map(log_id)
    monkeypatch.setattr(reports, "LOOK_S", -1.0)  # a scan takes longer
    assert rig.gc.report(log_id).owners is None
    monkeypatch.undo()
    assert rig.gc.report(log_id).owners == [(1, 3 * 104)]


# --- disks that take nothing any more -----------------------------------------------------------------------


def test_a_full_disk_gives_dead_logs_back_although_nothing_can_be_flushed() -> None:
    """Otherwise it would stay full: entries wait in memory for a log that no directory takes."""
    much = {"min_usable_for_entry_log_bytes": 1 << 50, "min_usable_after_compaction_bytes": 1 << 50}
    rig = GcRig(bookie=MemoryBookie(options=changed(small_options(), **much)))
    dead = rig.write([1], 10)
    mixed = rig.write([1, 2], 10, first=10)
    rig.gc.run_pass()
    later = rig.write([1, 2], 10, first=20)
    rig.metadata.ledgers[99] = None
    put(rig.storage, *(entry(2, each, 100) for each in range(30, 35)))
    rig.bookie.states[rig.bookie.directories[0]].report(rig.bookie.directories[0], DiskState.FULL)
    rig.delete(1)
    result = rig.force()
    assert any("no ledger directory may take" in error for error in result.errors)
    assert (result.ledgers_deleted, result.logs_deleted) == (1, 1)
    assert not rig.logs.exists(dead)
    assert rig.logs.exists(mixed)
    # Rows of this one might have been missing: nobody flushed since it was rotated.
    assert rig.gc._reclaimer.candidates(0.8, None)
    assert later not in [usage.log_id for usage in rig.gc._reclaimer.candidates(0.8, None)]
    rig.bookie.states[rig.bookie.directories[0]].report(rig.bookie.directories[0], DiskState.WRITABLE)
    assert rig.force().logs_compacted == 2
    expected = [*range(10, 35)]
    assert rig.readable(2) == {each: entry(2, each, 100) for each in expected}


@pytest.mark.parametrize("engine", ["db", *ENGINES])
def test_a_read_only_file_system_loses_nothing(engine: str) -> None:
    rig = GcRig(engine=engine)
    logs = [rig.write([1, 2, 3], 5, first=5 * number) for number in range(3)]
    rig.metadata.ledgers[99] = None
    rig.delete(2)
    rig.bookie.faults.read_only()
    for _ in range(3):
        result = rig.force()
        assert result.errors
        assert result.logs_deleted == 0
        assert all(rig.logs.exists(log_id) for log_id in logs)
        assert rig.readable(1) == {each: entry(1, each, 100) for each in range(15)}
    rig.bookie.faults.clear()
    rig.force()
    assert rig.force().errors == []
    assert rig.readable(1) == {each: entry(1, each, 100) for each in range(15)}
    assert not any(rig.logs.exists(log_id) for log_id in logs)


def test_a_log_that_cannot_be_unlinked_is_tried_again() -> None:
    rig = GcRig()
    rig.write([1], 3)
    rig.metadata.ledgers[99] = None
    rig.delete(1)
    rig.bookie.faults.fail("unlink", times=1)
    result = rig.gc.run_pass()
    assert (result.logs_deleted, len(result.errors)) == (0, 1)
    assert rig.gc.run_pass().logs_deleted == 1


# --- two ledger directories ---------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])
def test_logs_that_cannot_be_read_keep_nobody_up_and_are_told(engine: str) -> None:
    rig = GcRig(engine=engine)
    logs = [rig.write([ledger_id], 5) for ledger_id in range(4)]
    rig.restart()  # nothing is known of them
    rig.delete(0, 1)
    rig.bookie.faults.fail("open", path=posixpath.basename(rig.path(logs[0])), errno=errno.EIO)
    rig.bookie.faults.fail("open", path=posixpath.basename(rig.path(logs[2])), errno=errno.EIO)
    for _ in range(2):
        result = rig.gc.run_pass()
        (error,) = result.errors
        assert error.startswith(f"measuring entry logs: 2 could not be read, {logs[0]:x}.log for one: ")
        assert "Input/output error" in error
        assert not rig.logs.exists(logs[1])
        reason = rig.gc.report(logs[2]).reason
        assert reason.startswith("the last pass could not read it (")
        assert reason.endswith("Input/output error: '" + rig.path(logs[2]) + "'); the next one tries again")
    rig.bookie.faults.clear()
    result = rig.gc.run_pass()
    assert (result.errors, result.logs_deleted) == ([], 1)
    assert "live (100%)" in rig.gc.report(logs[2]).reason
    assert len(rig.readable(2)) == len(rig.readable(3)) == 5


def test_each_directory_collects_what_is_its_own() -> None:
    directories = ("/l0", "/l1")
    bookie = MemoryBookie(directories, small_options(directories=2), MemoryFiles())
    rig = GcRig(bookie=bookie)
    parts = collected(rig.storage)
    assert len(parts) == 2
    for ledger_id in range(6):
        rig.metadata.ledgers[ledger_id] = None
        put(rig.storage, *(entry(ledger_id, each) for each in range(3)))
    rig.storage.flush()
    for part in parts:
        part.logs.rotate()
        part.logs.sync()
        assert part.logs.log_ids() == [0]  # the same id, twice
    rig.delete(0, 2, 4)
    even, odd = (
        GarbageCollector(part, rig.metadata, GcStateFile(bookie.files, folder), FAST, index=index)
        for index, (part, folder) in enumerate(zip(parts, directories, strict=True))
    )
    assert odd.run_pass().logs_deleted == 0
    result = even.run_pass()
    assert (result.ledgers_deleted, result.logs_deleted) == (3, 1)
    for ledger_id in (1, 3, 5):
        assert rig.readable(ledger_id) == {each: entry(ledger_id, each) for each in range(3)}


def test_sizes_compare_as_a_whole() -> None:
    one = LedgerSizes(np.array([3, 1], np.int64), np.array([30, 10], np.int64))
    assert one.same_as(LedgerSizes(np.array([1, 3], np.int64), np.array([10, 30], np.int64)))
    assert not one.same_as(LedgerSizes(np.array([1, 3], np.int64), np.array([10, 31], np.int64)))
    assert not one.same_as(LedgerSizes(np.array([1], np.int64), np.array([10], np.int64)))
