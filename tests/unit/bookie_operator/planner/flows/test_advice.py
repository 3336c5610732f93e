"""Whatever a message advises is done in the state in which it is told, and helps: the cluster comes to rest.

What is advised is read from the source. A clause that begins with what somebody is to do, or that names a command, has
a row in `TABLE`, or a test elsewhere that does it.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

import bookie_operator
from bookie_operator.crds import names
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner.decision import Wait
from bookie_operator.world.model import PodFault
from bookie_pod.cli.main import cli
from tests.support.operator_sim import Simulation
from tests.support.operator_sim.bookkeeper import SimLedger
from tests.support.operator_sim.flows import at_step
from tests.support.operator_sim.going import GOING, LOST, fewer, lose, settled, wipe_ledger
from tests.support.operator_sim.kubernetes import BAD_CLASS, BAD_IMAGE, SimClaim

Change = Callable[[Simulation], object]


class Advice(NamedTuple):
    of: dict[str, object]
    """The cluster, as it differs from others."""
    state: Change
    reason: str
    words: str
    """Of the message: what is advised."""
    done: Change


# --- states -----------------------------------------------------------------------------------------------------------


def too_many(sim: Simulation) -> None:
    sim.kubernetes.room = 4
    sim.change(replicas=5)


def lost(sim: Simulation) -> None:
    sim.forgiven = True
    lose(sim)


def lost_while_it_goes(sim: Simulation) -> None:
    sim.forgiven = True
    fewer(sim)
    at_step(sim, "ReadOnly")
    sim.kubernetes.lose_volume(GOING)


def wiped(sim: Simulation) -> None:
    sim.forgiven = True
    wipe_ledger(sim)


def on_everyone(sim: Simulation) -> None:
    ids = [sim.desired().bookie_id(name) for name in sim.kubernetes.pods]
    sim.bookkeeper.ledgers[1000] = SimLedger(ids, set(sim.bookkeeper.running.values()))
    fewer(sim)


def wider(sim: Simulation) -> None:
    sim.change(replicas=4, durability={"ensembleSize": 5})


def full(sim: Simulation) -> None:
    bookie_id = sim.desired().bookie_id(GOING)
    disk = {sim.bookkeeper.running[bookie_id]}
    sim.bookkeeper.ledgers.update({key: SimLedger([bookie_id], disk) for key in range(1000, 40000)})
    fewer(sim)


def broken_image(sim: Simulation) -> None:
    sim.change(image=BAD_IMAGE)


def last_copies(sim: Simulation) -> None:
    sim.forgiven = True
    bookie_id = sim.desired().bookie_id(LOST)
    sim.bookkeeper.ledgers[1000] = SimLedger([bookie_id], {sim.bookkeeper.running[bookie_id]})
    lose(sim)
    sim.ask(TaskType.REPLACE, LOST)


def silent_node(sim: Simulation) -> None:
    sim.kubernetes.lose_node(sim.kubernetes.pods[LOST].node)


def marked(sim: Simulation) -> None:
    """For good: of a ledger that named one bookie more than there are."""
    ids = [sim.desired().bookie_id(name) for name in sim.kubernetes.pods]
    sim.bookkeeper.ledgers[1000] = SimLedger(["gone:3181", *ids], set(sim.bookkeeper.running.values()))
    sim.bookkeeper.marks.add(1000)
    sim.change(version="2.0")


def going_claim(sim: Simulation) -> None:
    sim.forgiven = True
    sim.kubernetes.claims_of(LOST)[0].deleting = True


def leftover(sim: Simulation) -> None:
    """Claims of an earlier bookie that nobody retired."""
    sim.kubernetes.claims["ledger-0-c-bookie-4"] = SimClaim(
        "ledger-0-c-bookie-4", "uid-left", "c-bookie-4", "ledger", "10Gi", "10Gi", sim.status.instance_id
    )
    sim.change(replicas=5)


def without_auditor(sim: Simulation) -> None:
    sim.change(autorecovery={"enabled": False})
    sim.run_until_rest()
    fewer(sim)


def manual(sim: Simulation) -> None:
    sim.change(version="2.0")


def newer_image_and_one_more(sim: Simulation) -> None:
    sim.change(image=BAD_IMAGE, replicas=5)


def broken_image_of_new_ones(sim: Simulation) -> None:
    broken_image(sim)
    sim.run(lambda one, _: bool(_messages(one, "CanaryFailed")), most=900)
    sim.change(replicas=5)


def cordoned(sim: Simulation) -> None:
    sim.kubernetes.cordoned.add(sim.kubernetes.pods[LOST].node)
    sim.kubernetes.stop_pod(sim.kubernetes.pods[LOST])


def volume_gone_in_a_roll(sim: Simulation) -> None:
    sim.forgiven = True
    sim.change(version="2.0")
    at_step(sim, "Await")
    sim.kubernetes.lose_volume("c-bookie-3")


def cannot_start(fault: PodFault) -> Change:
    def state(sim: Simulation) -> None:
        sim.kubernetes.faults[LOST] = fault
        sim.kubernetes.kill_pod(LOST)

    return state


def drained_by_somebody(sim: Simulation) -> None:
    sim.bookkeeper.begin_drain(sim.desired().bookie_id(LOST), False, ())
    sim.advance(1)
    sim.bookkeeper.interrupt_drains()


def silent(sim: Simulation) -> None:
    sim.kubernetes.silent.add(GOING)
    fewer(sim)


def disabled(sim: Simulation) -> None:
    sim.bookkeeper.autorecovery_enabled = False
    fewer(sim)


def being_recovered(sim: Simulation) -> None:
    sim.bookkeeper.recovering = 1
    fewer(sim)


def replaced_though_it_serves(sim: Simulation) -> None:
    sim.ask(TaskType.REPLACE, GOING)


def restarted_by_hand(sim: Simulation) -> None:
    sim.change(version="2.0")
    sim.ask(TaskType.RESTART)


def too_many_last_copies(sim: Simulation) -> None:
    sim.bookkeeper.most_named = 0
    last_copies(sim)


def foreign_metadata(sim: Simulation) -> None:
    sim.bookkeeper.instance_id = "another"


def fixed_class(sim: Simulation) -> None:
    sim.kubernetes.storage_class, sim.kubernetes.expandable = "slow", False
    grow(sim)


def grow(sim: Simulation) -> None:
    sim.change(storage={"ledger": {"size": "20Gi"}})


def classed(name: str | None) -> Change:
    return lambda sim: sim.change(storage={"ledger": {"volumeAttributesClassName": name}})


def missing_class(sim: Simulation) -> None:
    sim.kubernetes.missing_classes.add("gold")
    classed("gold")(sim)


def driver_without(sim: Simulation) -> None:
    sim.kubernetes.changes_volumes = False
    classed("gold")(sim)


def dropped_class(sim: Simulation) -> None:
    sim.kubernetes.drops_classes = True
    classed("gold")(sim)


def leftover_without_auditor(sim: Simulation) -> None:
    sim.change(autorecovery={"enabled": False})
    sim.run_until_rest()
    sim.bookkeeper.cookies[sim.desired().bookie_id(GOING)] = "old"
    sim.change(replicas=5)


def leftover_bookie(sim: Simulation) -> None:
    bookie_id, (one, disk) = sim.desired().bookie_id(GOING), next(iter(sim.bookkeeper.running.items()))
    sim.bookkeeper.cookies[bookie_id] = "old"
    sim.bookkeeper.ledgers[1000] = SimLedger([bookie_id, one], {disk})
    sim.change(replicas=5)


# --- what is done -----------------------------------------------------------------------------------------------------


def restored(sim: Simulation) -> None:
    (bookie,) = {claim.bookie for claim in sim.kubernetes.claims.values() if claim.lost}
    for claim in sim.kubernetes.claims_of(bookie):
        claim.lost, claim.data_id = False, sim.bookkeeper.cookies[sim.desired().bookie_id(bookie)]
    if bookie in sim.kubernetes.pods:
        sim.kubernetes.stop_pod(sim.kubernetes.pods[bookie])


def taken_back(sim: Simulation) -> None:
    sim.bookkeeper.undo_drain(sim.desired().bookie_id(LOST))


def copied(sim: Simulation) -> None:
    """Auto-recovery has done it."""
    ledger = sim.bookkeeper.ledgers[1000]
    others = [each for each in sim.bookkeeper.running.items() if each[0] not in ledger.ensemble]
    ledger.ensemble[0] = others[0][0]
    ledger.copies.add(others[0][1])


def by_hand(of: str, **changes: object) -> Change:
    """Outside of the cluster's spec: `kubernetes.quota`, 5 for example."""

    def done(sim: Simulation) -> None:
        for name, value in changes.items():
            setattr(getattr(sim, of), name, value)

    return done


