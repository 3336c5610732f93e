"""VolumeAttributesClasses: claims ask for theirs, no bookie restarts, and what the storage makes of it is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bookie_operator.planner import operations
from bookie_operator.planner.actions import CreateStatefulSet, EvictPod, ExpandClaim, ModifyClaim, OrphanStatefulSet
from bookie_operator.planner.decision import Act, Finish, Record, Rest, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import expand, volume_attributes
from bookie_operator.planner.flows.expand import ATTEMPTS
from bookie_operator.world.model import AttributesView, ModifyState, World
from tests.support.operator_sim import Simulation, killed_everywhere
from tests.support.operator_sim.flows import acted, at_step, steps_taken
from tests.support.operator_sim.kubernetes import BAD_CLASS


def name_class(sim: Simulation, name: str | None = "gold", volume: str = "ledger") -> None:
    sim.change(storage={volume: {"volumeAttributesClassName": name}})


def classes(sim: Simulation, volume: str = "ledger") -> set[str]:
    return {one.current_attributes for one in sim.kubernetes.claims.values() if one.volume == volume}


def asked(sim: Simulation) -> list[tuple[str, str]]:
    return [(one.name, one.attributes_class) for one in acted(sim) if isinstance(one, ModifyClaim)]


def end(sim: Simulation) -> tuple[object, ...]:
    claims = sorted((one.name, one.current_attributes, one.uid) for one in sim.kubernetes.claims.values())
    sets = sorted(
        (one.name, one.replicas, tuple(one.volume_attributes.items())) for one in sim.kubernetes.sets.values()
    )
    return claims, sets, sorted(one.uid for one in sim.kubernetes.pods.values()), sim.status.operation


# --- the order --------------------------------------------------------------------------------------------------------


def test_every_claim_asks_and_the_set_is_made_anew_without_a_restart(four: Simulation) -> None:
    pods = {name: one.uid for name, one in four.kubernetes.pods.items()}
    name_class(four)
    four.run_until_rest()
    assert steps_taken(four) == ["Request", "Grow", "Orphan", "Recreate", "Adopt", "Orphan"]
    assert asked(four) == [(f"ledger-0-c-bookie-{number}", "gold") for number in range(4)]
    assert (classes(four), classes(four, "journal")) == ({"gold"}, {""})
    assert four.kubernetes.sets["c-bookie"].volume_attributes == {"ledger": "gold"}
    assert {name: one.uid for name, one in four.kubernetes.pods.items()} == pods
    assert [one.outcome for one in four.status.history] == ["Done"]


def test_no_operation_waits_for_the_driver(four: Simulation) -> None:
    name_class(four)
    four.run(lambda sim, _: bool(sim.status.history))
    assert classes(four) == {""}
    told = volume_attributes.waiting(four.world(), four.desired())
    assert isinstance(told, Wait)
    assert (told.reason, told.stalled) == ("ModifyingVolumes", False)
    assert told.message == (
        "waits until the volumes of claims ledger-0-c-bookie-0, ledger-0-c-bookie-1, ledger-0-c-bookie-2,"
        " ledger-0-c-bookie-3 have VolumeAttributesClass gold"
    )
    four.change(replicas=5)
    four.run(lambda sim, _: len(sim.kubernetes.pods) == 5, most=10)
    four.run_until_rest()
    assert classes(four) == {"gold"}


def test_whenever_the_operator_dies_it_ends_alike(four: Simulation) -> None:
    four.bookkeeper.writes = False
    assert killed_everywhere(four, name_class, end) > 5


def test_another_class_and_a_size_are_one_operation(four: Simulation) -> None:
    name_class(four)
    four.run_until_rest()
    four.passes.clear()
    four.change(storage={"ledger": {"volumeAttributesClassName": "silver", "size": "20Gi"}})
    four.run_until_rest()
    kinds = [type(one) for one in acted(four)]
    assert kinds == [*[ExpandClaim] * 4, *[ModifyClaim] * 4, OrphanStatefulSet, CreateStatefulSet]
    assert classes(four) == {"silver"}


def test_an_upgrade_that_waits_does_not_keep_claims_from_asking(four: Simulation) -> None:
    four.change(version="1.1", storage={"ledger": {"volumeAttributesClassName": "gold"}})
    four.run_until_rest()
    kinds = [type(one) for one in acted(four)]
    assert kinds.index(ModifyClaim) < kinds.index(EvictPod)
    assert kinds.index(OrphanStatefulSet) > len(kinds) - 1 - kinds[::-1].index(EvictPod)


# --- names that go ----------------------------------------------------------------------------------------------------


def test_without_a_name_volumes_keep_what_they_have_and_new_ones_get_none(four: Simulation) -> None:
    name_class(four)
    four.run_until_rest()
    four.passes.clear()
    name_class(four, None)
    four.run_until_rest()
    assert asked(four) == []
    assert four.kubernetes.sets["c-bookie"].volume_attributes == {}
    assert classes(four) == {"gold"}
    four.change(replicas=5)
    four.run_until_rest()
    assert four.kubernetes.claims["ledger-0-c-bookie-4"].current_attributes == ""


@pytest.mark.parametrize("before", [None, "gold"])
def test_a_name_that_was_refused_can_be_taken_out_again(four: Simulation, before: str | None) -> None:
    name_class(four, before)
    four.run_until_rest()
    name_class(four, BAD_CLASS)
    four.run_until_stalled("VolumeAttributesRefused")
    name_class(four, None)
    four.run_until_rest()
    assert {one.attributes for one in four.kubernetes.claims.values() if one.volume == "ledger"} == {before or ""}


def test_what_a_driver_is_at_is_left_to_it(four: Simulation) -> None:
    name_class(four)
    four.run(lambda sim, _: bool(sim.status.history))
    name_class(four, None)
    four.run_until_rest()
    assert ("ledger-0-c-bookie-0", "") not in asked(four)
    four.advance(30)
    assert classes(four) == {"gold"}


# --- what the storage makes of it -------------------------------------------------------------------------------------


def told(sim: Simulation, state: ModifyState, message: str = "", **changes: Any) -> Wait | None:
    """Of a world where one claim asks for `gold`, and this has become of it."""
    name_class(sim)
    world = sim.world()
    view = AttributesView("gold", "", state, message)
    claims = tuple(
        replace(one, attributes=view, **changes) if one.name == "ledger-0-c-bookie-2" else one for one in world.claims
    )
    return volume_attributes.waiting(replace(world, claims=claims), sim.desired())


@pytest.mark.parametrize(
    ("state", "message", "reason", "words"),
    [
        (
            ModifyState.FAILED,
            "iops too high",
            "VolumeAttributesRefused",
            "the volumes of claim ledger-0-c-bookie-2 (iops too high) could not be given VolumeAttributesClass gold:"
            " let spec.storage.ledger.volumeAttributesClassName name a class that their driver accepts, or take it out",
        ),
        (
            ModifyState.PENDING,
            "",
            "VolumeAttributesClassMissing",
            "the volumes of claim ledger-0-c-bookie-2 wait for VolumeAttributesClass gold: create it, if there is none",
        ),
        (
            ModifyState.NONE,
            "",
            "VolumeAttributesIgnored",
            "no driver has begun to give VolumeAttributesClass gold to the volumes of claim ledger-0-c-bookie-2: their"
            " driver has to be able to change volumes",
        ),
    ],
)
def test_what_does_not_come_about_is_told_with_the_remedy(
    four: Simulation, state: ModifyState, message: str, reason: str, words: str
) -> None:
    found = told(four, state, message)
    assert isinstance(found, Wait)
    assert (found.reason, found.stalled) == (reason, True)
    assert found.message.startswith(words)


def test_nobody_is_blamed_while_the_driver_has_time(four: Simulation) -> None:
    name_class(four)
    four.run(lambda sim, _: bool(sim.status.history))
    for waited, reason in ((1.0, "ModifyingVolumes"), (volume_attributes.PATIENCE_S, "VolumeAttributesIgnored")):
        world = four.world()
        idle = tuple(replace(one, attributes=AttributesView(one.attributes.requested)) for one in world.claims)
        found = volume_attributes.waiting(replace(world, claims=idle, now=four.now + waited), four.desired())
        assert isinstance(found, Wait)
        assert found.reason == reason


def test_a_class_that_is_refused_keeps_nothing_else_from_going_on(four: Simulation) -> None:
    name_class(four, BAD_CLASS)
    four.run_until_stalled("VolumeAttributesRefused")
    assert len(asked(four)) == 4
    four.change(replicas=5, version="1.1")
    four.run(lambda sim, _: len(sim.kubernetes.pods) == 5 and {p.image for p in sim.kubernetes.pods.values()} == {""})
    four.advance(5_000)
    four.run_until_stalled("VolumeAttributesRefused")
    assert len(asked(four)) == 4, "claims that ask already are not asked again"
    name_class(four, "gold")
    four.run_until_rest()
    assert classes(four) == {"gold"}


def test_claims_without_a_volume_are_told_once_their_pod_waits(four: Simulation) -> None:
    assert told(four, ModifyState.NONE, bound=False) is None
    four.advance(volume_attributes.BINDING_S)
    found = told(four, ModifyState.NONE, bound=False)
    assert isinstance(found, Wait)
    assert (found.reason, found.stalled) == ("VolumeAttributesClassMissing", True)
    assert "spec does not name any more" not in found.message
    name_class(four, "silver")
    four.run_until_rest()
    world = four.world()
    claims = tuple(
        replace(one, bound=False, attributes=AttributesView("gold")) if one.name == "ledger-0-c-bookie-2" else one
        for one in world.claims
    )
    other = volume_attributes.waiting(replace(world, claims=claims), four.desired())
    assert isinstance(other, Wait)
    assert other.message == (
        "no volume is made for claim ledger-0-c-bookie-2 with VolumeAttributesClass gold, which spec does not name any"
        " more. Kubernetes lets only claims that have a volume ask for another class: delete these, which hold no data,"
        " and they are made again"
    )
    assert "ledger-0-c-bookie-2" not in {
        claim.name for claim in volume_attributes.to_ask(replace(world, claims=claims), four.desired())
    }


# --- what Kubernetes makes of it --------------------------------------------------------------------------------------


def without_classes(sim: Simulation) -> Desired:
    desired = sim.desired()
    return replace(desired, stateful_sets=tuple(replace(one, volume_attributes=None) for one in desired.stateful_sets))


def test_a_kubernetes_without_such_classes_is_left_alone(four: Simulation) -> None:
    name_class(four)
    four.run_until_rest()
    name_class(four, "silver")
    assert expand.begin(four.world(), without_classes(four)) is None
    assert volume_attributes.waiting(four.world(), without_classes(four)) is None


def dropping(world: World) -> World:
    """Claims are as if they had never been asked."""
    return replace(world, claims=tuple(replace(one, attributes=AttributesView()) for one in world.claims))


def test_a_name_that_is_dropped_is_tried_on_one_claim_and_told(four: Simulation) -> None:
    name_class(four)
    at_step(four, "Request")
    tried = []
    for _ in range(20):
        world = dropping(four.world())
        operation = four.status.operation
        assert operation is not None
        decision = expand.proceed(world, four.desired(), operation)
        four.status = operations.after(four.status, decision, four.now)
        if isinstance(decision, Act) and isinstance(decision.action, ModifyClaim):
            tried.append(decision.action.name)
        elif isinstance(decision, Act):
            break
    assert tried == ["ledger-0-c-bookie-0"]
    four.kubernetes.sets["c-bookie"].volume_attributes = {"ledger": "gold"}
    operation = four.status.operation
    assert operation is not None
    ended = expand.proceed(dropping(four.world()), four.desired(), operation.model_copy(update={"step": "Orphan"}))
    assert isinstance(ended, Finish)
    assert ended.outcome == "Failed"
    assert ended.message.startswith("claim ledger-0-c-bookie-0 does not keep the VolumeAttributesClass (gold)")
    assert "enable the feature VolumeAttributesClass of Kubernetes" in ended.message


def test_templates_that_are_dropped_are_not_made_again_and_again(four: Simulation) -> None:
    name_class(four)
    created = 0
    for _ in range(60):
        decision = four.run_pass().plan.decision
        created += isinstance(decision, Act) and isinstance(decision.action, CreateStatefulSet)
        for one in four.kubernetes.sets.values():
            one.volume_attributes.clear()
        four.advance(2)
        if four.status.history:
            break
    assert created == 1
    assert four.status.history[0].outcome == "Failed"
    assert "does not have the claim templates that it was given" in four.status.history[0].message


def test_claims_that_cannot_be_asked_have_their_turns_and_then_a_rest(four: Simulation) -> None:
    name_class(four)
    at_step(four, "Request")
    assert four.status.operation is not None
    tried = set()
    for attempts in range(4 * ATTEMPTS):
        operation = four.status.operation.model_copy(update={"attempts": attempts})
        decision = expand.proceed(four.world(), four.desired(), operation)
        assert isinstance(decision, Act)
        assert isinstance(decision.action, ModifyClaim)
        tried.add(decision.action.name)
    assert len(tried) == 4
    operation = four.status.operation.model_copy(update={"attempts": 4 * ATTEMPTS, "message": "quota: exceeded"})
    decision = expand.proceed(four.world(), four.desired(), operation)
    assert isinstance(decision, Finish)
    assert "quota: exceeded" in decision.message
    four.status = operations.after(four.status, decision, four.now)
    assert isinstance(expand.begin(four.world(), four.desired()), Wait)
    four.advance(301)
    assert isinstance(expand.begin(four.world(), four.desired()), Record)


def test_nothing_is_told_where_nobody_names_a_class(four: Simulation) -> None:
    assert volume_attributes.waiting(four.world(), four.desired()) is None
    assert isinstance(four.run_pass().plan.decision, Rest)
