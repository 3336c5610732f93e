"""What the configuration says of a worker is what it does, on model bookies and a real metadata service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bookie_client.client import Client
from bookie_client.replication.check import LedgerChecker
from bookie_pod.autorecovery.auditor.term import sources_of
from bookie_pod.autorecovery.start import MANY_READS, _worker_options, make_worker
from bookie_pod.autorecovery.worker.ledger_repair import LedgerRepair, RoundResult
from bookie_pod.autorecovery.worker.progress import LedgerNote
from bookie_pod.autorecovery.worker.worker import WorkerOptions
from bookie_pod.config.load import load_config
from bookie_pod.config.sections.autorecovery import AutoRecoveryConfig
from bookie_pod.metrics.autorecovery import ReplicationWorkerMetrics
from bookie_pod.metrics.registry import Registry
from bookie_protocol.metadata_service.findings import absences
from tests.unit.bookie_client.replication.cluster import (
    ReplicationCluster,
    equal_entries,
    watched_pieces,
    watched_windows,
)

UNLIMITED = {"rate_by_bytes": -1}


@pytest.fixture
async def models(tmp_path: Path) -> AsyncIterator[ReplicationCluster]:
    async with ReplicationCluster(tmp_path, model=True) as cluster:
        await cluster.add(*"abcdef")
        yield cluster


@asynccontextmanager
async def working(models: ReplicationCluster, client: Client, registry: Registry, **keys: Any) -> AsyncIterator[None]:
    metrics = ReplicationWorkerMetrics(registry, embedded=False)
    worker = make_worker(models.service, client, AutoRecoveryConfig(**keys), metrics)
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait({running})


async def healed(models: ReplicationCluster, client: Client, lost: str, *ledger_ids: int, **keys: Any) -> float:
    """Let a worker restore what the lost bookie held of these ledgers; returns the seconds that it took."""
    marks = models.service.under_replication
    for ledger_id in ledger_ids:
        await marks.mark(ledger_id, [lost], ctime_ms=1)
    began = asyncio.get_running_loop().time()
    async with working(models, client, Registry(), **keys), asyncio.timeout(30):
        while [mark async for mark in marks.list()]:  # noqa: ASYNC110 - the store of marks gives no event
            await asyncio.sleep(0.005)
    for ledger_id in ledger_ids:
        assert lost not in (await client.metadata(ledger_id)).all_bookies()
    return asyncio.get_running_loop().time() - began


async def ledgers_that_lost(
    models: ReplicationCluster, client: Client, count: int, entries: int, size: int
) -> tuple[str, list[int]]:
    """A bookie that is gone, and ledgers of equal entries of which it held every entry."""
    ids: list[int] = []
    while len(ids) < count:
        made = await equal_entries(client, entries, size)
        if "a" in (await client.metadata(made)).last_ensemble:
            ids.append(made)
    await models.lose(client, "a")
    return "a", ids


async def test_so_many_bytes_a_second(models: ReplicationCluster) -> None:
    async with models.client() as client:
        lost, ids = await ledgers_that_lost(models, client, 1, 30, 10_000)
        took = await healed(models, client, lost, *ids, rate_by_bytes=400_000, yields_to_clients=False)
        assert took >= (300_000 - 65_536) / 400_000  # the last piece need not be waited for


@pytest.mark.parametrize(
    ("rate", "yields", "least", "most"),
    [
        (800_000, False, 800_000, 800_000),
        (800_000, True, 1, 799_999),  # it begins with a part, and finds out what clients leave
        (0, True, 0, 0),
        (-1, False, 0, 0),
    ],
)
async def test_the_rate_that_is_shown(
    models: ReplicationCluster, rate: int, yields: bool, least: int, most: int
) -> None:
    registry = Registry()
    async with (
        models.client() as client,
        working(models, client, registry, rate_by_bytes=rate, yields_to_clients=yields),
    ):
        (shown,) = [
            line for line in registry.render().splitlines() if line.startswith("replication_worker_RATE_LIMIT_BYTES ")
        ]
        assert least <= float(shown.split()[1]) <= most


async def test_so_many_bytes_in_flight(models: ReplicationCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async with models.client() as client:
        lost, ids = await ledgers_that_lost(models, client, 4, 100, 1000)
        peaks = watched_windows(monkeypatch)
        await healed(models, client, lost, *ids, max_bytes_in_flight=200_000, **UNLIMITED)
        assert 50_000 < peaks["bytes"] <= 200_000


async def test_so_many_ledgers_at_once(models: ReplicationCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    repair, pairs, under_way, most = LedgerRepair.repair, asyncio.Barrier(2), 0, 0

    async def counted(self: LedgerRepair, ledger_id: int, note: LedgerNote) -> RoundResult:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            await pairs.wait()
            return await repair(self, ledger_id, note)
        finally:
            under_way -= 1

    monkeypatch.setattr(LedgerRepair, "repair", counted)
    async with models.client() as client:
        lost, ids = await ledgers_that_lost(models, client, 6, 10, 100)
        await healed(models, client, lost, *ids, ledgers_at_once=2, **UNLIMITED)
    assert most == 2


async def test_so_many_entries_a_piece(models: ReplicationCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async with models.client() as client:
        lost, ids = await ledgers_that_lost(models, client, 1, 200, 100)
        seen = watched_pieces(monkeypatch)
        await healed(models, client, lost, *ids, entry_batch_size=9, **UNLIMITED)
        assert (sum(seen["adds"]), max(seen["adds"])) == (200, 9)


@pytest.mark.parametrize("batch_read", [True, False])
async def test_batches_or_single_reads(models: ReplicationCluster, batch_read: bool) -> None:
    async with models.client() as client:
        lost, ids = await ledgers_that_lost(models, client, 1, 200, 100)
        before = singles(models)
        await healed(models, client, lost, *ids, batch_read=batch_read, **UNLIMITED)
        assert (singles(models) - before >= 200) is not batch_read


def singles(models: ReplicationCluster) -> int:
    return sum(models.model(name).reads for name in models.bookies)


def test_times_and_rates_in_the_units_of_their_keys(tmp_path: Path) -> None:
    keys = {
        "replicationLedgersAtOnce": "3",
        "openLedgerRereplicationGracePeriod": "1500",
        "lockReleaseOfFailedLedgerGracePeriod": "64000",
        "rwRereplicateBackoffMs": "250",
        "zkReplicationTaskRateLimit": "2.5",
    }
    configuration = tmp_path / "bookie.conf"
    configuration.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    options = _worker_options(load_config(str(configuration), environ={}).auto_recovery)
    assert options == WorkerOptions(
        ledgers_at_once=3,
        open_ledger_grace=1.5,
        failed_ledger_backoff=64.0,
        pause_after_error=0.25,
        tasks_per_second=2.5,
    )


@pytest.mark.parametrize("stored", [True, False])
async def test_the_time_of_a_mark_is_stored_if_asked_for(models: ReplicationCluster, stored: bool) -> None:
    """A target that is lost already when the ledger is repaired is marked by the worker itself."""
    async with models.client() as client:
        worker = make_worker(
            models.service,
            client,
            AutoRecoveryConfig(store_mark_time=stored),
            ReplicationWorkerMetrics(Registry(), embedded=False),
            lambda: 4711,
        )
        repair = worker._repair
        assert isinstance(repair, LedgerRepair)
        await repair._parts.mark_more(5, absences("ab"))
        mark = await models.service.under_replication.read(5)
        assert mark is not None
        assert (mark.replicas, mark.ctime_ms) == (("a", "b"), 4711 if stored else None)


@pytest.mark.parametrize(("in_flight", "worker_reads", "auditor_reads"), [(5, 5, 5), (0, MANY_READS, 7)])
async def test_so_much_of_each_replica_is_read(
    models: ReplicationCluster, in_flight: int, worker_reads: int, auditor_reads: int
) -> None:
    config = AutoRecoveryConfig(
        auditor_verification_percentage=17, checker_reads_in_flight=in_flight, auditor_max_concurrent_opens=7
    )
    async with models.client() as client:
        worker = make_worker(
            models.service, client, config, ReplicationWorkerMetrics(Registry(), embedded=False), lambda: 1
        )
        repair = worker._repair
        assert isinstance(repair, LedgerRepair)
        for checker, reads in (
            (repair._parts.checker, worker_reads),
            (sources_of(client, config).checker, auditor_reads),
        ):
            assert isinstance(checker, LedgerChecker)
            assert (checker.options.verification_percentage, checker.options.max_reads) == (17, reads)
