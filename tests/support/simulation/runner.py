"""Runs seeds: one, or many in several processes, and says of a failed one how to see it again."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tests.support.garbage import set_aside
from tests.support.simulation.healing.draw import draw_healing
from tests.support.simulation.lives.plan import draw_lives
from tests.support.simulation.run import Result, run
from tests.support.simulation.scenario import Scenario, draw
from tests.support.simulation.streams.plan import draw_streams
from tests.support.simulation.trace import Trace

LEDGERS: Final = "ledgers"
DRAWS: Final[dict[str, Callable[[int], Scenario]]] = {
    LEDGERS: draw,
    "healing": draw_healing,
    "streams": draw_streams,
    "lives": draw_lives,
}
"""What is simulated: clients at work on ledgers, clusters that heal, streams, ids that are used again."""
TRACE_LINES: Final = 60
CHUNK: Final = 10


@dataclass(frozen=True, slots=True)
class Report:
    """`failure`: the message for people, None if everything held."""

    seed: int
    failure: str | None
    counts: dict[str, int]


def run_seed(
    seed: int, *, keep_trace: bool = False, echo: Callable[[str], None] | None = None, of: str = LEDGERS
) -> Result:
    """One run. With `echo`, scenario, trace and violations go there. `of`: what is simulated, see `DRAWS`."""
    scenario = DRAWS[of](seed)
    if echo is not None:
        echo(str(scenario))
    result = run(scenario, Trace(keep=keep_trace, echo=echo))
    if echo is not None:
        for violation in result.violations:
            echo(f"VIOLATED {violation}")
    return result


def run_seeds(seeds: Sequence[int], jobs: int = 1, *, of: str = LEDGERS) -> Iterator[Report]:
    """The reports, in the order of the seeds."""
    one = partial(report, of=of)
    with set_aside():  # modules are not looked at by each run's collection
        if jobs == 1:
            yield from map(one, seeds)
            return
        with multiprocessing.get_context("fork").Pool(jobs) as pool:
            yield from pool.imap(one, seeds, CHUNK)


def report(seed: int, *, of: str = LEDGERS) -> Report:
    """Run a seed; if it fails, again with a trace."""
    result = run_seed(seed, of=of)
    return Report(seed, describe(result) if result.failed else None, result.counts)


def kind_of(scenario: Scenario) -> str:
    """The key of `DRAWS`."""
    if scenario.healing is not None:
        return "healing"
    if scenario.lives is not None:
        return "lives"
    return LEDGERS if scenario.streams is None else "streams"


def describe(result: Result) -> str:
    """What was violated, the end of the trace, and the command that shows all of it."""
    seed = result.scenario.seed
    of = kind_of(result.scenario)
    traced = run_seed(seed, keep_trace=True, of=of)
    lines = [str(result.scenario), *(f"VIOLATED {violation}" for violation in result.violations[:5])]
    if traced.violations != result.violations:
        lines.append(f"A SECOND RUN DIFFERED: {traced.violations[:5]}")
    lines += ["the last events:", *traced.trace.lines[-TRACE_LINES:]]
    lines.append(f"replay: python -m tests.simulation {'' if of == LEDGERS else f'--of {of} '}--seeds {seed} --trace")
    return "\n".join(lines)
