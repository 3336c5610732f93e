"""A gateway without a bookie: what it refuses, when it is ready, what it serves, and how it stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from bookie_pod.config.load import load_config
from bookie_pod.config.model import BookieConfig
from bookie_pod.node.metadata import open_metadata
from bookie_pod.node.processes import gateway as gateway_process
from bookie_pod.node.processes.gateway import GatewayProcess
from bookie_pod.node.processes.service import SessionNotRenewed
from bookie_protocol.errors import InvalidConfiguration, ServerStartFailed
from bookie_protocol.ledger_service import ledger_service_pb2 as pb
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import LedgerServiceStub
from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner
from bookie_protocol.metadata_service.embedded.server import EmbeddedMetadataServer
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.bookie_process import free_port
from tests.support.http_answers import ask
from tests.support.until import until

SERVICE = "podkeeper.ledger.v1.LedgerService"


class Rig(NamedTuple):
    server: EmbeddedMetadataServer
    metadata: MetadataService
    """The metadata service as another client sees it."""
    config: BookieConfig


@asynccontextmanager
async def metadata_service(folder: Path) -> AsyncIterator[Rig]:
    """One without a cluster."""
    owner = await EmbeddedOwner.open(str(folder))
    server = EmbeddedMetadataServer(owner, "127.0.0.1", 0)
    await server.start()
    keys = {
        "metadataServiceUri": server.uri(),
        "zkTimeout": "2000",
        "grpcServerHost": "127.0.0.1",
        "grpcServerPort": str(free_port()),
        "httpServerHost": "127.0.0.1",
        "httpServerPort": str(free_port()),
    }
    config = load_config(environ={}, overrides=keys)
    try:
        metadata = await open_metadata(config.metadata, server.uri())
        yield Rig(server, metadata, config)
        await metadata.close()
    finally:
        await server.stop()
        await owner.close()


@asynccontextmanager
async def serving(rig: Rig) -> AsyncIterator[GatewayProcess]:
    await rig.metadata.cluster.initialize()
    process = GatewayProcess(rig.config)
    running = asyncio.create_task(process.run())
    try:
        await until(lambda: running.done() or process.unready_reason() is None, 20)
        yield process
    finally:
        running.cancel()
        await asyncio.wait({running})


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("grpcServerEnabled", "grpcServerEnabled=false"),
        ("gatewayEnabled", "gatewayEnabled=false"),
    ],
)
def test_a_configuration_without_a_gateway_is_refused(key: str, remedy: str) -> None:
    with pytest.raises(InvalidConfiguration, match=remedy):
        GatewayProcess(load_config(environ={}, overrides={key: "false"}))


def test_it_is_no_way_around_the_bookies_certificates() -> None:
    """Where they demand one, a port that demands nothing would let everybody in."""
    keys = {
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsClientAuthentication": "true",
        "tlsCertificatePath": "/tls.crt",
        "tlsKeyStore": "/tls.key",
        "tlsTrustStore": "/ca.crt",
    }
    with pytest.raises(InvalidConfiguration, match=r"\(grpcServerAuthTokenFile\)"):
        GatewayProcess(load_config(environ={}, overrides=keys))
    GatewayProcess(load_config(environ={}, overrides={**keys, "grpcServerAuthTokenFile": "/token"}))


async def test_without_a_metadata_service_in_the_configuration() -> None:
    quiet = {"httpServerEnabled": "false", "prometheusStatsHttpEnable": "false"}
    with pytest.raises(InvalidConfiguration, match="metadataServiceUri is"):
        await GatewayProcess(load_config(environ={}, overrides=quiet)).run()


async def test_without_a_cluster_it_ends(tmp_path: Path) -> None:
    async with metadata_service(tmp_path) as rig:
        with pytest.raises(ServerStartFailed, match=r"at embedded://.* init"):
            await GatewayProcess(rig.config).run()


async def test_from_start_to_stop(tmp_path: Path) -> None:
    async with metadata_service(tmp_path) as rig:
        assert GatewayProcess(rig.config).unready_reason() == "starting"
        async with serving(rig) as process, grpc.aio.insecure_channel(f"127.0.0.1:{process.grpc_port}") as channel:
            assert process.grpc_port == rig.config.grpc.server_port
            assert (process.state().running, process.state().shutting_down) == (True, False)
            health = await HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=SERVICE))
            assert health.status == health_pb2.HealthCheckResponse.SERVING
            await LedgerServiceStub(channel).List(pb.ListRequest()).read()
        assert process.unready_reason() == "stopping"
        assert (process.state().running, process.state().shutting_down) == (False, True)


async def test_http_serves_probes_and_metrics_only(tmp_path: Path) -> None:
    """There is no bookie to administrate, and auto-recovery answers for the cluster."""
    async with metadata_service(tmp_path) as rig, serving(rig):
        port = rig.config.http.listener.port
        asked = ("/healthz", "/readyz", "/metrics", "/api/v1/cluster/state", "/api/v1/bookie/info")
        assert [(await ask(port, path)).status for path in asked] == [200, 200, 200, 404, 404]
        assert "bookie_gateway_" in (await ask(port, "/metrics")).body


async def test_it_is_unready_while_its_session_is_away(tmp_path: Path) -> None:
    async with metadata_service(tmp_path) as rig, serving(rig) as process:
        await rig.server.stop()
        await until(lambda: process.unready_reason() is not None, 20)
        assert str(process.unready_reason()).startswith("the session with the metadata service is ")
        assert (await ask(rig.config.http.listener.port, "/readyz")).status == 503
        assert (await ask(rig.config.http.listener.port, "/healthz")).status == 200


async def test_a_session_that_cannot_be_renewed_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(config: object, metadata: object) -> None:
        raise SessionNotRenewed("no connection to the metadata service for 61 s")

    monkeypatch.setattr(gateway_process, "watch_session", lost)
    async with metadata_service(tmp_path) as rig:
        await rig.metadata.cluster.initialize()
        process = GatewayProcess(rig.config)
        with pytest.raises(SessionNotRenewed):
            await process.run()
        assert process.unready_reason() == "stopping"
