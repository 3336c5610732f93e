"""From a finding to its repair: what was found wrong is what is repaired, with the real auditor's check and worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_client import Client
from bookie_client.access import replica_access
from bookie_client.healing.settling import settle
from bookie_client.replication.check import CheckOptions, LedgerChecker, LedgerReport
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_pod.autorecovery.auditor.ledgers_check import LedgersCheck
from bookie_pod.autorecovery.auditor.marking import Marker
from bookie_pod.autorecovery.auditor.schedule import Clock
from bookie_pod.autorecovery.start import make_worker
from bookie_pod.autorecovery.worker.progress import Phase
from bookie_pod.autorecovery.worker.worker import ReplicationWorker
from bookie_pod.config.sections.autorecovery import AutoRecoveryConfig
from bookie_pod.metrics.autorecovery import ReplicationWorkerMetrics
from bookie_pod.metrics.registry import Registry
from bookie_pod.node.upkeep import CopiesElsewhere
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import LedgerStateUnknown, StorageFault
from bookie_protocol.metadata_service.findings import Finding, Reason, Trouble, absences
from bookie_protocol.metadata_service.ledger_guard import LedgerGuard
from tests.support.until import until
from tests.unit.bookie_client.replication.cluster import ReplicationCluster, written

ROTTEN = 137


@pytest.fixture
async def models(tmp_path: Path) -> AsyncIterator[ReplicationCluster]:
    async with ReplicationCluster(tmp_path, model=True) as cluster:
        yield cluster


async def mac_ledger(models: ReplicationCluster, client: Client) -> tuple[int, str]:
    """A ledger whose bookies verify nothing, as MAC digests are only the clients' to check, and one of its bookies."""
    await models.add(*"abcd")
    ledger_id = await written(client, 300, ack_quorum=3, digest=DigestType.MAC)
    return ledger_id, (await client.metadata(ledger_id)).last_ensemble[1]


@asynccontextmanager
async def working(models: ReplicationCluster, client: Client) -> AsyncIterator[ReplicationWorker]:
    metrics = ReplicationWorkerMetrics(Registry(), embedded=False)
    worker = make_worker(models.service, client, AutoRecoveryConfig(), metrics)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        running.cancel()
        await asyncio.wait({running})


async def healed(models: ReplicationCluster, client: Client, ledger_id: int) -> int:
    """Entries that a worker copied until the mark was gone."""
    async with working(models, client) as worker, asyncio.timeout(20):
        while await models.service.under_replication.read(ledger_id) is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return worker.status().entries_copied


async def whole(client: Client, ledger_id: int) -> LedgerReport:
    return await LedgerChecker(client, CheckOptions(verification_percentage=100)).check(ledger_id)


@pytest.mark.parametrize(
    "found", [Finding("", Reason.DAMAGED, ((ROTTEN, ROTTEN),)), None], ids=["with its reason", "of Java's"]
)
@pytest.mark.parametrize("lists", [True, False])
async def test_a_copy_that_is_damaged_in_the_middle_is_made_again(
    models: ReplicationCluster, found: Finding | None, lists: bool
) -> None:
    async with models.client() as client:
        ledger_id, bad = await mac_ledger(models, client)
        models.model(bad).lists = lists
        models.model(bad).damage(ledger_id, ROTTEN)
        findings = [] if found is None else [Finding(bad, found.reason, found.runs)]
        await models.service.under_replication.mark(ledger_id, [bad], ctime_ms=1, findings=findings)
        assert await healed(models, client, ledger_id) == 300
        assert (await whole(client, ledger_id)).is_healthy
        assert bad not in (await client.metadata(ledger_id)).all_bookies()


async def test_a_mark_of_an_absence_that_is_over_costs_no_read_of_the_whole_ledger(models: ReplicationCluster) -> None:
    async with models.client() as client:
        ledger_id, back = await mac_ledger(models, client)
        await models.service.under_replication.mark(ledger_id, ctime_ms=1, findings=absences([back]))
        before = models.requests()
        assert await healed(models, client, ledger_id) == 0
        assert models.requests() - before < 20


async def test_a_worker_has_what_it_saw_made_durable_before_the_mark_goes(models: ReplicationCluster) -> None:
    async with models.client() as client:
        ledger_id, back = await mac_ledger(models, client)
        held = models.model(back).ledgers[ledger_id]
        held.unsynced.add(ROTTEN)  # of a filling whose answer was too late
        await models.service.under_replication.mark(ledger_id, ctime_ms=1, findings=absences([back]))
        assert await healed(models, client, ledger_id) == 0
        assert not held.unsynced


