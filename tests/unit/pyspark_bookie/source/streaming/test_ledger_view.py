from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.versioned import LedgerLife
from pyspark_bookie.common.errors import PodkeeperSparkError
from pyspark_bookie.source.positions import positions
from pyspark_bookie.source.streaming.admission import Limit, admit, taken
from pyspark_bookie.source.streaming.ledger_view import Extent, LedgersView
from pyspark_bookie.source.streaming.offsets import LedgersOffset, ledger_ranges, parse_offset

EARLIEST = LedgersOffset(0, {})


STEPS = st.tuples(
    st.lists(st.integers(0, 25), max_size=4),  # ledgers that appear
    st.dictionaries(st.integers(0, 25), st.integers(1, 9), max_size=5),  # that grow
    st.sets(st.integers(0, 25), max_size=4),  # that are closed
    st.integers(1, 12),  # entries of the batch
    st.integers(1, 3),  # ledgers that it begins
)
STORIES = st.lists(STEPS, min_size=1, max_size=12)
"""What becomes of ledgers from batch to batch. They appear not quite in the order of their ids."""


def next_batch(view, offset, entries=None, ledgers=None, turn=0):
    """The end offset of the next batch, or None."""
    known = view.checked(offset)
    lanes = view.lanes(known, ledgers)
    admitted = admit(lanes, Limit(entries), turn)
    segments = [each for lane, found in zip(lanes, admitted, strict=True) for each in taken(lane, found)]
    return view.advanced(known, segments) if segments else None


@given(STORIES)
def test_each_entry_is_read_once_and_in_order(story):
    ledgers: dict[int, Extent] = {}
    offset, read = EARLIEST, {}
    settled = -1
    for turn, (appear, grow, close, entries, most_new) in enumerate(story):
        for ledger_id in appear:
            if ledger_id > settled:  # what a settled ledger means
                ledgers.setdefault(ledger_id, Extent(ledger_id, 0, 0, is_closed=False, is_settled=False))
        for ledger_id, count in grow.items():
            if ledger_id in ledgers and not ledgers[ledger_id].is_closed:
                ledgers[ledger_id] = replace(ledgers[ledger_id], entries=ledgers[ledger_id].entries + count)
        for ledger_id in close & set(ledgers):
            ledgers[ledger_id] = replace(ledgers[ledger_id], is_closed=True)
        if turn % 3 == 2 and ledgers:
            settled = max(ledgers)
            ledgers = {each: replace(extent, is_settled=True) for each, extent in ledgers.items()}
        offset = _read_batch(ledgers, offset, read, entries, most_new, turn)
    ledgers = {each: replace(extent, is_closed=True, is_settled=True) for each, extent in ledgers.items()}
    for turn in range(1_000):
        before = offset
        offset = _read_batch(ledgers, offset, read, 7, 2, turn)
        if offset is before:
            break
    assert read == {each: list(range(extent.entries)) for each, extent in ledgers.items() if extent.entries}
    ledgers[100] = Extent(100, 1, 0, is_closed=True)
    offset = _read_batch(ledgers, offset, read, 7, 2, 0)
    assert offset == LedgersOffset(101, {100: 1}, finished=frozenset({100})), (
        "finished and settled ledgers are not named any more"
    )


def _read_batch(ledgers, offset, read, entries, most_new, turn):
    view = LedgersView([ledgers[each] for each in sorted(ledgers)])
    end = next_batch(view, offset, entries, most_new, turn)
    if end is None:
        return offset
    assert end.watermark >= offset.watermark
    for ledger_id, first, last in ledger_ranges(offset, parse_offset(end.document())):
        read.setdefault(ledger_id, []).extend(range(first, last + 1))
    return end


def test_a_long_backlog_keeps_the_offset_short():
    view = LedgersView([Extent(each, 3, 30, is_closed=True) for each in range(500)])
    offset, sizes = EARLIEST, []
    while (end := next_batch(view, offset, ledgers=20)) is not None:
        offset = end
        sizes.append(len(offset.next_entries))
    assert len(sizes) == 25
    assert max(sizes) == 20


def test_an_open_empty_ledger_does_not_hold_the_watermark_up():
    view = LedgersView([Extent(0, 0, 0, is_closed=False), Extent(1, 5, 50, is_closed=True)])
    end = next_batch(view, EARLIEST)
    assert end == LedgersOffset(2, {0: 0, 1: 5}, finished=frozenset({1}))
    later = LedgersView([Extent(0, 1, 9, is_closed=False), Extent(1, 5, 50, is_closed=True)])
    assert next_batch(later, end) == LedgersOffset(2, {0: 1})


