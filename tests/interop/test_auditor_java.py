"""Our auditor and the reference's daemon in one cluster: its shell commands our auditor, its worker repairs what ours
marks, and it takes over when ours goes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bookie_client import Client, ClientOptions
from bookie_pod.autorecovery.auditor.auditor import Auditor
from bookie_pod.autorecovery.auditor.runs import Check
from bookie_pod.config.sections.autorecovery import AutoRecoveryConfig
from bookie_pod.metrics.autorecovery import AuditorInstruments
from bookie_pod.metrics.registry import Registry
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.interop.cluster import Cluster
from tests.interop.java_autorecovery import start_daemon, tool_configuration
from tests.support.auto_recovery import healed, read_every_replica
from tests.support.java_bookie import java_shell

LEDGERS = 6
CONFIG = AutoRecoveryConfig(lost_bookie_recovery_delay_s=3600, auditor_check_interval_s=86_400, auditor_second_look_s=1)


async def write(client: Client) -> list[int]:
    ids = []
    for _ in range(LEDGERS):
        async with client.create(ensemble=3, write_quorum=2, ack_quorum=2, password=b"x") as ledger:
            await ledger.append_many([b"%d" % number + bytes(200) for number in range(40)])
            ids.append(ledger.ledger_id)
    return ids


async def test_one_cluster_two_kinds_of_auditors(
    made: Cluster, service: MetadataService, class_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie_pod.autorecovery.auditor.periodic.POLL_SECONDS", 0.5)
    bookies = [made.bookie(kind, {"httpServerEnabled": "false"}) for kind in ("ours", "ours", "java", "ours")]
    await asyncio.gather(*(asyncio.to_thread(bookie.start) for bookie in bookies))
    configuration = tool_configuration(made, tmp_path)
    async with Client(service, ClientOptions(read_timeout=5)) as client:
        ids = await write(client)
        instruments = AuditorInstruments(Registry(), embedded=False)
        auditor = Auditor(service, client, CONFIG, instruments, bookie_id="10.0.0.9:3181")
        running = asyncio.create_task(auditor.run())
        async with asyncio.timeout(60):
            while not auditor.is_auditor:  # noqa: ASYNC110 - the status has no event
                await asyncio.sleep(0.05)
        daemon = await start_daemon(class_path, configuration, tmp_path)

        def finished(check: Check) -> int:
            last = next(each for each in auditor.status().checks if each.check is check).runs.last
            return 0 if last is None else last.started_ms

        async def shell(*words: str) -> None:
            await asyncio.to_thread(java_shell, class_path, configuration, *words)

        try:
            async with asyncio.timeout(60):
                while not finished(Check.LEDGERS):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            before = finished(Check.LEDGERS)
            await shell("forceauditchecks", "-calc")
            async with asyncio.timeout(60):
                while finished(Check.LEDGERS) == before:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert [mark async for mark in service.under_replication.list()] == []

            victim = bookies[0]
            victim.kill()
            async with asyncio.timeout(60):
                while not auditor.status().absent:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert [mark async for mark in service.under_replication.list()] == []
            assert daemon.returncode is None, (tmp_path / "daemon.log").read_text()[-3000:]
            await shell("triggeraudit")
            await healed(client, [victim.bookie_id])
            await read_every_replica(client, ids)

            running.cancel()
            await asyncio.wait([running])
            async with asyncio.timeout(60):
                while await service.auditor_election.current_auditor() in (None, "10.0.0.9:3181"):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        finally:
            running.cancel()
            await asyncio.wait([running])
            if daemon.returncode is None:
                daemon.kill()
            await daemon.wait()
