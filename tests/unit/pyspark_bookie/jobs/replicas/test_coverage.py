"""Runs of missing entries, against the same thing entry by entry."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bookie_client.distribution import Quorums
from bookie_client.replication.fragments import Fragment
from bookie_protocol.wire.availability import decode_availability, encode_availability
from pyspark_bookie.jobs.replicas import coverage
from pyspark_bookie.jobs.replicas.coverage import (
    Run,
    bounded,
    expected_runs,
    missing_runs,
    present_runs,
    runs_of_entries,
    surplus_count,
)


@st.composite
def cases(draw):
    ensemble = draw(st.integers(1, 5))
    write = draw(st.integers(1, ensemble))
    first = draw(st.integers(0, 40))
    last = first + draw(st.integers(0, 60))
    names = tuple(f"bookie-{place}" for place in range(ensemble))
    fragment = Fragment(7, first, last, names, Quorums(ensemble, write, write), True)
    return fragment, draw(st.integers(0, ensemble - 1)), draw(st.sets(st.integers(0, 110)))


def availability(entries):
    return decode_availability(encode_availability(sorted(entries)))


def members(fragment, position, run):
    return [entry for entry in fragment.entries_of(position) if run.first <= entry <= run.last]


@given(cases(), st.sampled_from([3, 7, 1 << 18]))
def test_runs_hold_exactly_what_is_missing(case, piece):
    fragment, position, stored = case
    coverage.PIECE, before = piece, coverage.PIECE
    try:
        runs = missing_runs(fragment, position, availability(stored), fragment.first_entry, fragment.last_entry)
    finally:
        coverage.PIECE = before
    missing = [entry for entry in fragment.entries_of(position) if entry not in stored]
    assert [entry for run in runs for entry in members(fragment, position, run)] == missing
    assert [run.count for run in runs] == [len(members(fragment, position, run)) for run in runs]
    # They are as few as can be: between two runs lies an entry that is there.
    for one, other in pairwise(runs):
        assert any(one.last < entry < other.first for entry in fragment.entries_of(position) if entry in stored)
    assert runs == runs_of_entries(fragment, position, missing)


@given(cases())
def test_what_is_there_is_the_rest(case):
    fragment, position, stored = case
    runs = list(present_runs(fragment, position, availability(stored), fragment.first_entry, fragment.last_entry))
    assert [entry for run in runs for entry in run] == [e for e in fragment.entries_of(position) if e in stored]
    everything = list(expected_runs(fragment, position, fragment.first_entry, fragment.last_entry))
    assert [entry for run in everything for entry in run] == list(fragment.entries_of(position))


@given(cases())
def test_surplus_is_what_striping_does_not_ask_for(case):
    fragment, position, stored = case
    asked = set(fragment.entries_of(position))
    assert surplus_count([(fragment, position)], availability(stored)) == len(stored - asked)


def test_runs_beyond_the_bound_are_counted_with_the_last():
    runs = [Run(first, first, 1) for first in range(0, 20, 2)]
    assert bounded(runs, 3) == [Run(0, 0, 1), Run(2, 2, 1), Run(4, 18, 8)]
    assert bounded(runs, 100) == runs
