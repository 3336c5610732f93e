"""What the configuration allows checks a second holds them back. Only the least that a pass takes is asserted: a slow
machine makes it longer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from bookie_client.client import Client
from bookie_pod.autorecovery.auditor.runs import Check, Finished
from bookie_pod.autorecovery.auditor.term import sources_of
from bookie_pod.config.sections.autorecovery import AutoRecoveryConfig
from tests.support.auditor_rig import DAY, FASTER, AuditorRig, complete, ledger
from tests.unit.bookie_client.replication.cluster import PASSWORD, ReplicationCluster

LEDGERS = tuple(ledger(n, (0, "012")) for n in range(1, 9))
UNLIMITED = AutoRecoveryConfig(auditor_reads_per_second=0, auditor_read_bytes_per_second=0)
INTERVALS = {
    Check.LEDGERS: "auditor_check_interval_s",
    Check.PLACEMENT: "auditor_placement_check_interval_s",
    Check.REPLICAS: "auditor_replicas_check_interval_s",
}


def seconds(run: Finished) -> float:
    return (run.finished_ms - run.started_ms) / 1000 / FASTER


@pytest.mark.parametrize("check", INTERVALS, ids=lambda check: check.value)
async def test_metadata_of_so_many_ledgers_a_second(rig: AuditorRig, check: Check) -> None:
    await rig.store(*LEDGERS)
    auditor = await rig.auditor(auditor_metadata_ops_per_second=10, **{INTERVALS[check]: DAY})
    last = await complete(rig, auditor, check)
    assert last.counts["ledgers"] == len(LEDGERS)
    assert seconds(last) >= 0.65  # the first one need not wait


async def test_so_many_lists_of_bookies_a_second(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    auditor = await rig.auditor(auditor_reads_per_second=30, auditor_replicas_check_interval_s=DAY)
    last = await complete(rig, auditor, Check.REPLICAS)
    assert len(rig.lists.asked) == 3 * len(LEDGERS)
    assert seconds(last) >= 0.7


@pytest.mark.parametrize("which", ["checker", "first_and_last"])
@pytest.mark.parametrize(
    "limit",
    [{"auditor_reads_per_second": 7}, {"auditor_read_bytes_per_second": 150_000}],
    ids=["requests", "bytes"],
)
async def test_entries_are_read_at_so_much_a_second(tmp_path: Path, which: str, limit: dict[str, int]) -> None:
    """Two entries of 10,000 bytes from each of three bookies, of two ledgers: six requests."""
    async with ReplicationCluster(tmp_path, model=True) as cluster, cluster.of(*"abc") as client:
        ids = [await _large_entries(client) for _ in range(2)]
        checker = getattr(sources_of(client, replace(UNLIMITED, **limit)), which)
        began = asyncio.get_running_loop().time()
        reports = await asyncio.gather(*map(checker.check, ids))
        assert all(report.is_healthy for report in reports)
        # The last two reads, of one bookie, begin when those before them have used up their budget.
        assert asyncio.get_running_loop().time() - began >= 0.66


async def _large_entries(client: Client) -> int:
    async with client.create(ensemble=3, write_quorum=3, ack_quorum=3, password=PASSWORD) as made:
        await made.append_many([bytes(10_000)] * 2)
    return made.ledger_id
