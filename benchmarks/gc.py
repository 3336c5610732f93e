"""Garbage collection of our bookie beside the Java bookie's: `python -m benchmarks.gc [--smoke]`.

Most of many ledgers are deleted; what is measured is how long the space takes to come back, and what clients feel
meanwhile. Then one pass over very many ledgers. README.md in this directory says how to read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click
import uvloop

from benchmarks.environment import KINDS, Environment
from benchmarks.gc_stages import GcPlan, GcStages, Log
from benchmarks.samples import OURS, Samples
from benchmarks.session import DEFAULT_OUT, Session, sizes_of

TARGET = 1.5
"""What p99 during a collection may be, as a multiple of p99 while the bookie has nothing else to do."""
STAGES = ("reclaim", "many-ledgers")
_SMOKE = {"megabytes": 40, "ledgers": 100, "log_megabytes": 4, "many_ledgers": 1000, "idle": 3.0}


async def measure(
    plan: GcPlan, kinds: Sequence[str], names: Sequence[str], rounds: int, parent: Path | None, log: Log
) -> Samples:
    """The stages of these names, the kinds in turn."""
    samples = Samples()
    with Environment(parent) as environment:
        stages = GcStages(environment, plan, samples, log)
        for _ in range(rounds):
            for name, stage in zip(STAGES, (stages.reclaim, stages.many_ledgers), strict=True):
                for kind in kinds if name in names else ():
                    await stage(kind)
    return samples


def verdict(samples: Samples) -> str:
    """Whether our bookie keeps the target."""
    found = {what: samples.median(OURS, f"{what} p99, during / idle") for what in ("add", "read")}
    told = ", ".join(f"{what} {'-' if ratio is None else f'{ratio:.2f}'}" for what, ratio in found.items())
    kept = all(ratio is not None and ratio <= TARGET for ratio in found.values())
    return f"p99 during collection / idle, ours: {told}; target at most {TARGET}: {'kept' if kept else 'missed'}"


@click.command()
@click.option("--smoke", is_flag=True, help="Small sizes, to see that everything works; the figures mean nothing.")
@click.option("--only", type=click.Choice(KINDS), help="One kind of bookie instead of both in turn.")
@click.option("--stage", "names", type=click.Choice(STAGES), multiple=True, default=STAGES, show_default=True)
@click.option("--rounds", type=click.IntRange(1, 20), default=1, show_default=True)
@click.option("--megabytes", type=int, default=2000, show_default=True, help="Entries in all.")
@click.option("--ledgers", type=int, default=2000, show_default=True, help="Ledgers that share these.")
@click.option("--entry-bytes", type=int, default=4096, show_default=True)
@click.option("--deleted", type=click.FloatRange(0, 1, True, True), default=0.8, show_default=True, help="Their share.")
@click.option("--log-megabytes", type=int, default=64, show_default=True, help="logSizeLimit.")
@click.option("--compaction-rate", type=int, default=20_000_000, show_default=True, help="compactionRateByBytes.")
@click.option("--adds", type=float, default=1000, show_default=True, help="Adds per second of the client load.")
@click.option("--reads", type=float, default=500, show_default=True, help="Reads per second of the client load.")
@click.option("--idle", type=float, default=20, show_default=True, help="Seconds of load before the collection.")
@click.option("--many-ledgers", type=int, default=100_000, show_default=True)
@click.option("--limit", type=float, default=900, show_default=True, help="Seconds that a collection may take.")
@click.option("--dir", "parent", type=click.Path(path_type=Path), help="Parent of the bookies' directories.")
@click.option("--out", type=click.Path(path_type=Path), default=DEFAULT_OUT, show_default=True)
@click.pass_context
def main(
    context: click.Context,
    /,
    smoke: bool,
    only: str | None,
    names: tuple[str, ...],
    rounds: int,
    parent: Path | None,
    out: Path,
    **sizes: float,
) -> None:
    """Measures garbage collection; both kinds get the same entries, configuration, load and requests."""
    if smoke:
        sizes = sizes_of(context, sizes, _SMOKE)
    session = Session("gc")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        samples = runner.run(measure(_plan(sizes), (only,) if only else KINDS, names, rounds, parent, session.log))
    session.report(samples, out, verdict(samples) if STAGES[0] in names else "")


def _plan(sizes: dict[str, float]) -> GcPlan:
    return GcPlan(
        megabytes=int(sizes["megabytes"]),
        ledgers=int(sizes["ledgers"]),
        entry_bytes=int(sizes["entry_bytes"]),
        deleted=sizes["deleted"],
        log_megabytes=int(sizes["log_megabytes"]),
        compaction_rate=int(sizes["compaction_rate"]),
        adds_per_second=sizes["adds"],
        reads_per_second=sizes["reads"],
        idle_s=sizes["idle"],
        limit_s=sizes["limit"],
        many_ledgers=int(sizes["many_ledgers"]),
    )


if __name__ == "__main__":
    main()
