"""The measurements of garbage collection, each on a fresh bookie of one kind.

Both kinds are filled, loaded and asked alike: entries over the binary protocol, ledgers made and deleted in the
metadata service, collection by `PUT /api/v1/bookie/gc`. What is removed is seen in the ledger directory itself.

Invariants
- A stage that fails leaves a line in `Samples.failures` and ends its bookie; the other stages still run.
- After a collection entries that must live are read back, and compared.

Threads: the event loop; a thread samples the bookie's memory.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import psutil

from benchmarks.environment import Environment
from benchmarks.paced_load import PacedLoad, RefusedError, Timed, check, fill, ledger, quantile_ms
from benchmarks.samples import Samples
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.support.bookie_process import BookieProcess, free_port

_POLL_S: Final = 0.1
_FLUSH_S: Final = 120.0
_START_S: Final = 180.0
_AT_ONCE: Final = 200
"""Metadata operations in flight."""
_FIRST_LEDGER: Final = 1_000
"""Ids below are those of the client load."""
_LOAD_LEDGERS: Final = tuple(range(1, 9))
_CHECKED: Final = 2_000
"""Entries that are read back after a collection, at most."""

Log = Callable[[str], None]


@dataclass(frozen=True)
class GcPlan:
    """Sizes and rates; both kinds get the same."""

    megabytes: int
    ledgers: int
    entry_bytes: int
    deleted: float
    log_megabytes: int
    compaction_rate: int
    adds_per_second: float
    reads_per_second: float
    idle_s: float
    limit_s: float
    many_ledgers: int

    @property
    def entries(self) -> int:
        """Of each ledger."""
        return max(1, self.megabytes * 1_000_000 // (self.ledgers * self.entry_bytes))

    def settings(self, http_port: int) -> dict[str, str]:
        """Keys of Apache's configuration, understood by both kinds."""
        return {
            "httpServerEnabled": "true",
            "httpServerClass": "org.apache.bookkeeper.http.vertx.VertxHttpServer",
            "httpServerHost": "127.0.0.1",
            "httpServerPort": str(http_port),
            "logSizeLimit": str(self.log_megabytes * 1024 * 1024),
            "flushInterval": "2000",
            "isThrottleByBytes": "true",
            "compactionRateByBytes": str(self.compaction_rate),
        }


