"""What the pods' answers mean; and that what cannot be is never taken for a fact."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from bookie_operator.api import answers
from bookie_operator.world.facts import DrainPhase, Outlook
from bookie_protocol.admin_api.bodies import decode, plain
from bookie_protocol.admin_api.bookie import BookieSpace, ReadOnlyState
from bookie_protocol.admin_api.decommission import DecommissionOutlook, RiskyLedger, Safety
from bookie_protocol.errors import ProtocolViolation
from tests.support.fake_decommission import OUTLOOK, STATE
from tests.support.fake_facts import FACTS, PROOF

DRAIN = replace(STATE, updated_time=100_000, ledgers_left=5, seconds_left=1.6, blocked=0)
SAFETY = Safety(
    False,
    ["a:1"],
    9,
    2,
    1,
    1,
    0,
    [RiskyLedger(7, "no copy", 0, 0, 2, "x"), RiskyLedger(9, "below ack quorum", 0, 1, 2, "y")],
)


def test_settings_of_bookies_of_other_makes() -> None:
    told = {"a": "1", "b": 2, "c": True, "d": ["x", "y"], "e": None}
    assert answers.settings(told) == {"a": "1", "b": "2", "c": "true"}


def test_what_a_drain_would_have_to_do() -> None:
    found = replace(OUTLOOK, refusals=["no room"])
    meant = Outlook("b:1", 10, ("no room",), 1, 1000, 3, ("no auditor is elected",))
    assert answers.outlook(found, "b:1") == meant
    with pytest.raises(ProtocolViolation):
        answers.outlook(found, "a:1")


def test_the_state_of_the_cluster() -> None:
    facts = answers.cluster_facts(replace(FACTS, last_audit_ms=1500))
    assert facts.registered == {"a:1", "b:1", "c:1"}
    assert (facts.under_replicated, facts.auditor, facts.last_audit) == (7, "a:1", 1.5)
    nobody = answers.cluster_facts(replace(FACTS, auditor="", last_audit_ms=None))
    assert (nobody.auditor, nobody.last_audit) == (None, None)


def test_a_proof_is_about_one_bookie() -> None:
    found = answers.proof(replace(PROOF, claims=2), PROOF.bookie_id)
    assert (found.claims, found.instance_id) == (2, PROOF.instance_id)
    with pytest.raises(ProtocolViolation):
        answers.proof(PROOF, "z:1")


@pytest.mark.parametrize(
    ("changes", "now", "phase"),
    [
        ({}, 101.0, DrainPhase.RUNNING),
        ({"running_here": False}, 500.0, DrainPhase.INTERRUPTED),
        ({}, 500.0, DrainPhase.RUNNING),  # its clock is another one
        ({"blocked": 5}, 101.0, DrainPhase.BLOCKED),
        ({"blocked": 4}, 101.0, DrainPhase.RUNNING),
        ({"problem": "no session", "running_here": False}, 101.0, DrainPhase.INTERRUPTED),
        ({"phase": "proving", "ledgers_left": 0}, 101.0, DrainPhase.RUNNING),
        ({"phase": "done", "ledgers_left": 0}, 5000.0, DrainPhase.DRAINED),
        ({"phase": "undoing"}, 101.0, DrainPhase.INTERRUPTED),
    ],
)
def test_the_progress_of_a_drain(changes: dict[str, Any], now: float, phase: DrainPhase) -> None:
    facts = answers.drain_facts(replace(DRAIN, **changes), "b:1", now)
    assert facts.phase is phase
    assert facts.eta_seconds == 2


def test_nobody_drains_it() -> None:
    assert answers.no_drain("a:1", "").phase is DrainPhase.ABSENT
    refused = answers.no_drain("a:1", "not enough bookies")
    assert (refused.phase, refused.message) == (DrainPhase.REFUSED, "not enough bookies")


def test_safety() -> None:
    facts = answers.safety_facts(SAFETY, frozenset({"a:1"}))
    assert not facts.safe
    assert facts.unrecoverable == (7,)
    assert len(facts.unrecoverable_hash) == 64
    assert answers.safety_facts(replace(SAFETY, no_copy=2), frozenset({"a:1"})).unrecoverable_hash == ""
    with pytest.raises(ProtocolViolation):
        answers.safety_facts(SAFETY, frozenset({"a:1", "b:1"}))


@pytest.mark.parametrize("space", [BookieSpace(0, 0), BookieSpace(2, 1), BookieSpace(-1, 1)])
def test_space_that_cannot_be_is_no_space(space: BookieSpace) -> None:
    with pytest.raises(ProtocolViolation):
        answers.bookie_facts(ReadOnlyState(False), space, {})


def test_a_bookie() -> None:
    facts = answers.bookie_facts(ReadOnlyState(True), BookieSpace(25, 100), {"a": "1"})
    assert (facts.read_only, facts.used_bytes, facts.free_bytes, facts.used_percent) == (True, 75, 25, 75.0)
    assert facts.config == {"a": "1"}
    assert answers.bookie_facts(ReadOnlyState(True), BookieSpace(25, 100, 87.5), {}).used_percent == 87.5


@pytest.mark.parametrize(("kind", "name"), [(Safety, "noSlack"), (DecommissionOutlook, "largestEnsemble")])
def test_what_pods_of_an_older_version_do_not_tell_is_no_reason_to_wait_for_newer_ones(kind: type, name: str) -> None:
    """A rollout asks the old pods whether it is safe: it would never reach them."""
    told = plain(SAFETY if kind is Safety else OUTLOOK)
    del told[name]
    assert plain(decode(json.dumps(told).encode(), kind))[name] == 0
