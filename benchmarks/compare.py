"""Our bookie beside the Java bookie, driven by the same stock client: `python -m benchmarks.compare [--quick]`.

Prints a markdown table of medians and ratios, and writes it with every figure to a directory. README.md in this
directory says what is compared and what that does not tell.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from benchmarks.environment import Environment
from benchmarks.plan import FULL, QUICK, Plan
from benchmarks.samples import JAVA, OURS, Samples
from benchmarks.session import DEFAULT_OUT, Session
from benchmarks.stages import Stages


def compare(plan: Plan, parent: Path | None, log: Any) -> Samples:
    """Runs all stages, the kinds in turn: ours, Java, ours, Java, ..., and beside them what limits both."""
    samples = Samples()
    with Environment(parent) as environment:
        stages = Stages(environment, plan, samples, log)
        for _ in range(plan.rounds):
            for kind in (OURS, JAVA):
                stages.throughput_and_reads(kind)
            for kind in (OURS, JAVA):
                stages.random_from_disk(kind)
            stages.ceiling()
        for _ in range(plan.latency_rounds):
            for kind in (OURS, JAVA):
                stages.latency(kind)
            for kind in (OURS, JAVA):
                stages.replay(kind)
    return samples


@click.command()
@click.option("--quick", is_flag=True, help="About six minutes instead of twenty or more.")
@click.option("--rounds", type=click.IntRange(1, 20), help="Rounds of every stage, instead of the plan's number.")
@click.option("--dir", "parent", type=click.Path(path_type=Path), help="Parent of the bookies' directories.")
@click.option("--out", type=click.Path(path_type=Path), default=DEFAULT_OUT, show_default=True)
def main(quick: bool, rounds: int | None, parent: Path | None, out: Path) -> None:
    """Compares the two bookies; both get the same directories, cache sizes, ZooKeeper and client."""
    session = Session("compare")
    plan = QUICK if quick else FULL
    if rounds is not None:
        plan = replace(plan, rounds=rounds, latency_rounds=rounds)
    session.report(compare(plan, parent, session.log), out)


if __name__ == "__main__":
    main()
