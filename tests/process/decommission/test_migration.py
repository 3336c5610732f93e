"""`kubectl bookie migrate` with bookies that are real: three with data leave under a writer, to three others."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bookie_client import Client
from bookie_operator.api.kinds import CLUSTER
from bookie_operator.plugin import migrate
from bookie_pod.node.standalone.cluster import StandaloneCluster
from bookie_protocol.metadata_service.interface import BookieGroup
from tests.process.decommission.conftest import KEYS
from tests.process.decommission.leaving import check_all, write
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE
from tests.support.kubectl_rig import KubectlRig, kubectl_rig

OLD = ("bookie-1", "bookie-2", "bookie-3")
OURS = ("bookie-4", "bookie-5", "bookie-6")
pytestmark = pytest.mark.slow


@asynccontextmanager
async def _joined(cluster: StandaloneCluster, folder: Path) -> AsyncIterator[KubectlRig]:
    """A BookieCluster whose pods are these bookies."""
    async with kubectl_rig(folder) as rig:
        rig.fake.apply(tls={"adminApi": {"enabled": False}})
        await rig.fake.settle()
        pods = sorted(rig.fake.pods())
        bookies = [
            {"name": pod, "ordinal": ordinal, "bookieId": bookie}
            for ordinal, (pod, bookie) in enumerate(zip(pods, OURS, strict=True))
        ]
        status = {"bookies": bookies, "instanceId": await cluster.metadata.cluster.instance_id()}
        rig.fake.store.patch(CLUSTER, NAMESPACE, NAME, {"status": status}, "status")
        for pod, bookie in zip(pods, OURS, strict=True):
            port = cluster.bookies[bookie].http_port
            assert port is not None
            rig.elsewhere[pod] = port
        yield rig


async def _write_on(uri: str, stop: asyncio.Event) -> int:
    """Ledgers of 50 entries, some ten a second, each acknowledged; returns the number of entries."""
    entries = 0
    async with Client(uri) as client:
        while not stop.is_set():
            await write(client, 1, 50)
            entries += 50
            await asyncio.sleep(0.1)
    return entries


async def test_bookies_of_somebody_else_leave_and_nothing_is_lost(
    tmp_path: Path, warm_bookies: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "_EVERY_S", 0.3)
    async with StandaloneCluster(tmp_path / "cluster", 6, KEYS, http_port=0) as cluster:
        uri, stop = cluster.metadata_service_uri, asyncio.Event()
        await asyncio.gather(*(cluster.bookies[bookie].stop() for bookie in OURS))
        async with Client(uri) as client:
            await write(client, 20)
        await asyncio.gather(*(cluster.start_bookie(bookie) for bookie in OURS))
        async with _joined(cluster, tmp_path) as rig:
            assert await rig.run("migrate", "plan", NAME) == 0, capsys.readouterr()
            writer = asyncio.create_task(_write_on(uri, stop))
            run = asyncio.create_task(rig.run("migrate", "run", NAME))
            await _until_read_only(cluster, OLD[0])
            assert await rig.run("migrate", "undo", NAME) == 0
            assert await run == 10, "it ends with what it does"
            writable = (await cluster.metadata.bookies.list(BookieGroup.WRITABLE)).bookies
            assert writable == {*OLD, *OURS}
            shown = await _run_to_the_end(cluster, rig, capsys)
            stop.set()
            entries = await writer
        assert shown.splitlines()[-1] == f"no bookie of somebody else is left in the metadata root of {NAME}"
        assert (await cluster.metadata.bookies.list(BookieGroup.ALL)).bookies == set(OURS)
        for gone in OLD:
            assert await check_all(cluster, gone) == 2000 + entries


async def _until_read_only(cluster: StandaloneCluster, bookie: str) -> None:
    async with asyncio.timeout(60), cluster.metadata.bookies.watch(BookieGroup.READ_ONLY) as snapshots:
        async for snapshot in snapshots:
            if bookie in snapshot.bookies:
                return


async def _run_to_the_end(cluster: StandaloneCluster, rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> str:
    """Who is told to stop a bookie does so."""
    run = asyncio.create_task(rig.run("migrate", "run", NAME, "--at-once", "3"))
    shown, stopped = "", set[str]()
    async with asyncio.timeout(150):
        while not run.done():
            shown += capsys.readouterr().out
            for bookie in set(re.findall(r"Now stop (bookie-\d) for good", shown)) - stopped:
                stopped.add(bookie)
                await cluster.bookies[bookie].stop()
            await asyncio.sleep(0.05)
    assert await run == 0, capsys.readouterr()
    assert stopped == set(OLD)
    return shown + capsys.readouterr().out
