"""Each piece of advice, the state in which it is given, and the change that follows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bookie_operator.crds import names
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner.decision import Wait
from bookie_operator.world.model import PodFault
from tests.support.operator_sim import Simulation
from tests.support.operator_sim.bookkeeper import SimLedger
from tests.support.operator_sim.flows import at_step
from tests.support.operator_sim.going import GOING, LOST, fewer, lose, wipe_ledger
from tests.support.operator_sim.kubernetes import BAD_CLASS, BAD_IMAGE, SimClaim

Change = Callable[[Simulation], object]
ELSEWHERE = "10.0.0.7:3181"
"""A bookie that has no pod of the cluster's."""


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


def more_of_a_broken_one(sim: Simulation) -> None:
    broken_image(sim)
    sim.run(lambda one, _: bool(one.status.history))
    sim.kubernetes.stop_pod(sim.kubernetes.pods["c-bookie-3"])
    sim.advance(10)
    sim.change(replicas=5)


def renamed(sim: Simulation) -> None:
    """So it seems: the cookie of one that goes is gone, and somebody else's bookie is away."""
    del sim.bookkeeper.cookies[sim.desired().bookie_id(GOING)]
    sim.bookkeeper.cookies[ELSEWHERE] = "elsewhere"
    sim.kubernetes.kill_pod(GOING)
    sim.advance(1)
    fewer(sim)


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


def going_claim_of_one_that_is_down(sim: Simulation) -> None:
    going_claim(sim)
    cannot_start(PodFault.CRASHING)(sim)


def does_not_fit(sim: Simulation) -> None:
    """By its template: also once it was given empty disks."""
    sim.change(image="cannot-mount@1", repair={"autoReplaceAfterSeconds": 30})


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


def restarted_by_hand(sim: Simulation) -> None:
    sim.change(version="2.0")
    sim.ask(TaskType.RESTART)


def too_many_last_copies(sim: Simulation) -> None:
    sim.bookkeeper.most_named = 0
    last_copies(sim)


def foreign_metadata(sim: Simulation) -> None:
    sim.bookkeeper.instance_id = "another"


def fixed_class(sim: Simulation) -> None:
    sim.kubernetes.expandable = False
    for claim in sim.kubernetes.claims.values():
        claim.storage_class = "slow"
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


def unbroken(sim: Simulation) -> None:
    sim.change(image="")
    sim.run(lambda one, _: {each.image for each in one.kubernetes.sets.values()} == {""})
    deleted_pods(sim)


def back_again(sim: Simulation) -> None:
    sim.bookkeeper.running[ELSEWHERE] = "elsewhere"
    sim.bookkeeper.read_only.add(ELSEWHERE)


def taken_out(sim: Simulation) -> None:
    del sim.bookkeeper.cookies[ELSEWHERE]


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


def replaced_and_mended(sim: Simulation) -> None:
    replaced(sim)
    at_step(sim, "Start", most=900)
    sim.kubernetes.faults.clear()


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
    message = told(sim, "LedgersUnrecoverable")
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


def deleted_pods(sim: Simulation) -> None:
    (wanted,) = sim.desired().stateful_sets
    for name in list(sim.kubernetes.pods):
        if sim.kubernetes.pods[name].template_hash != wanted.template_hash:
            sim.kubernetes.stop_pod(sim.kubernetes.pods[name])
            for _ in range(30):
                sim.run_pass()
                sim.advance(2)


def told(sim: Simulation, reason: str, words: str = "") -> str:
    """The messages of this reason, once one of them has these words."""

    def says(one: Simulation, decision: object) -> bool:
        return any(words in message for message in _messages(one, reason))

    sim.run(says, most=900)
    return "; ".join(_messages(sim, reason))


def _messages(sim: Simulation, reason: str) -> list[str]:
    told = (sim.passes[-1].plan.decision, *sim.passes[-1].plan.notes)
    return [one.message for one in told if isinstance(one, Wait) and one.reason == reason]


# --- the table --------------------------------------------------------------------------------------------------------

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
    Advice(
        {},
        going_claim,
        "ClaimBeingDeleted",
        "Replace it with a BookieTask of type Replace",
        lambda sim: sim.ask(TaskType.REPLACE, LOST),
    ),
    Advice(
        {},
        going_claim_of_one_that_is_down,
        "ClaimBeingDeleted",
        "Replace it with a BookieTask of type Replace that names c-bookie-1",
        replaced_and_mended,
    ),
    Advice(
        {},
        does_not_fit,
        "BookieLost",
        "with empty disks: change spec, or put it back",
        lambda sim: sim.change(image=""),
    ),
    Advice({}, leftover, "LeftoverClaims", "leave spec.replicas as it was", four),
    Advice(
        {},
        leftover,
        "LeftoverClaims",
        "delete it if its data are not needed",
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
        {"update": {"strategy": "Manual"}},
        more_of_a_broken_one,
        "TemplateFails",
        "Change spec, or put it back",
        unbroken,
    ),
    Advice({"replicas": 5}, renamed, "CookieMismatch", "else bring 10.0.0.7:3181 back", back_again),
    Advice({"replicas": 5}, renamed, "CookieMismatch", "or take it out with `bookie cluster decommission", taken_out),
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
        "one that does not end is closed by `bookie ledger recover`",
        by_hand("bookkeeper", recovering=0),
    ),
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
]
