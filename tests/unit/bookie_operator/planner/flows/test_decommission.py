"""Taking bookies out: the order of the steps, what stands in the way, and the death of the operator anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie_operator.crds.cluster_status import OperationType
from bookie_operator.planner.actions import (
    BeginDrain,
    DeleteClaim,
    DeleteCookie,
    RetireClaim,
    ScaleStatefulSet,
    SetReadOnly,
    TriggerAudit,
)
from bookie_operator.planner.decision import Record, Wait
from bookie_operator.planner.flows import decommission
from bookie_operator.planner.plan import needs
from tests.support.operator_sim import Simulation, killed_everywhere
from tests.support.operator_sim.bookkeeper import SimLedger
from tests.support.operator_sim.flows import acted, at_step, steps_taken
from tests.support.operator_sim.going import GOING, SERVING, STOPPED, fewer, settled, what_is_left

# --- the order --------------------------------------------------------------------------------------------------------


def test_it_is_drained_and_proven_twice_before_it_stops_and_once_more_before_anything_is_deleted(
    five: Simulation,
) -> None:
    fewer(five)
    five.run_until_rest()
    assert steps_taken(five) == [*SERVING, *STOPPED]
    flow = [one for one in acted(five) if not type(one).__name__.startswith(("Apply", "Record"))]
    assert [type(one) for one in flow] == [
        TriggerAudit,
        SetReadOnly,
        BeginDrain,
        TriggerAudit,
        TriggerAudit,
        ScaleStatefulSet,
        DeleteCookie,
        DeleteClaim,
        DeleteClaim,
    ]
    assert not five.accidents
    assert sorted(five.kubernetes.pods) == [f"c-bookie-{one}" for one in range(4)]
    assert five.bookkeeper.naming(five.desired().bookie_id(GOING)) == []
    assert [(one.id, one.outcome) for one in five.status.history] == [("Decommission-1", "Done")]


def test_two_go_one_after_the_other_the_highest_first() -> None:
    sim = settled(replicas=12)
    sim.change(replicas=10)
    sim.run_until_rest()
    assert [one.bookie for one in sim.status.history] == ["c-bookie-10", "c-bookie-11"]
    assert not sim.accidents


def test_zones_stay_even() -> None:
    zones = {"zones": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}
    sim = settled(replicas=8, placement=zones)
    sim.change(replicas=5)
    sim.run_until_rest()
    assert [one.bookie for one in reversed(sim.status.history)] == ["c-bookie-a-2", "c-bookie-b-2", "c-bookie-c-1"]
    assert not sim.accidents


def test_volumes_are_kept_and_labelled_where_spec_says_so(five: Simulation) -> None:
    five.change(replicas=4, storage={"retention": {"whenScaled": "Retain"}})
    five.run_until_rest()
    kept = five.kubernetes.claims_of(GOING)
    assert [bool(one.retired_proof) for one in kept] == [True, True]
    assert not any(isinstance(one, DeleteClaim) for one in acted(five))
    assert sum(isinstance(one, RetireClaim) for one in acted(five)) == 2
    assert not five.accidents


def test_one_that_is_stopped_first_is_drained_from_the_others() -> None:
    sim = settled(replicas=5, decommission={"mode": "StopFirst", "stallSeconds": 600})
    fewer(sim)
    sim.run_until_rest()
    assert steps_taken(sim) == ["Audit", "Stop", "Leave", "Drain", "ProveGone", "Cookie", "Claims"]
    assert [one.stopped for one in acted(sim) if isinstance(one, BeginDrain)] == [True]
    assert not sim.accidents


def test_one_that_is_stopped_first_waits_for_the_look_at_another_one() -> None:
    """No mark tells which of its entries the other one lacks."""
    sim = settled(replicas=5, decommission={"mode": "StopFirst", "stallSeconds": 600})
    fewer(sim)
    at_step(sim, "Stop")
    seen, operation = sim.world(needs(sim.world(), sim.desired())), sim.status.operation
    assert seen.facts is not None
    assert operation is not None
    assert isinstance(decommission.proceed(seen, sim.desired(), operation), Record), "it may be stopped"
    for name, waits in ((GOING, False), ("c-bookie-1", True)):
        unchecked = replace(seen, facts=replace(seen.facts, unchecked=frozenset({sim.desired().bookie_id(name)})))
        decision = decommission.proceed(unchecked, sim.desired(), operation)
        assert isinstance(decision, Wait) is waits
        assert not waits or decision.reason == "CopiesUnchecked"


# --- the operator dies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [{}, {"storage": {"retention": {"whenScaled": "Retain"}}}, {"decommission": {"mode": "StopFirst"}}],
    ids=["delete", "retain", "stop first"],
)
def test_whenever_the_operator_dies_it_ends_alike(changes: dict[str, object]) -> None:
    sim = settled(replicas=5, **changes)
    sim.bookkeeper.writes = False
    assert killed_everywhere(sim, fewer, what_is_left) > 15


# --- gates ------------------------------------------------------------------------------------------------------------

Change = Callable[[Simulation], object]


def mark(sim: Simulation) -> None:
    sim.bookkeeper.marks.add(0)


def disable_writing(sim: Simulation) -> None:
    sim.bookkeeper.read_only.add(sim.desired().bookie_id("c-bookie-1"))


def unreachable(sim: Simulation) -> None:
    sim.bookkeeper.up = False


def unaudited(sim: Simulation) -> None:
    sim.bookkeeper.auditor_up = False


def widen(sim: Simulation) -> None:
    sim.change(durability={"ensembleSize": 5})


def restart_another(sim: Simulation) -> None:
    sim.kubernetes.kill_pod("c-bookie-1")


def silence(sim: Simulation) -> None:
    sim.bookkeeper.stop(sim.desired().bookie_id(GOING))


def fill(sim: Simulation) -> None:
    bookie_id = sim.desired().bookie_id(GOING)
    sim.bookkeeper.ledgers.update({key: SimLedger([bookie_id], {"x"}) for key in range(1000, 40000)})


def on_all(sim: Simulation) -> None:
    """Of an ensemble as large as the cluster was, whatever `spec` says now."""
    everyone = [sim.desired().bookie_id(name) for name in sim.kubernetes.pods]
    sim.bookkeeper.ledgers[1000] = SimLedger(everyone, {sim.bookkeeper.running[one] for one in everyone})


REFUSALS: list[tuple[str, str, bool, Change]] = [
    ("MetadataUnreachable", "can tell the state of the cluster: nobody answers", False, unreachable),
    ("DecommissionBlocked", "there would be 4 bookies, and durability.ensembleSize is 5", True, widen),
    ("NoSpareBookie", "1 ledgers have no other writable bookie to go to", True, on_all),
    ("BookieUnavailable", "every other bookie serves: c-bookie-1 is read-only", False, disable_writing),
    ("BookieUnavailable", "every other bookie serves: c-bookie-1 is not ready", False, restart_another),
    ("WaitingForReplication", "1 ledger is under-replicated", False, mark),
    ("NoAuditor", "no auditor is elected", True, unaudited),
    ("DecommissionBlocked", "does not tell how much it stores", True, silence),
    ("NotEnoughSpace", "grow spec.storage.ledger.size", True, fill),
]


@pytest.mark.parametrize(("reason", "words", "stalled", "change"), REFUSALS, ids=[one[1][:40] for one in REFUSALS])
def test_it_does_not_begin(five: Simulation, reason: str, words: str, stalled: bool, change: Change) -> None:
    fewer(five)
    change(five)
    decision = decommission.begin(five.world(needs(five.world(), five.desired())), five.desired())
    assert isinstance(decision, Wait)
    assert (decision.reason, decision.stalled) == (reason, stalled)
    assert words in decision.message


def test_smaller_ensembles_in_the_same_patch_make_nothing_read_only() -> None:
    """The ledgers that there are still need every bookie."""
    sim = settled(replicas=5, durability={"ensembleSize": 5, "writeQuorum": 3, "ackQuorum": 2})
    sim.bookkeeper.ensemble = 5
    sim.advance(30)
    sim.change(replicas=4, durability={"ensembleSize": 3})
    sim.run_until_stalled("NoSpareBookie")
    assert len(sim.bookkeeper.writable) == 5
    assert sim.status.operations_begun == 0
    sim.bookkeeper.ensemble = 3
    sim.bookkeeper.ledgers = {key: one for key, one in sim.bookkeeper.ledgers.items() if len(one.ensemble) < 5}
    sim.run_until_rest()
    assert len(sim.kubernetes.pods) == 4
    assert not sim.accidents


def test_what_has_nowhere_to_go_by_then_stays_writable(five: Simulation) -> None:
    fewer(five)
    at_step(five, "ReadOnly")
    on_all(five)
    five.run(lambda sim, _: sim.status.operation is None)
    assert five.status.history[0].outcome == "Cancelled"
    assert "nowhere to go" in five.status.history[0].message
    assert not any(isinstance(one, SetReadOnly) for one in acted(five))


def test_nothing_is_wanted(five: Simulation) -> None:
    assert decommission.begin(five.world(), five.desired()) is None


def test_a_task_takes_out_what_spec_gave_up_only(five: Simulation) -> None:
    decision = decommission.awaited(five.desired(), GOING)
    assert decision.stalled
    told = "spec asks for c-bookie-{0}: lower spec.replicas to {0}, for bookies leave from the highest number on"
    assert decision.message == told.format(4)
    fewer(five)
    assert decommission.awaited(five.desired(), "c-bookie-1").message == told.format(1)
    five.change(replicas=3)
    decision = decommission.awaited(five.desired(), "c-bookie-3")
    assert (decision.message, decision.stalled) == ("waits until c-bookie-3 is taken out, which spec asks for", False)


def test_a_claim_that_a_finalizer_keeps_holds_up_only_the_next_bookie_of_its_name(five: Simulation) -> None:
    kept = five.kubernetes.claims[f"ledger-0-{GOING}"]
    kept.kept_by = "backup.example/keep"
    fewer(five)
    five.run_until_rest()
    assert [one.outcome for one in five.status.history] == ["Done"]
    assert kept.name in five.kubernetes.claims
    five.change(replicas=5)
    five.run_until_stalled("ClaimsTerminating")
    assert five.status.operation is None, "nothing else has to wait for it"
    told = str(five.passes[-1].plan)
    assert kept.name in told
    assert kept.kept_by in told
    five.change(version="2.0")
    five.run(lambda sim, _: [one.type for one in sim.status.history[:1]] == [OperationType.ROLLOUT], most=300)
    kept.kept_by = ""
    five.run_until_rest()
    assert len(five.kubernetes.pods) == 5
    assert not five.accidents
