"""The Spark package beside our client alone and beside Parquet: `python -m benchmarks.spark [--quick] [--only STAGE]`.

Three bookies of ours on a ZooKeeper. The same entries are read by the source, by the client alone and, after they were
copied there, by Spark out of Parquet files; likewise for writing, each time to fresh bookies; with one task slot and
with two. Then planning of many small ledgers, an audit that reads every replica, and what an audit with a byte limit
costs a writer.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
import uvloop

from benchmarks.environment import Environment
from benchmarks.samples import Samples
from benchmarks.session import DEFAULT_OUT, Session, sizes_of
from benchmarks.spark_plan import AUDITS, STAGES, SparkPlan
from benchmarks.spark_stages import SparkStages
from bookie_client import TrafficClass

_QUICK: Final[dict[str, float]] = {"megabytes": 40, "ledgers": 4, "small_ledgers": 500, "times": 1}


async def measure(
    plan: SparkPlan, entry_sizes: Sequence[int], parent: Path | None, journals: Path | None, session: Session
) -> Samples:
    """All stages; audits and planning with the first size only."""
    samples = Samples()
    with Environment(parent, journals) as environment:
        stages = SparkStages(environment, plan, samples, session)
        for size in entry_sizes if plan.stages.difference(AUDITS) else entry_sizes[:1]:
            await stages.run(size, with_audits=size == entry_sizes[0])
    return samples


@click.command()
@click.option("--quick", is_flag=True, help="Small sizes, to see that everything works; the figures mean nothing.")
@click.option("--only", type=click.Choice(STAGES), multiple=True, help="Instead of all stages; may be repeated.")
@click.option("--size", "entry_sizes", type=int, multiple=True, default=(1024, 16_384), show_default=True)
@click.option("--megabytes", type=int, default=500, show_default=True, help="Payload of all ledgers, one copy.")
@click.option("--ledgers", type=int, default=8, show_default=True, help="Ledgers that share these.")
@click.option("--small-ledgers", type=int, default=10_000, show_default=True)
@click.option(
    "--times", type=click.IntRange(1, 20), default=3, show_default=True, help="Repetitions, after three more."
)
@click.option(
    "--traffic-class",
    type=click.Choice([each.value for each in TrafficClass]),
    default=TrafficClass.BATCH.value,
    show_default=True,
    help="Of what source and client read.",
)
@click.option("--dir", "parent", type=click.Path(path_type=Path), help="Parent of the bookies' directories.")
@click.option(
    "--journal-dir",
    "journals",
    type=click.Path(path_type=Path),
    help="Parent of the journals' instead: another device.",
)
@click.option("--out", type=click.Path(path_type=Path), default=DEFAULT_OUT, show_default=True)
@click.pass_context
def main(
    context: click.Context,
    /,
    quick: bool,
    only: tuple[str, ...],
    traffic_class: str,
    entry_sizes: tuple[int, ...],
    parent: Path | None,
    journals: Path | None,
    out: Path,
    **sizes: float,
) -> None:
    """Measures source, sink, planning and audit."""
    if quick:
        sizes, entry_sizes = sizes_of(context, sizes, _QUICK), entry_sizes[:1]
    counts = {name: int(value) for name, value in sizes.items()}
    plan = SparkPlan(**counts, stages=frozenset(only or STAGES), traffic_class=TrafficClass(traffic_class))
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    plan.check_disk(parent or Path(tempfile.gettempdir()))
    session = Session("spark")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        samples = runner.run(measure(plan, entry_sizes, parent, journals, session))
    session.report(samples, out)


if __name__ == "__main__":
    main()
