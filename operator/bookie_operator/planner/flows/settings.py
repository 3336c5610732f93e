"""Changes without a restart: keys that a running bookie takes, and the cluster's recovery delay.

Every other key of `spec.config` is part of the pods' template: a rollout brings it.

Invariants
- Only a bookie whose configuration is known is changed, and only if it differs in meaning: `0.20` is `0.2`.
- A key that is not asked for is never given to a bookie that does not have it: it may be too old to know it.
- The recovery delay is left alone while an operation runs: a rollout raises it and puts it back.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping

from bookie_operator.planner import view
from bookie_operator.planner.actions import SetDynamicConfig, SetRecoveryDelay
from bookie_operator.planner.decision import Act, Event
from bookie_operator.planner.desired import Desired
from bookie_operator.world.model import World


def begin(world: World, desired: Desired) -> Act | None:
    return recovery_delay(world) or dynamic_config(world, desired)


def recovery_delay(world: World) -> Act | None:
    spec = world.cluster.spec.autorecovery
    if world.facts is None or not spec.enabled:
        return None
    now, wanted = world.facts.lost_bookie_recovery_delay, spec.lost_bookie_recovery_delay_seconds
    if now == wanted:
        return None
    return Act(SetRecoveryDelay(wanted), f"a bookie may be away for {wanted} s as spec says; it was {now} s")


def dynamic_config(world: World, desired: Desired) -> Act | None:
    """Return the next bookie that runs with other values."""
    for name in view.expected_pods(world):
        facts = world.bookies.get(name)
        if facts is None or facts.config is None:
            continue
        differing = different(facts.config, desired.dynamic_config, desired.given_config)
        if differing:
            keys = ", ".join(sorted(differing))
            return Act(
                SetDynamicConfig(name, differing),
                f"{name} runs with other values of {keys}; they count without a restart",
                event=Event("ConfigChanged", f"{name}: {keys} changed without a restart"),
            )
    return None


def different(runs: Mapping[str, str], wanted: Mapping[str, str], given: frozenset[str]) -> dict[str, str]:
    """Keys whose value means something else, with the value that they should have. `given`: those that have to be
    there; of the others `runs` has its own defaults."""
    return {
        key: text
        for key, text in wanted.items()
        if (key in given if key not in runs else _meaning(runs[key]) != _meaning(text))
    }


def _meaning(text: str) -> object:
    plain = text.strip().lower()
    try:
        return float(plain)
    except ValueError:
        return plain
