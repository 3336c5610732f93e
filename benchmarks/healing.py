"""Healing by our auto-recovery beside Apache's, on the same bookies: `python -m benchmarks.healing [--smoke]`.

One bookie of several is lost for good: how fast its copies are made again, and what clients feel meanwhile. Then an
audit of very many ledgers. README.md in this directory says how to read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final

import click
import uvloop

from benchmarks.environment import KINDS, Environment
from benchmarks.healing_stages import HealingPlan, HealingStages, Log
from benchmarks.samples import OURS, Samples
from benchmarks.session import DEFAULT_OUT, Session, sizes_of
from bookie_client import Client

TARGET: Final = 1.5
"""What p99 of adds while healing may be, as a multiple of p99 while nothing heals."""
UNLIMITED: Final[Mapping[str, str]] = {"replicationRateByBytes": "-1"}
BATCHES: Final[Mapping[str, str]] = {
    **UNLIMITED,
    "rereplicationEntryBatchSize": "500",
    "recoveryBatchReadEnabled": "true",
    "useV2WireProtocol": "true",
}
_LOADED: Final = "default throttle, under load"
THROTTLES: Final[Sequence[tuple[str, Mapping[str, str]]]] = (
    (_LOADED, {}),
    ("16 MiB/s, under load", {"replicationRateByBytes": str(16 * 1024 * 1024)}),
)
STAGES: Final = ("healing", "audit")
_SMOKE: Final = {"megabytes": 30, "ledgers": 60, "idle": 4.0, "many_ledgers": 2000, "bookies": 3}


async def measure(
    plan: HealingPlan,
    kinds: Sequence[str],
    names: Sequence[str],
    sizes: Sequence[int],
    rounds: int,
    parent: Path | None,
    log: Log,
) -> Samples:
    """The stages of these names, the kinds in turn."""
    samples = Samples()
    stages = HealingStages(plan, samples, log)
    for size in sizes if "healing" in names else ():
        with Environment(parent) as environment:
            async with Client(environment.metadata_uri, random=Random(1)) as client:
                cluster = await stages.filled(environment, client, size)
                for _ in range(rounds):
                    for name, settings in ((f"{size} B", UNLIMITED), (f"{size} B in batches", BATCHES)):
                        for kind in kinds:
                            await stages.guarded(f"{name}, {kind}", stages.heal(kind, cluster, name, settings))
                    if size != sizes[0]:
                        continue
                    for name, settings in THROTTLES:
                        for kind in kinds:
                            healing = stages.heal_under_load(kind, cluster, name, settings)
                            await stages.guarded(f"{name}, {kind}", healing)
    if "audit" not in names:
        return samples
    with Environment(parent) as environment:
        async with Client(environment.metadata_uri) as client:
            await stages.with_many_ledgers(environment, client.metadata_service)
            for _ in range(rounds):
                for kind in kinds:
                    audit = stages.audit(kind, environment, client.metadata_service)
                    await stages.guarded(f"audit, {kind}", audit)
    return samples


def verdict(samples: Samples) -> str:
    """Whether clients of ours keep the target."""
    ratio = samples.median(OURS, f"{_LOADED}: add p99, healing / idle")
    told = "-" if ratio is None else f"{ratio:.2f}"
    kept = ratio is not None and ratio <= TARGET
    return f"add p99 healing / idle, ours: {told}; target at most {TARGET}: {'kept' if kept else 'missed'}"


@click.command()
@click.option("--smoke", is_flag=True, help="Small sizes, to see that everything works; the figures mean nothing.")
@click.option("--only", type=click.Choice(KINDS), help="One kind of auto-recovery instead of both in turn.")
@click.option("--stage", "names", type=click.Choice(STAGES), multiple=True, default=STAGES, show_default=True)
@click.option("--bookie", "bookie_kind", type=click.Choice(KINDS), default=OURS, show_default=True, help="Kind of all.")
@click.option("--rounds", type=click.IntRange(1, 20), default=1, show_default=True)
@click.option("--size", "entry_sizes", type=int, multiple=True, default=(1024, 16_384), show_default=True)
@click.option("--megabytes", type=int, default=1000, show_default=True, help="Payload of all ledgers, one copy.")
@click.option("--ledgers", type=int, default=1000, show_default=True, help="Ledgers that share these.")
@click.option("--copies", type=click.IntRange(2, 7), default=2, show_default=True, help="Ensemble and quorums.")
@click.option("--bookies", type=click.IntRange(3, 20), default=4, show_default=True)
@click.option("--adds", type=float, default=1000, show_default=True, help="Adds of 1 KB per second of the load.")
@click.option("--idle", type=float, default=20, show_default=True, help="Seconds of load before the loss.")
@click.option("--many-ledgers", type=int, default=100_000, show_default=True)
@click.option("--limit", type=float, default=1800, show_default=True, help="Seconds that a healing may take.")
@click.option("--dir", "parent", type=click.Path(path_type=Path), help="Parent of the bookies' directories.")
@click.option("--out", type=click.Path(path_type=Path), default=DEFAULT_OUT, show_default=True)
@click.pass_context
def main(
    context: click.Context,
    /,
    smoke: bool,
    only: str | None,
    names: tuple[str, ...],
    bookie_kind: str,
    rounds: int,
    entry_sizes: tuple[int, ...],
    parent: Path | None,
    out: Path,
    **sizes: float,
) -> None:
    """Measures healing; both kinds get the same bookies, ledgers, losses, load and configuration."""
    if smoke:
        sizes = sizes_of(context, sizes, _SMOKE)
    if sizes["bookies"] <= sizes["copies"]:
        raise click.UsageError("--bookies: one more than --copies at least, because a lost copy needs a spare bookie")
    session = Session("healing")
    work = measure(
        _plan(sizes, bookie_kind), (only,) if only else KINDS, names, entry_sizes, rounds, parent, session.log
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        samples = runner.run(work)
    session.report(samples, out, verdict(samples) if "healing" in names else "")


def _plan(sizes: Mapping[str, float], bookie_kind: str) -> HealingPlan:
    return HealingPlan(
        megabytes=int(sizes["megabytes"]),
        ledgers=int(sizes["ledgers"]),
        copies=int(sizes["copies"]),
        bookies=int(sizes["bookies"]),
        bookie_kind=bookie_kind,
        adds_per_second=sizes["adds"],
        idle_s=sizes["idle"],
        many_ledgers=int(sizes["many_ledgers"]),
        limit_s=sizes["limit"],
    )


if __name__ == "__main__":
    main()
