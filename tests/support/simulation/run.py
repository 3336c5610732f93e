"""Runs one scenario on a loop of its own."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any
from unittest.mock import patch

import structlog

from bookie_pod.server.tcp import lane_reads
from tests.support.simulation.clock import START, Deadlock, Livelock, VirtualLoop
from tests.support.simulation.healing.world import HealingWorld
from tests.support.simulation.lives.world import LivesWorld
from tests.support.simulation.scenario import Scenario
from tests.support.simulation.streams.world import StreamWorld
from tests.support.simulation.trace import Trace
from tests.support.simulation.world import World, told


@dataclass(frozen=True, slots=True)
class Result:
    """`violations` is empty when everything held."""

    scenario: Scenario
    violations: tuple[str, ...]
    counts: dict[str, int]
    virtual_seconds: float
    trace: Trace

    @property
    def failed(self) -> bool:
        return bool(self.violations)


def run(scenario: Scenario, trace: Trace | None = None) -> Result:
    """Run a scenario once."""
    trace = trace or Trace(keep=False)
    loop = VirtualLoop()
    trace.clock = loop.time
    inexact: dict[int, None] = {}
    with _logs_to(trace, inexact), _nothing_of_the_machine():
        asyncio.events.set_event_loop(loop)
        try:
            world, started = _run_on(loop, scenario, trace, inexact)
        finally:
            asyncio.events.set_event_loop(None)
            loop.close()
    return Result(scenario, tuple(world.history.violations), world.history.counts, started, trace)


def _run_on(loop: VirtualLoop, scenario: Scenario, trace: Trace, inexact: Mapping[int, None]) -> tuple[World, float]:
    world: World | None = None

    async def everything() -> float:
        nonlocal world
        world = _world_of(scenario)(scenario, loop, trace)
        world.history.inexact_lengths = inexact
        try:
            await world.run()
        except Exception as error:  # whatever it is, it is not what a cluster does
            world.history.violated("unexpected error", None, told(error))
        seconds = loop.time() - START
        await world.close()
        return seconds

    seconds = 0.0
    try:
        seconds = loop.run_until_complete(everything())
    except (Deadlock, Livelock) as stuck:
        assert world is not None
        world.history.violated("L stuck", None, str(stuck))
    assert world is not None
    gc.collect()
    for unhandled in loop.unhandled:
        world.history.violated("unexpected error", None, unhandled)
    return world, seconds


def _world_of(scenario: Scenario) -> type[World]:
    if scenario.healing is not None:
        return HealingWorld
    if scenario.lives is not None:
        return LivesWorld
    return World if scenario.streams is None else StreamWorld


@contextmanager
def _nothing_of_the_machine() -> Iterator[None]:
    """What a collection finds, such as generators that nobody closed, would end at a time that is no part of the run;
    and a bookie hands over what it has read when the machine has taken long."""
    gc.disable()
    try:
        with patch.object(lane_reads, "LONG_S", inf):
            yield
    finally:
        gc.enable()


@contextmanager
def _logs_to(trace: Trace, inexact: dict[int, None]) -> Iterator[None]:
    """The logs of clients and bookies become part of the trace; `inexact` gets the ledgers whose recovery said that
    it could not tell their length."""
    before = structlog.get_config()

    def into_trace(logger: Any, method: str, event: Any) -> Any:
        if event["event"] == "length is not exact":
            inexact[event["ledger"]] = None
        if trace.on:
            name = event.pop("event")
            trace("log", f"{method}: {name} {' '.join(f'{key}={value}' for key, value in sorted(event.items()))}")
        raise structlog.DropEvent

    structlog.configure(processors=[into_trace], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)