class GcStages:
    """Runs the stages of one plan in one environment."""

    def __init__(self, environment: Environment, plan: GcPlan, samples: Samples, log: Log) -> None:
        self._environment = environment
        self._plan = plan
        self._samples = samples
        self._log = log

    async def reclaim(self, kind: str) -> None:
        """Most ledgers of many are deleted; compaction under client load."""
        await self._with_bookie(kind, "reclaim", self._reclaim)

    async def many_ledgers(self, kind: str) -> None:
        """One pass over very many ledgers."""
        await self._with_bookie(kind, "many ledgers", self._many_ledgers)

    # --- stages ---------------------------------------------------------------------------------------------

    async def _reclaim(self, kind: str, bookie: GcBookie) -> None:
        plan = self._plan
        ids = range(_FIRST_LEDGER, _FIRST_LEDGER + plan.ledgers)
        payload = Random(7).randbytes(plan.entry_bytes)
        await bookie.create(_LOAD_LEDGERS, 1, plan.entry_bytes)
        await bookie.create(ids, plan.entries, plan.entry_bytes)
        await fill(bookie.port, ids, plan.entries, payload)
        await bookie.settled(len(ids) * plan.entries * plan.entry_bytes)
        dead = set(Random(11).sample(ids, int(plan.ledgers * plan.deleted)))
        living = [ledger_id for ledger_id in ids if ledger_id not in dead]
        places = [(ledger_id, entry_id) for ledger_id in living for entry_id in range(plan.entries)]
        load = PacedLoad(
            bookie.port,
            _LOAD_LEDGERS,
            places,
            payload,
            adds_per_second=plan.adds_per_second,
            reads_per_second=plan.reads_per_second,
        )
        self._log(f"  {kind}: filled, {bookie.log_bytes() / 1e6:,.0f} MB of entry logs")
        await load.run(plan.idle_s / 2)  # a JVM compiles, caches fill
        load.adds.clear()
        load.reads.clear()
        await load.run(plan.idle_s)
        idle = list(load.adds), list(load.reads)
        await bookie.delete(dead)
        began, ended, freed, peak = await self._collect_under_load(bookie, load)
        dead_share = len(dead) / plan.ledgers
        for name, before, during in (("add", idle[0], load.adds), ("read", idle[1], load.reads)):
            self._latencies(kind, name, before, [each for each in during if began <= each.due < ended])
        add = self._samples.add
        add(kind, "collection of what was deleted", "s", "less", ended - began)
        add(kind, "entry logs removed", "MB", "more", freed / 1e6)
        add(kind, "garbage given back", "MB/s", "more", freed * dead_share / 1e6 / (ended - began))
        add(kind, "resident memory during collection, peak", "MB", "less", peak / 1e6)
        some = Random(13).sample(places, min(_CHECKED, len(places)))
        self._log(f"  {kind}: {await check(bookie.port, some, payload):,} living entries read back")

    async def _collect_under_load(self, bookie: GcBookie, load: PacedLoad) -> tuple[float, float, int, int]:
        """When it began and ended, bytes of the entry logs that went, peak memory."""
        before = bookie.logs()
        loading = asyncio.create_task(load.run())
        try:
            with PeakMemory(bookie.process.pid) as memory:
                began = time.perf_counter()
                await bookie.collect(self._plan.limit_s, major=True)
                ended = time.perf_counter()
        finally:
            load.stop()
            await loading
        gone = before.keys() - bookie.logs().keys()
        if not gone:
            raise RefusedError("the collection removed no entry log")
        return began, ended, sum(before[name] for name in gone), memory.peak

    def _latencies(self, kind: str, name: str, idle: Sequence[Timed], during: Sequence[Timed]) -> None:
        for share, label in ((0.5, "p50"), (0.99, "p99")):
            quiet, busy = quantile_ms(idle, share), quantile_ms(during, share)
            if quiet is None or busy is None:
                raise RefusedError(f"no {name} was answered in time: the collection was too short, or the rate too low")
            self._samples.add(kind, f"{name} {label}, idle", "ms", "less", quiet)
            self._samples.add(kind, f"{name} {label}, during collection", "ms", "less", busy)
            self._samples.add(kind, f"{name} {label}, during / idle", "ratio", "less", busy / quiet)

    async def _many_ledgers(self, kind: str, bookie: GcBookie) -> None:
        count = self._plan.many_ledgers
        ids = range(_FIRST_LEDGER, _FIRST_LEDGER + count)
        payload = bytes(1000)
        await bookie.create(ids, 1, len(payload))
        await fill(bookie.port, ids, 1, payload)
        await bookie.settled(count * len(payload))
        await self._timed_pass(kind, bookie, f"pass over {count:,} ledgers")
        dead = ids[::10]
        await bookie.delete(dead)
        await self._timed_pass(kind, bookie, f"pass that deletes {len(dead):,} of them")
        await check(bookie.port, [(ledger_id, 0) for ledger_id in ids[1::10]][:_CHECKED], payload)

    async def _timed_pass(self, kind: str, bookie: GcBookie, name: str) -> None:
        resident = psutil.Process(bookie.process.pid).memory_info().rss
        requests = self._environment.metadata_requests()
        began = time.perf_counter()
        with PeakMemory(bookie.process.pid) as memory:
            await bookie.collect(self._plan.limit_s, major=False)
        seconds = time.perf_counter() - began
        add = self._samples.add
        add(kind, name, "s", "less", seconds)
        add(kind, f"{name}, memory beside what was resident", "MB", "less", (memory.peak - resident) / 1e6)
        add(kind, f"{name}, requests to ZooKeeper", "count", "less", self._environment.metadata_requests() - requests)

    # --- parts ----------------------------------------------------------------------------------------------

    async def _with_bookie(self, kind: str, what: str, stage: Callable[[str, GcBookie], Awaitable[None]]) -> None:
        self._log(f"{what}: {kind}")
        http_port = free_port()
        process = self._environment.bookie(kind, self._plan.settings(http_port))
        try:
            process.start(_START_S)
            metadata = await open_metadata_service(self._environment.metadata_uri)
            try:
                await stage(kind, GcBookie(process, http_port, metadata))
            finally:
                await _delete_all(metadata)
                await metadata.close()
        except (RuntimeError, OSError) as error:  # TimeoutError is an OSError
            self._samples.failures.append(f"{what} of {kind}: {error!r}"[:1500])
            self._log(f"{what}: {kind} failed: {error!r}\n{process.tail()[-1500:]}")
        finally:
            self._environment.discard(process)