def replaced(sim: Simulation) -> None:
    sim.ask(TaskType.REPLACE, LOST)


def four(sim: Simulation) -> None:
    sim.change(replicas=4)


def five(sim: Simulation) -> None:
    sim.change(replicas=5)


def deleted_ledgers(sim: Simulation) -> None:
    sim.bookkeeper.ledgers = {key: one for key, one in sim.bookkeeper.ledgers.items() if key < 1000}


def skipped(sim: Simulation) -> None:
    message = str(sim.passes[-1].plan)
    sim.annotations[names.SKIP_REPLICATION_CHECK] = message.partition(f"{names.SKIP_REPLICATION_CHECK}=")[2].split("'")[
        0
    ]
    sim.run(lambda one, _: bool(one.status.history), most=900)
    deleted_ledgers(sim)
    sim.bookkeeper.marks.discard(1000)


def accepted_by_annotation(sim: Simulation) -> None:
    message = _told(sim, "LedgersUnrecoverable")
    sim.annotations[names.ACCEPT_LEDGER_LOSS] = message.partition(f"{names.ACCEPT_LEDGER_LOSS}=")[2].split(",")[0]
    deleted_afterwards(sim)


def accepted_by_task(sim: Simulation) -> None:
    sim.ask(TaskType.ACCEPT_LOSS, ledgers=(1000,))
    deleted_afterwards(sim)


