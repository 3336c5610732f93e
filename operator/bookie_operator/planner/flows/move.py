"""The servers of the metadata service come to be others: an ensemble that moves, or gets another name.

A Job looks which cluster is there. Only if it is this one does `status.metadataServiceUri` become the new place, which
is what everything is built with: bookies get it as any other change of the configuration, one after the other. Until
then nothing knows the new place, and whatever else is asked for goes on at the old one.

Invariants
- The Job changes nothing, wherever it looks. What it found counts for five minutes: another cluster may be there later.
- A copy of the metadata, as on servers that a backup was restored to, has the same instance id, and no bookie
  registered. While bookies are registered at the known place it is never taken for the same service: bookies that moved
  there would delete every ledger that was made since. Where that is unknown, an annotation has to name the new place.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.crds import names
from bookie_operator.planner.actions import ApplyObjects, DeleteObject, RecordState
from bookie_operator.planner.decision import Act, Decision, Event, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.world.model import World

RETRY_SECONDS: Final = 300.0


def begin(world: World, desired: Desired) -> Decision | None:
    job, uid = desired.check_job, world.object_uids.get(desired.check_job)
    if not job or job in world.taken:
        return None
    if uid is None:
        return Act(ApplyObjects((job,)), f"looks which cluster is at {desired.moves_to}")
    if world.object_hashes.get(job) != desired.check_job_hash:
        return Act(DeleteObject(job, uid), f"{job} looks elsewhere than spec says by now: it is made again")
    if world.check_job not in ("Complete", "Failed"):
        problem = f": {world.check_job_message}" if world.check_job_message else ""
        words = f"waits for {job} to look which cluster is at {desired.moves_to}{problem}"
        return Wait("MetadataMoves", words, seconds=2.0)
    finished = world.check_job_finished_at
    if finished is not None and world.now - finished >= RETRY_SECONDS:
        return Act(DeleteObject(job, uid), f"{job} looked a while ago: it looks again")
    other = _other(world, desired)
    if not other:
        message = f"the metadata are at {desired.moves_to} as well: that is where bookies look for them from now on"
        return Act(RecordState(metadata_service_uri=desired.moves_to), message, event=Event("MetadataMoved", message))
    return _elsewhere(world, desired, other)


def _other(world: World, desired: Desired) -> str:
    """Return why what the Job found is not this cluster; empty: it is."""
    if world.check_job == "Failed":
        return f"it is unknown which cluster is there ({world.check_job_message or 'see its log'})"
    found, _, registered = world.check_instance_id.partition(" ")
    if found != world.cluster.status.instance_id:
        return f"the cluster there has instance id {found or 'unknown'}"
    if any(int(count) for count in registered.split() if count.isdigit()):
        return ""
    if world.facts is None:
        return (
            "" if world.cluster.annotations.get(names.ACCEPT_METADATA) == desired.moves_to else _untold(world, desired)
        )
    if world.facts.registered:
        here = len(world.facts.registered)
        return f"no bookie is registered there, and {here} are where it is now: that is a copy of its metadata"
    return ""


def _untold(world: World, desired: Desired) -> str:
    why = world.facts_error or "no pod reached the metadata service"
    return (
        f"no bookie is registered there, and no pod can tell whether any is where it is now ({why}): that may be a copy"
        f" of its metadata, which lacks what was written since. If it surely is not, annotate the BookieCluster with"
        f" {names.ACCEPT_METADATA}={desired.moves_to}"
    )


def _elsewhere(world: World, desired: Desired, found: str) -> Wait:
    status = world.cluster.status
    return Wait(
        "MetadataElsewhere",
        f"spec.metadataService leads to {desired.moves_to}, and {found}. This one, with instance id "
        f"{status.instance_id}, stays at {status.metadata_service_uri}. Put spec.metadataService.uri back, or name "
        "servers of the same service",
        seconds=30.0,
        stalled=True,
    )
