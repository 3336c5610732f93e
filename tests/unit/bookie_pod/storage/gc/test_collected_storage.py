"""The storage as collector and scrubber see it: the same with every engine."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from bookie_pod.storage.gc import index_check, ledger_collector
from bookie_pod.storage.gc.storage import collected
from bookie_protocol.errors import EntryDamaged
from tests.support.gc_rig import GcRig

pytestmark = pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])


def test_rows_of_a_ledger(engine: str) -> None:
    rig = GcRig(engine=engine)
    rig.write([1, 2], 5)
    parts = rig.parts
    assert parts.failure is None
    assert sorted(parts.ledger_ids()) == [1, 2]
    rows = list(parts.rows(1))
    assert [entry_id for entry_id, _ in rows] == [0, 1, 2, 3, 4]
    assert list(parts.rows(1, 3)) == rows[3:]
    assert [parts.location_of(1, entry_id) for entry_id, _ in rows] == [location for _, location in rows]
    assert (parts.location_of(1, 5), parts.location_of(99, 0), list(parts.rows(99))) == (0, 0, [])
    assert [parts.has_ledger(ledger_id) for ledger_id in (1, 99)] == [True, False]
    record = rig.storage.ledger(1)
    assert record is not None
    rig.storage.set_ledger(1, replace(record, fenced=True))
    assert [parts.is_fenced(ledger_id) for ledger_id in (1, 2, 99)] == [True, False, False]


def test_a_row_that_is_missing_is_put_and_one_that_is_there_stays(engine: str) -> None:
    rig = GcRig(engine=engine)
    rig.write([1], 3)
    location = rig.parts.location_of(1, 2)
    assert not rig.parts.restore(1, 2, location + 1)
    assert rig.parts.location_of(1, 2) == location
    assert rig.parts.restore(1, 3, location)
    assert rig.parts.location_of(1, 3) == location
    assert not rig.parts.restore(1, 3, location)


def test_what_is_refused_is_read_no_more(engine: str) -> None:
    rig = GcRig(engine=engine)
    rig.write([1], 3)
    refused: set[int] = set()
    rig.parts.refuse(refused)
    rig.parts.forget_cached(1)
    assert len(rig.readable(1)) == 3
    refused.add(rig.parts.location_of(1, 1))
    rig.parts.forget_cached(1)
    with pytest.raises(EntryDamaged):
        rig.storage.read(1, 1)
    assert rig.storage.read(1, 2)


def test_a_look_through_the_index_lets_others_breathe(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_check, "ROWS_PER_BREATH", 4)
    rig = GcRig(engine=engine)
    log_id = rig.write([1, 2], 5)
    breaths: list[None] = []
    found = index_check.find_row_behind(rig.parts, log_id + 1, 0, closed=True, breathe=lambda: breaths.append(None))
    assert found is None
    assert len(breaths) == 2 + 10 // 4
    last = max(rig.parts.location_of(ledger_id, 4) & 0xFFFFFFFF for ledger_id in (1, 2))
    behind = index_check.find_row_behind(rig.parts, log_id, last, closed=True, breathe=lambda: None)
    assert behind is not None
    assert (behind.entry_id, behind.position) == (4, last)
    assert index_check.find_row_behind(rig.parts, log_id, last + 1, closed=True, breathe=lambda: None) is None


def test_what_was_learnt_of_the_index_counts_for_one_pass(engine: str) -> None:
    rig = GcRig(engine=engine)
    first = rig.write([1], 3)
    rows = index_check.IndexedRows(rig.parts, lambda: None)
    assert rows.behind(first, 0, closed=True) is not None
    second = rig.write([1], 3, first=3)
    assert rows.behind(second, 0, closed=True) is None
    rows.begin_pass()
    found = rows.behind(second, 0, closed=True)
    assert found is not None
    assert (found.ledger_id, found.entry_id) == (1, 5)
    at = [rig.parts.location_of(1, entry_id) & 0xFFFFFFFF for entry_id in (3, 4, 5)]
    assert rows.unseen(second, array("I", at), (3, sum(at))) is None
    missed = rows.unseen(second, array("I", [at[0], at[2]]), (2, at[0] + at[2]))
    assert missed is not None
    assert (missed.entry_id, missed.position) == (4, at[1])
    last = rows.unseen(second, array("I", at[:2]), (2, sum(at[:2])))
    assert last is not None
    assert last.entry_id == 5
    assert rows.unseen(second + 1, array("I"), (0, 0)) is None


def test_what_is_known_of_ledgers_elsewhere_is_bounded(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_collector, "MAX_ELSEWHERE", 3)
    rig = GcRig(engine=engine)
    ledgers = rig.gc._ledgers
    for ledger_id in range(100, 110):
        rig.metadata.ledgers[ledger_id] = ("other:3181",)
        for _ in range(2):
            assert ledgers.is_dead(ledger_id)
        assert len(ledgers._elsewhere) <= 3
    assert rig.metadata.reads == 10
    rig.metadata.ledgers[1] = None
    assert not ledgers.is_dead(1)
    assert ledgers.is_dead(2)
    assert (1 in ledgers.deleted, 2 in ledgers.deleted) == (False, True)


def test_nothing_else_is_collected(engine: str) -> None:
    with pytest.raises(TypeError, match=r"\bstr\b"):
        collected(engine)  # type: ignore[arg-type]
