"""Backups of the metadata: the CronJob that makes them, and the claim for the files, also while an operation runs.

Invariants
- A claim is made where there is none, and never changed or deleted: its backups are a person's.
- No backup is tried before the cluster was made in the metadata service, nor on a claim that has its name by chance.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from bookie_operator.planner import view
from bookie_operator.planner.actions import ApplyObjects
from bookie_operator.planner.decision import Act
from bookie_operator.planner.desired import Desired
from bookie_operator.world.model import World


def begin(world: World, desired: Desired) -> Act | None:
    if not desired.backup or not world.cluster.status.instance_id:
        return None
    claim = desired.backup_claim
    if claim in world.taken:
        return None
    wanted = [claim] if claim and claim not in world.object_uids else []
    if view.to_apply(world, desired.backup, desired.backup_hash):
        wanted.append(desired.backup)
    if not wanted:
        return None
    return Act(ApplyObjects(tuple(wanted)), f"backups of the metadata are not as desired: {', '.join(wanted)}")
