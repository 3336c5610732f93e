"""The reference's auditor, and a worker of either kind, in one cluster of bookies of either kind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bookie_client import Client, ClientOptions
from bookie_pod.autorecovery.start import make_worker
from bookie_pod.config.sections.autorecovery import AutoRecoveryConfig
from bookie_pod.metrics.autorecovery import ReplicationWorkerMetrics
from bookie_pod.metrics.registry import Registry
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.interop.cluster import Cluster
from tests.interop.java_autorecovery import start_daemon, tool_configuration
from tests.support.auto_recovery import healed, read_every_replica

LEDGERS = 24
CONFIG = AutoRecoveryConfig(open_ledger_grace_period_ms=500, failed_ledger_lock_release_ms=8000, worker_backoff_ms=200)


async def write(client: Client) -> list[int]:
    """Closed ledgers, and one whose writer is not heard of any more."""
    ids = []
    for number in range(LEDGERS):
        ledger = await client.create(ensemble=3, write_quorum=3 - number % 2, ack_quorum=2, password=b"x")
        await ledger.append_many([b"%d" % entry + bytes(500) for entry in range(60)])
        if number:
            await ledger.close()
        ids.append(ledger.ledger_id)
    return ids


@pytest.mark.parametrize("victim_kind", ["ours", "java"])
async def test_what_javas_auditor_marks_both_workers_repair(
    made: Cluster, service: MetadataService, class_path: str, tmp_path: Path, victim_kind: str
) -> None:
    kinds = ("ours", "ours", "java", "java")
    bookies = [made.bookie(kind, {"httpServerEnabled": "false"}) for kind in kinds]
    await asyncio.gather(*(asyncio.to_thread(bookie.start) for bookie in bookies))
    configuration = tool_configuration(made, tmp_path)
    with configuration.open("a") as file:
        # So that the other kind gets its share; and that nothing is marked of a bookie that is still registered: the
        # reference's worker would copy it at once, before ours believes that it is gone.
        file.write("zkReplicationTaskRateLimit=1\nauditorPeriodicCheckInterval=0\n")
    daemon = await start_daemon(class_path, configuration, tmp_path)
    async with Client(made.metadata_uri) as writing, Client(service, ClientOptions(read_timeout=5)) as client:
        ids = await write(writing)
        async with asyncio.timeout(60):
            while await service.auditor_election.current_auditor() is None:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.05)
        worker = make_worker(service, client, CONFIG, ReplicationWorkerMetrics(Registry(), embedded=False))
        running = asyncio.create_task(worker.run())
        try:
            victim = bookies[kinds.index(victim_kind)]
            victim.kill()
            await healed(client, [victim.bookie_id], 120)
            assert worker.status().ledgers_repaired > 0
            assert daemon.returncode is None, (tmp_path / "daemon.log").read_text()[-3000:]
        finally:
            running.cancel()
            await asyncio.wait([running])
            daemon.kill()
            await daemon.wait()
        await client.recover(ids[0], password=None)  # it names the victim no more, but need not be closed
        await read_every_replica(client, ids)
        assert (await client.metadata(ids[0])).last_entry_id == 59
