"""Objects that are applied when they are not as desired, and when."""

from __future__ import annotations

from dataclasses import replace

from bookie_operator.planner.actions import ApplyObjects
from bookie_operator.planner.decision import Act, Wait
from bookie_operator.planner.flows import support
from tests.support.operator_sim import Simulation, resting
from tests.support.operator_sim.flows import at_step

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
    assert applied(support.missing_deployments(gone, sim.desired())) == (AUTORECOVERY,)


def test_while_an_operation_runs_auto_recovery_keeps_its_version() -> None:
    sim = resting()
    older = {**sim.world().object_hashes, AUTORECOVERY: "another"}
    world = replace(sim.world(), object_hashes=older)
    assert support.missing_deployments(world, sim.desired()) is None
    assert applied(support.autorecovery(world, sim.desired())) == (AUTORECOVERY,)


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