def test_a_ledger_that_appears_below_a_young_one_is_read():
    young = Extent(7, 2, 20, is_closed=True, is_settled=False)
    end = next_batch(LedgersView([Extent(5, 1, 10, is_closed=True), young]), EARLIEST)
    assert end == LedgersOffset(6, {5: 1, 7: 2}, finished=frozenset({5, 7}))
    late = LedgersView([Extent(5, 1, 10, is_closed=True), Extent(6, 4, 40, is_closed=True), young])
    assert ledger_ranges(end, next_batch(late, end)) == [(6, 0, 3)]


def test_the_watermark_stays_when_the_ledgers_below_it_are_deleted():
    view = LedgersView([Extent(3, 4, 40, is_closed=False)])
    assert next_batch(view, LedgersOffset(10, {3: 2})) == LedgersOffset(10, {3: 4})


def test_latest_begins_behind_what_is_there():
    view = LedgersView(
        [Extent(1, 5, 50, is_closed=True), Extent(2, 7, 70, is_closed=False), Extent(3, 0, 0, is_closed=False)]
    )
    assert view.begin(positions("latest")) == LedgersOffset(4, {2: 7, 3: 0})
    assert view.begin(positions("earliest")) == EARLIEST
    assert view.begin(positions('{"1": 3, "2": -1}')).next_entries == {1: 3, 2: 7, 3: 0}


def test_the_backlog_of_latest_is_not_written_down():
    view = LedgersView([Extent(each, 5, 50, is_closed=True) for each in range(1_000)])
    assert view.begin(positions("latest")) == LedgersOffset(1_000, {})


def test_busy_ledgers_share_the_batch():
    view = LedgersView([Extent(each, 1_000, 10_000, is_closed=False) for each in range(4)])
    end = next_batch(view, EARLIEST, entries=40)
    assert end is not None
    assert end.next_entries == dict.fromkeys(range(4), 10)


def test_a_ledger_that_was_being_read_and_is_gone_is_a_loss():
    view = LedgersView([Extent(3, 5, 50, is_closed=True)])
    offset = LedgersOffset(3, {1: 4, 2: 0, 3: 2})
    with pytest.raises(PodkeeperSparkError, match=r"BOOKIE_DATA_LOSS\] ledger 1 .*deleted; .* entry 3"):
        view.checked(offset)
    assert view.what_is_left(offset) == LedgersOffset(3, {3: 2})
    assert view.checked(LedgersOffset(3, {2: 0, 3: 2})) == LedgersOffset(3, {3: 2}), "of ledger 2 nothing was read"


def test_a_ledger_that_was_read_to_its_end_may_be_deleted():
    closed, still_open = Extent(3, 5, 50, is_closed=True), Extent(4, 2, 20, is_closed=False)
    end = next_batch(LedgersView([closed, still_open]), EARLIEST)
    assert end is not None
    assert end.next_entries == {3: 5, 4: 2}
    kept = parse_offset(end.document())
    assert isinstance(kept, LedgersOffset)
    assert LedgersView([still_open]).checked(kept).next_entries == {4: 2}
    with pytest.raises(PodkeeperSparkError, match=r"ledger 4 .*deleted; .* entry 1"):
        LedgersView([closed]).checked(kept)


def test_a_closed_ledger_that_is_shorter_than_what_was_read_is_a_loss():
    with pytest.raises(PodkeeperSparkError, match=r"ledger 3 has 5 .* 6"):
        LedgersView([Extent(3, 5, 50, is_closed=True)]).checked(LedgersOffset(4, {3: 6}))


def test_a_last_add_confirmed_may_be_told_older_than_it_was():
    view = LedgersView([Extent(3, 5, 50, is_closed=False)])
    offset = LedgersOffset(4, {3: 6})
    assert next_batch(view, offset) is None
    assert view.latest(view.checked(offset)) == offset


def test_a_ledger_of_which_nothing_was_read_is_read_whole_when_another_one_has_its_number():
    begun = LedgersView([Extent(3, 0, 0, is_closed=False, life=LedgerLife(3, 10, 1)), Extent(5, 2, 20, is_closed=True)])
    offset = next_batch(begun, EARLIEST)
    assert (offset.watermark, offset.next_entries[3]) == (6, 0)
    another = LedgersView([Extent(3, 4, 40, is_closed=True, life=LedgerLife(3, 30, 2)), begun.extents[1]])
    end = next_batch(another, offset)
    assert end is not None
    assert ledger_ranges(offset, end) == [(3, 0, 3)]
    assert end.lives[3] == LedgerLife(3, 30, 2)
