"""A cluster with etcd and nothing else: bookies, commands, a gateway and auto-recovery, as processes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from bookie_client import Client
from bookie_operator.builders import commands
from bookie_protocol.ledger_service import ledger_service_pb2 as pb
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import LedgerServiceStub
from tests.support.auto_recovery import QUICK, AutoRecoveryProcess
from tests.support.etcd import EtcdServer
from tests.support.gateway_command import GatewayCommand
from tests.support.operator_clusters import MINIMAL
from tests.support.operator_clusters import cluster as operator_cluster
from tests.support.serve_cluster import ServeCluster
from tests.support.serve_process import ServeProcess

pytestmark = pytest.mark.etcd


@pytest.fixture
def cluster(tmp_path: Path, etcd: EtcdServer) -> Iterator[ServeCluster]:
    made = ServeCluster(tmp_path / "bookies", etcd.uri(f"/process-{uuid.uuid4().hex[:8]}"), QUICK)
    try:
        made.add(3)
        yield made
    finally:
        made.stop()


def run(*words: str, code: int = 0) -> str:
    done = ServeProcess.command(*words)
    assert done.returncode == code, done.stderr
    return done.stdout


def test_jobs_of_the_operator_make_find_and_remove_a_cluster(etcd: EtcdServer, tmp_path: Path) -> None:
    """Their commands, word by word. A second one that makes the cluster changes nothing, and another cluster's metadata
    are not removed."""
    root = f"/jobs-{uuid.uuid4().hex[:8]}"
    view = operator_cluster({**MINIMAL, "metadataService": {"uri": etcd.uri(""), "rootPath": root}})
    made = run_job(tmp_path, commands.initialise(view))
    assert (made, run_job(tmp_path, commands.initialise(view))) == (view.uid, view.uid)
    looked = run_job(tmp_path, commands.look(), code=0, BK_metadataServiceUri=etcd.uri(root))
    assert looked == f"{view.uid} 0 0"
    other = replace(view, status=view.status.model_copy(update={"instance_id": str(uuid.uuid4())}))
    refused = ServeProcess.command(*commands.destroy(other))
    assert (refused.returncode != 0, view.uid in refused.stderr) == (True, True), refused.stderr
    mine = replace(view, status=view.status.model_copy(update={"instance_id": view.uid}))
    run(*commands.destroy(mine))
    run(*commands.destroy(mine))
    assert [key for key in etcd.control("get", f"{root}/", "--prefix", "--keys-only").split() if "/@/" not in key] == []


def run_job(folder: Path, command: Sequence[str], code: int = 0, **environment: str) -> str:
    """Run the script of a Job; returns its termination message."""
    shell, options, script, *arguments = command
    log = folder / "termination-log"
    script = script.replace("/tmp/cluster.json", f"{folder}/cluster.json").replace(commands.TERMINATION_LOG, str(log))
    found = {**os.environ, **environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([shell, options, script, *arguments], env=found, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return log.read_text().strip()


async def test_from_its_making_to_its_end(cluster: ServeCluster, etcd: EtcdServer, tmp_path: Path) -> None:
    root = await make_use_and_remove(cluster, tmp_path)
    assert [key for key in etcd.control("get", f"{root}/", "--prefix", "--keys-only").split() if "/@/" not in key] == []


async def make_use_and_remove(cluster: ServeCluster, tmp_path: Path) -> str:
    """A bookie dies on the way, and auto-recovery copies its ledger. Returns the root of the cluster that was."""
    uri = cluster.uri
    (tmp_path / "file").write_bytes(b"".join(b"%d\n" % number for number in range(1000)))
    written = await asyncio.to_thread(run, "ledger", "write", str(tmp_path / "file"), "--metadata", uri, "--json")
    ledger_id = json.loads(written)["ledger_id"]
    with GatewayCommand(tmp_path, uri) as gateway:
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            metadata = await LedgerServiceStub(channel).GetMetadata(pb.GetMetadataRequest(ledger_id=ledger_id))
            assert metadata.state == pb.LedgerMetadata.CLOSED
    async with Client(uri) as client:
        with AutoRecoveryProcess(tmp_path / "healer", uri, QUICK) as healer:
            await healer.ready()
            cluster.add(1)
            cluster.kill("bookie-1")
            async with asyncio.timeout(60), client.metadata_service.ledgers.watch(ledger_id) as changes:
                async for found in changes:
                    if found is not None and "bookie-1" not in found.value.all_bookies():
                        break
    read = await asyncio.to_thread(run, "ledger", "read", str(ledger_id), "--metadata", uri)
    assert read.encode() == (tmp_path / "file").read_bytes()
    refused = await asyncio.to_thread(
        ServeProcess.command, "cluster", "nuke", uri, "--root", "/" + uri.rpartition("/")[2], "--confirm", "--force"
    )
    assert "registered" in refused.stderr
    for name, bookie in cluster.bookies.items():
        if name != "bookie-1":
            assert await asyncio.to_thread(bookie.stop) == 0
    root = "/" + uri.rpartition("/")[2]
    await asyncio.to_thread(run, "cluster", "nuke", uri, "--root", root, "--confirm", "--force")
    return root
