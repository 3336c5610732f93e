"""What the pods' answers mean; and that what is missing in one is never taken for zero."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_operator.api import answers
from bookie_operator.api.answers import Undecodable
from bookie_operator.world.facts import DrainPhase, Outlook

STATE: dict[str, Any] = {
    "instanceId": "i",
    "writable": ["a:1", "b:1"],
    "readOnly": ["c:1"],
    "cookies": ["a:1", "b:1", "c:1"],
    "underReplicated": 2,
    "auditor": "a:1",
    "lastAuditMs": 1500,
    "autorecoveryEnabled": True,
    "lostBookieRecoveryDelaySeconds": 300,
    "unrecoverable": None,
}
PROOF: dict[str, Any] = {
    "bookieId": "a:1",
    "ledgers": 0,
    "marks": 0,
    "registered": False,
    "auditor": "b:1",
    "lastAuditMs": 2000,
    "instanceId": "i",
}
PROGRESS: dict[str, Any] = {
    "bookieId": "a:1",
    "phase": "draining",
    "runningHere": True,
    "problem": "",
    "updatedTime": 100_000,
    "ledgersLeft": 5,
    "bytesLeft": 500,
    "secondsLeft": 1.6,
    "blocked": 0,
    "blockers": [],
}
SAFETY: dict[str, Any] = {
    "going": ["a:1"],
    "noCopy": 1,
    "belowAckQuorum": 1,
    "unknown": 0,
    "ledgers": [
        {"ledgerId": 7, "risk": "no copy", "detail": "x"},
        {"ledgerId": 9, "risk": "below ack quorum", "detail": "y"},
    ],
}


def test_claims_count_where_a_pod_tells_them() -> None:
    assert answers.proof(PROOF, "a:1").claims == 0
    assert answers.proof({**PROOF, "claims": 2}, "a:1").claims == 2
    with pytest.raises(Undecodable):
        answers.proof({**PROOF, "claims": "none"}, "a:1")


def test_settings_of_bookies_of_other_makes() -> None:
    told = {"a": "1", "b": 2, "c": True, "d": ["x", "y"], "e": None}
    assert answers.settings(told) == {"a": "1", "b": "2", "c": "true"}
    with pytest.raises(Undecodable):
        answers.settings([])


def test_what_a_drain_would_have_to_do() -> None:
    numbers = {"ledgers": 3, "openLedgers": 1, "bytes": 500}
    told = {"bookieId": "a:1", **numbers, "refusals": ["no room"], "warnings": ["no auditor"]}
    assert answers.outlook(told, "a:1") == Outlook("a:1", 3, ("no room",), 1, 500, 0, ("no auditor",))
    assert answers.outlook({**told, "largestEnsemble": 3}, "a:1").largest_ensemble == 3
    for wrong in (
        *({**told, "bookieId": "b:1"}, {**told, "refusals": None}, {**told, "largestEnsemble": "3"}),
        {"bookieId": "a:1", "refusals": []},
    ):
        with pytest.raises(Undecodable):
            answers.outlook(wrong, "a:1")


def test_the_state_of_the_cluster() -> None:
    facts = answers.cluster_facts(STATE)
    assert facts.registered == {"a:1", "b:1", "c:1"}
    assert (facts.under_replicated, facts.auditor, facts.last_audit) == (2, "a:1", 1.5)
    assert answers.cluster_facts({**STATE, "auditor": None, "lastAuditMs": None}).auditor is None


@given(
    st.sampled_from(sorted(STATE)), st.one_of(st.none(), st.booleans(), st.text(max_size=3), st.floats(), st.just([1]))
)
def test_a_member_of_another_type_is_never_guessed(name: str, value: object) -> None:
    nullable = name in ("auditor", "lastAuditMs", "unrecoverable")
    fits = type(value) is type(STATE[name]) or (value is None and nullable) or (name == "auditor" and value == "")
    if fits:
        return
    with pytest.raises(Undecodable):
        answers.cluster_facts({**STATE, name: value})


@pytest.mark.parametrize("name", sorted(STATE))
def test_no_member_of_a_state_may_be_missing(name: str) -> None:
    with pytest.raises(Undecodable, match=name):
        answers.cluster_facts({key: value for key, value in STATE.items() if key != name})


@pytest.mark.parametrize("name", sorted(PROOF))
def test_no_member_of_a_proof_may_be_missing(name: str) -> None:
    assert answers.proof(PROOF, "a:1").holds(instance_id="i", drained_since=1.0)
    with pytest.raises(Undecodable, match=name):
        answers.proof({key: value for key, value in PROOF.items() if key != name}, "a:1")


def test_a_proof_about_another_bookie_is_none() -> None:
    with pytest.raises(Undecodable, match="a:1"):
        answers.proof(PROOF, "b:1")


@pytest.mark.parametrize(
    ("changes", "now", "phase"),
    [
        ({}, 101.0, DrainPhase.RUNNING),
        ({"runningHere": False}, 500.0, DrainPhase.INTERRUPTED),
        ({}, 500.0, DrainPhase.RUNNING),  # its clock is another one
        ({"blocked": 5}, 101.0, DrainPhase.BLOCKED),
        ({"blocked": 4}, 101.0, DrainPhase.RUNNING),
        ({"problem": "no session", "runningHere": False}, 101.0, DrainPhase.INTERRUPTED),
        ({"phase": "proving", "ledgersLeft": 0}, 101.0, DrainPhase.RUNNING),
        ({"phase": "done", "ledgersLeft": 0}, 5000.0, DrainPhase.DRAINED),
        ({"phase": "undoing"}, 101.0, DrainPhase.INTERRUPTED),
    ],
)
def test_the_progress_of_a_drain(changes: dict[str, Any], now: float, phase: DrainPhase) -> None:
    facts = answers.drain_facts({**PROGRESS, **changes}, "a:1", now)
    assert facts.phase is phase
    assert facts.eta_seconds == 2


def test_a_phase_of_a_newer_version_is_not_guessed() -> None:
    with pytest.raises(Undecodable, match="resting"):
        answers.drain_facts({**PROGRESS, "phase": "resting"}, "a:1", 101.0)


def test_the_404_of_a_proxy_does_not_mean_that_nobody_drains_it() -> None:
    words = "bookie a:1 is not being decommissioned"
    assert answers.no_drain("a:1", words).phase is DrainPhase.ABSENT
    refused = answers.no_drain("a:1", f"{words}: not enough bookies")
    assert (refused.phase, refused.message) == (DrainPhase.REFUSED, "not enough bookies")
    for other in ("<html>Resource not found</html>", "", "bookie b:1 is not being decommissioned"):
        with pytest.raises(Undecodable):
            answers.no_drain("a:1", other)


def test_safety() -> None:
    facts = answers.safety_facts(SAFETY, frozenset({"a:1"}))
    assert not facts.safe
    assert facts.unrecoverable == (7,)
    assert len(facts.unrecoverable_hash) == 64
    assert answers.safety_facts({**SAFETY, "noCopy": 2}, frozenset({"a:1"})).unrecoverable_hash == ""
    with pytest.raises(Undecodable, match="going"):
        answers.safety_facts(SAFETY, frozenset({"a:1", "b:1"}))


@pytest.mark.parametrize(
    "space", [{"totalSpace": 0, "freeSpace": 0}, {"totalSpace": 1, "freeSpace": 2}, {"totalSpace": 1}, []]
)
def test_space_that_cannot_be_is_no_space(space: object) -> None:
    with pytest.raises(Undecodable):
        answers.bookie_facts({"readOnly": False}, space)


def test_a_bookie() -> None:
    facts = answers.bookie_facts({"readOnly": True}, {"totalSpace": 100, "freeSpace": 25}, {"a": "1"})
    assert (facts.read_only, facts.used_bytes, facts.free_bytes, facts.used_percent) == (True, 75, 25, 75.0)
    assert facts.config == {"a": "1"}
