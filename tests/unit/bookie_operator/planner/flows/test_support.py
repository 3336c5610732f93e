"""Objects that are applied when they are not as desired, and when."""

from __future__ import annotations

from dataclasses import replace

from bookie_operator.crds.cluster_spec import BootstrapMode
from bookie_operator.planner.actions import ApplyObjects, RestoreTemplate
from bookie_operator.planner.decision import Act, Wait
from bookie_operator.planner.flows import support
from tests.support.operator_sim import Simulation, resting
from tests.support.operator_sim.flows import at_step
from tests.support.operator_sim.kubernetes import BAD_IMAGE

AUTORECOVERY = "Deployment/c-autorecovery"


def without(sim: Simulation, *keys: str) -> dict[str, str]:
    return {key: one for key, one in sim.world().object_hashes.items() if key not in keys}


def applied(found: Act | None) -> tuple[str, ...]:
    assert found is not None
    assert isinstance(found.action, ApplyObjects)
    return found.action.keys


def test_all_that_differ_are_applied_in_one_pass_in_their_order() -> None:
    sim = resting()
    assert support.begin(sim.world(), sim.desired()) is None
    changed = {**without(sim, "Service/c-client"), "ServiceAccount/c-bookie": "another"}
    found = support.begin(replace(sim.world(), object_hashes=changed), sim.desired())
    assert applied(found) == ("ServiceAccount/c-bookie", "Service/c-client")


def test_also_while_an_operation_runs() -> None:
    sim = resting()
    sim.change(version="2.0")
    at_step(sim, "Await")
    del sim.kubernetes.objects["Service/c-client"]
    sim.run_pass()
    assert "Service/c-client" in sim.kubernetes.objects


def test_auto_recovery_begins_when_an_ensemble_can_be_written() -> None:
    sim = resting()
    facts = sim.bookkeeper.facts()
    assert facts is not None
    status = sim.status.model_copy(update={"ledgers": type(sim.status.ledgers)()})
    missing = replace(sim.world(), object_hashes=without(sim, AUTORECOVERY), cluster=replace(sim.view(), status=status))
    two = replace(facts, writable=frozenset(sorted(facts.writable)[:2]))
    assert support.autorecovery(replace(missing, facts=two), sim.desired()) is None
    assert support.autorecovery(replace(missing, facts=None), sim.desired()) is None
    assert applied(support.autorecovery(missing, sim.desired())) == (AUTORECOVERY,)


def test_auto_recovery_that_is_gone_comes_back_also_without_bookies() -> None:
    sim = resting()
    gone = replace(sim.world(), object_hashes=without(sim, AUTORECOVERY), facts=None)
    assert applied(support.down_deployments(gone, sim.desired())) == (AUTORECOVERY,)


def test_while_an_operation_runs_auto_recovery_keeps_its_version() -> None:
    sim = resting()
    older = {**sim.world().object_hashes, AUTORECOVERY: "another"}
    world = replace(sim.world(), object_hashes=older)
    assert support.down_deployments(world, sim.desired()) is None
    assert applied(support.autorecovery(world, sim.desired())) == (AUTORECOVERY,)


def test_a_rollout_whose_canary_failed_does_not_bring_its_image_to_auto_recovery() -> None:
    sim = resting()
    sim.change(version="1.1", image=BAD_IMAGE)
    sim.run_until_stalled("CanaryFailed")
    world = sim.world()
    facts = world.facts
    assert facts is not None
    down = replace(world, autorecovery=replace(world.autorecovery, ready=0), gateway=replace(world.gateway, ready=0))
    for seen in (down, replace(down, facts=replace(facts, auditor=None)), replace(down, facts=None)):
        assert support.down_deployments(seen, sim.desired()) is None
    gone = replace(down, object_hashes=without(sim, AUTORECOVERY))
    assert applied(support.down_deployments(gone, sim.desired())) == (AUTORECOVERY,)


