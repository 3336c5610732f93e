"""The state machine of a decommission: what must hold whatever happens in whatever order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.autorecovery.decommission.state import (
    Blocker,
    CookieChanged,
    CookieGone,
    CookieKept,
    DecommissionRecord,
    Disproved,
    Drained,
    DrainProgress,
    Event,
    Form,
    FormChanged,
    Phase,
    Proof,
    Proved,
    Quiesced,
    Quiescing,
    Resumed,
    SeenWritable,
    UndoRequested,
    advance,
    decode_record,
    encode_record,
)
from bookie_protocol.errors import MetadataDamaged, Refused

PROOF = Proof(5, 6, 100, 0)
NEW = DecommissionRecord("b0:1", "host/1", started_ms=1, updated_ms=1)
EVENTS: tuple[Event, ...] = (
    Quiescing(),
    Quiesced(Form.LIVE),
    Quiesced(Form.STOPPED),
    FormChanged(Form.STOPPED),
    SeenWritable(),
    Drained(),
    Disproved(),
    Proved(PROOF, 3),
    Proved(PROOF, None),
    CookieChanged(),
    CookieGone(),
    CookieKept(),
    Resumed("host/2"),
    UndoRequested(),
)


def after(record: DecommissionRecord, *events: Event) -> DecommissionRecord:
    for now, event in enumerate(events, 10):
        record = advance(record, event, now)
    return record


def test_the_way_to_the_end() -> None:
    phases = []
    record = NEW
    for event in (Quiescing(), Quiesced(Form.LIVE), Drained(), Proved(PROOF, 3), CookieGone()):
        record = advance(record, event, 7)
        phases.append(record.phase)
    assert phases == [Phase.REQUESTED, Phase.DRAINING, Phase.PROVING, Phase.REMOVING, Phase.DONE]
    assert (record.form, record.read_only_by_us, record.cookie_version, record.proof) == (Form.LIVE, True, 3, PROOF)
    assert record.updated_ms == 7


@given(st.lists(st.sampled_from(EVENTS), max_size=40), st.booleans())
def test_whatever_happens(events: list[Event], delete_cookie: bool) -> None:
    record = replace(NEW, delete_cookie=delete_cookie)
    proven_since: Event | None = None  # the proof that nothing has voided
    drained = quiet = undone = False
    for event in events:
        try:
            record = advance(record, event, 2)
        except Refused:
            continue
        assert not undone or isinstance(event, UndoRequested), "nothing leads out of an undo"
        match event:
            case Quiesced():
                quiet, drained, proven_since = True, False, None
            case SeenWritable():
                quiet = drained = False
                proven_since = None
            case Drained():
                drained = True
            case Proved():
                proven_since = event
            case Disproved():
                drained, proven_since = False, None
            case CookieChanged() | Resumed():
                proven_since = None
            case UndoRequested():
                undone = True
        if record.phase in (Phase.REMOVING, Phase.DONE):
            assert quiet
            assert drained
            assert not undone
            assert proven_since is not None or (isinstance(event, Resumed) and record.phase is Phase.DONE)
        if record.phase is Phase.REMOVING:
            assert isinstance(proven_since, Proved)
            assert (record.proof, record.cookie_version) == (proven_since.proof, proven_since.cookie_version)
        if record.phase in (Phase.REQUESTED, Phase.DRAINING, Phase.PROVING, Phase.UNDOING):
            assert record.proof is None
            assert record.cookie_version is None
        assert decode_record(encode_record(record), "b0:1") == record


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_a_finished_one_and_one_being_undone_stay_so(event: Event) -> None:
    done = after(NEW, Quiesced(Form.STOPPED), Drained(), Proved(PROOF, 3), CookieGone())
    undoing = after(NEW, Quiesced(Form.LIVE), UndoRequested())
    with pytest.raises(Refused, match="b0:1"):
        advance(done, event, 1)
    if isinstance(event, UndoRequested):
        assert advance(undoing, event, 1).phase is Phase.UNDOING
    else:
        with pytest.raises(Refused, match="undoing"):
            advance(undoing, event, 1)


def test_a_takeover_voids_the_proof() -> None:
    removing = after(NEW, Quiesced(Form.LIVE), Drained(), Proved(PROOF, 3))
    resumed = advance(removing, Resumed("host/2"), 9)
    assert (resumed.phase, resumed.proof, resumed.coordinator) == (Phase.PROVING, None, "host/2")
    draining = advance(after(NEW, Quiesced(Form.LIVE)), Resumed("host/2"), 9)
    assert (draining.phase, draining.form) == (Phase.DRAINING, Form.LIVE)


def test_a_cookie_that_is_to_go_is_not_kept() -> None:
    events = (Quiesced(Form.LIVE), Drained(), Proved(PROOF, 3))
    with pytest.raises(Refused):
        advance(after(NEW, *events), CookieKept(), 1)
    assert advance(after(replace(NEW, delete_cookie=False), *events), CookieKept(), 1).phase is Phase.DONE


def test_bytes() -> None:
    progress = DrainProgress(10, 3, 1000, 300, 800, 12.5, 2, (Blocker(7, "why"), Blocker(9, "ä")))
    record = replace(
        after(NEW, Quiescing(), Quiesced(Form.LIVE), Drained(), Proved(PROOF, None)),
        progress=progress,
        accepted_losses=(1, 2**62),
    )
    assert decode_record(encode_record(record), "b0:1") == record


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"format": 2}',
        encode_record(NEW).replace(b'"requested"', b'"resting"'),
        encode_record(NEW).replace(b'"b0:1"', b'"b1:1"'),
        encode_record(NEW).replace(b'"started_ms": 1', b'"started_ms": "1"'),
        encode_record(NEW).replace(b'"delete_cookie"', b'"keep_cookie"'),
        encode_record(NEW).replace(b'"accepted_losses": []', b'"accepted_losses": [1e999]'),
        b"[" * 100_000,
        encode_record(NEW).replace(b'"ledgers_total": 0', b'"ledgers_total": "x"'),
        encode_record(NEW).replace(b'"eta_s": null', b'"eta_s": "x"'),
        encode_record(NEW).replace(b'"blocked": 0', b'"blocked": {}'),
        encode_record(NEW).replace(b'"blockers": []', b'"blockers": [{"ledger_id": [1], "reason": {}}]'),
        encode_record(NEW).replace(b'"cookie_version": null', b'"cookie_version": []'),
        encode_record(NEW).replace(b'"read_only_by_us": false', b'"read_only_by_us": "no"'),
        encode_record(NEW).replace(
            b'"proof": null', b'"proof": {"begun_ms": "x", "ended_ms": 1, "ledgers": 1, "marks": 1}'
        ),
    ],
)
def test_damaged_bytes_are_told(data: bytes) -> None:
    assert data != encode_record(NEW)
    with pytest.raises(MetadataDamaged, match="b0:1"):
        decode_record(data, "b0:1")
