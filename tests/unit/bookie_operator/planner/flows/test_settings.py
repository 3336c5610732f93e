"""What changes without a restart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_operator.planner.actions import SetDynamicConfig, SetRecoveryDelay
from bookie_operator.planner.decision import Act
from bookie_operator.planner.flows import settings
from tests.support.operator_sim import Simulation, killed_everywhere, resting


def end(sim: Simulation) -> object:
    pods = sim.kubernetes.pods.values()
    return [one.config for one in pods], sorted(sim.kubernetes.pods), sim.bookkeeper.recovery_delay


def test_running_bookies_take_it_one_by_one_and_nobody_is_restarted() -> None:
    sim = resting()
    uids = {one.uid for one in sim.kubernetes.pods.values()}
    killed_everywhere(sim, lambda s: s.change(config={"gcWaitTime": "5"}), end)
    sim.change(config={"gcWaitTime": "5"})
    sim.run_until_rest()
    assert {one.uid for one in sim.kubernetes.pods.values()} == uids
    assert {one.config["gcWaitTime"] for one in sim.kubernetes.pods.values()} == {"5"}
    changed = [one.plan.decision.action for one in sim.passes if isinstance(one.plan.decision, Act)]
    assert sorted(one.pod for one in changed if isinstance(one, SetDynamicConfig)) == sorted(sim.kubernetes.pods)


def test_a_key_that_is_taken_out_is_put_back_to_its_default() -> None:
    sim = resting(config={"gcWaitTime": "5"})
    sim.change(config={})
    sim.spec = sim.spec.model_copy(update={"config": {}})
    sim.run_until_rest()
    assert {one.config["gcWaitTime"] for one in sim.kubernetes.pods.values()} == {"600000"}


def test_other_keys_take_a_rollout_and_the_old_configuration_stays_until_nobody_uses_it() -> None:
    sim = resting()
    before = {key for key in sim.kubernetes.objects if key.startswith("ConfigMap/c-config-")}
    sim.change(config={"journalMaxSizeMB": "64"})
    sim.run_until_rest()
    after = {key for key in sim.kubernetes.objects if key.startswith("ConfigMap/c-config-")}
    assert len(before) == len(after) == 1
    assert before != after
    assert not sim.accidents


@pytest.mark.parametrize(
    ("runs", "wanted", "different"),
    [
        ({"a": "1"}, {"a": "1"}, {}),
        ({"a": "0.20"}, {"a": "0.2"}, {}),
        ({"a": "TRUE"}, {"a": "true"}, {}),
        ({"a": " 1 "}, {"a": "1"}, {}),
        ({}, {"a": "1"}, {"a": "1"}),
        ({}, {"default": "1"}, {}),
        ({"default": "2"}, {"default": "1"}, {"default": "1"}),
        ({"a": "2", "b": "x"}, {"a": "1", "b": "x"}, {"a": "1"}),
        ({"a": "1", "other": "7"}, {"a": "1"}, {}),
    ],
)
def test_values_are_told_apart_by_what_they_mean(
    runs: dict[str, str], wanted: dict[str, str], different: dict[str, str]
) -> None:
    assert settings.different(runs, wanted, frozenset({"a", "b"})) == different


def test_who_does_not_tell_his_configuration_is_left_alone() -> None:
    sim = resting()
    sim.change(config={"gcWaitTime": "5"})
    world = sim.world()
    silent = {name: replace(one, config=None) if one is not None else None for name, one in world.bookies.items()}
    assert settings.dynamic_config(replace(world, bookies=silent), sim.desired()) is None


def test_the_recovery_delay_is_as_spec_says() -> None:
    sim = resting()
    sim.change(autorecovery={"lostBookieRecoveryDelaySeconds": 77})
    begun = settings.begin(sim.world(), sim.desired())
    assert isinstance(begun, Act)
    assert begun.action == SetRecoveryDelay(77)
    sim.run_until_rest()
    assert sim.bookkeeper.recovery_delay == 77