def test_a_rollout_that_waits_for_an_auditor_brings_auto_recovery_what_its_bookies_work_with() -> None:
    sim = resting()
    sim.change(version="1.1")
    at_step(sim, "Audit")
    world, desired = sim.world(), sim.desired()
    facts = world.facts
    assert facts is not None
    down = replace(world, autorecovery=replace(world.autorecovery, ready=0))
    unaudited = replace(down, facts=replace(facts, auditor=None))
    assert support.down_deployments(unaudited, desired) is None, "no bookie has its template yet"
    newest = tuple(
        replace(one, template_hash=desired.stateful_sets[0].template_hash) if one.ordinal == 3 else one
        for one in world.pods
    )
    assert support.down_deployments(replace(down, pods=newest), desired) is None, "there is an auditor"
    assert applied(support.down_deployments(replace(unaudited, pods=newest), desired)) == (AUTORECOVERY,)


def test_auto_recovery_that_spec_does_not_want_is_not_made_and_goes() -> None:
    sim = resting()
    sim.change(autorecovery={"enabled": False})
    assert support.autorecovery(sim.world(), sim.desired()) is None
    for _ in range(10):
        sim.run_pass()
        sim.advance(2)
    assert AUTORECOVERY not in sim.kubernetes.objects


def test_what_is_advised_about_certificates_and_hands_helps() -> None:
    sim = resting()
    world, desired = sim.world(), sim.desired()
    pending = replace(desired, issued=("c-tls",))
    told = support.certificates(world, pending)
    assert isinstance(told, Wait)
    assert "install it, or change spec.tls" in told.message
    installed = replace(pending, support={**desired.support, "Certificate/c-tls": "hash"})
    waiting = support.certificates(world, installed)
    assert isinstance(waiting, Wait)
    assert not waiting.stalled
    made = replace(world, object_uids={**world.object_uids, "Secret/c-tls": "uid"})
    assert support.certificates(made, installed) is None
    assert support.certificates(world, desired) is None, "spec.tls was changed"
    changed = replace(world, drift={"StatefulSet/c-bookie": "the image is another one"})
    held = replace(desired, held=frozenset({"c-bookie"}))
    by_hand = support.unstable(changed, held)
    assert isinstance(by_hand, Wait)
    assert "change it back, or restart all bookies by a BookieTask" in by_hand.message
    assert support.unstable(world, held) is None, "it was changed back"


def stalled(found: Wait | None) -> str:
    assert found is not None
    assert found.stalled
    return found.message


def test_names_that_are_somebody_elses_stop_a_new_cluster_and_are_told_of_an_old_one() -> None:
    sim = resting()
    world, desired = sim.world(), sim.desired()
    key = "Service/c-client"
    taken = replace(world, taken={key: "of a Helm release"})
    words = (
        f"names that the cluster needs belong to objects of others, which are left alone: {key} (of a Helm release)."
    )
    assert stalled(support.names_taken(taken, desired)).startswith(words)
    assert support.new_names_taken(taken, desired) is None, "it is there"
    assert support.names_taken(world, desired) is None
    status = sim.status.model_copy(update={"recorded_replicas": {}})
    new = replace(taken, stateful_sets=(), cluster=replace(sim.view(), status=status))
    assert stalled(support.new_names_taken(new, desired)).startswith(words)
    assert support.new_names_taken(replace(new, taken={}), desired) is None
    going = replace(new, outlived=frozenset({key}))
    waiting = support.new_names_taken(going, desired)
    assert waiting == Wait("Creating", f"waits until what an earlier c owned is gone: {key}", seconds=1.0)
    assert support.names_taken(going, desired) is None


