"""Templates that differ because another release of the operator builds them: they wait until they are asked for.

An upgrade of the operator restarts no bookie. So a StatefulSet keeps the template that it has, and pods are compared
with that one, while the inputs are those that it got the template for. The newest template comes with the next change
of an input, with a task that restarts all bookies, and with a StatefulSet that is made again because it vanished.

Auto-recovery and gateways wait with them: the newest configuration may have keys that the image of the bookies refuses.
When people ask for something else meanwhile, such as more of their pods, the Deployment is applied as the bookies are:
see `builders.beside.as_bookies_are`. They also wait for a rollout, under way or held back, because they come after the
bookies; unless a rollout may wait for them: while none of their pods works, and auto-recovery also while there are
copies to make, or it is unknown whether there are.

StatefulSets that an earlier release made have no record of their inputs. They are taken over as they are where that
release had seen this generation of `spec` and found every bookie up to date; else what differs may be what people asked
for, and counts.

Invariants
- What people change is never held back: without a record that says the contrary a template that differs counts.
- `hold` is applied once in a pass, to the snapshot by which everything else in it is decided and reported.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from dataclasses import replace

from bookie_operator.crds import names
from bookie_operator.planner import gates
from bookie_operator.planner.actions import RecordInputs
from bookie_operator.planner.decision import Act
from bookie_operator.planner.desired import Desired, DesiredDeployment, DesiredStatefulSet
from bookie_operator.planner.flows import rollout_state
from bookie_operator.world.model import DeploymentView, StatefulSetView, World


def hold(world: World, desired: Desired) -> Desired:
    """Keep the template that a StatefulSet has, where the newest one has to wait.

    What runs beside the bookies is kept as it is, where it has to wait for them.
    """
    staged = {one.name: one for one in world.stateful_sets}
    held = {
        wanted.name: one.template_hash
        for wanted in desired.stateful_sets
        if (one := staged.get(wanted.name)) is not None and _waits(world, one, wanted)
    }
    sets = tuple(replace(one, template_hash=held.get(one.name, one.template_hash)) for one in desired.stateful_sets)
    waits = replace(desired, stateful_sets=sets, held=desired.held | held.keys())
    rolls = bool(rollout_state.unstaged(world, waits) or rollout_state.outdated(world, waits))
    awaited = world.facts is not None and gates.replicated(world) is not None
    return replace(
        waits,
        autorecovery=_beside(world, world.autorecovery, desired.autorecovery, bool(held), rolls and not awaited),
        gateway=_beside(world, world.gateway, desired.gateway, bool(held), rolls),
    )


def _beside(
    world: World, live: DeploymentView, wanted: DesiredDeployment, held: bool, rolls: bool
) -> DesiredDeployment:
    """`held`: the newest template of bookies waits. `rolls`: some bookies have another one than they are to have."""
    found = world.object_hashes.get(wanted.key)
    if not found:
        return wanted
    if rolls and live.ready:
        same = live.inputs.rpartition("/")[2] == wanted.inputs.rpartition("/")[2]
        return replace(wanted, keeps_template=True, object_hash=found if same else wanted.object_hash)
    seen = world.cluster.status.observed_generation == world.cluster.generation
    waits = held and (live.inputs == wanted.inputs if live.inputs else seen)
    return replace(wanted, object_hash=found) if waits else wanted


def begin(world: World, desired: Desired) -> Act | None:
    """Inputs that are not written down, of a StatefulSet whose template is theirs. `desired`: as `hold` returns it."""
    staged = {one.name: one for one in world.stateful_sets if not one.deleting}
    for wanted in desired.stateful_sets:
        one = staged.get(wanted.name)
        if one is None or one.template_hash != wanted.template_hash or one.inputs_hash == wanted.inputs_hash:
            continue
        return Act(
            RecordInputs(one.name, one.resource_version, one.template_hash, wanted.inputs_hash),
            f"{one.name} has the template that spec asks for: another release alone restarts none of its bookies",
        )
    return None


def _waits(world: World, one: StatefulSetView, wanted: DesiredStatefulSet) -> bool:
    if one.template_hash in ("", wanted.template_hash) or rollout_state.takes_newest(world):
        return False
    return one.inputs_hash == wanted.inputs_hash if one.inputs_hash else _was_up_to_date(world, one)


def _was_up_to_date(world: World, one: StatefulSetView) -> bool:
    """Return whether it was up to date, by the words of the release that looked at the cluster last."""
    status, cluster = world.cluster.status, world.cluster
    refused = any(each.type == "SpecValid" and each.status == "False" for each in status.conditions)
    return (
        status.observed_generation == cluster.generation
        and 0 < status.replicas == status.updated_replicas
        and one.restart == cluster.annotations.get(names.RESTART, "")
        and not refused
    )