@pytest.mark.parametrize("fails", [False, True])
async def test_a_mark_stays_as_long_as_a_copy_is_not_durable(models: ReplicationCluster, fails: bool) -> None:
    async with models.client() as client:
        ledger_id, back = await mac_ledger(models, client)
        model, guard = models.model(back), LedgerGuard(models.service)
        model.ledgers[ledger_id].unsynced.add(ROTTEN)
        model.fail_forces = StorageFault if fails else None
        await models.service.under_replication.mark(ledger_id, ctime_ms=1, findings=absences([back]))
        lock = await guard.lock(ledger_id)
        assert lock is not None
        async with guard.holding(lock):
            assert await settle(models.service, lock, LedgerChecker(client)) is not fails
        assert bool(model.ledgers[ledger_id].unsynced) is fails


async def test_a_copy_that_differs_from_the_others_is_made_again(models: ReplicationCluster) -> None:
    async with models.client() as client:
        ledger_id, bad = await mac_ledger(models, client)
        held = models.model(bad).ledgers[ledger_id].entries
        digest = replica_access(await client.metadata(ledger_id), None, b"").digest
        held[ROTTEN] = digest.encode(ledger_id, ROTTEN, ROTTEN - 1, 99_999, b"another")
        divergent = Finding(bad, Reason.DIVERGENT, ((ROTTEN, ROTTEN),))
        await models.service.under_replication.mark(ledger_id, ctime_ms=1, findings=[divergent])
        assert await healed(models, client, ledger_id) == 300
        assert bad not in (await client.metadata(ledger_id)).all_bookies()


@pytest.mark.parametrize("damage", ["rot", "limbo"])
async def test_what_a_sample_found_is_marked_and_repaired(models: ReplicationCluster, damage: str) -> None:
    """One entry of 300, and a check of 10 %: the second look and the worker draw no lots again."""
    async with models.client() as client:
        ledger_id, bad = await mac_ledger(models, client)
        model = models.model(bad)
        if damage == "rot":
            model.damage(ledger_id, ROTTEN)
        else:
            model.fail_reads = LedgerStateUnknown
        known: Any = SimpleNamespace(expect=lambda bookies: None, is_lost=lambda b: False, is_available=lambda b: True)
        metrics: Any = SimpleNamespace(ledger_checked=lambda *counts: None)
        marker = Marker(models.service, Clock(lambda: 1), store_time=True, known=known)
        checker = LedgerChecker(client, CheckOptions(verification_percentage=10))
        check = LedgersCheck(checker, marker, known, metrics, ReplicationThrottle())
        suspects = (await check.look(ledger_id)).suspects
        while not suspects:
            suspects = (await check.look(ledger_id)).suspects
        assert (await check.look_again(ledger_id, suspects)).counts == {"marked": 1}
        assert await healed(models, client, ledger_id) == 300
        assert (await whole(client, ledger_id)).is_healthy


async def test_no_surplus_copy_goes_on_the_word_of_a_list(models: ReplicationCluster) -> None:
    async with models.client() as client:
        ledger_id, bad = await mac_ledger(models, client)
        elsewhere = CopiesElsewhere(models.service, SimpleNamespace(auto_recovery=AutoRecoveryConfig()))  # type: ignore[arg-type]

        async def given() -> Client:
            return client

        elsewhere._client = SimpleNamespace(get=given)  # type: ignore[assignment]
        assert await elsewhere.is_whole(ledger_id)
        models.model(bad).damage(ledger_id, ROTTEN)
        assert not await elsewhere.is_whole(ledger_id)


@pytest.mark.parametrize("lacking", [ROTTEN, 299])
async def test_of_a_ledger_with_an_entry_that_nobody_has_not_a_byte_is_copied_by_any_worker(
    models: ReplicationCluster, lacking: int
) -> None:
    async with models.client() as client:
        ledger_id, lost = await mac_ledger(models, client)
        for name in "abcd":
            models.model(name).ledgers.get(ledger_id, models.model(lost).ledgers[ledger_id]).entries.pop(lacking, None)
        await models.lose(client, lost)
        await models.service.under_replication.mark(ledger_id, ctime_ms=1, findings=absences([lost]))
        adds = {name: models.model(name).adds for name in models.bookies}
        async with working(models, client) as worker:
            notes = worker.progress.notes
            await until(lambda: any(note.phase is Phase.BACKING_OFF for note in notes.values()))
        mark = await models.service.under_replication.read(ledger_id)
        assert mark is not None
        assert [(each.trouble, each.entries) for each in mark.failures] == [(Trouble.NO_COPY, (lacking,))]
        assert {name: models.model(name).adds for name in models.bookies} == adds
