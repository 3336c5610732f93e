"""Scenarios of clients at work made for one kind of trouble each, from what a seed draws."""

from __future__ import annotations

from dataclasses import replace

from tests.support.simulation.scenario import FaultPlan, Scenario


def deferred_sync_and_restarts(scenario: Scenario) -> Scenario:
    """Ledgers with deferred sync, bookies that are killed."""
    ledgers = tuple(replace(plan, kind="deferred", recoverers=0) for plan in scenario.ledgers)
    faults = tuple(replace(fault, kind="kill") for fault in scenario.faults)
    client = replace(scenario.client, protocol_version=3)
    return replace(scenario, ledgers=ledgers, faults=faults, client=client)


def many_recoveries(scenario: Scenario) -> Scenario:
    """Every ledger is recovered by several clients, some of which are killed, while others follow it."""
    ledgers = tuple(replace(plan, kind="plain", recoverers=4, tailers=3) for plan in scenario.ledgers)
    kinds = ("recover", "reset", "kill recoverer", "slow disk", "kill", "one-way")
    faults = tuple(
        FaultPlan(kinds[number % 6], None, "in recovery", 1 + number // 6, 0.001 + 0.003 * (number % 7))
        for number in range(18)
    )
    window = replace(scenario.client, write_window_entries=16, recovery_window_entries=8)
    return replace(scenario, ledgers=ledgers, faults=faults, client=window)


def bookies_fail_as_recovery_begins(scenario: Scenario) -> Scenario:
    """The writer sees them fail before it is fenced."""
    ledgers = tuple(replace(plan, kind="plain", recoverers=2, entries=200, pause=0.005) for plan in scenario.ledgers)
    kinds = ("kill", "kill", "reset", "kill")
    faults = tuple(
        FaultPlan(kinds[number % 4], None, "in recovery", 1 + number // 4, 0.0002 * (1 + number % 4))
        for number in range(16)
    )
    return replace(scenario, bookies=scenario.quorums[0] + 3, ledgers=ledgers, faults=faults)


def bookies_die_of_fences(scenario: Scenario) -> Scenario:
    """Each is killed as it has answered a fencing read. Writers append so seldom that it may be back before they see
    that it was gone."""
    ledgers = tuple(replace(plan, kind="plain", recoverers=1, entries=20, pause=0.5) for plan in scenario.ledgers)
    answers = ("fence", "negative")
    faults = tuple(FaultPlan("kill", None, answers[number % 2], 1 + number // 2, 0.001) for number in range(16))
    return replace(scenario, ledgers=ledgers, faults=faults)


def bookies_are_replaced_in_turn(scenario: Scenario) -> Scenario:
    """As a ledger is recovered all bookies become others under their ids, one after the other, while its writer pauses
    or is at work."""
    pauses = (0.6, 0.05)
    ledgers = tuple(
        replace(plan, kind="plain", recoverers=2, entries=20, pause=pauses[number % 2])
        for number, plan in enumerate(scenario.ledgers)
    )
    bookies = scenario.quorums[0]
    faults = tuple(
        FaultPlan("new under its id", None, "negative", 1 + 4 * number, 0.02 + 0.03 * each)
        for number in range(8)
        for each in range(bookies)
    )
    return replace(scenario, bookies=bookies, ledgers=ledgers, faults=faults)


def bookies_stall(scenario: Scenario) -> Scenario:
    """Far longer than the time-outs that their answers of late suggest."""
    ledgers = tuple(replace(plan, entries=60, pause=scenario.horizon / 100) for plan in scenario.ledgers)
    client = replace(
        scenario.client, adaptive_timeouts=True, min_adaptive_timeout=0.02, max_adaptive_timeout=0.5, add_timeout=1.0
    )
    disk = replace(scenario.disk, stall_chance=0.1, stall_seconds=1.0)
    return replace(scenario, quorums=(3, 3, 2), ledgers=ledgers, client=client, disk=disk)


def answers_come_again(scenario: Scenario) -> Scenario:
    """Those of every bookie, while writers are at work and something else goes wrong too."""
    ledgers = tuple(replace(plan, entries=60, pause=scenario.horizon / 80) for plan in scenario.ledgers)
    again = tuple(FaultPlan("repeated answers", None, "put", 1 + 5 * number, 0.0) for number in range(20))
    return replace(scenario, ledgers=ledgers, faults=scenario.faults + again)


def bookies_lose_their_power(scenario: Scenario) -> Scenario:
    """Whoever waits for their answers waits in vain; nothing else tells that they are gone."""
    ledgers = tuple(replace(plan, readers=2, tailers=0, recoverers=0) for plan in scenario.ledgers)
    faults = tuple(FaultPlan("power", None, "put", 1 + 4 * number, 0.001) for number in range(6))
    return replace(scenario, ledgers=ledgers, faults=faults)