def deleted_afterwards(sim: Simulation) -> None:
    """A ledger that was given up keeps its mark until somebody deletes it."""
    sim.run(lambda one, _: any(each.outcome == "Done" for each in one.status.history), most=900)
    sim.bookkeeper.ledgers.pop(1000)
    sim.bookkeeper.marks.discard(1000)


def vouched_for(sim: Simulation) -> None:
    sim.kubernetes.out_of_service |= sim.kubernetes.lost_nodes
    sim.advance(5)
    sim.kubernetes.lost_nodes.clear()


def drained_and_replaced(sim: Simulation) -> None:
    bookie_id = sim.desired().bookie_id(LOST)
    sim.bookkeeper.begin_drain(bookie_id, False, ())
    sim.advance(300)
    assert not sim.bookkeeper.naming(bookie_id)
    sim.kubernetes.stop_pod(sim.kubernetes.pods[LOST])
    sim.ask(TaskType.REPLACE, LOST)


def deleted_pods(sim: Simulation) -> None:
    (wanted,) = sim.desired().stateful_sets
    for name in list(sim.kubernetes.pods):
        if sim.kubernetes.pods[name].template_hash != wanted.template_hash:
            sim.kubernetes.stop_pod(sim.kubernetes.pods[name])
            for _ in range(30):
                sim.run_pass()
                sim.advance(2)


