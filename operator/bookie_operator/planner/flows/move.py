"""The servers of the metadata service come to be others: an ensemble that moves, or gets another name.

A Job looks which cluster is there. Only if it is this one does `status.metadataServiceUri` become the new place, which
is what everything is built with: bookies get it as any other change of the configuration, one after the other. Until
then nothing knows the new place, and whatever else is asked for goes on at the old one.

Invariant: the Job changes nothing, wherever it looks.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.planner.actions import ApplyObjects, DeleteObject, RecordState
from bookie_operator.planner.decision import Act, Decision, Event, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.world.model import World

RETRY_SECONDS: Final = 300.0


def begin(world: World, desired: Desired) -> Decision | None:
    job, uid = desired.check_job, world.object_uids.get(desired.check_job)
    if not job:
        return None
    if uid is None:
        return Act(ApplyObjects((job,)), f"looks which cluster is at {desired.moves_to}")
    if world.object_hashes.get(job) != desired.check_job_hash:
        return Act(DeleteObject(job, uid), f"{job} looks elsewhere than spec says by now: it is made anew")
    if world.check_job == "Complete":
        return _found(world, desired)
    if world.check_job != "Failed":
        problem = f": {world.check_job_message}" if world.check_job_message else ""
        words = f"waits for {job} to look which cluster is at {desired.moves_to}{problem}"
        return Wait("MetadataMoves", words, seconds=2.0)
    finished = world.check_job_finished_at
    if finished is not None and world.now - finished >= RETRY_SECONDS:
        return Act(DeleteObject(job, uid), f"{job} failed: it is tried again")
    return _elsewhere(
        world, desired, f"nobody could tell which cluster is there ({world.check_job_message or 'see its log'})"
    )


def _found(world: World, desired: Desired) -> Decision:
    if world.check_instance_id != world.cluster.status.instance_id:
        return _elsewhere(world, desired, f"the cluster there has instance id {world.check_instance_id or 'unknown'}")
    message = f"the metadata are at {desired.moves_to} as well: that is where bookies look for them from now on"
    return Act(RecordState(metadata_service_uri=desired.moves_to), message, event=Event("MetadataMoved", message))


def _elsewhere(world: World, desired: Desired, found: str) -> Wait:
    status = world.cluster.status
    return Wait(
        "MetadataElsewhere",
        f"spec.metadataService leads to {desired.moves_to}, and {found}, while this one has {status.instance_id}: it "
        f"stays at {status.metadata_service_uri}. Put spec.metadataService.uri back, or name servers of the same "
        "service",
        seconds=30.0,
        stalled=True,
    )
