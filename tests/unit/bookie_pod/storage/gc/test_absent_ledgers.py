"""A ledger that the listing lacks stays for a grace, and an unusual number of them until somebody allows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_pod.storage.gc import absent_ledgers, collection_pass
from bookie_pod.storage.gc.schedule import Force
from tests.support.gc_rig import BOOKIE, FAST, GcRig

GRACE_MS = 1000
SLOW = replace(FAST, deletion_grace_ms=GRACE_MS)


def _rig(ledgers: int) -> GcRig:
    rig = GcRig(SLOW)
    rig.write(range(ledgers), 1)
    rig.metadata.ledgers[5000] = ("other:3181",)
    return rig


def _left(rig: GcRig) -> set[int]:
    return set(rig.storage.ledger_ids())


@pytest.fixture
def few_are_unusual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absent_ledgers, "USUAL_LEDGERS", 4)


def test_deleted_ledger_goes_after_its_grace() -> None:
    rig = _rig(10)
    rig.delete(3)
    for _ in range(3):
        assert rig.gc.run_pass().ledgers_deleted == 0
        assert rig.gc.state().ledgers_waiting == 1
        rig.now += GRACE_MS // 3
    assert rig.gc.run_pass().errors == [], "to wait is no fault"
    rig.now += GRACE_MS // 3
    assert rig.gc.run_pass().ledgers_deleted == 1
    assert (_left(rig), rig.gc.state().ledgers_waiting) == (set(range(10)) - {3}, 0)


def test_ledger_that_is_listed_again_begins_its_grace_anew() -> None:
    """Somebody put older metadata back, then the newest."""
    rig = _rig(10)
    rig.delete(3)
    rig.gc.run_pass()
    rig.now += GRACE_MS - 1
    rig.metadata.ledgers[3] = (BOOKIE,)
    rig.gc.run_pass()
    assert rig.gc.state().ledgers_waiting == 0
    rig.now += GRACE_MS
    rig.delete(3)
    assert rig.gc.run_pass().ledgers_deleted == 0
    assert 3 in _left(rig)


def test_person_who_asks_for_a_pass_and_a_full_disk_need_no_grace() -> None:
    rig = _rig(10)
    rig.delete(3)
    assert rig.force(Force()).ledgers_deleted == 1
    rig.delete(4)
    rig.gc.schedule.disk_full = True
    assert rig.gc.run_pass().ledgers_deleted == 1


def test_listing_that_ends_early_forgets_no_grace() -> None:
    rig = _rig(10)
    rig.delete(1, 8)
    rig.gc.run_pass()
    rig.now += GRACE_MS
    rig.metadata.fail_listing_after = 1
    rig.gc.run_pass()
    assert _left(rig) == set(range(10)) - {1}, "what was compared before counts"
    rig.metadata.fail_listing_after = None
    rig.gc.run_pass()
    assert _left(rig) == set(range(10)) - {1, 8}


@pytest.mark.parametrize("forced", [True, False])
def test_pass_that_misses_an_unusual_part_deletes_nothing_until_it_is_allowed(
    few_are_unusual: None, forced: bool
) -> None:
    rig = _rig(10)
    rig.delete(*range(6))
    rig.now += GRACE_MS
    for _ in range(3):
        result = rig.force(Force()) if forced else rig.gc.run_pass()
        assert (result.ledgers_deleted, len(result.errors)) == (0, 1)
        rig.now += 10 * GRACE_MS
    state = rig.gc.state()
    assert state.deletions_held is not None
    assert "6 of 10" in state.deletions_held
    rig.gc.allow_deletions(5)
    assert rig.force(Force()).ledgers_deleted == 0, "more than was allowed"
    rig.gc.allow_deletions(6)
    assert rig.force(Force()).ledgers_deleted == 6
    assert rig.gc.state().deletions_held is None
    assert _left(rig) == set(range(6, 10))


def test_permission_is_for_one_pass(few_are_unusual: None) -> None:
    rig = _rig(20)
    rig.gc.allow_deletions(20)
    rig.gc.run_pass()
    rig.delete(*range(10))
    assert rig.force(Force()).ledgers_deleted == 0


@pytest.mark.parametrize("ends_early", ["went_back", "fail_listing_after"])
def test_permission_ends_with_a_pass_that_could_not_tell(few_are_unusual: None, ends_early: str) -> None:
    """What a later pass misses may be the doing of older metadata."""
    rig = _rig(20)
    rig.gc.allow_deletions(20)
    setattr(rig.metadata, ends_early, 0 if ends_early == "fail_listing_after" else True)
    assert rig.force(Force()).errors
    setattr(rig.metadata, ends_early, None)
    rig.delete(*range(10))
    assert rig.gc.run_pass().ledgers_deleted == 0
    assert rig.gc.state().deletions_held is not None


def test_permission_counts_for_the_second_look_at_an_empty_listing(
    few_are_unusual: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection_pass, "SECOND_LOOK_S", 0.0)
    rig = _rig(10)
    rig.metadata.ledgers.clear()
    rig.gc.allow_deletions(10)
    assert rig.force(Force()).ledgers_deleted == 10


def test_ledger_that_is_listed_before_a_listing_ends_early_begins_its_grace_anew() -> None:
    rig = _rig(10)
    rig.delete(1)
    rig.gc.run_pass()
    rig.now += GRACE_MS
    rig.metadata.ledgers[1] = (BOOKIE,)
    rig.metadata.fail_listing_after = 1
    rig.gc.run_pass()
    rig.metadata.fail_listing_after = None
    rig.delete(1)
    assert rig.gc.run_pass().ledgers_deleted == 0
    assert 1 in _left(rig)


def test_unusual_part_goes_when_it_was_missing_for_a_day(few_are_unusual: None) -> None:
    rig = _rig(10)
    rig.delete(*range(6))
    rig.gc.run_pass()
    rig.now += SLOW.unusual_deletion_wait_ms - 1
    assert rig.gc.run_pass().ledgers_deleted == 0
    rig.now += 1
    assert rig.gc.run_pass().ledgers_deleted == 6


def test_unusual_part_waits_for_a_person_where_nothing_else_is_wanted(few_are_unusual: None) -> None:
    rig = GcRig(replace(SLOW, unusual_deletion_wait_ms=-1))
    rig.write(range(10), 1)
    rig.metadata.ledgers[5000] = ("other:3181",)
    rig.delete(*range(6))
    for _ in range(3):
        assert rig.gc.run_pass().ledgers_deleted == 0
        rig.now += 1 << 40


@pytest.mark.parametrize("gone", [3, 4])
def test_few_ledgers_are_no_unusual_part(few_are_unusual: None, gone: int) -> None:
    rig = _rig(4)
    rig.delete(*range(gone))
    assert rig.force(Force()).ledgers_deleted == gone


def test_service_that_was_put_back_is_told_and_deletes_nothing() -> None:
    rig = _rig(10)
    rig.delete(3)
    rig.metadata.went_back = True
    result = rig.force(Force())
    assert (result.ledgers_deleted, _left(rig)) == (0, set(range(10)))
    assert result.errors
    assert rig.gc.state().deletions_held == "an older state"