ANNOTATE = "annotate the BookieCluster with {}"
TABLE = [
    Advice({}, cordoned, "Unschedulable", "Uncordon that", lambda sim: sim.kubernetes.cordoned.clear()),
    Advice({}, volume_gone_in_a_roll, "CanaryFailed", "bring it back", restored),
    Advice({}, too_many, "Unschedulable", "lower spec.replicas", four),
    Advice({}, too_many, "Unschedulable", "add a node", lambda sim: setattr(sim.kubernetes, "room", 5)),
    Advice({}, lost, "BookieLost", "a BookieTask of type Replace that names c-bookie-1", replaced),
    Advice(
        {},
        lost,
        "BookieLost",
        "repair.autoReplaceAfterSeconds",
        lambda sim: sim.change(repair={"autoReplaceAfterSeconds": 5}),
    ),
    Advice({"replicas": 5}, wiped, "BookieLost", "a BookieTask of type Replace that names c-bookie-1", replaced),
    Advice({"replicas": 3}, lambda sim: (lost(sim), replaced(sim)), "NoSpareBookie", "Raise spec.replicas", four),
    Advice({"replicas": 5}, on_everyone, "NoSpareBookie", "Raise spec.replicas", five),
    Advice({"replicas": 5}, on_everyone, "NoSpareBookie", "delete these ledgers", deleted_ledgers),
    Advice({"replicas": 5}, wider, "DecommissionBlocked", "raise spec.replicas again", five),
    Advice({"replicas": 5}, full, "NotEnoughSpace", "or delete ledgers", deleted_ledgers),
    Advice(
        {"replicas": 5},
        lost_while_it_goes,
        "BookieUnavailable",
        "raise spec.replicas to keep it",
        lambda sim: (five(sim), sim.ask(TaskType.REPLACE, GOING)),
    ),
    Advice(
        {"replicas": 5},
        lost_while_it_goes,
        "BookieUnavailable",
        "set spec.decommission.mode to StopFirst",
        lambda sim: sim.change(decommission={"mode": "StopFirst"}),
    ),
    Advice({}, broken_image, "CanaryFailed", "put it back", lambda sim: sim.change(image="")),
    Advice({}, last_copies, "LedgersUnrecoverable", ANNOTATE.format(names.ACCEPT_LEDGER_LOSS), accepted_by_annotation),
    Advice({}, last_copies, "LedgersUnrecoverable", "of type AcceptLoss", accepted_by_task),
    Advice({}, silent_node, "NodeLost", "out-of-service", vouched_for),
    Advice({}, going_claim, "ClaimBeingDeleted", "then delete the pod, and replace", drained_and_replaced),
    Advice({}, leftover, "LeftoverClaims", "leave spec.replicas as it was", four),
    Advice(
        {},
        leftover,
        "LeftoverClaims",
        "delete it if nobody needs its data",
        lambda sim: sim.kubernetes.claims.pop("ledger-0-c-bookie-4"),
    ),
    Advice(
        {"replicas": 5},
        without_auditor,
        "NoAuditor",
        "set spec.autorecovery.enabled",
        lambda sim: sim.change(autorecovery={"enabled": True}),
    ),
    Advice({"update": {"strategy": "Manual"}}, manual, "ManualUpdate", "delete c-bookie-3", deleted_pods),
    Advice({}, marked, "WaitingForReplication", ANNOTATE.format(names.SKIP_REPLICATION_CHECK), skipped),
    Advice(
        {},
        marked,
        "WaitingForReplication",
        "`bookie ledger delete`",
        lambda sim: (deleted_ledgers(sim), sim.bookkeeper.marks.discard(1000)),
    ),
    Advice({}, too_many, "Unschedulable", "or make room on it", by_hand("kubernetes", room=5)),
    Advice({}, lost, "BookieLost", "Bring its volumes back", restored),
    Advice({}, last_copies, "LedgersUnrecoverable", "bring it or its volumes back", restored),
    Advice(
        {},
        too_many_last_copies,
        "LedgersUnrecoverable",
        "delete those of them that nobody needs",
        lambda sim: sim.bookkeeper.ledgers.pop(1000),
    ),
    Advice({}, broken_image, "CanaryFailed", "change spec", lambda sim: sim.change(image="", version="2.0")),
    Advice(
        {},
        broken_image,
        "CanaryFailed",
        "see that spec.version or spec.image names one that exists",
        lambda sim: sim.change(image="better"),
    ),
    Advice(
        {}, cannot_start(PodFault.CONFIG), "PodCannotStart", "create what is missing", by_hand("kubernetes", faults={})
    ),
    Advice(
        {},
        cannot_start(PodFault.CONFIG),
        "PodCannotStart",
        "or change spec so that it is not referred to",
        lambda sim: (sim.kubernetes.faults.clear(), sim.change(config={"gcWaitTime": "7"})),
    ),
    Advice(
        {"replicas": 5},
        drained_by_somebody,
        "BookiesReadOnly",
        "Take that back with `bookie cluster decommission c-bookie-1.c-bookie.ns.svc:3181 --undo`",
        taken_back,
    ),
    Advice(
        {"replicas": 5},
        silent,
        "DecommissionBlocked",
        "is its admin API up?",
        lambda sim: sim.kubernetes.silent.clear(),
    ),
    Advice(
        {"replicas": 5},
        disabled,
        "AutoRecoveryDisabled",
        "enable it with `bookie cluster autorecovery enable`",
        by_hand("bookkeeper", autorecovery_enabled=True),
    ),
    Advice(
        {"replicas": 5},
        without_auditor,
        "NoAuditor",
        "or run `bookie autorecovery`",
        by_hand("bookkeeper", other_auditor=True),
    ),
    Advice(
        {"replicas": 5},
        being_recovered,
        "WaitingForProof",
        "one that nobody ends is closed by `bookie ledger recover`",
        by_hand("bookkeeper", recovering=0),
    ),
    Advice({"replicas": 5}, replaced_though_it_serves, "BookieServes", "lower spec.replicas to take it out", four),
    Advice(
        {"update": {"strategy": "Manual"}}, restarted_by_hand, "ManualUpdate", "delete the pods instead", deleted_pods
    ),
    Advice(
        {},
        foreign_metadata,
        "InstanceMismatch",
        "Bring the right one back",
        by_hand("bookkeeper", instance_id="instance-1"),
    ),
    Advice(
        {},
        fixed_class,
        "StorageClassNotExpandable",
        "set allowVolumeExpansion: true",
        by_hand("kubernetes", expandable=True),
    ),
    Advice(
        {},
        fixed_class,
        "StorageClassNotExpandable",
        "or put the size back",
        lambda sim: sim.change(storage={"ledger": {"size": "10Gi"}}),
    ),
    Advice(
        {}, classed(BAD_CLASS), "VolumeAttributesRefused", "name a class that their driver accepts", classed("gold")
    ),
    Advice({}, classed(BAD_CLASS), "VolumeAttributesRefused", "or take it out", classed(None)),
    Advice(
        {},
        missing_class,
        "VolumeAttributesClassMissing",
        "create it",
        lambda sim: sim.kubernetes.missing_classes.clear(),
    ),
    Advice({}, missing_class, "VolumeAttributesClassMissing", "name another one", classed("silver")),
    Advice(
        {},
        driver_without,
        "VolumeAttributesIgnored",
        "Install one that is",
        by_hand("kubernetes", changes_volumes=True),
    ),
    Advice(
        {},
        driver_without,
        "VolumeAttributesIgnored",
        "take spec.storage.ledger.volumeAttributesClassName out",
        classed(None),
    ),
    Advice(
        {},
        dropped_class,
        "ExpandFailed",
        "enable the feature VolumeAttributesClass of Kubernetes",
        by_hand("kubernetes", drops_classes=False),
    ),
    Advice({}, dropped_class, "ExpandFailed", "take volumeAttributesClassName out of spec.storage", classed(None)),
    Advice(
        {},
        leftover_without_auditor,
        "NoAuditor",
        "enable spec.autorecovery",
        lambda sim: sim.change(autorecovery={"enabled": True}),
    ),
    Advice({}, leftover_bookie, "LeftoverBookie", "auto-recovery has to copy them first", copied),
    Advice(
        {},
        leftover_bookie,
        "LeftoverBookie",
        "until then leave spec.replicas as it was",
        lambda sim: (four(sim), copied(sim)),
    ),
    Advice(
        {},
        newer_image_and_one_more,
        "ImagePullFailed",
        "see that spec.version or spec.image names one that exists",
        lambda sim: sim.change(image=""),
    ),
]


