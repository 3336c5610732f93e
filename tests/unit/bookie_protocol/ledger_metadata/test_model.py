from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.digest import DigestType
from bookie_protocol.ledger_metadata.model import (
    LedgerMetadata,
    LedgerState,
    holds_entry,
    write_set,
)


def make(**changes: object) -> LedgerMetadata:
    fields: dict[str, object] = {
        "ledger_id": 7,
        "ensemble_size": 3,
        "write_quorum_size": 2,
        "ack_quorum_size": 2,
        "ensembles": {17: ["a:1", "d:1", "c:1"], 0: ["a:1", "b:1", "c:1"]},
    }
    return LedgerMetadata(**(fields | changes))  # type: ignore[arg-type]


def test_segments_cover_up_to_the_next_one() -> None:
    metadata = make()
    assert list(metadata.ensembles) == [0, 17]
    assert metadata.ensemble_for(0) == metadata.ensemble_for(16) == ("a:1", "b:1", "c:1")
    assert metadata.ensemble_for(17) == metadata.ensemble_for(10**15) == metadata.last_ensemble
    assert metadata.all_bookies() == {"a:1", "b:1", "c:1", "d:1"}
    assert metadata.bookies_for(17) == ("c:1", "a:1")


def test_write_sets_of_the_reference() -> None:
    assert [write_set(entry, 3, 2) for entry in range(4)] == [(0, 1), (1, 2), (2, 0), (0, 1)]
    assert [write_set(entry, 5, 3) for entry in (7, 8, 9)] == [(2, 3, 4), (3, 4, 0), (4, 0, 1)]


@given(st.integers(0, 2**62), st.integers(1, 9), st.data())
def test_a_position_holds_exactly_the_entries_of_its_write_sets(entry: int, ensemble: int, data: st.DataObject) -> None:
    quorum = data.draw(st.integers(1, ensemble))
    positions = write_set(entry, ensemble, quorum)
    assert len(set(positions)) == quorum
    assert {p for p in range(ensemble) if holds_entry(p, entry, ensemble, quorum)} == set(positions)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ack_quorum_size": 3}, "quorum <= write"),
        ({"write_quorum_size": 4, "ack_quorum_size": 1}, "quorum <= write"),
        ({"write_quorum_size": 0, "ack_quorum_size": 0}, "at least 1"),
        ({"ensembles": {}}, "at entry 0"),
        ({"ensembles": {1: ["a", "b", "c"]}}, "at entry 0"),
        ({"ensembles": {-5: ["a", "b", "c"], 0: ["a", "b", "c"]}}, "at entry 0"),
        ({"ensembles": {0: ["a", "b"]}}, "2 bookies"),
        ({"ledger_id": -1}, "outside 0 to"),
        ({"ledger_id": 2**63}, "outside 0 to"),
        ({"format_version": 4}, "format 4"),
        ({"length": 5}, "a closed"),
        ({"state": LedgerState.CLOSED, "last_entry_id": -2}, "negative"),
        ({"digest_type": DigestType.CRC32}, "together"),
    ],
)
def test_contradictions_cannot_be_built(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_updates_leave_the_original_alone() -> None:
    metadata = make(custom_metadata={"k": b"v"}, digest_type=DigestType.MAC, password=b"secret")
    closed = metadata.with_ensemble(20, ["x", "y", "z"]).closed(41, 4200)
    assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, 41, 4200)
    assert closed.first_entry_ids == (0, 17, 20)
    assert metadata.first_entry_ids == (0, 17)
    assert closed.is_closed
    assert not metadata.is_closed
    recovering = closed.in_recovery()
    assert (recovering.state, recovering.last_entry_id) == (LedgerState.IN_RECOVERY, -1)
    assert metadata.with_ensemble(17, ["x", "y", "z"]).last_ensemble == ("x", "y", "z")
    assert pickle.loads(pickle.dumps(closed)) == closed
    assert hash(closed) == hash(pickle.loads(pickle.dumps(closed)))
    assert "secret" not in repr(closed)
