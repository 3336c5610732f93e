"""Embedded clusters: bookies as processes of their own, ready when started, gone when stopped."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from bookie_client import Client
from bookie_pod.autorecovery.decommission.state import DecommissionRecord, Phase, encode_record
from bookie_pod.autorecovery.decommission.store import FINISHED
from bookie_pod.node.standalone.cluster import START_SECONDS, StandaloneCluster
from bookie_protocol.errors import ServerStartFailed
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.support.standalone_command import BOOKIE, StandaloneCommand
from tests.support.until import until_true

KEYS = {"diskUsageThreshold": "0.99", "diskUsageWarnThreshold": "0.98", "diskUsageLwmThreshold": "0.99"}
"""Bookies that take entries on a disk that is nearly full."""


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_cluster_serves_when_it_is_ready_and_leaves_nothing_behind(tmp_path):
    async with StandaloneCluster(tmp_path, keys=KEYS) as cluster:
        pids = [bookie.pid for bookie in cluster.bookies.values()]
        assert len(set(pids)) == 3
        # As another process would: through the URI.
        service = await open_metadata_service(cluster.metadata_service_uri)
        try:
            async with Client(service) as client:
                assert await client.writable_bookies() == {"bookie-1", "bookie-2", "bookie-3"}
                async with client.create(write_quorum=3, ack_quorum=3) as ledger:
                    assert await ledger.append(b"at once") == 0
        finally:
            await service.close()
    assert [bookie.process.returncode for bookie in cluster.bookies.values()] == [0, 0, 0]
    assert not any(map(alive, pids))


async def test_data_survives_a_kill_of_every_bookie_and_a_restart_of_everything(tmp_path, warm_bookies):
    written = [f"entry {i}".encode() for i in range(100)]
    async with StandaloneCluster(tmp_path, keys=KEYS) as cluster, Client(cluster.metadata) as client:
        async with client.create(write_quorum=3, ack_quorum=3) as ledger:
            await ledger.append_many(written)
        await asyncio.gather(*(bookie.kill() for bookie in cluster.bookies.values()))
    async with StandaloneCluster(tmp_path, keys=KEYS) as cluster, Client(cluster.metadata) as client:
        reader = await client.open(ledger.ledger_id)
        assert [entry.payload async for entry in reader.entries()] == written


async def test_a_killed_bookie_comes_back_under_its_name(tmp_path, warm_bookies):
    async with StandaloneCluster(tmp_path, keys=KEYS) as cluster, Client(cluster.metadata) as client:
        async with client.create(write_quorum=3, ack_quorum=2) as ledger:
            await ledger.append(b"before")
            first = cluster.bookies["bookie-2"]
            await first.kill()
            await ledger.append(b"without")
            second = await cluster.start_bookie("bookie-2")
            assert (second.pid != first.pid, second.is_running) == (True, True)
            await ledger.append(b"after")
        async with client.open(ledger.ledger_id) as reader:
            assert [e.payload async for e in reader.entries()] == [b"before", b"without", b"after"]


def bookie(*arguments):
    done = subprocess.run([BOOKIE, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def names(ready):
    return [each["bookie_id"] for each in ready["bookies"]]


@pytest.mark.slow
@pytest.mark.timeout(400)  # three clusters of four bookies, one after the other
def test_a_cluster_starts_again_without_a_bookie_that_was_decommissioned(tmp_path):
    data = tmp_path / "data"
    keys = ["--bookies", "4", "--http-port", "0"]
    keys += [f"--set={key}={value}" for key, value in KEYS.items()]
    with StandaloneCommand(data, *keys, command=BOOKIE) as cluster:
        (tmp_path / "file").write_bytes(b"kept\n" * 1000)
        written = bookie("ledger", "write", str(tmp_path / "file"), "--metadata", cluster.uri, "--json")
        bookie("cluster", "decommission", "bookie-2", "--metadata", cluster.uri)
        going = next(each for each in cluster.ready["bookies"] if each["bookie_id"] == "bookie-2")
        os.kill(going["pid"], signal.SIGTERM)
        until_true(lambda: b"it was decommissioned, so it is not started again" in cluster.errors.read_bytes(), 60)
    with StandaloneCommand(data, *keys, command=BOOKIE) as cluster:
        assert names(cluster.ready) == ["bookie-1", "bookie-3", "bookie-4"]
        assert cluster.ready["decommissioned"] == ["bookie-2"]
        ledger = str(json.loads(written)["ledger_id"])
        bookie("ledger", "read", ledger, "--output", str(tmp_path / "copy"), "--metadata", cluster.uri)
        assert (tmp_path / "copy").read_bytes() == b"kept\n" * 1000
    shutil.rmtree(data / "bookie-2")
    with StandaloneCommand(data, *keys, command=BOOKIE) as cluster:
        assert names(cluster.ready) == ["bookie-1", "bookie-2", "bookie-3", "bookie-4"]
        assert cluster.ready["decommissioned"] == []


async def test_where_all_were_decommissioned_nothing_starts(tmp_path, warm_bookies):
    async with StandaloneCluster(tmp_path, 1, KEYS) as cluster:
        # What a decommission does last.
        await cluster.metadata.cookies.delete("bookie-1")
        record = DecommissionRecord("bookie-1", "a test", 1, time.time_ns() // 1_000_000, phase=Phase.DONE)
        await cluster.metadata.records(FINISHED).create("bookie-1", encode_record(record))
        assert await cluster.was_decommissioned("bookie-1")
    with pytest.raises(ServerStartFailed, match=r"decommissioned: .*than 1"):
        await StandaloneCluster(tmp_path, 1, KEYS).start()
    async with StandaloneCluster(tmp_path, 2, KEYS) as cluster:
        assert (list(cluster.bookies), cluster.left_out) == (["bookie-2"], ("bookie-1",))


async def test_a_bookie_that_cannot_start_is_told_with_its_own_words(tmp_path):
    cluster = StandaloneCluster(tmp_path, keys={"journalMaxGroupWaitMSec": "soon"})
    with pytest.raises(ServerStartFailed, match=r"code 1 .*journalMaxGroupWaitMSec"):
        await cluster.start()
    assert not any(bookie.is_running for bookie in cluster.bookies.values())


async def test_a_bookie_that_takes_no_writes_is_not_waited_for(tmp_path):
    """As on a full disk."""
    cluster = StandaloneCluster(tmp_path, keys={"forceReadOnlyBookie": "true"})
    async with asyncio.timeout(START_SECONDS / 2):
        with pytest.raises(ServerStartFailed):
            await cluster.start()
    assert not any(bookie.is_running for bookie in cluster.bookies.values())


ORPHANS = """
import asyncio, os, signal, sys
from pathlib import Path
from bookie_pod.node.standalone.cluster import StandaloneCluster

async def main():
    async with StandaloneCluster(Path(sys.argv[1]), 2) as cluster:
        Path(sys.argv[2]).write_text(" ".join(str(b.pid) for b in cluster.bookies.values()))
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_bookies_end_with_the_process_that_started_them(tmp_path):
    pids = tmp_path / "pids"
    with (tmp_path / "output").open("wb") as output:
        run = subprocess.run(
            [sys.executable, "-c", ORPHANS, str(tmp_path / "cluster"), str(pids)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            timeout=60,
            check=False,
        )
    assert run.returncode == -signal.SIGKILL, (tmp_path / "output").read_text()
    children = [psutil.Process(int(pid)) for pid in pids.read_text().split() if alive(int(pid))]
    _, left = psutil.wait_procs(children, timeout=30)
    left = [process for process in left if alive(process.pid)]
    for process in left:
        os.kill(process.pid, signal.SIGKILL)
    assert not left
