"""Runs seeds: one, or many in several processes, and says of a failed one how to see it again."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tests.support.garbage import set_aside
from tests.support.simulation.healing.draw import draw_healing
from tests.support.simulation.run import Result, run
from tests.support.simulation.scenario import draw
from tests.support.simulation.trace import Trace

TRACE_LINES: Final = 60
CHUNK: Final = 10


@dataclass(frozen=True, slots=True)
class Report:
    """`failure`: the message for people, None if everything held."""

    seed: int
    failure: str | None
    counts: dict[str, int]


def run_seed(
    seed: int, *, keep_trace: bool = False, echo: Callable[[str], None] | None = None, healing: bool = False
) -> Result:
    """One run. With `echo`, scenario, trace and violations go there. `healing`: of the scenarios with healers."""
    scenario = draw_healing(seed) if healing else draw(seed)
    if echo is not None:
        echo(str(scenario))
    result = run(scenario, Trace(keep=keep_trace, echo=echo))
    if echo is not None:
        for violation in result.violations:
            echo(f"VIOLATED {violation}")
    return result


def run_seeds(seeds: Sequence[int], jobs: int = 1, *, healing: bool = False) -> Iterator[Report]:
    """The reports, in the order of the seeds."""
    one = partial(report, healing=healing)
    with set_aside():  # modules are not looked at by each run's collection
        if jobs == 1:
            yield from map(one, seeds)
            return
        with multiprocessing.get_context("fork").Pool(jobs) as pool:
            yield from pool.imap(one, seeds, CHUNK)


def report(seed: int, *, healing: bool = False) -> Report:
    """Run a seed; if it fails, again with a trace."""
    result = run_seed(seed, healing=healing)
    return Report(seed, describe(result) if result.failed else None, result.counts)


def describe(result: Result) -> str:
    """What was violated, the end of the trace, and the command that shows all of it."""
    seed = result.scenario.seed
    healing = result.scenario.healing is not None
    traced = run_seed(seed, keep_trace=True, healing=healing)
    lines = [str(result.scenario), *(f"VIOLATED {violation}" for violation in result.violations[:5])]
    if traced.violations != result.violations:
        lines.append(f"A SECOND RUN DIFFERED: {traced.violations[:5]}")
    lines += ["the last events:", *traced.trace.lines[-TRACE_LINES:]]
    lines.append(f"replay: python -m tests.simulation {'--healing ' if healing else ''}--seeds {seed} --trace")
    return "\n".join(lines)
