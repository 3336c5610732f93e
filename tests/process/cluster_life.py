"""The life of a cluster of processes, whatever holds its metadata."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from bookie_client import Client
from bookie_protocol.ledger_service import ledger_service_pb2 as pb
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import LedgerServiceStub
from tests.support.auto_recovery import QUICK, AutoRecoveryProcess
from tests.support.gateway_command import GatewayCommand
from tests.support.serve_cluster import ServeCluster
from tests.support.serve_process import ServeProcess


@contextmanager
def three_bookies(folder: Path, uri: str) -> Iterator[ServeCluster]:
    made = ServeCluster(folder, uri, QUICK)
    try:
        made.add(3)
        yield made
    finally:
        made.stop()


def run(*words: str, code: int = 0) -> str:
    done = ServeProcess.command(*words)
    assert done.returncode == code, done.stderr
    return done.stdout


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
