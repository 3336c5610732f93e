"""What a failed connection over TLS is told as, asked of servers that use it otherwise than the client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.grpc_channel import ServiceChannel
from bookie_protocol.metadata_service.options import MetadataTls
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost
from tests.support.certificates import Certificates


@dataclass
class Servers:
    """One that demands certificates, one whose certificate names another host, and one without TLS."""

    folder: Path
    demanding: str
    other_name: str
    plain: str

    def tls(self, *, authority: str = "authority", client: str | None = "client") -> MetadataTls:
        return MetadataTls(
            ca_file=f"{self.folder}/{authority}.pem",
            certificate_file=None if client is None else f"{self.folder}/{client}.pem",
            key_file=None if client is None else f"{self.folder}/{client}.key",
        )


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    certificates = Certificates(tmp_path).make_all()
    certificates.make_named("server", "IP:127.0.0.1")
    certificates.make_named("elsewhere", "DNS:elsewhere.example")
    started: list[grpc.aio.Server] = []

    async def start(certificate: str | None, *, demands: bool = False) -> str:
        server = grpc.aio.server()
        started.append(server)
        if certificate is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            pair = ((tmp_path / f"{certificate}.key").read_bytes(), (tmp_path / f"{certificate}.pem").read_bytes())
            authority = (tmp_path / "authority.pem").read_bytes()
            port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair], authority, demands))
        await server.start()
        return f"127.0.0.1:{port}"

    yield Servers(tmp_path, await start("server", demands=True), await start("elsewhere"), await start(None))
    for server in started:
        await server.stop(None)


async def failure(target: str, tls: MetadataTls | None) -> grpc.aio.AioRpcError | ConnectionLost:
    """Return what a request ends with: gRPC's error if the server answered it, else what it is told as."""

    def stub(channel: grpc.aio.Channel) -> Any:
        return channel.unary_unary("/any.Service/Call")

    channel = ServiceChannel("a service", (target,), tls, stub)
    try:
        await channel.stub(b"", timeout=10)
    except grpc.aio.AioRpcError as error:
        return error if error.code() is grpc.StatusCode.UNIMPLEMENTED else channel.unanswered(error)
    finally:
        await channel.close()
    raise AssertionError("no such service")


async def test_a_client_with_a_certificate_is_answered(servers: Servers) -> None:
    assert isinstance(await failure(servers.demanding, servers.tls()), grpc.aio.AioRpcError)


@pytest.mark.parametrize(
    ("target", "tls", "key"),
    [
        (lambda s: s.demanding, lambda s: s.tls(authority="stranger"), "metadataServiceTrustStorePath"),
        (lambda s: s.demanding, lambda s: s.tls(client=None), "metadataServiceCertificatePath"),
        (lambda s: s.demanding, lambda s: s.tls(client="unknown"), "metadataServiceCertificatePath"),
        (lambda s: s.demanding, lambda s: None, "metadataServiceTlsEnable"),
        (lambda s: s.other_name, lambda s: s.tls(), "metadataServiceUri"),
        (lambda s: s.plain, lambda s: s.tls(), "metadataServiceTlsEnable"),
    ],
    ids=["another authority", "no certificate", "unknown certificate", "no TLS", "another host", "server without TLS"],
)
async def test_a_failed_handshake_names_the_key_to_look_at(
    servers: Servers, target: Callable[[Servers], str], tls: Callable[[Servers], MetadataTls | None], key: str
) -> None:
    told = await failure(target(servers), tls(servers))
    assert isinstance(told, ConnectionLost)
    assert (key in str(told), "\n" in str(told)) == (True, False), told


def test_a_file_that_goes_away_while_it_is_read_is_a_matter_of_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MetadataTls, "check", lambda _: None)
    with pytest.raises(InvalidConfiguration):
        ServiceChannel("a service", ("127.0.0.1:1",), MetadataTls(ca_file=f"{tmp_path}/gone.pem"), lambda _: None)