@pytest.mark.parametrize("one", TABLE, ids=[f"{one.reason}: {one.words[:40]}" for one in TABLE])
def test_it_helps(one: Advice) -> None:
    sim = settled(**one.of)
    one.state(sim)
    _told(sim, one.reason, one.words)
    one.done(sim)
    sim.run_until_rest(most=900)
    assert not sim.accidents
    assert sim.status.operation is None
    assert len(sim.bookkeeper.writable) == sim.spec.replicas == len(sim.kubernetes.pods)


def _told(sim: Simulation, reason: str, words: str = "") -> str:
    """The messages of this reason, once one of them has these words."""

    def says(one: Simulation, decision: object) -> bool:
        return any(words in message for message in _messages(one, reason))

    sim.run(says, most=900)
    return "; ".join(_messages(sim, reason))


def _messages(sim: Simulation, reason: str) -> list[str]:
    told = (sim.passes[-1].plan.decision, *sim.passes[-1].plan.notes)
    return [one.message for one in told if isinstance(one, Wait) and one.reason == reason]


# --- what the source advises ------------------------------------------------------------------------------------------

ROOT = Path(bookie_operator.__file__).parent
SOURCES = [
    *sorted((ROOT / "planner").rglob("*.py")),
    *(ROOT / "status" / name for name in ("conditions.py", "job_reporting.py")),
    *(ROOT / "reconcile" / name for name in ("passing.py", "job_passing.py", "carrying_out.py")),
]
VERBS = (
    "add annotate apply bring change create delete enable exclude find free give grow install lower leave look make"
    " mend move name place put raise remove replace restart restore run see set taint take tell uncordon upgrade use"
    " wait"
)
_BEGINS = r"^(?:or |and |then |so |if [^,]*, |to [^,]*? (?=set|annotate)|[Ww]hile [^,]* )*"
ADVISES = re.compile(rf"{_BEGINS}(?:{VERBS.replace(' ', '|')})\b|`[^`]+`|\?$", re.IGNORECASE)
LOOKS = re.compile(
    rf"{_BEGINS}(?:see|find what|wait)\b|`kubectl (?:describe|logs|explain)|shows which|\?$", re.IGNORECASE
)
"""What only tells where to look, or to wait."""
FLOWS = "tests.unit.bookie_operator.planner.flows"
ELSEWHERE = {
    "tell the right bootstrap.instanceId": f"{FLOWS}.test_adopt:test_what_is_advised_lets_an_adoption_go_on",
    "or delete the claims that do not belong to it": f"{FLOWS}.test_adopt:test_what_is_advised_lets_an_adoption_go_on",
    "restore the claims of": f"{FLOWS}.test_adopt:test_what_is_advised_lets_an_adoption_go_on",
    "apply the right one": f"{FLOWS}.test_adopt:test_what_is_advised_lets_an_adoption_go_on",
    "tell bootstrap.instanceId": f"{FLOWS}.test_adopt:test_what_is_advised_lets_an_adoption_go_on",
    "delete this resource and apply it with bootstrap.mode Adopt": (
        "tests.unit.bookie_operator.reconcile.test_endings:test_volumes_of_a_deleted_cluster_are_not_taken_over_unasked"
    ),
    "or delete the claims if nobody needs their data": f"{FLOWS}.test_create:test_claims_that_nobody_needs_make_way",
    "remove what is left of it with `bookie cluster nuke`": f"{FLOWS}.test_create:test_a_root_that_is_cleared_is_taken",
    "and delete Job": f"{FLOWS}.test_create:test_a_root_that_is_cleared_is_taken",
    "to add bookies to that cluster on purpose set spec.bootstrap.instanceId": (
        f"{FLOWS}.test_create:test_bookies_join_another_cluster_only_where_it_is_named"
    ),
    "Give this one a root of its own": f"{FLOWS}.test_create:test_another_root_is_looked_at_anew",
    "lower {} to {}": f"{FLOWS}.test_tasks:test_what_a_decommission_waits_for_helps",
    "remove the annotation podkeeper.dev/paused": f"{FLOWS}.test_delete:test_a_paused_cluster_is_not_deleted",
    "set the annotation podkeeper.dev/confirm-delete": (
        f"{FLOWS}.test_delete:test_nothing_stops_before_the_loss_of_data_is_confirmed"
    ),
    "set spec.storage.retention.whenDeleted to Retain": (
        f"{FLOWS}.test_delete:test_nothing_goes_while_ledgers_of_others_may_have_copies_here"
    ),
    "take these bookies out first": f"{FLOWS}.test_delete:test_data_go_when_nobody_else_may_need_them",
    "bring one of its bookies up": f"{FLOWS}.test_delete:test_data_go_when_nobody_else_may_need_them",
    "if its node is lost, taint it": f"{FLOWS}.test_delete:test_a_pod_that_does_not_stop_is_told_with_the_remedy",
    "`bookie cluster nuke` does it by hand": (
        f"{FLOWS}.test_delete:test_a_metadata_service_that_is_gone_holds_nobody_up"
    ),
    "Put spec.metadataService.uri back": (
        "tests.unit.bookie_operator.reconcile.test_metadata_jobs:"
        "test_another_cluster_elsewhere_is_told_and_nothing_else_waits"
    ),
    "or name servers of the same service": (
        "tests.unit.bookie_operator.reconcile.test_metadata_jobs:test_a_place_that_does_not_answer_may_be_corrected"
    ),
    "or delete the Node": f"{FLOWS}.test_repair_doubts:test_a_volume_may_be_on_a_node_that_only_is_silent",
    "or give it the taint": f"{FLOWS}.test_repair_doubts:test_a_volume_may_be_on_a_node_that_only_is_silent",
    "replace it with a BookieTask of type Replace that names {}": (
        f"{FLOWS}.test_repair_doubts:test_who_may_not_look_at_nodes_asks_for_a_task"
    ),
    "so lower spec.replicas to take it away": f"{FLOWS}.test_no_room:test_fewer_replicas_lead_out",
    "find the admission webhook or the controller": (
        "tests.unit.bookie_operator.reconcile.test_drift:test_a_webhook_that_strips_an_annotation_holds_nothing_up"
    ),
    "and exclude what has the label": (
        "tests.unit.bookie_operator.reconcile.test_drift:test_a_webhook_that_strips_an_annotation_holds_nothing_up"
    ),
    "Give these another name": (
        "tests.unit.bookie_operator.reconcile.test_strangers:test_a_new_cluster_waits_until_the_name_is_free"
    ),
    "or delete them if nobody needs them": (
        "tests.unit.bookie_operator.reconcile.test_strangers:test_a_new_cluster_waits_until_the_name_is_free"
    ),
    "install it": f"{FLOWS}.test_support:test_what_is_advised_about_certificates_and_hands_helps",
    "or change spec.tls": f"{FLOWS}.test_support:test_what_is_advised_about_certificates_and_hands_helps",
    "change it back": f"{FLOWS}.test_support:test_what_is_advised_about_certificates_and_hands_helps",
    "or restart all bookies by a BookieTask": (
        f"{FLOWS}.test_newer_release:test_whoever_asks_gets_the_newest_template_bookie_by_bookie"
    ),
    "create it anew if this one is to do it": f"{FLOWS}.test_tasks:test_what_a_task_that_failed_asks_for_helps",
    "name pods as `kubectl get pods` shows them": f"{FLOWS}.test_tasks:test_what_a_task_that_failed_asks_for_helps",
    "tell the ids whose loss is accepted": f"{FLOWS}.test_tasks:test_what_a_task_that_failed_asks_for_helps",
    "tell their pods in spec.bookies": f"{FLOWS}.test_tasks:test_what_a_task_that_failed_asks_for_helps",
    "make several": f"{FLOWS}.test_tasks:test_what_a_task_that_failed_asks_for_helps",
    "delete these,": f"{FLOWS}.test_volume_attributes:test_claims_without_a_volume_are_told_once_their_pod_waits",
    "delete it, or give the BookieJob another name": (
        "tests.unit.bookie_operator.planner.jobs.test_plan:test_an_object_of_somebody_else_is_left_alone"
    ),
    "put it back, or make another BookieJob": (
        "tests.unit.bookie_operator.reconcile.test_job_flows:test_a_change_that_one_run_does_not_follow_is_told"
    ),
    "give requests of memory where data count": (
        "tests.unit.bookie_operator.status.test_conditions:test_what_is_advised_about_memory_helps"
    ),
    "Raise the quota, or mend what refuses them": (
        "tests.unit.bookie_operator.observe.test_refusals:test_a_quota_that_refuses_the_first_job_is_told"
    ),
    "use that version, or mend the field": (
        "tests.unit.bookie_operator.reconcile.test_not_understood:"
        "test_an_operation_of_a_newer_operator_is_waited_for_and_told"
    ),
    "grow spec.storage.ledger.size": (
        "tests.unit.bookie_operator.planner.test_gates:test_what_it_stores_fits_with_headroom"
    ),
    "While it has its data run `bookie cluster decommission": (
        f"{FLOWS}.test_deleted_claims:test_what_is_advised_brings_it_back"
    ),
    "delete the pods one at a time": (
        f"{FLOWS}.test_rollout:test_by_hand_the_template_is_staged_and_people_delete_the_pods"
    ),
}
"""What is advised where no simulation goes, and the test that does it."""


