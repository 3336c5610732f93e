from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.versioned import LedgerLife, moved
from pyspark_bookie.common.errors import PodkeeperSparkError
from pyspark_bookie.source.streaming.offsets import (
    LedgersOffset,
    Place,
    Start,
    StreamsOffset,
    ledger_ranges,
    parse_offset,
    stream_ranges,
)

IDS = st.integers(0, 2**63 - 1)
PLACES = st.builds(Place, st.integers(-1, 2**62), IDS, IDS)
NAMED = st.dictionaries(st.text("abcz.-_9", min_size=1, max_size=5), PLACES, max_size=4)
LEDGERS = st.builds(LedgersOffset, IDS, st.dictionaries(IDS, IDS, max_size=6))
OFFSETS = st.one_of(
    st.sampled_from([Start("latest"), Start("earliest"), Start('{"5": 100}')]),
    st.builds(StreamsOffset, NAMED, NAMED),
    LEDGERS,
    st.builds(LedgersOffset, IDS, st.dictionaries(IDS, IDS, max_size=6), LEDGERS),
    st.dictionaries(IDS, IDS, max_size=6).map(lambda named: LedgersOffset(9, named, finished=frozenset(named))),
)


@given(OFFSETS)
def test_an_offset_survives_its_text(offset):
    text = json.dumps(offset.document())
    assert parse_offset(json.loads(text)) == offset
    assert json.dumps(parse_offset(json.loads(text)).document()) == text


@pytest.mark.parametrize("creation", [0, 12345, 2**63 - 1])
@pytest.mark.parametrize("token", [0, 99])
def test_an_offset_survives_of_metadata_that_moved_to_another_service(creation, token):
    for each in (creation, moved(creation)):
        offset = LedgersOffset(8, {7: 3}, lives={7: LedgerLife(7, each, token)})
        assert parse_offset(json.loads(json.dumps(offset.document()))) == offset


@given(st.permutations(["b", "a", "10", "9", "-x"]), st.permutations([10, 9, 100, 2]))
def test_equal_offsets_have_equal_texts(names, ids):
    """Spark compares them as texts: another order of keys would be an endless row of empty batches."""
    texts = json.dumps(StreamsOffset({name: Place(1, 2, 3) for name in names}).document())
    assert texts == json.dumps(StreamsOffset({name: Place(1, 2, 3) for name in sorted(names)}).document())
    assert list(LedgersOffset(3, dict.fromkeys(ids, 1)).document()["o"]) == ["2", "9", "10", "100"]


def test_the_texts_are_those_of_the_documentation():
    assert json.dumps(Start("latest").document()) == '{"v": 1, "start": "latest"}'
    offset = StreamsOffset({"orders": Place(7, 120, 5120)}, {"orders": Place(7, 20, 5020)})
    assert json.dumps(offset.document()) == (
        '{"v": 1, "s": {"orders": {"l": 7, "e": 120, "n": 5120}}, "from": {"orders": {"l": 7, "e": 20, "n": 5020}}}'
    )
    assert json.dumps(LedgersOffset(12, {12: 7, 3: 40}, LedgersOffset(0, {}), frozenset({3})).document()) == (
        '{"v": 1, "w": 12, "o": {"3": 40, "12": 7}, "f": [3], "from": {"w": 0, "o": {}}}'
    )


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"v": 1},
        {"v": 1, "start": 5},
        {"v": 1, "s": []},
        {"v": 1, "s": {"a": {"l": 1, "e": 2}}},
        {"v": 1, "s": {"a": {"l": 1, "e": -2, "n": 1}}},
        {"v": 1, "s": {"a": {"l": 1, "e": 2, "n": True}}},
        {"v": 1, "s": {"a": {"l": -2, "e": 2, "n": 1}}},
        {"v": 1, "s": {"a": {"l": 1, "e": 2, "n": 1, "x": 1}}},
        {"v": 1, "s": {}, "o": {}},
        {"v": 1, "start": "latest", "s": {}},
        {"v": 1, "w": 1, "o": {}, "x": 1},
        {"v": 1, "w": 1, "o": {}, "from": {"w": 0, "o": {}, "x": 1}},
        {"v": 1, "w": 1, "o": {}, "from": {"w": 0}},
        {"v": 1, "w": 1, "o": {}, "from": 5},
        {"v": 1, "w": -1, "o": {}},
        {"v": 1, "w": 1, "o": {"1": -1}},
        {"v": 1, "w": 1, "o": {"-1": 1}},
        {"v": 1, "w": 1},
        {"v": 1, "w": 1, "o": {"x": 1}},
        {"v": 1, "w": 1, "o": {"0": 1}, "f": [1]},
        {"v": 1, "w": "1", "o": {}},
        {"kafka-topic": {"0": 5}},
    ],
)
def test_what_is_no_offset_is_refused_with_its_text(document):
    with pytest.raises(PodkeeperSparkError, match=r"^\[BOOKIE_OFFSET\] offset .*source") as found:
        parse_offset(document)
    assert json.dumps(document)[:500] in str(found.value)


def test_another_version_is_refused():
    with pytest.raises(PodkeeperSparkError, match="version"):
        parse_offset({"v": 2, "s": {}})


def test_a_batch_begins_where_the_end_offset_says_or_the_one_before():
    end = StreamsOffset({"a": Place(3, 9, 9), "b": Place(4, 5, 5)}, {"b": Place(-1, 0, 0)})
    assert stream_ranges(StreamsOffset({"a": Place(3, 2, 2)}), end) == [
        ("a", Place(3, 2, 2), Place(3, 9, 9)),
        ("b", Place(-1, 0, 0), Place(4, 5, 5)),
    ]
    first = StreamsOffset({"a": Place(3, 9, 9)}, {"a": Place(3, 4, 4)})
    assert stream_ranges(Start("latest"), first) == [("a", Place(3, 4, 4), Place(3, 9, 9))]


def test_the_same_place_under_two_names_is_an_empty_range():
    end = StreamsOffset({"a": Place(4, 0, 9)})
    assert stream_ranges(StreamsOffset({"a": Place(3, 9, 9)}), end) == []


def test_offsets_that_are_no_batch_are_refused():
    with pytest.raises(PodkeeperSparkError, match="begins"):
        stream_ranges(Start("latest"), StreamsOffset({"a": Place(3, 9, 9)}))
    with pytest.raises(PodkeeperSparkError, match="is before"):
        stream_ranges(StreamsOffset({"a": Place(3, 9, 9)}), StreamsOffset({"a": Place(3, 8, 8)}))
    with pytest.raises(PodkeeperSparkError, match="batch"):
        ledger_ranges(Start("latest"), LedgersOffset(3, {5: 1}))
    with pytest.raises(PodkeeperSparkError, match="in ledger 5"):
        ledger_ranges(LedgersOffset(3, {5: 4}), LedgersOffset(3, {5: 1}))
    with pytest.raises(PodkeeperSparkError, match="in ledger 2"):
        ledger_ranges(LedgersOffset(3, {}), LedgersOffset(3, {2: 1}))


def test_ranges_of_ledgers_follow_from_the_two_offsets():
    start = LedgersOffset(10, {4: 7, 10: 2})
    end = LedgersOffset(12, {4: 7, 10: 5, 11: 3, 12: 0})
    assert ledger_ranges(start, end) == [(10, 2, 4), (11, 0, 2)]
    assert ledger_ranges(Start("earliest"), LedgersOffset(2, {0: 3, 1: 1}, LedgersOffset(0, {0: 1}))) == [
        (0, 1, 2),
        (1, 0, 0),
    ]
