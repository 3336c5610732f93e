"""What runs beside the bookies waits for them, as far as it has to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_operator.planner.actions import RecordInputs
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.holding import begin, hold
from bookie_operator.world.model import DeploymentView, World
from tests.support.operator_sim import Simulation, resting

KEY = "Deployment/c-autorecovery"


@pytest.fixture(scope="module")
def sim() -> Simulation:
    return resting()


def rolling(sim: Simulation, *, ready: int = 1, replicas: int = 2) -> tuple[World, Desired]:
    """Bookies are to get another template, which somebody asked for; so is auto-recovery. So many pods of it are
    asked for now, and two were before."""
    desired = sim.desired()
    (one,) = desired.stateful_sets
    beside = replace(desired.autorecovery, object_hash="new", inputs=f"inputs-2/{replicas}")
    wanted = replace(
        desired, stateful_sets=(replace(one, template_hash="new", inputs_hash="new"),), autorecovery=beside
    )
    world = sim.world()
    return replace(world, autorecovery=replace(world.autorecovery, inputs="inputs-1/2", ready=ready)), wanted


def test_it_keeps_its_template_while_bookies_are_rolled_out(sim: Simulation) -> None:
    world, wanted = rolling(sim)
    held = hold(world, wanted)
    assert held.held == frozenset()
    assert held.autorecovery == replace(wanted.autorecovery, keeps_template=True, object_hash=world.object_hashes[KEY])
    more = rolling(sim, replicas=3)[1]
    assert hold(world, more).autorecovery == replace(more.autorecovery, keeps_template=True), (
        "and more of its pods come"
    )


def test_it_waits_for_no_rollout_that_may_wait_for_it(sim: Simulation) -> None:
    world, wanted = rolling(sim, ready=0)
    assert hold(world, wanted).autorecovery == wanted.autorecovery
    world, wanted = rolling(sim)
    assert world.facts is not None
    copies = replace(world, facts=replace(world.facts, under_replicated=1))
    assert hold(copies, wanted).autorecovery == wanted.autorecovery
    assert hold(replace(world, facts=None), wanted).autorecovery.keeps_template
    gone = replace(world, object_hashes={})
    assert hold(gone, wanted).autorecovery == wanted.autorecovery


@pytest.mark.parametrize(
    ("inputs", "observed", "waits"),
    [("same/2", 0, True), ("other/2", 1, False), ("", 1, True), ("", 0, False)],
)
def test_another_release_alone_changes_nothing_beside_bookies_that_stay_as_they_are(
    sim: Simulation, inputs: str, observed: int, waits: bool
) -> None:
    """`inputs`: as they were written down, or not; then it counts whether this generation of `spec` was seen."""
    world, desired = sim.world(), sim.desired()
    (one,) = desired.stateful_sets
    beside = replace(desired.autorecovery, object_hash="new", inputs="same/2")
    newer = replace(desired, stateful_sets=(replace(one, template_hash="newer"),), autorecovery=beside)
    status = world.cluster.status.model_copy(update={"observed_generation": world.cluster.generation - 1 + observed})
    seen = replace(world, cluster=replace(world.cluster, status=status), autorecovery=DeploymentView(inputs=inputs))
    held = hold(seen, newer)
    assert held.held == {"c-bookie"}
    assert held.stateful_sets[0].template_hash == world.stateful_sets[0].template_hash
    assert held.autorecovery.object_hash == (world.object_hashes[KEY] if waits else "new")
    assert not held.autorecovery.keeps_template


def test_inputs_are_written_down_where_the_template_is_theirs(sim: Simulation) -> None:
    world, desired = sim.world(), sim.desired()
    assert begin(world, desired) is None
    (one,) = desired.stateful_sets
    other = replace(desired, stateful_sets=(replace(one, inputs_hash="other"),))
    found = begin(world, other)
    assert found is not None
    live = world.stateful_sets[0]
    assert found.action == RecordInputs(live.name, live.resource_version, live.template_hash, "other")
    assert begin(replace(world, stateful_sets=(replace(live, deleting=True),)), other) is None
    assert begin(replace(world, stateful_sets=()), other) is None
    assert begin(world, replace(other, stateful_sets=(replace(one, template_hash="x", inputs_hash="other"),))) is None
