from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_bookie.source.streaming.admission import Limit, Segment, admit, fair_shares, taken

DEMANDS = st.lists(st.integers(0, 1_000), max_size=8) | st.lists(st.integers(0, 6), max_size=5)
BUDGETS = st.integers(0, 3_000) | st.integers(0, 20)


@st.composite
def lanes(draw):
    made = []
    for lane in range(draw(st.integers(0, 5))):
        segments = []
        for place in range(draw(st.integers(0, 4))):
            entries = draw(st.integers(1, 50))
            first = draw(st.integers(0, 9)) if place == 0 else 0
            segments.append(Segment(lane * 10 + place, first, first + entries - 1, entries * draw(st.integers(0, 200))))
        made.append(segments)
    return made


@given(DEMANDS, BUDGETS, st.integers(0, 99))
def test_shares_are_what_is_wanted_or_as_much_as_everybody_else_gets(demands, budget, turn):
    shares = fair_shares(demands, budget, turn)
    assert sum(shares) == min(budget, sum(demands))
    assert all(0 <= share <= demand for share, demand in zip(shares, demands, strict=True))
    short = [share for share, demand in zip(shares, demands, strict=True) if share < demand]
    assert not short or min(short) >= max(shares) - 1


def test_what_cannot_be_shared_evenly_goes_by_turns():
    assert fair_shares([5, 5, 5], 4, turn=0) == [2, 1, 1]
    assert fair_shares([5, 5, 5], 4, turn=1) == [1, 2, 1]
    assert fair_shares([5, 5, 5], 1, turn=2) == [0, 0, 1]
    assert fair_shares([1, 100, 100], 21, turn=0) == [1, 10, 10]
    assert fair_shares([2, 5], 5, turn=0) == [2, 3], "not to whoever has what it wants"


@given(lanes(), st.none() | st.integers(1, 300), st.none() | st.integers(1, 20_000), st.integers(0, 9))
def test_limits_are_kept_and_something_is_always_read(lanes, entries, nbytes, turn):
    admitted = admit(lanes, Limit(entries, nbytes), turn)
    available = [sum(segment.entries for segment in lane) for lane in lanes]
    assert all(0 <= found <= most for found, most in zip(admitted, available, strict=True))
    assert any(admitted) == any(available)
    if entries is not None:
        assert sum(admitted) <= entries
    parts = [taken(lane, found) for lane, found in zip(lanes, admitted, strict=True)]
    assert [sum(segment.entries for segment in part) for part in parts] == admitted
    if nbytes is not None and sum(admitted) > 1:
        rounding = sum(len(part) for part in parts)
        assert sum(segment.nbytes for part in parts for segment in part) <= nbytes + rounding
    if entries is None and nbytes is None:
        assert admitted == available


@given(lanes(), st.integers(1, 40), st.integers(1, 5_000))
def test_one_batch_after_the_other_reads_everything_once(lanes, entries, nbytes):
    read: list[list[tuple[int, int]]] = [[] for _ in lanes]
    left = [list(lane) for lane in lanes]
    for turn in range(10_000):
        admitted = admit(left, Limit(entries, nbytes), turn)
        if not any(admitted):
            break
        for number, found in enumerate(admitted):
            for segment in taken(left[number], found):
                read[number] += [(segment.ledger_id, entry) for entry in range(segment.first, segment.last + 1)]
            left[number] = _without(left[number], found)
    expected = [
        [(segment.ledger_id, entry) for segment in lane for entry in range(segment.first, segment.last + 1)]
        for lane in lanes
    ]
    assert read == expected


def test_an_entry_larger_than_the_limit_is_read_alone():
    assert admit([[Segment(1, 0, 2, 3_000)], [Segment(2, 0, 2, 3_000)]], Limit(nbytes=10), turn=1) == [0, 1]


def _without(lane, entries):
    rest = []
    for segment in lane:
        skipped = min(entries, segment.entries)
        entries -= skipped
        if skipped < segment.entries:
            per_entry = segment.nbytes // segment.entries
            count = segment.entries - skipped
            rest.append(Segment(segment.ledger_id, segment.first + skipped, segment.last, per_entry * count))
    return rest
