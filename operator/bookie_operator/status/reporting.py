"""The whole status of a pass, and how it is written: on change only, by server-side apply.

Invariants
- The status says what the pass found, and the operation as it is after the pass. A pass over an unchanged cluster
  makes the status that it read, and writes nothing.
- It is written for the resource version that the plan was made for: an operator that reads older things writes nothing.

Threads: `status_after` and `unreadable` are pure; `write_status` on the event loop.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from bookie_operator.api.kinds import CLUSTER
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.crds.cluster_status import BookieClusterStatus
from bookie_operator.crds.model import MESSAGE_LENGTH
from bookie_operator.planner.decision import Plan
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.operations import written
from bookie_operator.status import conditions, counts
from bookie_operator.world.model import World


def status_after(
    world: World, desired: Desired, plan: Plan, base: BookieClusterStatus, metadata_service_uri: str
) -> BookieClusterStatus:
    """`base`: the status with the operation, history and recorded replicas as they are after the pass. `desired`: as
    the plan was made for it."""
    before = world.cluster.status
    found = conditions.findings(world, desired, plan, base.operation)
    changes: dict[str, object] = {
        "observed_generation": world.cluster.generation,
        "conditions": conditions.dated(found, before.conditions, world.cluster.generation, written(world.now)),
        **counts.replicas(world, desired, before),
        "metadata_service_uri": metadata_service_uri,
        "version": counts.version(world, desired, before.version),
        "revision": counts.revision(world, desired),
        "ledgers": counts.ledgers(world, before.ledgers),
        "storage": counts.storage(world),
        "bookies": counts.bookies(world, desired, before.bookies, base.operation),
    }
    return base.model_copy(update=changes)


def unreadable(
    status: BookieClusterStatus, generation: int, errors: tuple[str, ...], now: float
) -> BookieClusterStatus:
    """The status of a cluster whose spec cannot be read at all: what was known stays."""
    words = "; ".join(errors)
    found = [
        conditions.Finding("Ready", conditions.FALSE, "Blocked", words),
        conditions.Finding("Reconciling", conditions.FALSE, "Stalled"),
        conditions.Finding("Stalled", conditions.TRUE, "InvalidSpec", words),
        conditions.Finding("SpecValid", conditions.FALSE, "InvalidSpec", words),
    ]
    known = {each.type for each in found}
    dated = conditions.dated(found, status.conditions, generation, written(now))
    kept = [each for each in status.conditions if each.type not in known]
    return status.model_copy(update={"observed_generation": generation, "conditions": [*dated, *kept]})


async def tell_unreadable_status(kubernetes: Kubernetes, resource: Mapping[str, Any], words: str, now: float) -> bool:
    """Whether anything had to be written: the conditions alone, since the rest is what nobody understands."""
    before = list((resource.get("status") or {}).get("conditions") or ())
    told = [
        {
            "type": kind,
            "status": status,
            "reason": "UnreadableStatus",
            "message": words[:MESSAGE_LENGTH],
            "observedGeneration": resource["metadata"].get("generation", 0),
            "lastTransitionTime": written(now),
        }
        for kind, status in (("Ready", conditions.FALSE), ("Stalled", conditions.TRUE))
    ]
    known = {(each.get("type"), each.get("status"), each.get("message")) for each in before}
    if all((each["type"], each["status"], each["message"]) in known for each in told):
        return False
    kept = [each for each in before if each.get("type") not in ("Ready", "Stalled")]
    metadata = resource["metadata"]
    patch = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": {"conditions": [*told, *kept]}}
    await kubernetes.merge(CLUSTER, metadata["namespace"], metadata["name"], patch, "status")
    return True


def body(status: BookieClusterStatus) -> dict[str, Any]:
    """The status as it stands in the resource."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


async def write_status(
    kubernetes: Kubernetes,
    metadata: Mapping[str, Any],
    before: BookieClusterStatus,
    after: BookieClusterStatus,
    vital: Collection[str] = (),
) -> frozenset[str] | None:
    """None: nothing had to be written; else the fields that the definition lacks. `metadata`: of the resource as it was
    read.

    Raises Conflict: the resource is not what the plan was made for; and Undeclared: nothing was written, because the
    definition lacks one of the fields that are `vital`.
    """
    if after == before:
        return None
    named = {key: metadata[key] for key in ("name", "namespace", "resourceVersion")}
    return await kubernetes.apply_status(
        {"apiVersion": CLUSTER.api_version, "kind": CLUSTER.kind, "metadata": named, "status": body(after)},
        vital,
    )
