"""Every port is taken before a bookie is registered; one that is another's ends the start with one line."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from bookie_pod.config.load import load_config
from bookie_pod.config.sections.service import GrpcConfig
from bookie_pod.node import bookie as bookie_module
from bookie_pod.node.bookie import Bookie
from bookie_pod.node.listening import hold_grpc_port
from bookie_pod.node.metadata import open_metadata
from bookie_protocol.errors import ServerStartFailed
from tests.support.bookie_process import free_port
from tests.support.small_bookie import SMALL_BOOKIE

LOOPBACK = "127.0.0.1"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another process serves."""
    with socket.create_server((LOOPBACK, 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("enabled", "line"),
    [
        ("grpcServer", "gRPC port {port} on 127.0.0.1 is in use: stop what uses it or choose another grpcServerPort"),
        ("httpServer", "HTTP port {port} is in use: stop what uses it or choose another httpServerPort"),
    ],
)
async def test_a_bookie_whose_port_is_taken_is_never_registered(
    tmp_path: Path, taken: int, monkeypatch: pytest.MonkeyPatch, enabled: str, line: str
) -> None:
    config = load_config(
        environ={},
        overrides={
            "metadataServiceUri": f"file://{tmp_path}/metadata",
            "bookiePort": str(free_port()),
            "listeningInterface": "lo",
            "allowLoopback": "true",
            "advertisedAddress": LOOPBACK,
            "journalDirectories": str(tmp_path / "journal"),
            "ledgerDirectories": str(tmp_path / "ledgers"),
            **SMALL_BOOKIE,
            "prometheusStatsHttpEnable": "false",
            "httpServerEnabled": "false",
            "grpcServerEnabled": "false",
            f"{enabled}Enabled": "true",
            f"{enabled}Host": LOOPBACK,
            f"{enabled}Port": str(taken),
        },
    )
    service = await open_metadata(config.metadata, f"file://{tmp_path}/metadata", make_store=True)
    await service.cluster.initialize()
    await service.close()

    async def join_cluster(*_: object, **__: object) -> None:
        raise AssertionError("it was registered")

    monkeypatch.setattr(bookie_module, "join_cluster", join_cluster)
    bookie = Bookie(config)
    try:
        with pytest.raises(ServerStartFailed) as raised:
            await bookie.start()
    finally:
        await bookie.abort()
    assert str(raised.value) == line.format(port=taken)


async def test_a_port_that_nobody_asked_for_ends_no_bookie(taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    config = GrpcConfig(server_host=LOOPBACK, server_port=taken)
    assert await hold_grpc_port(config, asked_for=False) is None
    assert "set grpcServerPort" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a port is looked at only")
@pytest.mark.parametrize("host", [LOOPBACK, "0.0.0.0"])
async def test_a_held_port_is_nobodys_but_the_grpc_servers(host: str) -> None:
    port = free_port()
    held = await hold_grpc_port(GrpcConfig(server_host=host, server_port=port))
    assert held is not None
    with held:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((LOOPBACK, port)).close()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((LOOPBACK, port))
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        assert server.add_insecure_port(f"{host}:{port}") == port
        await server.start()
        socket.create_connection((LOOPBACK, port)).close()
        await server.stop(None)
