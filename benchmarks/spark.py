"""The Spark package beside our client alone and beside Parquet: `python -m benchmarks.spark [--quick]`.

Three bookies of ours on a ZooKeeper. The same entries are read by the source, by the client alone and, after they were
copied there, by Spark out of Parquet files; likewise for writing; with one task slot and with two. Then planning of
many small ledgers, an audit that reads every replica, and what an audit with a byte limit costs a writer.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

import click
import uvloop

from benchmarks.environment import Environment
from benchmarks.ledgers import create_metadata, write_ledger
from benchmarks.paced_load import PacedLoad, quantile_ms
from benchmarks.samples import OURS, Samples
from benchmarks.session import DEFAULT_OUT, Session
from benchmarks.spark_driver import drive_spark
from bookie_client import Client
from tests.support.bookie_process import BookieProcess

BOOKIES: Final = 3
_SLOTS: Final = (1, 2)
_SETTLE_S: Final = 3.0
_FIRST_SMALL: Final = 1_000_000
_LOAD_LEDGER: Final = 5_000_000
_IDLE_S: Final = 15.0
_AUDIT_LIMIT: Final = "16m"


@dataclass(frozen=True)
class SparkPlan:
    """Sizes."""

    megabytes: int
    ledgers: int
    small_ledgers: int
    times: int


class SparkStages:
    """The measurements on one cluster."""

    def __init__(self, environment: Environment, plan: SparkPlan, samples: Samples, session: Session) -> None:
        self._environment = environment
        self._plan = plan
        self._samples = samples
        self._session = session
        self._uri = environment.metadata_uri
        self._bookies: list[BookieProcess] = []

    async def fill(self, entry_bytes: int) -> list[int]:
        """Closed ledgers with every entry on two of the bookies."""
        plan = self._plan
        payload = Random(entry_bytes).randbytes(entry_bytes)
        entries = plan.megabytes * 1_000_000 // plan.ledgers // entry_bytes
        async with Client(self._uri) as client:
            ids = [await write_ledger(client, payload, entries, copies=2) for _ in range(plan.ledgers)]
        await asyncio.sleep(_SETTLE_S)
        return ids

    async def start(self) -> None:
        """The bookies; nothing but adds, reads and flushes goes on in them."""
        settings = {"gcWaitTime": "3600000"}
        self._bookies = [self._environment.bookie(OURS, settings) for _ in range(BOOKIES)]
        await asyncio.gather(*(asyncio.to_thread(bookie.start) for bookie in self._bookies))

    async def rates(self, entry_bytes: int, ids: Sequence[int]) -> None:
        """Source and sink, the client alone and Parquet, with one slot and with two."""
        ledgers = ",".join(map(str, ids))
        parquet = str(self._environment.directory / f"parquet-{entry_bytes}")
        common = ("--ledgers", ledgers, "--parquet", parquet, "--times", str(self._plan.times))
        await self._drive("prepare", *common)
        nbytes = self._plan.megabytes * 1_000_000
        for slots in _SLOTS:
            of = f"{entry_bytes} B, {slots} slot{'s' if slots > 1 else ''}"
            found = {
                stage: await self._drive(stage, *common, "--slots", str(slots))
                for stage in ("source", "client", "parquet", "sink", "to-parquet")
            }
            sizes = ("--bytes", str(nbytes), "--entry-bytes", str(entry_bytes))
            found["client-write"] = await self._drive("client-write", *common, *sizes, "--slots", str(slots))
            for stage, seconds in found.items():
                self._rate(f"{stage}, {of}", nbytes, entry_bytes, seconds)
            self._ratio(f"source / client alone, {of}", found["client"], found["source"])
            self._ratio(f"source / Parquet, {of}", found["parquet"], found["source"])
            self._ratio(f"sink / client alone, {of}", found["client-write"], found["sink"])
            self._ratio(f"sink / Parquet, {of}", found["to-parquet"], found["sink"])

    async def many_small(self) -> None:
        """Partitions of very many small ledgers; nothing is stored in these."""
        count = self._plan.small_ledgers
        ensemble = tuple(bookie.bookie_id for bookie in self._bookies)
        async with Client(self._uri) as client:
            ids = range(_FIRST_SMALL, _FIRST_SMALL + count)
            await create_metadata(client.metadata_service, ids, ensemble, entries=10, length=1000)
        span = f"{_FIRST_SMALL}-{_FIRST_SMALL + count - 1}"
        for seconds in await self._drive("plan", "--ledgers", span, "--times", str(self._plan.times)):
            self._samples.add(OURS, f"planning {count:,} ledgers", "s", "less", seconds)

    async def audit(self, ids: Sequence[int]) -> None:
        """Every replica of every entry, read and verified; bytes of all replicas count."""
        ledgers = ",".join(map(str, ids))
        seconds = await self._drive("audit", "--ledgers", ledgers, "--slots", "2", "--times", str(self._plan.times))
        nbytes = 2 * self._plan.megabytes
        for each in seconds:
            self._samples.add(OURS, "audit --digests, 2 slots", "MB/s", "more", nbytes / each)

    async def audit_beside_a_writer(self, ids: Sequence[int]) -> None:
        """Adds of 1 KB on a schedule, first alone, then while an audit reads with a limit."""
        payload = Random(3).randbytes(1024)
        loads = [
            PacedLoad(
                int(bookie.configuration["bookiePort"]),
                [_LOAD_LEDGER + 10 * number + each for each in range(4)],
                [],
                payload,
                adds_per_second=300,
                reads_per_second=0.0,
            )
            for number, bookie in enumerate(self._bookies)
        ]
        await asyncio.gather(*(load.run(_IDLE_S) for load in loads))
        idle = [each for load in loads for each in load.adds]
        for load in loads:
            load.adds.clear()
        running = [asyncio.create_task(load.run()) for load in loads]
        try:
            job = await self._job("audit", "--digests", "--placement", "none", "--ledgers", ",".join(map(str, ids)))
        finally:
            for load in loads:
                load.stop()
            await asyncio.gather(*running)
        busy = [each for load in loads for each in load.adds]
        for share, label in ((0.5, "p50"), (0.99, "p99")):
            quiet, during = quantile_ms(idle, share), quantile_ms(busy, share)
            if quiet is None or during is None:
                raise RuntimeError("no add was answered")
            name = f"audit at {_AUDIT_LIMIT}B/s: add {label}, during / idle"
            self._samples.add(OURS, name, "ratio", "less", during / quiet)
        self._session.log(f"  audit beside a writer: {job}")

    async def _job(self, name: str, *arguments: str) -> str:
        command = [sys.executable, "-m", "pyspark_bookie.jobs", name, "--metadata", self._uri]
        command += ["--max-bytes-per-second", _AUDIT_LIMIT, "--master", "local[2]", *arguments]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # as from a terminal of its own
        )
        out, err = await process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"{name}: {err.decode()[-800:]}")
        return out.decode().strip().splitlines()[-1]

    async def _drive(self, stage: str, *arguments: str) -> list[float]:
        result = await asyncio.to_thread(drive_spark, stage, "--metadata", self._uri, *arguments)
        seconds: list[float] = result["seconds"]
        if seconds:
            self._session.log(f"  {stage} {' '.join(arguments[-2:])}: {', '.join(f'{each:.2f}' for each in seconds)} s")
        return seconds

    def _rate(self, name: str, nbytes: int, entry_bytes: int, seconds: Sequence[float]) -> None:
        for each in seconds:
            self._samples.add(OURS, name, "MB/s", "more", nbytes / 1e6 / each)
        self._samples.add(OURS, f"{name}, entries", "entries/s", "more", nbytes / entry_bytes / median(seconds))

    def _ratio(self, name: str, reference: Sequence[float], ours: Sequence[float]) -> None:
        """Of rates, repetition by repetition."""
        for base, mine in zip(reference, ours, strict=True):
            self._samples.add(OURS, name, "ratio", "more", base / mine)


async def measure(plan: SparkPlan, entry_sizes: Sequence[int], parent: Path | None, session: Session) -> Samples:
    """All stages; what fails leaves a line, and those after it still run."""
    samples = Samples()

    async def guarded(name: str, stage: Awaitable[None]) -> None:
        try:
            await stage
        except (RuntimeError, OSError) as error:
            samples.failures.append(f"{name}: {error!r}"[:1500])
            session.log(f"{name} failed: {error!r}")

    with Environment(parent) as environment:
        stages = SparkStages(environment, plan, samples, session)
        await stages.start()
        for size in entry_sizes:
            ids = await stages.fill(size)
            session.log(f"{plan.ledgers} ledgers, {plan.megabytes} MB of {size} B")
            await guarded(f"rates, {size} B", stages.rates(size, ids))
            if size == entry_sizes[0]:
                await guarded("audit", stages.audit(ids))
                await guarded("audit beside a writer", stages.audit_beside_a_writer(ids))
        await guarded("planning", stages.many_small())
    return samples


@click.command()
@click.option("--quick", is_flag=True, help="Small sizes, to see that everything works; the figures mean nothing.")
@click.option("--size", "entry_sizes", type=int, multiple=True, default=(1024, 16_384), show_default=True)
@click.option("--megabytes", type=int, default=500, show_default=True, help="Payload of all ledgers, one copy.")
@click.option("--ledgers", type=int, default=8, show_default=True, help="Ledgers that share these.")
@click.option("--small-ledgers", type=int, default=10_000, show_default=True)
@click.option(
    "--times", type=click.IntRange(1, 20), default=3, show_default=True, help="Repetitions, after three more."
)
@click.option("--dir", "parent", type=click.Path(path_type=Path), help="Parent of the bookies' directories.")
@click.option("--out", type=click.Path(path_type=Path), default=DEFAULT_OUT, show_default=True)
def main(
    quick: bool,
    entry_sizes: tuple[int, ...],
    megabytes: int,
    ledgers: int,
    small_ledgers: int,
    times: int,
    parent: Path | None,
    out: Path,
) -> None:
    """Measures source, sink, planning and audit."""
    session = Session("spark")
    plan = SparkPlan(40, 4, 500, 1) if quick else SparkPlan(megabytes, ledgers, small_ledgers, times)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        samples = runner.run(measure(plan, entry_sizes[:1] if quick else entry_sizes, parent, session))
    session.report(samples, out)


if __name__ == "__main__":
    main()
