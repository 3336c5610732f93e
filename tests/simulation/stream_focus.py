"""Scenarios of streams made for one kind of trouble each, from what a seed draws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.simulation.scenario import FaultPlan, Scenario
from tests.support.simulation.streams.plan import ROLES


def _plan(scenario: Scenario, actors: dict[str, int], **changes: Any) -> Scenario:
    assert scenario.streams is not None
    everybody = dict.fromkeys(ROLES, 0) | actors
    return replace(scenario, streams=replace(scenario.streams, actors=everybody, **changes))


def _settings(scenario: Scenario, **changes: Any) -> Scenario:
    assert scenario.streams is not None
    settings = replace(scenario.streams.settings, **changes)
    return replace(scenario, streams=replace(scenario.streams, settings=settings))


def streams_want_the_same_ledgers(scenario: Scenario) -> Scenario:
    actors = {"appender": 1, "publisher": 2, "restorer": 2, "offloader": 1}
    return _plan(scenario, actors, appended=1, published=2)


def ledgers_are_archived_under_change(scenario: Scenario) -> Scenario:
    """Archives are slow, and lists and cursors change all the time."""
    scenario = _settings(scenario, retention_seconds=None, retention_bytes=None, deletion_lag_seconds=3.0)
    actors = {"publisher": 2, "consumer": 3, "offloader": 3}
    plan = {"appended": 0, "published": 2, "file_seconds": 0.1, "delete_after": 0.0, "replaces": 0.3}
    return _plan(scenario, actors, keep_listed=scenario.seed % 2 == 0, **plan)


def numbers_are_used_again(scenario: Scenario) -> Scenario:
    return _plan(
        replace(scenario, horizon=12.0),
        {"reuser": 2, "offloader": 3},
        appended=0,
        published=1,
        file_seconds=0.01,
        delete_after=0.0,
    )


def names_are_used_again(scenario: Scenario) -> Scenario:
    """Streams are deleted and made anew all the time, while the requests of those who work on them are held back."""
    actors = {"appender": 2, "publisher": 3, "recreator": 2, "keeper": 1}
    faults = tuple(FaultPlan("hold", None, "list", 2 + 3 * number, 0.004 * (number % 11)) for number in range(60))
    return _plan(replace(scenario, faults=faults, horizon=12.0), actors, appended=1, published=1, recreate_every=0.5)


def cursors_are_made_while_streams_are_cut(scenario: Scenario) -> Scenario:
    """Consumers have one cursor, which is given up and made again. Whoever makes it dies, and whoever has asked for
    cursors to cut the stream is held back."""
    scenario = _settings(scenario, retention_seconds=0.0, max_ledger_entries=2)
    kills = [FaultPlan("kill actor", None, "cursor", 1 + 3 * number, 0.0002 * (number % 5)) for number in range(60)]
    holds = [FaultPlan("hold", None, "cursors listed", 1 + number, 0.0) for number in range(100)]
    return _plan(
        replace(scenario, faults=(*kills, *holds), horizon=12.0),
        {"appender": 1, "consumer": 2, "keeper": 2},
        appended=1,
        published=0,
        shared=1.0,
        forgets=0.4,
        lingers=0.8,
        append_pause=1.0,
    )


def ledgers_wait_for_their_stream(scenario: Scenario) -> Scenario:
    """A restore takes longer than orphans are left alone."""
    actors = {"publisher": 1, "offloader": 2, "restorer": 2, "sweeper": 2}
    plan = {
        "appended": 0,
        "published": 1,
        "file_seconds": 0.001,
        "delete_after": 0.0,
        "older_than": 0.5,
        "replaces": 0.0,
    }
    return _plan(replace(scenario, horizon=12.0), actors, lingers=0.8, **plan)


def streams_are_overwritten(scenario: Scenario) -> Scenario:
    scenario = _settings(scenario, deletion_lag_seconds=0.3, retention_seconds=None)
    return _plan(scenario, {"publisher": 1, "consumer": 1}, appended=0, published=1, replaces=1.0)
