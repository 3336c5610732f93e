"""Every port is taken before a bookie is registered; one that is another's ends the start with one line."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from bookie_pod.config.load import load_config
from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.service import GrpcConfig
from bookie_pod.node import bookie as bookie_module
from bookie_pod.node.bookie import Bookie
from bookie_pod.node.listening import hold_grpc_port
from bookie_pod.node.metadata import open_metadata
from bookie_pod.node.registration import RegistrationManager
from bookie_pod.server.tcp.listener import TcpListener
from bookie_protocol.errors import ServerStartFailed, V2Code
from bookie_protocol.wire import v2
from tests.support.bookie_process import free_port
from tests.support.small_bookie import SMALL_BOOKIE

LOOPBACK = "127.0.0.1"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another process serves."""
    with socket.create_server((LOOPBACK, 0)) as server:
        yield server.getsockname()[1]


async def configured(work: Path, settings: Mapping[str, str]) -> BookieConfig:
    """Of a bookie whose cluster is there."""
    config = load_config(
        environ={},
        overrides={
            "metadataServiceUri": f"file://{work}/metadata",
            "bookiePort": str(free_port()),
            "listeningInterface": "lo",
            "allowLoopback": "true",
            "advertisedAddress": LOOPBACK,
            "journalDirectories": str(work / "journal"),
            "ledgerDirectories": str(work / "ledgers"),
            **SMALL_BOOKIE,
            "prometheusStatsHttpEnable": "false",
            "httpServerEnabled": "false",
            "grpcServerEnabled": "false",
            **settings,
        },
    )
    service = await open_metadata(config.metadata, f"file://{work}/metadata", make_store=True)
    await service.cluster.initialize()
    await service.close()
    return config


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
    served = {f"{enabled}Enabled": "true", f"{enabled}Host": LOOPBACK, f"{enabled}Port": str(taken)}
    config = await configured(tmp_path, served)

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


async def test_where_any_http_port_would_do_the_one_that_was_taken_is_published(tmp_path: Path) -> None:
    """A decommission and the operator find the admin API by it."""
    served = {"httpServerEnabled": "true", "httpServerHost": LOOPBACK, "httpServerPort": "0"}
    bookie = Bookie(await configured(tmp_path, served))
    try:
        await bookie.start()
        url = (await bookie._metadata.bookies.service_info(bookie.bookie_id)).admin_url()
        assert url is not None
        _, writer = await asyncio.open_connection(LOOPBACK, int(url.rpartition(":")[2]))
        writer.close()
    finally:
        await bookie.stop()


async def test_a_port_that_nobody_asked_for_ends_no_bookie(taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    config = GrpcConfig(server_host=LOOPBACK, server_port=taken)
    assert await hold_grpc_port(config, asked_for=False) is None
    assert "set grpcServerPort" in capsys.readouterr().out


@pytest.mark.parametrize("host", ["a..b", "x" * 70])
async def test_a_name_that_no_host_can_have_is_none_to_listen_on(host: str) -> None:
    with pytest.raises(ServerStartFailed, match=f"{host}.* name"):
        await hold_grpc_port(GrpcConfig(server_host=host, server_port=1))
    with pytest.raises(ServerStartFailed, match=f"on {host}:1 .* name"):
        await TcpListener(asyncio.get_running_loop(), host, 1).bind()


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


async def test_whoever_hears_of_a_bookie_is_answered_as_long_as_it_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts before it is registered, and is not registered any more before anything of it is stopped."""
    bookie = Bookie(await configured(tmp_path, {}))
    answers: list[tuple[str, v2.Response]] = []

    async def ask(when: str) -> None:
        reader, writer = await asyncio.open_connection(LOOPBACK, bookie.port)
        writer.write(v2.encode_read_request(7, 0))
        size = int.from_bytes(await reader.readexactly(4))
        response = v2.decode_response(await reader.readexactly(size))
        assert isinstance(response, v2.Response)
        answers.append((when, response))
        writer.close()

    register, deregister = RegistrationManager.register, RegistrationManager.deregister

    async def asked_before(manager: RegistrationManager, **given: Any) -> None:
        await ask("before")
        await register(manager, **given)

    async def asked_after(manager: RegistrationManager) -> None:
        await deregister(manager)
        if len(answers) < 2:
            await ask("after")

    monkeypatch.setattr(RegistrationManager, "register", asked_before)
    monkeypatch.setattr(RegistrationManager, "deregister", asked_after)
    try:
        await bookie.start()
        await bookie.stop()
    finally:
        gc.unfreeze()
    assert [(when, answer.code) for when, answer in answers] == [
        ("before", V2Code.ENOLEDGER),
        ("after", V2Code.ENOLEDGER),
    ]
