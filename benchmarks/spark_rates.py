"""How fast Spark reads and writes entries of one size, beside our client alone and beside Parquet files.

Threads: the event loop.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Sequence
from statistics import median
from typing import Final

from benchmarks.environment import Environment
from benchmarks.samples import OURS, Samples
from benchmarks.session import Session
from benchmarks.spark_driver import drive_spark
from benchmarks.spark_plan import SparkPlan

_RATIOS: Final = (
    ("source", "client", "client alone"),
    ("source", "parquet", "Parquet"),
    ("sink", "client-write", "client alone"),
    ("sink", "to-parquet", "Parquet"),
)


class Driver:
    """Runs Spark applications against one cluster."""

    def __init__(self, environment: Environment, samples: Samples, session: Session) -> None:
        self.directory = environment.directory
        self.samples = samples
        self._uri = environment.metadata_uri
        self._session = session

    async def drive(self, stage: str, *arguments: str) -> list[float]:
        """Seconds of each repetition. Raises `RuntimeError`."""
        result = await asyncio.to_thread(drive_spark, stage, "--metadata", self._uri, *arguments)
        seconds: list[float] = result["seconds"]
        if seconds:
            self._session.log(f"  {stage} {' '.join(arguments[-2:])}: {', '.join(f'{each:.2f}' for each in seconds)} s")
        return seconds

    async def guarded(self, name: str, stage: Awaitable[None]) -> None:
        """A stage that fails leaves a line, and those after it still run."""
        try:
            await stage
        except (RuntimeError, OSError) as error:
            self.samples.failures.append(f"{name}: {error!r}"[:1500])
            self._session.log(f"{name} failed: {error!r}")


class Rates:
    """Of entries of one size. Use it as a context manager: the Parquet files end with it."""

    def __init__(self, driver: Driver, plan: SparkPlan, entry_bytes: int) -> None:
        self.entry_bytes = entry_bytes
        self._driver = driver
        self._plan = plan
        self._parquet = driver.directory / f"parquet-{entry_bytes}"
        self._ledgers: Sequence[int] = ()
        self._seconds: dict[tuple[str, int], list[float]] = {}

    def __enter__(self) -> Rates:
        return self

    def __exit__(self, *error: object) -> None:
        for end in ("", "-copy"):  # as the driver names them
            shutil.rmtree(f"{self._parquet}{end}", ignore_errors=True)

    async def prepare(self, ledgers: Sequence[int]) -> None:
        """These are what is read; Parquet files are made of them if any stage reads such. Raises `RuntimeError`."""
        self._ledgers = ledgers
        if self._plan.has_parquet:
            await self._driver.drive("prepare", *self._arguments())

    async def measure(self, stage: str, slots: int) -> None:
        """With so many task slots, if the plan has this stage."""
        if stage in self._plan.stages:
            await self._driver.guarded(f"{stage}, {self._of(slots)}", self._measure(stage, slots))

    async def _measure(self, stage: str, slots: int) -> None:
        nbytes, name = self._plan.megabytes * 1_000_000, f"{stage}, {self._of(slots)}"
        sizes = ("--bytes", str(nbytes), "--entry-bytes", str(self.entry_bytes)) if stage == "client-write" else ()
        more = ("--traffic-class", self._plan.traffic_class.value, "--slots", str(slots))
        seconds = await self._driver.drive(stage, *self._arguments(), *sizes, *more)
        self._seconds[stage, slots] = seconds
        for each in seconds:
            self._driver.samples.add(OURS, name, "MB/s", "more", nbytes / 1e6 / each)
        entries = nbytes / self.entry_bytes / median(seconds)
        self._driver.samples.add(OURS, f"{name}, entries", "entries/s", "more", entries)

    def note_ratios(self, slots: int) -> None:
        """Of the rates of what was measured, repetition by repetition."""
        for stage, reference, label in _RATIOS:
            mine, base = self._seconds.get((stage, slots), []), self._seconds.get((reference, slots), [])
            for ours, others in zip(mine, base, strict=False):
                self._driver.samples.add(OURS, f"{stage} / {label}, {self._of(slots)}", "ratio", "more", others / ours)

    def _arguments(self) -> tuple[str, ...]:
        ledgers = ",".join(map(str, self._ledgers))
        return ("--ledgers", ledgers, "--parquet", str(self._parquet), "--times", str(self._plan.times))

    def _of(self, slots: int) -> str:
        return f"{self.entry_bytes} B, {slots} slot{'s' if slots > 1 else ''}"
