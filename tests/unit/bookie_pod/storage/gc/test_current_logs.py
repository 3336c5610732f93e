"""Entry logs that are written at present and are garbage: a pass closes them, and gives them back."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from bookie_pod.storage.gc import collection_pass
from bookie_pod.storage.gc.schedule import Force
from tests.support.gc_rig import FAST, MAJOR, MINOR, GcRig
from tests.support.memory_faults import MUTATING
from tests.support.memtable_engine import MemTableBookie, memtable_options
from tests.support.storage_engine import MemoryBookie, entry, put

KINDS = [("db", False), *((engine, per_ledger) for engine in ("sorted", "interleaved") for per_ledger in (False, True))]
"""Engines, without and with a log for each ledger, which DbLedgerStorage does not have."""


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> tuple[str, bool]:
    engine, per_ledger = request.param
    return engine, per_ledger


@pytest.fixture
def rig(kind: tuple[str, bool]) -> GcRig:
    engine, per_ledger = kind
    bookie = (
        MemoryBookie() if engine == "db" else MemTableBookie(engine, options=memtable_options(per_ledger=per_ledger))
    )
    rig = GcRig(replace(FAST, transactional_compaction=not per_ledger), bookie)
    rig.metadata.ledgers[99] = ("other:3181",)
    return rig


def write(rig: GcRig, ledger_id: int, entries: int, first: int = 0) -> None:
    """Entries in a log that stays open."""
    rig.metadata.ledgers.setdefault(ledger_id, None)
    put(rig.storage, *(entry(ledger_id, each, 100) for each in range(first, first + entries)))
    rig.storage.flush()


@pytest.mark.parametrize(("force", "goes"), [(Force(), True), (Force(by_disk=True), False), (None, False)], ids=str)
def test_forced_pass_takes_the_second_look_at_an_empty_listing_itself(
    rig: GcRig, force: Force | None, goes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection_pass, "SECOND_LOOK_S", 0.0)
    write(rig, 1, 20)
    rig.metadata.ledgers.clear()  # nothing else is in the cluster
    if force is not None:
        assert rig.gc.request(force)
    result = rig.gc.run_pass()
    assert (result.ledgers_deleted == 1, rig.logs.log_ids() == [], result.errors == []) == (goes, goes, goes)
    rig.gc.run_pass()
    assert rig.logs.log_ids() == []


def test_why_tells_what_lives_in_a_log_that_is_written_and_what_is_in_doubt(rig: GcRig) -> None:
    write(rig, 1, 20)
    (log_id,) = rig.logs.log_ids()
    assert rig.gc.report(log_id).owners == [(1, 20 * (4 + 100))]
    rig.metadata.ledgers.clear()
    rig.gc.run_pass()
    report = rig.gc.report(log_id)
    assert report.usage is not None
    assert report.usage.usage() == 1
    assert rig.gc._ledgers.doubt is not None
    assert rig.gc._ledgers.doubt in report.reason


def test_list_of_logs_has_the_one_that_is_written_and_its_live_share(rig: GcRig) -> None:
    write(rig, 1, 20)
    rig.gc.run_pass()
    (log,) = rig.gc.logs()
    assert (log.state, log.share) == ("written", 1.0)
    assert log.size == rig.logs.size(log.log_id)


def test_one_in_which_nothing_lives_goes_with_the_pass_that_finds_it(rig: GcRig) -> None:
    for ledger_id in (1, 2):
        write(rig, ledger_id, 20)
    logs = rig.logs.log_ids()
    assert not rig.flushed
    rig.delete(1, 2)
    result = rig.gc.run_pass()
    assert (result.errors, result.logs_deleted) == ([], len(logs))
    assert result.reclaimed_bytes > 40 * 100
    assert rig.logs.log_ids() == []
    assert rig.gc.current_usages() == []
    write(rig, 3, 5)
    assert min(rig.logs.log_ids()) > max(logs)
    rig.restart()
    assert len(rig.readable(3)) == 5


def test_one_in_which_something_lives_stays_as_it_is(rig: GcRig, kind: tuple[str, bool]) -> None:
    for ledger_id in (1, 2):
        write(rig, ledger_id, 20)
    rig.delete(1)
    result = rig.gc.run_pass()
    assert (result.errors, result.logs_deleted) == ([], int(kind[1]))
    assert [each.ledgers for each in rig.gc.current_usages()] == [1]
    (log_id,) = rig.logs.log_ids()
    write(rig, 2, 5, first=20)
    assert rig.logs.log_ids() == [log_id], "it is written on"
    assert len(rig.readable(2)) == 25


@pytest.mark.parametrize("kind", [each for each in KINDS if not each[1]], indirect=True, ids=str)
def test_a_compaction_takes_it_like_any_other(rig: GcRig) -> None:
    write(rig, 1, 60)
    write(rig, 2, 40)
    rig.delete(1)
    assert rig.force(MINOR).logs_compacted == 0, "too much of it lives"
    assert not rig.flushed
    result = rig.force(MAJOR)
    assert (result.errors, result.logs_compacted) == ([], 1)
    assert result.reclaimed_bytes > 60 * 100
    assert len(rig.readable(2)) == 40


def test_what_cannot_be_closed_is_told_and_goes_next_time(rig: GcRig) -> None:
    write(rig, 1, 20)
    rig.delete(1)
    rig.gc._ledgers.collect_deleted()
    rig.bookie.faults.fail(*MUTATING, path="/lastId")
    result = rig.gc.run_pass()
    assert result.logs_deleted == 0
    assert any("last entry log id" in error for error in result.errors)
    rig.bookie.faults.clear()
    assert rig.gc.run_pass().logs_deleted == 1
    assert rig.logs.log_ids() == []


def test_one_whose_sync_fails_is_told_and_does_not_keep_the_others() -> None:
    """What became of it nobody can tell until a restart has replayed the journal."""
    rig = GcRig(bookie=MemoryBookie())
    rig.metadata.ledgers[99] = ("other:3181",)
    other = rig.write([1], 20)
    write(rig, 2, 20)
    (current,) = {*rig.logs.log_ids()} - {other}
    rig.delete(1, 2)
    rig.gc._ledgers.collect_deleted()
    rig.storage.flush()
    rig.bookie.faults.fail("sync", "datasync", path=rig.path(current))
    result = rig.gc.run_pass()
    assert any("closing entry logs that are mostly garbage: cannot sync" in error for error in result.errors)
    assert rig.logs.log_ids() == [current]
    rig.bookie.faults.clear()
    rig.restart()
    assert rig.gc.run_pass().errors == []
    assert rig.logs.log_ids() == []


def test_no_crash_gives_the_number_of_one_that_went_to_another(rig: GcRig) -> None:
    write(rig, 1, 20)
    highest = max(rig.logs.log_ids())
    rig.delete(1)
    assert rig.gc.run_pass().logs_deleted == 1
    write(rig, 2, 1)  # the number of its log is noted, and not durable
    for seed in range(50):
        crashed = rig.bookie.files.crash(random.Random(seed))
        text = crashed.read_bytes(f"{rig.bookie.directories[0]}/lastId")
        assert int(text, 16) >= highest, seed
