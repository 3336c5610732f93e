"""Scenarios of healing made for one kind of trouble each, from what a seed draws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.simulation.healing.plan import HealingPlan
from tests.support.simulation.scenario import FaultPlan, Scenario


def _plan(scenario: Scenario, **changes: Any) -> HealingPlan:
    assert scenario.healing is not None
    return replace(scenario.healing, **changes)


def _config(scenario: Scenario, **changes: Any) -> HealingPlan:
    return _plan(scenario, config=replace(_plan(scenario).config, **changes))


def many_drains(scenario: Scenario) -> Scenario:
    """Bookies are drained while ledgers are written, and healers work on the same ledgers."""
    times = tuple(scenario.horizon * (0.2 + 0.2 * n) for n in range(3))
    return replace(scenario, healing=_plan(scenario, drains=times, collect_every=0.5))


def locks_end_under_drains(scenario: Scenario) -> Scenario:
    """Drains copy slowly, and their sessions end while they do; surplus copies are collected all the time."""
    scenario = many_drains(scenario)
    faults = tuple(
        FaultPlan("expire drainer", None, "draining", n, 0.2 + 0.3 * k) for n in range(1, 6) for k in range(6)
    )
    return replace(scenario, faults=faults, healing=_plan(scenario, collect_every=0.3, drain_rate=3000.0))


def silent_bookies(scenario: Scenario) -> Scenario:
    """Ledgers are checked often, while bookies are down for a while and their sessions live on."""
    faults = tuple(FaultPlan("late", scenario.horizon * n / 10, "", 0, 0.01) for n in range(1, 10))
    metadata = replace(scenario.metadata, session_timeout=8.0)
    healing = _config(scenario, auditor_check_interval_s=1)
    return replace(scenario, bookies=scenario.quorums[0] + 3, faults=faults, metadata=metadata, healing=healing)


def writers_leave_holes(scenario: Scenario) -> Scenario:
    """Writers go on without bookies that are killed, and holes are looked for by lists."""
    ledgers = tuple(replace(plan, kind="plain", entries=60, pause=scenario.horizon / 80) for plan in scenario.ledgers)
    faults = tuple(FaultPlan("kill", None, "put", 20 * n, 0.001) for n in range(1, 10))
    return replace(
        scenario,
        quorums=(3, 3, 2),
        bookies=4,
        ledgers=ledgers,
        faults=faults,
        client=replace(scenario.client, delay_ensemble_change=True),
        healing=_config(scenario, auditor_verification_percentage=0, auditor_replicas_check_interval_s=4),
    )


def copies_rot(scenario: Scenario) -> Scenario:
    """Copies are damaged in the middle of closed ledgers, and checks read a sample of each."""
    ledgers = tuple(
        replace(plan, kind="plain", start=0.1, entries=40, pause=scenario.horizon / 200) for plan in scenario.ledgers
    )
    faults = tuple(FaultPlan("rot", scenario.horizon * (0.4 + n / 20), "", 0, 0.01) for n in range(10))
    healing = replace(
        _config(
            scenario,
            auditor_verification_percentage=10,
            auditor_check_interval_s=2,
            auditor_replicas_check_interval_s=0,
        ),
        drains=(),
    )
    return replace(scenario, quorums=(3, 3, 2), bookies=5, ledgers=ledgers, faults=faults, healing=healing)


def healers_die_while_they_fill(scenario: Scenario) -> Scenario:
    """Bookies come back empty, and nobody has looked at them yet when ledgers are marked for others that are lost;
    whoever copies is killed. Only first and last entries are read, and nobody writes any more."""
    times = [scenario.horizon * (0.2 + n / 8) for n in range(6)]
    losses = [FaultPlan(kind, at, "", 0, 0.01) for at in times for kind in ("emptied", "late")]
    kills = [FaultPlan("kill healer", None, "copy", 7 * n, 0.0005 * (n % 5)) for n in range(1, 30)]
    ledgers = tuple(
        replace(plan, kind="plain", closes=True, start=0.1, entries=15, pause=scenario.horizon / 150)
        for plan in scenario.ledgers
    )
    config = replace(
        _plan(scenario).config,
        lost_bookie_recovery_delay_s=1,
        auditor_verification_percentage=0,
        auditor_check_interval_s=10,
        auditor_replicas_check_interval_s=10,
        entry_batch_size=1,
        rate_by_bytes=-1,
    )
    return replace(
        scenario,
        quorums=(3, 3, 2),
        bookies=4,
        ledgers=ledgers * 2,
        faults=(*losses, *kills),
        disk=replace(scenario.disk, read_seconds=0.005, spread=30.0),
        healing=_plan(scenario, config=config, drains=()),
    )


def decommissions_are_undone(scenario: Scenario) -> Scenario:
    """Drains, each undone at its end, while somebody else has taken it over or the coordinator hears nothing for a
    while."""
    faults = []
    for number in range(1, 4):
        delay = 0.001 * number
        faults.append(FaultPlan("second drainer", None, "removing", number, delay))
        faults.append(FaultPlan("undo", None, "removing", number, 4 * delay))
        faults.append(FaultPlan("undo", None, "proving", 2 * number, delay))
    return replace(many_drains(scenario), faults=tuple(faults))


def lost_bookies_are_recovered(scenario: Scenario) -> Scenario:
    """Nobody waits for auto-recovery: its delay is long, and somebody recovers each bookie that is lost."""
    times = tuple(FaultPlan("lost disk", scenario.horizon * (0.3 + n / 8), "", 0, 0.01) for n in range(4))
    commands = tuple(FaultPlan("restore", None, "lost", 1 + n, 0.1 + n) for n in range(4))
    healing = replace(_config(scenario, lost_bookie_recovery_delay_s=30), drains=())
    return replace(scenario, faults=(*times, *commands), healing=healing)


def racks_are_minded(scenario: Scenario) -> Scenario:
    """Writers know nothing of racks, and what they make of it is mended."""
    config = replace(_plan(scenario).config, repair_placement=True, auditor_placement_check_interval_s=2)
    ledgers = tuple(replace(plan, start=0.1) for plan in scenario.ledgers)
    return replace(
        scenario,
        quorums=(3, 2, 2),
        bookies=6,
        ledgers=ledgers,
        healing=replace(_plan(scenario), racks=3, config=config),
    )


def exchanges_are_late(scenario: Scenario) -> Scenario:
    """Whoever has a ledger's lock waits long for the metadata service, while bookies are lost and others leave. Nobody
    writes any more."""
    losses = [FaultPlan("lost disk", scenario.horizon * (0.5 + n / 12), "", 0, 0.01) for n in range(5)]
    holds = [FaultPlan("hold", None, "lock", n, 0.01 * (1 + n % 7)) for n in range(1, 60)]
    drains = tuple(scenario.horizon * (0.5 + n / 24) for n in range(10))
    ledgers = tuple(
        replace(plan, kind="plain", start=0.1, entries=20, pause=scenario.horizon / 100) for plan in scenario.ledgers
    )
    drain = replace(_plan(scenario).drain, settle=0.1, retry_interval=0.3)
    config = replace(_plan(scenario).config, lost_bookie_recovery_delay_s=0)
    healing = _plan(scenario, healers=3, drains=drains, drain=drain, config=config, collect_every=0.1)
    return replace(scenario, quorums=(3, 2, 2), ledgers=ledgers, faults=(*losses, *holds), healing=healing)


def ids_are_used_again(scenario: Scenario) -> Scenario:
    """Bookies that were decommissioned come back as others, and coordinators die at the very end."""
    kills = [FaultPlan("kill drainer", None, "done", n, 0.0001) for n in range(1, 8)]
    drains = tuple(scenario.horizon * (0.1 + n / 20) for n in range(6))
    drain = replace(_plan(scenario).drain, settle=0.5, open_grace=0.0, recover_open=True)
    healing = _plan(scenario, drains=drains, drain=drain, ids_used_again=True)
    return replace(scenario, faults=tuple(kills), healing=healing)
