"""GET_LIST_OF_ENTRIES_OF_LEDGER: the encoding of which entries a bookie stores."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.errors import BadRequest, ProtocolViolation
from bookie_protocol.wire import v3
from bookie_protocol.wire.availability import GROUP_SIZE, HEADER_SIZE, decode_availability, encode_availability
from tests.support import golden_frames

IDS = st.lists(st.integers(0, 300), max_size=120).map(lambda ids: sorted(set(ids)))
TINY = 64


def encoding(*groups: tuple[int, int, int, int], version: int = 0) -> bytes:
    return struct.pack(">ii56x", version, len(groups)) + b"".join(struct.pack(">qqii", *group) for group in groups)


def test_worked_hex():
    data = encode_availability([0, 1, 5, 6, 7, 20])
    assert len(data) == 136
    assert data == encoding((0, 0, 2, 0), (5, 5, 3, 0), (20, 20, 1, 0))


def test_golden_answer():
    answers = [
        v3.parse_response(item.body).getListOfEntriesOfLedgerResponse.availabilityOfEntriesOfLedger
        for item in golden_frames.exchanged("response")
        if item.is_v3 and "list_of_entries" in item.source and "no_such" not in item.source
    ]
    assert answers
    for data in answers:
        ids = list(decode_availability(data))
        assert ids
        assert encode_availability(ids) == data


def test_nothing_stored():
    assert encode_availability([]) == encoding()
    assert list(decode_availability(encoding())) == []


@given(IDS, st.sampled_from([TINY + 24 * 40, 5_000_000]))
def test_round_trip(ids, max_size):
    try:
        found = decode_availability(encode_availability(iter(ids), max_size))
    except BadRequest:
        assert max_size < 5_000_000
        return
    assert list(found) == ids
    assert found.count == len(ids)
    stored = set(ids)
    assert all((entry_id in found) is (entry_id in stored) for entry_id in range(-2, 310))


@given(st.integers(0, 2**62), st.integers(1, 9), st.integers(1, 9), st.integers(2, 400))
def test_a_striped_ledger_shrinks_to_one_group_when_it_must(first, size, gap, runs):
    period = size + gap
    ids = [first + run * period + at for run in range(runs) for at in range(size)]
    data = encode_availability(ids, max_size=TINY + 24)
    assert data == encoding((first, first + (runs - 1) * period, size, period))
    found = decode_availability(data)
    assert list(found) == ids
    assert found.count == len(ids)
    assert ids[-1] + 1 not in found
    assert first + size not in found
    # With room it has the form of the reference implementation: one group a run.
    assert len(encode_availability(ids)) == TINY + 24 * runs


def test_equal_neighbours_count_once():
    assert encode_availability([3, 3, 4, 4, 9, 9]) == encode_availability([3, 4, 9])


@given(ids=IDS, max_size=st.sampled_from((400, 100_000)), start=st.integers(0, 320), length=st.integers(0, 320))
def test_runs_between_are_the_ids_in_that_span(ids, max_size, start, length):
    try:
        found = decode_availability(encode_availability(ids, max_size))
    except BadRequest:
        return
    cut = [entry_id for run in found.runs_between(start, start + length) for entry_id in run]
    assert cut == [entry_id for entry_id in ids if start <= entry_id < start + length]


@pytest.mark.parametrize(("ids", "last"), [((), None), ((0,), 0), ((3, 4, 5), 5), ((0, 3, 6, 9), 9), ((1, 2, 7), 7)])
def test_the_last_one(ids, last):
    assert decode_availability(encode_availability(ids)).last == last


def test_a_huge_claim_costs_nothing_outside_the_span():
    found = decode_availability(encoding((0, 2**62, 1, 2**20)))
    assert list(found.runs_between(2**40, 2**40 + 2**20 + 1)) == [
        range(2**40, 2**40 + 1),
        range(2**40 + 2**20, 2**40 + 2**20 + 1),
    ]


@pytest.mark.parametrize("ids", [[5, 4], [5, 6, 7, 5], [5, 6, 7, 6], [5, 9, 8]])
def test_ids_must_ascend(ids):
    with pytest.raises(ValueError, match="ascend"):
        encode_availability(ids)


def test_what_does_not_fit_is_refused_with_the_remedy():
    ids = [number * number for number in range(100)]
    with pytest.raises(BadRequest, match="nettyMaxFrameSizeBytes"):
        encode_availability(ids, max_size=1000)


def test_ids_are_taken_one_by_one():
    taken = []
    ids = itertools.takewhile(lambda entry_id: taken.append(entry_id) or entry_id < 10**5, itertools.count(0, 2))
    assert len(encode_availability(ids, max_size=200)) == TINY + 24
    assert len(taken) == 50_001


def test_far_apart_runs_are_not_merged_beyond_32_bits():
    ids = [0, 2**31, 2**32]
    assert len(encode_availability(ids, max_size=1000)) == TINY + 72
    with pytest.raises(BadRequest):
        encode_availability(ids, max_size=TINY + 24)


def test_a_huge_claim_is_read_lazily():
    found = decode_availability(encoding((0, 2**62, 1, 2)))
    assert found.count == 2**61 + 1
    assert list(itertools.islice(found, 3)) == [0, 2, 4]
    assert 2**62 in found
    assert 2**62 - 1 not in found


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes"),
        (bytes(63), "63 bytes"),
        (encoding(version=1), "version 1"),
        (encoding((0, 0, 1, 0))[:-1], "names 1 groups"),
        (encoding((0, 0, 1, 0)) + b"x", "names 1 groups"),
        (struct.pack(">ii56x", 0, -1), "names -1 groups"),
        (encoding((0, 0, 0, 0)), "group 0"),
        (encoding((0, 0, -1, 0)), "group 0"),
        (encoding((0, 4, 1, 0)), "group 0"),
        (encoding((0, 4, 3, 2)), "group 0"),
        (encoding((0, 5, 1, 2)), "group 0"),
        (encoding((4, 0, 1, 2)), "group 0"),
        (encoding((0, 0, 1, -2)), "group 0"),
        (encoding((0, 0, 5, 0), (4, 4, 1, 0)), "group 1"),
    ],
)
def test_damage_is_named(data, message):
    with pytest.raises(ProtocolViolation, match=message):
        decode_availability(data)


def test_a_list_that_cannot_fit_is_given_up_at_once() -> None:
    """Entry ids without end, with a gap of another length each."""
    taken = 0

    def ids() -> Iterator[int]:
        nonlocal taken
        at = 0
        while True:
            taken += 1
            yield at
            at += 2 + taken % 7

    with pytest.raises(BadRequest):
        encode_availability(ids(), HEADER_SIZE + 10 * GROUP_SIZE)
    assert taken < 40
