"""Records of the auditor, and when a check is due."""

from __future__ import annotations

import asyncio
import json

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
    force_checks,
    recorded_checks,
    set_enabled,
    trigger_audit,
)
from bookie_pod.autorecovery.auditor.schedule import SKEW_MS, Clock, Due
from bookie_protocol.errors import MetadataExists, MetadataNotFound, Refused
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

NOW_MS = 1_700_000_000_000
YEAR_MS = 366 * 86_400_000


@given(RUNS)
def test_round_trip(runs: Runs) -> None:
    assert decode_runs(encode_runs(runs)) == runs


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("running", {"started_ms": "x", "next_ledger": 1, "active_ms": 1}),
        ("last", {"started_ms": [], "finished_ms": "y", "active_ms": 1}),
        ("failure", {"at_ms": "x", "reason": "r"}),
        ("failure", {"at_ms": 1, "reason": {"a": [1]}}),
    ],
)
def test_a_member_of_another_type_is_as_if_nothing_had_been_written(member: str, value: object) -> None:
    record = {"auditor": "a", "running": None, "last": None, "failure": None, member: value}
    assert decode_runs(json.dumps(record).encode()) == Runs()


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
        await records.write_absences({"b1": since}, 7)
        assert await records.absences() == {"b1": since}
    store = rig.service.records(AUDITOR)
    for damaged in (b"", b"[]", b'{"b1": 5}', b'{"noted_ms": 7, "since_ms": {"b1": "x"}}'):
        await store.overwrite(ABSENCES, damaged)
        assert await records.absences() == {}


@pytest.mark.parametrize(
    ("noted_ms", "since_ms"),
    [
        (NOW_MS - 60_000, NOW_MS - 90_000),
        (NOW_MS + SKEW_MS, NOW_MS - 90_000),
        (NOW_MS - SKEW_MS - 1, NOW_MS),
        (NOW_MS - YEAR_MS, NOW_MS),
        (NOW_MS + YEAR_MS, NOW_MS),
    ],
)
async def test_times_of_loss_of_another_clock_or_of_long_ago_begin_now(
    rig: AuditorRig, noted_ms: int, since_ms: int
) -> None:
    records = AuditRecords(rig.service)
    times = {"restarts": NOW_MS - 90_000, "ahead": NOW_MS + 1000}
    await records.write_absences(times, noted_ms)
    assert await records.absences_to_go_on_with(NOW_MS) == {"restarts": since_ms, "ahead": NOW_MS}


@pytest.mark.parametrize(
    ("due", "at"),
    [
        (Due(0, None, None), None),
        (Due(-1, 5, None), None),
        (Due(60, None, None), 0),
        (Due(60, 5000, None), 65_000),
        (Due(60, 5000, 7), 0),
        (Due(0, 5000, 7), 0),
        (Due(60, NOW_MS + SKEW_MS, None), NOW_MS + SKEW_MS + 60_000),
        (Due(60, NOW_MS + SKEW_MS + 1, None), 0),
        (Due(604_800, NOW_MS + YEAR_MS, None), 0),
        (Due(0, NOW_MS + YEAR_MS, None), None),
    ],
)
def test_when_a_check_is_due(due: Due, at: int | None) -> None:
    """One whose last run lies in the future, by an auditor with a wrong clock, is due at once."""
    assert due.at_ms(NOW_MS) == at


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


async def test_a_record_that_comes_and_goes_is_not_written_for_ever(
    rig: AuditorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = AuditRecords(rig.service)
    tries: list[str] = []

    async def gone(name: str, *arguments: object) -> None:
        tries.append("update")
        raise MetadataNotFound(name)

    async def there(name: str, *arguments: object) -> None:
        tries.append("create")
        if len(tries) == 4:
            return
        raise MetadataExists(name)

    monkeypatch.setattr(records._store, "overwrite", gone)
    monkeypatch.setattr(records._store, "create", there)
    await records.write_absences({}, 7)
    assert tries == ["update", "create"] * 2
    with pytest.raises(MetadataExists, match="goes"):
        await records.write_absences({}, 7)
    assert tries == ["update", "create"] * 12


async def test_auto_recovery_is_enabled_and_disabled_however_often_it_is_said(
    rig: AuditorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for enabled in (False, False, True, True):
        await set_enabled(rig.service, enabled)
        assert await rig.marks.is_enabled() is enabled

    async def refuses() -> None:
        raise MetadataExists("somebody else has done something else")

    monkeypatch.setattr(rig.marks, "disable", refuses)
    with pytest.raises(MetadataExists):
        await set_enabled(rig.service, False)


async def test_an_audit_is_asked_for_where_somebody_can_do_it(rig: AuditorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="no auditor"):
        await trigger_audit(rig.service)
    auditor: str | None = "b1:1"
    asked = False

    async def current() -> str | None:
        return auditor

    async def ask() -> bool:
        return asked

    monkeypatch.setattr(rig.service.auditor_election, "current_auditor", current)
    monkeypatch.setattr(rig.marks, "ask_for_audit", ask)
    with pytest.raises(Refused, match=r"b1:1, .*elected"):
        await trigger_audit(rig.service)
    asked = True
    assert await trigger_audit(rig.service) == "b1:1"
    await set_enabled(rig.service, False)
    with pytest.raises(Refused, match="disabled"):
        await trigger_audit(rig.service)


async def test_checks_are_asked_for_and_what_is_known_of_each_is_told(
    rig: AuditorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 30 * 86_400_000
    monkeypatch.setattr("bookie_pod.autorecovery.auditor.runs.wall_clock_ms", lambda: now)
    await force_checks(rig.service, [Check.BOOKIES, Check.REPLICAS])
    records = AuditRecords(rig.service)
    for check in (Check.BOOKIES, Check.LEDGERS):
        await records.write(check, Runs("a1", None, Finished(1, 22, 3), None))
    found = {each.check: each for each in await recorded_checks(rig.service)}
    assert list(found) == list(Check)
    assert {check: (each.last_complete_ms, each.requested_ms) for check, each in found.items()} == {
        Check.BOOKIES: (22, now),
        Check.LEDGERS: (None, None),
        Check.PLACEMENT: (None, None),
        Check.REPLICAS: (9 * 86_400_000, now),
    }
    assert found[Check.LEDGERS].runs.last == Finished(1, 22, 3)
    assert found[Check.PLACEMENT].runs == Runs()


@pytest.mark.parametrize(
    ("data", "time"), [(b"0", 0), (b"17", 17), (b"9" * 18, 10**18 - 1), (b"9" * 19, None), ("²".encode(), None)]
)
def test_a_time_is_a_number_of_some_digits(data: bytes, time: int | None) -> None:
    assert decode_time(data) == time
