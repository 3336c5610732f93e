"""Fragments and striping, against what the metadata say entry by entry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.replication.fragments import Naming, StripedEntries, fragments, naming
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState, holds_entry

BOOKIES = [f"b{i}" for i in range(8)]


@st.composite
def sizes(draw):
    ensemble = draw(st.integers(1, 6))
    write = draw(st.integers(1, ensemble))
    return ensemble, write, draw(st.integers(0, write))


@st.composite
def ledgers(draw):
    ensemble, write, ack = draw(sizes())
    starts = sorted({0, *draw(st.lists(st.integers(1, 60), max_size=4))})
    members = st.permutations(BOOKIES).map(lambda order: tuple(order[:ensemble]))
    ensembles = {start: draw(members) for start in starts}
    state = draw(st.sampled_from(list(LedgerState)))
    end = {}
    if state is LedgerState.CLOSED:
        end = {"last_entry_id": draw(st.integers(-1, starts[-1] + 30)), "length": 100}
    return LedgerMetadata(7, ensemble, write, ack, ensembles, state=state, **end)


@given(sizes(), st.integers(0, 100), st.integers(-1, 60), st.data())
def test_striped_entries_are_those_of_the_distribution(size, first, more, data):
    ensemble, write, _ = size
    position, last = data.draw(st.integers(0, ensemble - 1)), first + more
    entries = StripedEntries(first, last, position, ensemble, write)
    expected = [entry for entry in range(first, last + 1) if holds_entry(position, entry, ensemble, write)]
    assert list(entries) == expected
    assert len(entries) == len(expected)
    assert [entries[i] for i in range(len(expected))] == expected
    assert [entries[-1 - i] for i in range(len(expected))] == expected[::-1]
    assert [entry for entry in range(max(0, first - 9), last + 9) if entry in entries] == expected
    with pytest.raises(IndexError):
        entries[len(expected)]


@given(ledgers(), st.integers(-1, 100))
def test_fragments_cover_what_is_known_and_nothing_else(metadata, lac):
    found = fragments(7, metadata, lac)
    assert [fragment.first_entry for fragment in found] == list(metadata.first_entry_ids)
    end = metadata.last_entry_id if metadata.is_closed else max(lac, metadata.first_entry_ids[-1] - 1)
    covered = [entry for part in found for entry in range(part.first_entry, part.last_entry + 1)]
    assert covered == list(range(end + 1))
    assert [fragment.is_closed for fragment in found[:-1]] == [True] * (len(found) - 1)
    assert found[-1].is_closed == metadata.is_closed
    for fragment in found:
        for entry in range(fragment.first_entry, fragment.last_entry + 1):
            assert tuple(fragment.ensemble[p] for p in fragment.write_set(entry)) == metadata.bookies_for(entry)
            holders = [p for p in range(metadata.ensemble_size) if entry in fragment.entries_of(p)]
            assert sorted(holders) == sorted(fragment.write_set(entry))
        assert fragment.count == fragment.last_entry - fragment.first_entry + 1


@given(ledgers(), st.sampled_from(BOOKIES))
def test_what_it_means_to_be_named(metadata, bookie):
    named = naming(metadata, bookie)
    assert set(named) == {first for first, ensemble in metadata.ensembles.items() if bookie in ensemble}
    last = metadata.first_entry_ids[-1]
    end = metadata.last_entry_id if metadata.is_closed else last - 1
    stored = {
        max(first for first in metadata.first_entry_ids if first <= entry)
        for entry in range(end + 1)
        if bookie in metadata.bookies_for(entry)
    }
    for first, meaning in named.items():
        if first == last and not metadata.is_closed:
            assert meaning is Naming.GROWING
        else:
            assert (meaning is Naming.ENTRIES) == (first in stored)


def test_an_empty_last_segment_of_a_closed_ledger_stores_nothing():
    closed = LedgerMetadata(7, 2, 2, 2, {0: ("a", "b"), 10: ("a", "c")}, LedgerState.CLOSED, last_entry_id=9, length=10)
    assert naming(closed, "a") == {0: Naming.ENTRIES, 10: Naming.NOTHING}
    assert naming(closed, "c") == {10: Naming.NOTHING}


def test_segments_behind_the_last_entry_store_nothing():
    """Closed ledgers of the reference may have them."""
    segments = {0: ("a", "b"), 5: ("a", "c"), 10: ("a", "d")}
    closed = LedgerMetadata(7, 2, 2, 2, segments, LedgerState.CLOSED, last_entry_id=3, length=4)
    assert [(part.first_entry, part.count) for part in fragments(7, closed, -1)] == [(0, 4), (5, 0), (10, 0)]
    assert naming(closed, "a") == {0: Naming.ENTRIES, 5: Naming.NOTHING, 10: Naming.NOTHING}
    assert (naming(closed, "c"), naming(closed, "d")) == ({5: Naming.NOTHING}, {10: Naming.NOTHING})


def test_few_entries_of_a_striped_segment_leave_bookies_without_any():
    closed = LedgerMetadata(7, 4, 2, 2, {0: ("a", "b", "c", "d")}, LedgerState.CLOSED, last_entry_id=0, length=1)
    entries, nothing = {0: Naming.ENTRIES}, {0: Naming.NOTHING}
    assert [naming(closed, bookie) for bookie in "abcd"] == [entries, entries, nothing, nothing]