class GcBookie:
    """One bookie that runs, its admin API and its ledgers' metadata."""

    def __init__(self, process: BookieProcess, http_port: int, metadata: MetadataService) -> None:
        self.process = process
        self.port = int(process.configuration["bookiePort"])
        self._folder = Path(process.configuration["ledgerDirectories"]) / "current"
        self._http_port = http_port
        self._metadata = metadata

    async def create(self, ledger_ids: Sequence[int], entries: int, entry_bytes: int) -> None:
        made = [ledger(each, self.process.bookie_id, entries, entry_bytes) for each in ledger_ids]
        await _in_groups(made, self._metadata.ledgers.create)

    async def delete(self, ledger_ids: Sequence[int] | set[int]) -> None:
        await _in_groups(sorted(ledger_ids), self._metadata.ledgers.delete)

    def logs(self) -> dict[str, int]:
        """Names and sizes of the entry logs."""
        found = {}
        for path in self._folder.glob("*.log"):
            with suppress(FileNotFoundError):
                found[path.name] = path.stat().st_size
        return found

    def log_bytes(self) -> int:
        return sum(self.logs().values())

    async def settled(self, nbytes: int) -> None:
        """Wait until so many bytes are in entry logs and these grow no more."""
        async with asyncio.timeout(_FLUSH_S):
            before = -1
            while before < nbytes or self.log_bytes() != before:
                before = self.log_bytes()
                await asyncio.sleep(3)  # more than a flush interval

    async def collect(self, limit_s: float, *, major: bool) -> None:
        """A forced pass, waited for. `TimeoutError`."""
        await self._ask("PUT", {"forceMajor": major, "forceMinor": False})
        async with asyncio.timeout(limit_s):
            while (await self._ask("GET"))["is_in_force_gc"] == "true":  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(_POLL_S)

    async def _ask(self, method: str, body: Mapping[str, bool] | None = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        url = f"http://127.0.0.1:{self._http_port}/api/v1/bookie/gc"

        def ask() -> Any:
            request = urllib.request.Request(url, data, method=method)
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read())

        return await asyncio.to_thread(ask)


class PeakMemory:
    """The greatest resident memory of a process while the context lasts, in bytes."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.peak = 0

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            with suppress(psutil.NoSuchProcess):
                self.peak = max(self.peak, self._process.memory_info().rss)
            if self._ended.wait(_POLL_S):
                return


async def _in_groups(items: Sequence[Any], work: Callable[[Any], Awaitable[Any]]) -> None:
    for start in range(0, len(items), _AT_ONCE):
        await asyncio.gather(*(work(each) for each in items[start : start + _AT_ONCE]))


async def _delete_all(metadata: MetadataService) -> None:
    """The next bookie of this cluster must not find ledgers of this one."""
    found = [ledger_id async for each in metadata.ledgers.ranges() for ledger_id in each.ids]
    await _in_groups(found, metadata.ledgers.delete)
