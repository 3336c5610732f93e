"""Which measurements of the Spark benchmark run on which bookies.

Invariants
- What is read lies on one set of bookies. Each stage that writes to bookies has fresh ones, and of any set nothing is
  left when the next one starts.
- A stage that fails leaves a line, and those after it still run.

Threads: the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Final

from benchmarks.audit_beside import LIMIT, AuditBesideWriter
from benchmarks.environment import Environment
from benchmarks.ledgers import create_metadata, write_ledger
from benchmarks.samples import OURS, Samples
from benchmarks.session import Session
from benchmarks.spark_plan import COPIES, READING, WRITING, SparkPlan
from benchmarks.spark_rates import Driver, Rates
from bookie_client import Client
from tests.support.bookie_process import BookieProcess

BOOKIES: Final = 3
_SLOTS: Final = (1, 2)
_SETTLE_S: Final = 3.0
_FIRST_SMALL: Final = 1_000_000


class SparkStages:
    """The measurements on one cluster."""

    def __init__(self, environment: Environment, plan: SparkPlan, samples: Samples, session: Session) -> None:
        self._environment = environment
        self._plan = plan
        self._samples = samples
        self._session = session
        self._uri = environment.metadata_uri
        self._driver = Driver(environment, samples, session)

    async def run(self, entry_bytes: int, *, with_audits: bool) -> None:
        """Everything that the plan wants with entries of this size. `with_audits`: and planning."""
        with Rates(self._driver, self._plan, entry_bytes) as rates:
            await self._driver.guarded(f"what is read, {entry_bytes} B", self._read(rates, with_audits))
            for slots in _SLOTS:
                for stage in sorted(self._plan.stages.intersection(WRITING)):
                    await self._driver.guarded(stage, self._write(rates, stage, slots))
                await rates.measure("to-parquet", slots)
                rates.note_ratios(slots)

    @asynccontextmanager
    async def _bookies(self) -> AsyncIterator[list[BookieProcess]]:
        """Fresh ones; nothing but adds, reads and flushes goes on in them."""
        fresh = [self._environment.bookie(OURS, {"gcWaitTime": "3600000"}) for _ in range(BOOKIES)]
        try:
            for bookie in fresh:
                await asyncio.to_thread(bookie.start)
            yield fresh
        finally:
            for bookie in fresh:
                if bookie.is_running():  # one that is killed would stay registered for a while
                    await asyncio.to_thread(bookie.stop)
                self._environment.discard(bookie)

    async def _write(self, rates: Rates, stage: str, slots: int) -> None:
        async with self._bookies():
            await rates.measure(stage, slots)

    # --- reading ----------------------------------------------------------------------------------------------

    async def _read(self, rates: Rates, with_audits: bool) -> None:
        wanted = self._plan.stages
        if not (self._plan.has_ledgers or (with_audits and "planning" in wanted)):
            return
        async with self._bookies() as bookies:
            ids = await self._fill(rates.entry_bytes) if self._plan.has_ledgers else []
            await rates.prepare(ids)
            for slots in _SLOTS:
                for stage in READING:
                    await rates.measure(stage, slots)
            if not with_audits:
                return
            if "audit" in wanted:
                await self._driver.guarded("audit", self._audit(ids))
            if "audit-beside" in wanted:
                await self._driver.guarded("audit beside a writer", self._audit_beside_a_writer(ids, bookies))
            if "planning" in wanted:
                await self._driver.guarded("planning", self._many_small(bookies))

    async def _fill(self, entry_bytes: int) -> list[int]:
        """Closed ledgers with every entry on two of the bookies."""
        plan, payload = self._plan, Random(entry_bytes).randbytes(entry_bytes)
        entries = plan.megabytes * 1_000_000 // plan.ledgers // entry_bytes
        async with Client(self._uri) as client:
            ids = [await write_ledger(client, payload, entries, COPIES) for _ in range(plan.ledgers)]
        await asyncio.sleep(_SETTLE_S)
        self._session.log(f"{plan.ledgers} ledgers, {plan.megabytes} MB of {entry_bytes} B")
        return ids

    async def _audit(self, ids: Sequence[int]) -> None:
        """Every replica of every entry, read and verified; bytes of all replicas count."""
        ledgers = ",".join(map(str, ids))
        arguments = ("--ledgers", ledgers, "--slots", "2", "--times", str(self._plan.times))
        for seconds in await self._driver.drive("audit", *arguments):
            rate = COPIES * self._plan.megabytes / seconds
            self._samples.add(OURS, "audit --digests, 2 slots", "MB/s", "more", rate)

    async def _audit_beside_a_writer(self, ids: Sequence[int], bookies: Sequence[BookieProcess]) -> None:
        beside = AuditBesideWriter(self._uri, bookies, self._session.log)
        for _ in range(self._plan.times):
            for label, ratio in (await beside.measure(ids)).items():
                name = f"audit at {LIMIT}B/s: add {label}, during / idle"
                self._samples.add(OURS, name, "ratio", "less", ratio)

    async def _many_small(self, bookies: Sequence[BookieProcess]) -> None:
        """Partitions of very many small ledgers; nothing is stored in these."""
        count = self._plan.small_ledgers
        ensemble = tuple(bookie.bookie_id for bookie in bookies)
        async with Client(self._uri) as client:
            ids = range(_FIRST_SMALL, _FIRST_SMALL + count)
            await create_metadata(client.metadata_service, ids, ensemble, entries=10, length=1000)
        span = f"{_FIRST_SMALL}-{_FIRST_SMALL + count - 1}"
        for seconds in await self._driver.drive("plan", "--ledgers", span, "--times", str(self._plan.times)):
            self._samples.add(OURS, f"planning {count:,} ledgers", "s", "less", seconds)
