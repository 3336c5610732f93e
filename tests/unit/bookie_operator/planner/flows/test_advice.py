"""Whatever a message advises is done in the state in which it is told, and helps: the cluster comes to rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from bookie_operator.crds import names
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner.decision import Wait
from tests.support.operator_sim import Simulation
from tests.support.operator_sim.bookkeeper import SimLedger
from tests.support.operator_sim.flows import at_step
from tests.support.operator_sim.going import GOING, LOST, fewer, lose, settled, wipe_ledger
from tests.support.operator_sim.kubernetes import BAD_IMAGE, SimClaim

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


# --- what is done -----------------------------------------------------------------------------------------------------


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


TABLE = [
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
    Advice({}, last_copies, "LedgersUnrecoverable", names.ACCEPT_LEDGER_LOSS, accepted_by_annotation),
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
    Advice({"update": {"strategy": "Manual"}}, manual, "ManualUpdate", "one at a time", deleted_pods),
    Advice({}, marked, "WaitingForReplication", names.SKIP_REPLICATION_CHECK, skipped),
]


@pytest.mark.parametrize("one", TABLE, ids=[f"{one.reason}: {one.words[:40]}" for one in TABLE])
def test_it_helps(one: Advice) -> None:
    sim = settled(**one.of)
    one.state(sim)
    told = _told(sim, one.reason)
    assert one.words in told, told
    one.done(sim)
    sim.run_until_rest(most=900)
    assert not sim.accidents
    assert sim.status.operation is None
    assert len(sim.bookkeeper.writable) == sim.spec.replicas == len(sim.kubernetes.pods)


def _told(sim: Simulation, reason: str) -> str:
    """The message of this reason, once it is told."""

    def says(one: Simulation, decision: object) -> bool:
        return bool(_messages(one, reason))

    sim.run(says, most=900)
    return "; ".join(_messages(sim, reason))


def _messages(sim: Simulation, reason: str) -> list[str]:
    told = (sim.passes[-1].plan.decision, *sim.passes[-1].plan.notes)
    return [one.message for one in told if isinstance(one, Wait) and one.reason == reason]
