"""A collector on an engine in memory: what goes, what stays, and what it says about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_protocol.errors import NoSuchLedger
from tests.support.gc_rig import FAST, MAJOR, MINOR, GcRig
from tests.support.storage_engine import entry


def test_one_ledger_keeps_a_log_alive_until_minor_compaction() -> None:
    rig = GcRig()
    rig.write(range(10), 20)
    (log_id,) = [each for each in rig.logs.log_ids() if rig.logs.is_flushed(each)]
    rig.delete(*range(9))
    result = rig.gc.run_pass()
    assert (result.ledgers_deleted, result.logs_deleted, result.compaction) == (9, 0, None)
    with pytest.raises(NoSuchLedger):
        rig.storage.read(0, 0)
    (usage,) = rig.gc.usages()
    assert usage.usage() == pytest.approx(0.1)
    assert "the next minor compaction takes it" in rig.gc.report(log_id).reason
    assert rig.gc.report(log_id).owners == [(9, 20 * 104)]

    size = rig.logs.size(log_id)
    rig.gc.request(MINOR)
    result = rig.gc.run_pass()
    assert (result.logs_compacted, result.logs_deleted) == (1, 1)
    assert result.reclaimed_bytes == size - 20 * 104
    assert not rig.logs.exists(log_id)
    assert rig.gc.state().minor_count == 1
    expected = {each: entry(9, each, 100) for each in range(20)}
    assert rig.readable(9) == expected
    rig.restart()
    assert rig.readable(9) == expected


@pytest.mark.parametrize(("live", "minor", "major"), [(5, False, True), (9, False, False)])
def test_thresholds(live: int, minor: bool, major: bool) -> None:
    rig = GcRig()
    rig.write(range(10), 10)
    rig.delete(*range(10 - live))
    rig.gc.request(MINOR)
    assert rig.gc.run_pass().logs_compacted == minor
    rig.gc.request(MAJOR)
    assert rig.gc.run_pass().logs_compacted == major
    if not major:
        (usage,) = rig.gc.usages()
        assert "above every compaction threshold" in rig.gc.report(usage.log_id).reason
        rig.delete(*range(10 - live, 10))
        rig.metadata.ledgers[99] = None  # somebody else's
        result = rig.gc.run_pass()
        assert (result.logs_deleted, result.logs_compacted) == (1, 0)


@pytest.mark.parametrize("restarted", [False, True], ids=["one process", "restarted before every pass"])
@pytest.mark.parametrize(
    ("alive", "bound_s", "kind"),
    [
        (1, FAST.minor_compaction_interval_s, "minor"),
        (5, FAST.major_compaction_interval_s, "major"),
        (7, FAST.major_compaction_interval_s, "major"),
    ],
)
def test_what_is_deleted_from_a_log_that_lives_on_is_back_within_one_interval(
    alive: int, bound_s: int, kind: str, restarted: bool
) -> None:
    """Scenario A1, on the virtual clock: passes by themselves, ten in an interval, nothing forced. A pass may have just
    begun when an interval ends, so the bound is the interval and one pause between passes."""
    wait_ms = bound_s * 100
    rig = GcRig(replace(FAST, wait_time_ms=wait_ms))
    rig.gc.run_pass()
    log_id = rig.write(range(10), 20)
    rig.delete(*range(10 - alive))
    size, began = rig.logs.size(log_id), rig.now
    reclaimed = 0
    while rig.logs.exists(log_id):
        rig.now += wait_ms
        assert rig.now - began <= bound_s * 1000 + wait_ms
        if restarted:
            rig.restart()
        reclaimed += rig.gc.run_pass().reclaimed_bytes
    assert rig.now - began > bound_s * 1000  # not sooner either: the intervals are what bounds the work
    assert reclaimed == size - alive * 20 * 104
    counts = {"minor": rig.gc.state().minor_count, "major": rig.gc.state().major_count}
    assert counts[kind] == 1
    for ledger_id in range(10 - alive, 10):
        assert rig.readable(ledger_id) == {each: entry(ledger_id, each, 100) for each in range(20)}


def test_timers_survive_restarts() -> None:
    rig = GcRig()
    rig.write(range(10), 10)
    rig.delete(*range(5))
    done = 0
    for _ in range(5):
        rig.now += 20_000_000  # less than a day
        done += rig.gc.run_pass().logs_compacted
        rig.gc.stop()
        rig.restart()
    assert done == 1


def test_nothing_is_deleted_while_the_metadata_service_is_down() -> None:
    rig = GcRig()
    rig.write(range(4), 5)
    rig.delete(*range(4))
    rig.metadata.down = True
    result = rig.gc.run_pass()
    assert result.ledgers_deleted == 0
    doubt = "the search for deleted ledgers ended early: the metadata service does not answer"
    assert result.errors == [f"deleting ledgers: {doubt}"]  # a gauge and an alert tell it
    (usage,) = rig.gc.usages()
    assert f"2080 of 2080 bytes live (100%), of 4 ledgers, as far as is known ({doubt})" in (
        rig.gc.report(usage.log_id).reason
    )
    assert rig.readable(3)
    rig.metadata.down = False
    rig.metadata.ledgers[99] = None
    result = rig.gc.run_pass()
    assert (result.logs_deleted, result.errors) == (1, [])


def test_a_listing_that_breaks_off_deletes_only_what_it_covered() -> None:
    rig = GcRig()
    rig.write(range(9), 5)
    rig.delete(1, 8)
    rig.metadata.fail_listing_after = 1
    assert rig.gc.run_pass().ledgers_deleted == 1
    assert rig.storage.ledger(8) is not None


def test_an_empty_listing_is_not_believed() -> None:
    rig = GcRig()
    rig.write(range(4), 5)
    rig.metadata.listing = {}
    for _ in range(3):
        result = rig.gc.run_pass()
        assert result.ledgers_deleted == 0
    assert all(rig.readable(each) for each in range(4))
    (usage,) = rig.gc.usages()
    rig.metadata.listing = None
    rig.gc.run_pass()
    assert "as far as is known" not in rig.gc.report(usage.log_id).reason


def test_an_empty_listing_is_told() -> None:
    rig = GcRig()
    rig.write(range(4), 5)
    rig.metadata.listing = {}
    (error,) = rig.gc.run_pass().errors
    assert error.startswith("deleting ledgers: the metadata service lists no ledger at all, 4 are here")


def test_when_all_ledgers_were_deleted_the_second_pass_believes_it() -> None:
    rig = GcRig()
    rig.write(range(4), 5)
    rig.delete(*range(4))
    assert rig.gc.run_pass().ledgers_deleted == 0
    result = rig.gc.run_pass()
    assert (result.ledgers_deleted, result.logs_deleted) == (4, 1)


def test_a_ledger_that_the_index_lost_keeps_its_log() -> None:
    rig = GcRig()
    rig.write(range(4), 5)
    storage = rig.storage.directories[0]
    storage.ledgers.delete(2)
    storage.flush()
    rig.delete(0, 1, 3)
    rig.metadata.ledgers[99] = None
    rig.gc.request(MAJOR)
    result = rig.gc.run_pass()
    assert (result.logs_deleted, result.logs_compacted) == (0, 0)
    (usage,) = rig.gc.usages()
    assert usage.in_doubt == 5 * 104
    assert "not in the index here" in rig.gc.report(usage.log_id).reason


def test_an_entry_without_a_row_survives_compaction_and_gets_one() -> None:
    rig = GcRig()
    rig.write(range(10), 4)
    rig.drop_row(9, 2)
    rig.delete(*range(9))
    rig.gc.request(MINOR)
    assert rig.gc.run_pass().logs_compacted == 1
    assert rig.readable(9) == {each: entry(9, each, 100) for each in range(4)}


def test_over_replicated_ledgers_go_only_when_closed_and_not_worked_on() -> None:
    rig = GcRig(replace(FAST, overreplicated_wait_time_ms=1))
    rig.now += 2
    rig.write(range(4), 5)
    rig.metadata.ledgers |= {1: ("b7:3181",), 2: ("b7:3181",)}
    rig.metadata.locked = {2}
    assert rig.gc.run_pass().ledgers_deleted == 1
    assert [each for each in range(4) if rig.storage.ledger(each)] == [0, 2, 3]
