"""Records of the auditor, and when a check is due."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.autorecovery.auditor.runs import (
    ABSENCES,
    AUDITOR,
    AuditRecords,
    Check,
    Failure,
    Finished,
    Running,
    Runs,
    decode_runs,
    decode_time,
    encode_runs,
)
from bookie_pod.autorecovery.auditor.schedule import Clock, Due
from tests.support.auditor_rig import AuditorRig

TIMES = st.integers(0, 2**53)
COUNTS = st.dictionaries(st.text(max_size=10), st.integers(0, 2**40), max_size=4)
RUNNING = st.builds(Running, TIMES, st.integers(0, 2**63 - 1), TIMES, COUNTS, st.none() | TIMES)
FINISHED = st.builds(Finished, TIMES, TIMES, TIMES, COUNTS, st.none() | TIMES)
RUNS = st.builds(
    Runs,
    st.text(max_size=20),
    st.none() | RUNNING,
    st.none() | FINISHED,
    st.none() | st.builds(Failure, TIMES, st.text()),
)


@given(RUNS)
def test_round_trip(runs: Runs) -> None:
    assert decode_runs(encode_runs(runs)) == runs


@given(
    st.binary(max_size=40) | st.sampled_from([b"[]", b"{}", b'{"auditor":"a","running":{},"last":null,"failure":null}'])
)
def test_what_cannot_be_read_is_as_if_nothing_had_been_written(data: bytes) -> None:
    assert decode_runs(data) == Runs()


@pytest.mark.parametrize("data", [None, b"", b"x", b"-1", b"1" * 30])
def test_no_time(data: bytes | None) -> None:
    assert decode_time(data) is None


async def test_records_are_made_and_replaced(rig: AuditorRig) -> None:
    records = AuditRecords(rig.service)
    assert await records.absences() == {}
    assert await records.requested_ms(Check.LEDGERS) is None
    for since in (5, 6):
        await records.write_absences({"b1": since})
        assert await records.absences() == {"b1": since}
    store = rig.service.records(AUDITOR)
    for damaged in (b"", b"[]", b'{"b1": "x"}'):
        await store.update(ABSENCES, damaged, (await store.read(ABSENCES)).version)
        assert await records.absences() == {}


@pytest.mark.parametrize(
    ("due", "at"),
    [
        (Due(0, None, None), None),
        (Due(-1, 5, None), None),
        (Due(60, None, None), 0),
        (Due(60, 5000, None), 65_000),
        (Due(60, 5000, 7), 0),
        (Due(0, 5000, 7), 0),
    ],
)
def test_when_a_check_is_due(due: Due, at: int | None) -> None:
    assert due.at_ms() == at


async def test_the_clock_never_goes_back() -> None:
    wall = iter([1_000_000])
    clock = Clock(lambda: next(wall))
    first = clock.now_ms()
    assert 1_000_000 <= first < 1_001_000
    await asyncio.sleep(0.02)
    assert clock.now_ms() >= first + 19
    assert clock.seconds_until(None) is None
    assert clock.seconds_until(first - 500) == 0
    assert 0.9 < (clock.seconds_until(clock.now_ms() + 1000) or 0) <= 1.001