def _texts(path: Path) -> Iterator[str]:
    """Of a module, but its docstrings; `{}` where something is filled in."""
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    passed = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    passed |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if id(node) in passed:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"\{\d?\}", "{}", node.value)
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)


def advised() -> dict[str, str]:
    """Clause to the module that says it."""
    return {
        clause.strip(): path.relative_to(ROOT).as_posix()
        for path in SOURCES
        for text in _texts(path)
        if " " in text.strip()
        for clause in re.split(r"(?<=[;:.?,])\s+|\) ", text)
        if ADVISES.search(clause.strip()) and not LOOKS.search(clause.strip())
    }


def _plain(words: str) -> str:
    """Without what is filled in, and without joints."""
    words = re.sub(
        r"c-bookie-\d+(?:\.[a-z-]+)*(?::\d+)?|podkeeper\.dev/[a-z-]+|spec\.storage\.\w+\.\w+|\b\d+\b", "{}", words
    )
    return re.sub(r"^(?:or |and |then |to |so |if [^,]*, )+|[,;.:]$", "", words.strip()).strip().lower()


@pytest.mark.parametrize("clause", advised())
def test_whatever_is_advised_is_tried(clause: str) -> None:
    said = _plain(clause)
    tried = [
        _plain(part) for words in (*(one.words for one in TABLE), *ELSEWHERE) for part in (words, *words.split(", "))
    ]
    assert any(each in said or said in each for each in tried), (
        f"{advised()[clause]} advises, and no test does: {clause}"
    )


def test_what_is_tried_elsewhere_is_there_and_is_advised() -> None:
    texts = [_plain(text) for path in SOURCES for text in _texts(path)]
    for words, test in ELSEWHERE.items():
        module, _, name = test.partition(":")
        assert hasattr(importlib.import_module(module), name), test
        assert any(_plain(words) in text for text in texts), f"nobody advises any more: {words}"


_COMMAND = re.compile(r"`bookie ([^`]+)`")


def commands() -> set[str]:
    return {found for path in SOURCES for text in _texts(path) for found in _COMMAND.findall(text)}


@pytest.mark.parametrize("command", sorted(commands()))
def test_a_command_that_is_advised_is_there(command: str) -> None:
    known: click.Command = cli
    words = command.replace("{}", "name").split()
    while isinstance(known, click.Group):
        _, found, words = known.resolve_command(click.Context(known), words)
        assert found is not None
        known = found
    options = {option for each in known.params for option in each.opts}
    assert all(word in options for word in words if word.startswith("--")), command
