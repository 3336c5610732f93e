"""The measurements of healing: auto-recovery of either kind on the same bookies with the same ledgers.

Ledgers lie on several bookies; one of these is lost for good (SIGKILL, and its registration removed). When everything
is healed it comes back, named by no ledger, and the next one is lost: so both kinds, and all rounds, share one
filling.

Invariants
- Nobody but the measured process heals; the one before has ended, and its vote is gone.
- After each healing every replica of some ledgers is read and compared.
- What fails leaves a line in `Samples.failures`; the stages after it still run.

Threads: the event loop; a thread samples memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

import psutil

from benchmarks.environment import Environment
from benchmarks.gc_stages import PeakMemory
from benchmarks.healers import Healer
from benchmarks.healing_cluster import SETTLE_S, HealingCluster, HealingRun, elected, no_auditor
from benchmarks.ledgers import create_metadata, write_ledger
from benchmarks.paced_load import Timed, quantile_ms
from benchmarks.replication import raw_mib_per_second
from benchmarks.samples import Samples
from bookie_client import Client
from bookie_protocol.errors import PodkeeperError
from bookie_protocol.metadata_service.tree.nodes import NODES_AT_ONCE
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.auto_recovery import read_every_replica

_READ_BACK: Final = 2
"""Ledgers of which every replica is read after a healing."""
_QUIET_S: Final = 5.0
_BUSY: Final = 10
"""Requests in a fifth of a second; sessions that idle send fewer. Ours asks for `NODES_AT_ONCE` ledgers with one."""

Log = Callable[[str], None]


@dataclass(frozen=True)
class HealingPlan:
    """Sizes and rates; both kinds get the same."""

    megabytes: int
    ledgers: int
    copies: int
    bookies: int
    bookie_kind: str
    adds_per_second: float
    idle_s: float
    many_ledgers: int
    limit_s: float

    def bookie_settings(self) -> dict[str, str]:
        """Nothing but adds, reads and flushes goes on in the bookies."""
        return {"gcWaitTime": "3600000", "flushInterval": "2000", "dbStorage_writeCacheMaxSizeMb": "128"}


class HealingStages:
    """Runs the stages of one plan. `healing` needs an environment without ledgers, and so does `audit`."""

    def __init__(self, plan: HealingPlan, samples: Samples, log: Log) -> None:
        self._plan = plan
        self._samples = samples
        self._log = log

    async def guarded(self, what: str, stage: Awaitable[None]) -> None:
        """Runs a stage; its failure is noted."""
        try:
            await stage
        except (RuntimeError, AssertionError, OSError, PodkeeperError) as error:  # TimeoutError is an OSError
            self._samples.failures.append(f"{what}: {error!r}"[:1500])
            self._log(f"{what} failed: {error!r}")

    # --- healing --------------------------------------------------------------------------------------------

    async def filled(self, environment: Environment, client: Client, entry_bytes: int) -> HealingCluster:
        """Bookies with closed ledgers."""
        plan = self._plan
        bookies = [environment.bookie(plan.bookie_kind, plan.bookie_settings()) for _ in range(plan.bookies)]
        await asyncio.gather(*(asyncio.to_thread(bookie.start) for bookie in bookies))
        raw = raw_mib_per_second(environment.directory, min(plan.megabytes, 512)) * 1.048576
        share = plan.megabytes * 1_000_000 // plan.ledgers // entry_bytes
        payload = Random(1).randbytes(entry_bytes)
        ids = [await write_ledger(client, payload, max(1, share), plan.copies) for _ in range(plan.ledgers)]
        self._log(f"{plan.ledgers:,} ledgers of {share:,} entries of {entry_bytes:,} B; plain writes {raw:.0f} MB/s")
        await asyncio.sleep(SETTLE_S)
        return HealingCluster(environment, client, bookies, ids, raw)

    async def heal(self, kind: str, cluster: HealingCluster, name: str, settings: Mapping[str, str]) -> None:
        """One bookie is lost while nothing else goes on."""
        async with HealingRun(kind, cluster, settings) as healing:
            await self._lose(healing, name)

    async def heal_under_load(self, kind: str, cluster: HealingCluster, name: str, settings: Mapping[str, str]) -> None:
        """The same while clients add to the bookies that stay."""
        plan = self._plan
        async with HealingRun(kind, cluster, settings) as healing:
            staying = [each for each in cluster.bookies if each is not healing.victim]
            loads = [cluster.load(bookie, plan.adds_per_second / len(staying)) for bookie in staying]
            await asyncio.gather(*(load.run(plan.idle_s / 2) for load in loads))  # a JVM compiles, caches fill
            for load in loads:
                load.adds.clear()
            await asyncio.gather(*(load.run(plan.idle_s) for load in loads))
            idle = [each for load in loads for each in load.adds]
            for load in loads:
                load.adds.clear()
            running = [asyncio.create_task(load.run()) for load in loads]
            try:
                began, ended = await self._lose(healing, name)
            finally:
                for load in loads:
                    load.stop()
                await asyncio.gather(*running)
            self._latencies(
                kind, name, idle, [each for load in loads for each in load.adds if began <= each.due < ended]
            )

    async def _lose(self, healing: HealingRun, name: str) -> tuple[float, float]:
        """Lose the victim, wait for the end; returns when copying began and ended (perf_counter)."""
        kind, cluster, add = healing.healer.kind, healing.cluster, self._samples.add
        named = await cluster.naming(healing.victim.bookie_id)
        if not named:
            raise RuntimeError("the lost bookie has no ledger: more ledgers are needed")
        nbytes = sum(metadata.length for metadata in named)
        process = psutil.Process(healing.healer.pid)
        cpu = sum(process.cpu_times()[:2])
        lost = time.perf_counter()
        with PeakMemory(healing.healer.pid) as memory:
            await cluster.lose(healing.victim)
            async with asyncio.timeout(self._plan.limit_s):
                began = await cluster.first_mark(healing.healer)
                ended = await cluster.healed(healing.victim.bookie_id, named, healing.healer)
        cpu = sum(process.cpu_times()[:2]) - cpu
        speed = nbytes / 1e6 / (ended - began)
        add(kind, f"{name}: re-replicated", "MB/s", "more", speed)
        add(kind, f"{name}: share of the disk's plain writes", "ratio", "more", speed / cluster.raw_mb_per_second)
        add(kind, f"{name}: from the loss to the first mark", "s", "less", began - lost)
        add(kind, f"{name}: from the loss to the end", "s", "less", ended - lost)
        add(kind, f"{name}: CPU of auto-recovery per GB", "s", "less", cpu / (nbytes / 1e9))
        add(kind, f"{name}: resident memory of auto-recovery, peak", "MB", "less", memory.peak / 1e6)
        some = [metadata.ledger_id for metadata in Random(5).sample(named, min(_READ_BACK, len(named)))]
        copies = await read_every_replica(cluster.client, some)
        self._log(f"  {kind:4} {name}: {nbytes / 1e6:,.0f} MB at {speed:.1f} MB/s, {copies:,} copies read back")
        return began, ended

    def _latencies(self, kind: str, name: str, idle: Sequence[Timed], during: Sequence[Timed]) -> None:
        for share, label in ((0.5, "p50"), (0.99, "p99")):
            quiet, busy = quantile_ms(idle, share), quantile_ms(during, share)
            if quiet is None or busy is None:
                raise RuntimeError("no add was answered in time: the healing was too short, or the rate too low")
            self._samples.add(kind, f"{name}: add {label}, idle", "ms", "less", quiet)
            self._samples.add(kind, f"{name}: add {label}, while healing", "ms", "less", busy)
            self._samples.add(kind, f"{name}: add {label}, healing / idle", "ratio", "less", busy / quiet)
            self._log(f"  {kind:4} {name}: add {label} {quiet:.2f} ms idle, {busy:.2f} ms while healing")

    # --- audit ----------------------------------------------------------------------------------------------

    async def with_many_ledgers(self, environment: Environment, service: MetadataService) -> None:
        """Metadata of very many ledgers on bookies that are there; nothing is stored in these."""
        bookies = [environment.bookie(self._plan.bookie_kind, self._plan.bookie_settings()) for _ in range(3)]
        await asyncio.gather(*(asyncio.to_thread(bookie.start) for bookie in bookies))
        ensemble = tuple(bookie.bookie_id for bookie in bookies)
        await create_metadata(service, range(self._plan.many_ledgers), ensemble, entries=100, length=99_000)

    async def audit(self, kind: str, environment: Environment, service: MetadataService) -> None:
        """An audit on demand that finds nothing, by a process that has done one already."""
        name, delay = f"audit of {self._plan.many_ledgers:,} ledgers", 3600
        healer = Healer(kind, environment, {"lostBookieRecoveryDelay": str(delay)})
        healer.start()
        try:
            await elected(service, healer)
            await _requests_end(environment, healer, self._plan.limit_s)  # the audit of a new auditor
            before = environment.metadata_requests()
            resident = psutil.Process(healer.pid).memory_info().rss
            began = time.perf_counter()
            with PeakMemory(healer.pid) as memory:
                await service.under_replication.set_lost_bookie_recovery_delay(delay)  # the same again: an audit, now
                ended, requests = await _requests_end(environment, healer, self._plan.limit_s)
        finally:
            await asyncio.to_thread(healer.stop)
            await no_auditor(service)
        if (requests - before) * NODES_AT_ONCE < self._plan.many_ledgers:
            raise RuntimeError(f"{requests - before} requests are no audit")
        add, per_ledger = self._samples.add, (requests - before) / self._plan.many_ledgers
        add(kind, name, "s", "less", ended - began)
        add(kind, f"{name}: requests to ZooKeeper per ledger", "count", "less", per_ledger)
        add(kind, f"{name}: memory beside what was resident", "MB", "less", max(0, memory.peak - resident) / 1e6)
        add(kind, f"{name}: resident memory, peak", "MB", "less", memory.peak / 1e6)
        self._log(f"  {kind:4} {name}: {ended - began:.1f} s, {requests - before:,} requests")


async def _requests_end(environment: Environment, healer: Healer, limit_s: float) -> tuple[float, int]:
    """When ZooKeeper got quiet, and how many requests it had received by then."""
    seen = environment.metadata_requests()
    ended, total = time.perf_counter(), seen
    async with asyncio.timeout(limit_s):
        while time.perf_counter() < ended + _QUIET_S:
            await asyncio.sleep(0.2)
            healer.check()
            now = await asyncio.to_thread(environment.metadata_requests)
            if now - seen > _BUSY:
                ended, total = time.perf_counter(), now
            seen = now
    return ended, total
