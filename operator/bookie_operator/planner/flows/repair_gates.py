"""Is a bookie lost, for how long, and may it start anew with empty disks?

Lost is a bookie that is registered nowhere and cannot come back by itself: a volume of it is gone, or it refuses its
directories. One whose node does not answer is not: it may still run there, and two bookies must never share an id.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from bookie_operator.crds import names
from bookie_operator.crds.cluster_status import OperationType
from bookie_operator.planner import gates, view
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import rollout_state
from bookie_operator.planner.remedies import stuck_on_node
from bookie_operator.world.facts import SafetyFacts
from bookie_operator.world.model import PodFault, PodView, World


def why_lost(world: World, desired: Desired, name: str) -> str:
    """Empty: it is not lost, or nobody can tell."""
    pod = view.pod(world, name)
    if pod is None or pod.ready or pod.deleting or world.facts is None:
        return ""
    if gates.is_registered(world, desired, name):
        return ""
    gone = next((claim.name for claim in view.claims_of(world, name) if claim.lost), "")
    if gone:
        return f"the volume of claim {gone} is gone"
    if pod.fault is PodFault.COOKIE:
        return f"its directories are not those of its cookie ({pod.fault_message})"
    if pod.fault is PodFault.VOLUME:
        return f"a volume of it is missing, or cannot be reached ({pod.fault_message})"
    return ""


def lost_bookies(world: World, desired: Desired) -> list[str]:
    return [name for name in view.expected_pods(world) if why_lost(world, desired, name)]


def lost_since(pod: PodView) -> float:
    """Seconds since 1970: since when it is not ready, at least."""
    return pod.created_at if pod.unready_since is None else max(pod.created_at, pod.unready_since)


def obstacle(world: World, desired: Desired, name: str) -> gates.Obstacle | None:
    """Why it may not start anew with empty disks."""
    bookie_id = desired.bookie_id(name)
    return gates.first(
        stopped(world, desired, name),
        gates.renamed(world, desired, name),
        gates.copies_can_be_made(world),
        gates.elsewhere(world, bookie_id),
        copies_elsewhere(world, bookie_id),
    )


def stopped(world: World, desired: Desired, name: str) -> gates.Obstacle | None:
    """It runs nowhere, as far as anybody can tell; also one that nobody would call lost."""
    missing = gates.told(world)
    if missing is not None:
        return missing
    pod = view.pod(world, name)
    if gates.is_registered(world, desired, name) or (pod is not None and pod.ready):
        return gates.Obstacle(
            "BookieServes",
            f"{name} is registered, and one that serves is not replaced: lower spec.replicas to take it out",
            needs_person=True,
        )
    if stuck := stuck_on_node(world, pod):
        return gates.Obstacle("NodeLost", f"{name} is not gone yet{stuck}", needs_person=True)
    return _silent_node(world, pod)


def _silent_node(world: World, pod: PodView | None) -> gates.Obstacle | None:
    """A volume that cannot be reached may be on a node that only does not answer."""
    if pod is None or pod.fault is not PodFault.VOLUME or world.nodes is None:
        return None
    silent = sorted(node.name for node in world.nodes.values() if not node.ready and not node.out_of_service)
    if not silent:
        return None
    return gates.Obstacle(
        "NodeLost",
        f"{', '.join(silent)} do not answer, and the volumes of {pod.name} may be there: wait, or delete the Node, or"
        f" give it the taint node.kubernetes.io/out-of-service if it is off for good",
        needs_person=True,
    )


def nodes_known(world: World, name: str) -> gates.Obstacle | None:
    """Nobody replaces a bookie by himself for a volume that may be on a node which he may not look at."""
    pod = view.pod(world, name)
    if pod is None or pod.fault is not PodFault.VOLUME or world.nodes is not None:
        return None
    if any(claim.lost for claim in view.claims_of(world, name)):
        return None
    return gates.Obstacle(
        "BookieLost",
        f"{name} cannot reach a volume ({pod.fault_message}), and the operator may not read nodes to tell whether its"
        f" node is gone: replace it with a BookieTask of type Replace that names {name}",
        needs_person=True,
    )


def template_works(world: World, desired: Desired, pod: PodView) -> gates.Obstacle | None:
    """Nobody replaces a bookie by himself whose volumes may be there, where it may be the template that does not fit
    them: no bookie works with it, or this one was started anew already and did not come up."""
    if any(claim.lost for claim in view.claims_of(world, pod.name)):
        return None
    alike = rollout_state.alike(world, desired, pod.stateful_set, pod.template_hash)
    if not any(rollout_state.works(world, desired, one) for one in alike):
        why = "and no bookie works with the template that it has"
    elif _in_vain(world, desired, pod.name):
        why = "also with empty disks"
    else:
        return None
    return gates.Obstacle(
        "BookieLost",
        f"{pod.name} does not get to what it stored ({pod.fault_message}), {why}: change spec, or put it back; or, if"
        f" its volumes are gone, replace it with a BookieTask of type Replace that names {pod.name}",
        needs_person=True,
    )


def _in_vain(world: World, desired: Desired, name: str) -> bool:
    """What was done last about it was to start it anew, and it did not come up since."""
    last = next((one for one in world.cluster.status.history if one.bookie == name), None)
    failed = last is not None and last.type is OperationType.REPLACE and last.outcome == "Failed"
    return failed and gates.never_served(world, desired, name)


# --- losses -----------------------------------------------------------------------------------------------------------


def loss_hash(ledgers: Iterable[int]) -> str:
    """What a person accepts the loss of: SHA-256, in hex, of the sorted ids with commas."""
    return hashlib.sha256(",".join(map(str, sorted(ledgers))).encode()).hexdigest()


def copies_elsewhere(world: World, bookie_id: str) -> gates.Obstacle | None:
    """Every ledger has a copy beside this bookie's, or people gave up what has none."""
    safety = world.safety.get(frozenset({bookie_id}))
    if safety is None:
        return gates.Obstacle(
            "SafetyUnknown", f"nobody could tell yet which ledgers have their last copy on {bookie_id}"
        )
    if safety.unknown:
        return gates.Obstacle(
            "SafetyUnknown",
            f"of {safety.unknown} ledgers nobody can tell whether they have a copy beside {bookie_id}{_shown(safety)}",
        )
    if not safety.without_copy or given_up(world, safety):
        return None
    return gates.Obstacle(
        "LedgersUnrecoverable",
        f"{safety.without_copy} ledgers have entries whose only copy is on {bookie_id}{_shown(safety)}: bring it or"
        f" its volumes back; {_how_to_give_up(safety)}",
        needs_person=True,
    )


def _how_to_give_up(safety: SafetyFacts) -> str:
    if not safety.unrecoverable_hash:
        return "they are too many to be given up by name: delete those of them that nobody needs"
    return (
        f"to give these entries up annotate the BookieCluster with {names.ACCEPT_LEDGER_LOSS}="
        f"{safety.unrecoverable_hash}, or create a BookieTask of type AcceptLoss with the ids of these ledgers"
    )


def _shown(safety: SafetyFacts) -> str:
    return f" ({'; '.join(safety.examples)})" if safety.examples else ""


def given_up(world: World, safety: SafetyFacts) -> bool:
    """Somebody accepted the loss of just these ledgers, or of more."""
    tasks = view.accepted_losses(world)
    if safety.unrecoverable and set(safety.unrecoverable) <= set(tasks):
        return True
    if not safety.unrecoverable_hash:
        return False
    annotated = world.cluster.annotations.get(names.ACCEPT_LEDGER_LOSS, "")
    return annotated == safety.unrecoverable_hash or (bool(tasks) and loss_hash(tasks) == safety.unrecoverable_hash)