def test_names_of_a_cluster_that_is_taken_over_in_place_have_another_remedy() -> None:
    sim = resting()
    bootstrap = sim.spec.bootstrap.model_copy(update={"in_place": object()})
    spec = sim.spec.model_copy(update={"bootstrap": bootstrap})
    world = replace(sim.world(), taken={"Service/c": "the operator's"}, cluster=replace(sim.view(), spec=spec))
    assert "`kubectl bookie migrate run c --in-place`" in stalled(support.names_taken(world, sim.desired()))


def test_a_template_that_somebody_changed_is_given_back_once_it_is_known_to_stay() -> None:
    sim = resting()
    one, key = sim.world().stateful_sets[0], "StatefulSet/c-bookie"
    world, desired = replace(sim.world(), drift={key: "the image is another one"}), sim.desired()
    found = support.templates(world, desired)
    assert found is not None
    assert found.action == RestoreTemplate(one.name, one.resource_version, one.template_hash)
    assert found.event is not None
    assert "the image is another one" in found.event.message
    busy = replace(one, generation=9, observed_generation=8)
    alone = [
        (sim.world(), desired),
        (replace(world, stateful_sets=()), desired),
        (replace(world, unstable={key: one.template_hash}), desired),
        (replace(world, stateful_sets=(busy,)), desired),
        (replace(world, stateful_sets=(replace(one, template_hash="older"),)), desired),
        (world, replace(desired, held=frozenset({"c-bookie"}))),
    ]
    for given, wanted in alone:
        assert support.templates(given, wanted) is None


def test_what_does_not_stay_as_it_was_applied_is_told_and_not_applied_again() -> None:
    sim = resting()
    desired, key = sim.desired(), "Service/c-client"
    world = replace(sim.world(), object_hashes=without(sim, key), unstable={key: desired.support[key]})
    assert support.begin(world, desired) is None
    assert f"{key} (the annotation that tells its content is gone); find the" in stalled(
        support.unstable(world, desired)
    )
    changed = replace(world, drift={key: "a port is gone"})
    assert f"{key} (a port is gone); find the" in stalled(support.unstable(changed, desired))
    assert support.unstable(replace(sim.world(), unstable=world.unstable), desired) is None, "it is as it was applied"
    assert support.unstable(replace(world, unstable={key: ""}), desired) is None
    another = replace(desired, support={**desired.support, key: "another"})
    assert applied(support.begin(world, another)) == (key,)
    assert applied(support.begin(replace(world, unstable={}), desired)) == (key,)


def test_a_few_of_the_objects_that_are_not_as_desired_are_named() -> None:
    sim = resting()
    desired = sim.desired()
    many = replace(desired, support={f"Service/{number}": "x" for number in range(7)})
    found = support.begin(sim.world(), many)
    assert found is not None
    assert found.reason.endswith("Service/0, Service/1, Service/2, Service/3, Service/4 and 2 more")
    assert found.event is None
    changed = support.begin(replace(sim.world(), drift={"Service/1": "by hand"}), many)
    assert changed is not None
    assert changed.event is not None
    five = replace(desired, support={f"Service/{number}": "x" for number in range(5)})
    found = support.begin(sim.world(), five)
    assert found is not None
    assert found.reason.endswith("Service/4")


def test_where_bookies_were_taken_over_in_place_those_that_are_ready_are_counted() -> None:
    sim = resting()
    spec = sim.spec.model_copy(
        update={"bootstrap": sim.spec.bootstrap.model_copy(update={"mode": BootstrapMode.ADOPT})}
    )
    status = sim.status.model_copy(update={"ledgers": type(sim.status.ledgers)()})
    cluster = replace(sim.view(), spec=spec, status=status)
    world = replace(sim.world(), object_hashes=without(sim, AUTORECOVERY), cluster=cluster, facts=None)
    assert applied(support.autorecovery(world, sim.desired())) == (AUTORECOVERY,)
    two = tuple(replace(pod, ready=number < 2) for number, pod in enumerate(world.pods))
    assert support.autorecovery(replace(world, pods=two), sim.desired()) is None
