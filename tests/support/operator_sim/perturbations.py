"""One thing of a snapshot is otherwise than it was: what another moment, another hand or a fault made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from bookie_operator.crds import names
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.world.facts import DrainPhase
from bookie_operator.world.model import AttributesView, ModifyState, PodFault, ResizeState, TaskView, World

Perturbation = Callable[[World, int], World]
"""With a number that chooses among things and values."""


def _one(things: tuple[Any, ...], number: int, **changes: Any) -> tuple[Any, ...]:
    if not things:
        return things
    place = number % len(things)
    return (*things[:place], replace(things[place], **changes), *things[place + 1 :])


def _without(things: tuple[Any, ...], number: int) -> tuple[Any, ...]:
    place = number % len(things) if things else 0
    return (*things[:place], *things[place + 1 :])


def pod_is(**changes: Any) -> Perturbation:
    return lambda world, number: replace(world, pods=_one(world.pods, number, **changes))


def claim_is(**changes: Any) -> Perturbation:
    return lambda world, number: replace(world, claims=_one(world.claims, number, **changes))


def set_is(**changes: Any) -> Perturbation:
    return lambda world, number: replace(world, stateful_sets=_one(world.stateful_sets, number, **changes))


def facts_are(**changes: Any) -> Perturbation:
    def changed(world: World, number: int) -> World:
        return world if world.facts is None else replace(world, facts=replace(world.facts, **changes))

    return changed


def proofs_are(**changes: Any) -> Perturbation:
    def changed(world: World, number: int) -> World:
        found = {key: replace(one, **changes) if one is not None else None for key, one in world.proofs.items()}
        return replace(world, proofs=found)

    return changed


def drains_are(phase: DrainPhase) -> Perturbation:
    def changed(world: World, number: int) -> World:
        found = {key: replace(one, phase=phase) if one is not None else None for key, one in world.drains.items()}
        return replace(world, drains=found)

    return changed


def safety_is(**changes: Any) -> Perturbation:
    def changed(world: World, number: int) -> World:
        found = {key: replace(one, **changes) if one is not None else None for key, one in world.safety.items()}
        return replace(world, safety=found)

    return changed


def cluster_is(**changes: Any) -> Perturbation:
    return lambda world, number: replace(world, cluster=replace(world.cluster, **changes))


def spec_is(**changes: Any) -> Perturbation:
    def changed(world: World, number: int) -> World:
        spec = world.cluster.spec.model_copy(update=changes)
        return replace(world, cluster=replace(world.cluster, spec=spec))

    return changed


def scaled(world: World, number: int) -> World:
    return replace(world, stateful_sets=_one(world.stateful_sets, number, replicas=number % 7))


def unregistered(world: World, number: int) -> World:
    if world.facts is None or not world.facts.writable:
        return world
    gone = sorted(world.facts.writable)[number % len(world.facts.writable)]
    return replace(world, facts=replace(world.facts, writable=world.facts.writable - {gone}))


def read_only(world: World, number: int) -> World:
    if world.facts is None or not world.facts.writable:
        return world
    one = sorted(world.facts.writable)[number % len(world.facts.writable)]
    facts = replace(world.facts, writable=world.facts.writable - {one}, read_only=world.facts.read_only | {one})
    return replace(world, facts=facts)


def later(world: World, number: int) -> World:
    return replace(world, now=world.now + 10.0 ** (number % 6))


def asked(world: World, number: int) -> World:
    kind = tuple(TaskType)[number % len(TaskType)]
    bookie = f"c-bookie-{number % 5}"
    task = TaskView("t", "uid-t", kind, (bookie,), ("", "Running")[number % 2], world.now - 1, (1, 2))
    return replace(world, tasks=(*world.tasks, task))


PERTURBATIONS: Final[tuple[Perturbation, ...]] = (
    lambda world, number: replace(world, pods=_without(world.pods, number)),
    lambda world, number: replace(world, claims=_without(world.claims, number)),
    lambda world, number: replace(world, stateful_sets=_without(world.stateful_sets, number)),
    lambda world, number: replace(world, pods=()),
    lambda world, number: replace(world, facts=None, proofs={}, drains={}, safety={}),
    lambda world, number: replace(world, proofs=dict.fromkeys(world.proofs)),
    lambda world, number: replace(world, drains=dict.fromkeys(world.drains)),
    lambda world, number: replace(world, safety=dict.fromkeys(world.safety)),
    lambda world, number: replace(world, bookies=dict.fromkeys(world.bookies)),
    lambda world, number: replace(world, nodes=None),
    lambda world, number: replace(world, backup=None),
    lambda world, number: replace(world, etcd=None),
    lambda world, number: replace(world, expandable=None),
    lambda world, number: replace(world, identity=None),
    lambda world, number: replace(world, object_hashes={}, object_uids={}),
    lambda world, number: replace(world, spec_errors=("spec: wrong",)),
    pod_is(ready=False),
    pod_is(deleting=True),
    pod_is(uid="another"),
    pod_is(ready=False, fault=PodFault.COOKIE),
    pod_is(ready=False, fault=PodFault.VOLUME),
    pod_is(ready=False, fault=PodFault.IMAGE),
    pod_is(template_hash="another"),
    pod_is(owner_uid=""),
    pod_is(ready=False, fault=PodFault.UNSCHEDULABLE, kept_by_cordon=True),
    claim_is(uid="another"),
    claim_is(deleting=True),
    claim_is(lost=True, bound=False),
    claim_is(foreign=True, instance_id=""),
    claim_is(foreign=True, instance_id="", adoption=True),
    claim_is(deleting=True, deleting_since=0.0, finalizers=("backup.example/keep",)),
    claim_is(retired=True, retired_proof="0 ledgers"),
    claim_is(instance_id="another"),
    claim_is(requested="1Gi", actual="1Gi"),
    claim_is(resize=ResizeState.FAILED, message="no space"),
    claim_is(attributes=AttributesView("another")),
    claim_is(attributes=AttributesView("another", "gold", ModifyState.FAILED, "no")),
    claim_is(attributes=AttributesView("another"), bound=False),
    set_is(volume_attributes={"ledger": "another"}),
    set_is(volume_classes={"ledger": "another"}),
    set_is(generation=99),
    set_is(deleting=True),
    set_is(template_hash="another"),
    set_is(inputs_hash="another"),
    set_is(template_hash="another", inputs_hash=""),
    facts_are(instance_id="another"),
    facts_are(under_replicated=3),
    facts_are(auditor=None),
    facts_are(last_audit=None),
    facts_are(unchecked=None),
    facts_are(lost_bookie_recovery_delay=1),
    facts_are(cookies=frozenset()),
    facts_are(cookies=frozenset({"other-bookie-0.other-bookie.ns.svc:3181"})),
    proofs_are(ledgers=1),
    proofs_are(marks=1),
    proofs_are(registered=True),
    proofs_are(auditor=None),
    proofs_are(last_audit=1.0),
    proofs_are(instance_id="another"),
    safety_is(below_ack_quorum=1),
    safety_is(without_copy=1),
    safety_is(unknown=1),
    *(drains_are(phase) for phase in DrainPhase),
    cluster_is(deleting=True),
    cluster_is(annotations={names.PAUSED: "true"}),
    cluster_is(annotations={names.CONFIRM_DELETE: "c"}),
    spec_is(replicas=3),
    spec_is(replicas=7),
    spec_is(version="9.0"),
    scaled,
    unregistered,
    read_only,
    later,
    asked,
)
