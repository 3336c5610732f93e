"""Who gets an answer of an embedded metadata service that demands a token, or certificates; and files are renewed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from bookie_pod.callers import Callers
from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.metrics.registry import Registry
from bookie_pod.node.processes.metadata_service import MetadataProcessOptions, guarded, serving_bounds
from bookie_pod.server import tokens as tokens_module
from bookie_pod.server.grpc import tls as tls_module
from bookie_pod.server.grpc.access import Strangers
from bookie_protocol.auth import watched_file
from bookie_protocol.errors import InvalidConfiguration, MetadataUnavailable
from bookie_protocol.metadata_service.embedded import embedded_metadata_pb2 as messages
from bookie_protocol.metadata_service.embedded.embedded_metadata_pb2_grpc import EmbeddedMetadataStub
from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner
from bookie_protocol.metadata_service.embedded.remote import GrpcTransport
from bookie_protocol.metadata_service.embedded.server import EmbeddedMetadataServer
from bookie_protocol.metadata_service.interface import SessionState
from bookie_protocol.metadata_service.options import MetadataTls
from bookie_protocol.metadata_service.oxia import oxia_pb2 as oxia
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.support.certificates import Certificates
from tests.support.oxia_calls import OxiaCalls

TOKEN = "a-token-that-nobody-knows"


def some_callers() -> Callers:
    return Callers(MemoryGovernor(16 << 20), Callers(MemoryGovernor(2 << 20)))


class Guarded:
    """A served store; everything in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registry = Registry(60)
        self.tokens = folder / "tokens"
        self.tokens.write_text(f"{TOKEN}\n")
        self.uri = ""
        self.strangers = Strangers(3, 3600)

    def options(self, **given: object) -> MetadataProcessOptions:
        values: dict[str, object] = {"host": "127.0.0.1", "token_file": str(self.tokens), **given}
        return MetadataProcessOptions(
            self.folder / "data", port=0, http_host="", http_port=None, client_memory_mb=16, max_sessions=20, **values
        )

    def tls(self, certificate: str | None = None, ca: str = "authority") -> MetadataTls:
        shown = {"certificate_file": self.path(f"{certificate}.pem"), "key_file": self.path(f"{certificate}.key")}
        return MetadataTls(ca_file=self.path(f"{ca}.pem"), **(shown if certificate else {}))

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def server_tls(self, **more: str) -> dict[str, str]:
        return {"tls_certificate": self.path("server.pem"), "tls_key": self.path("server.key"), **more}

    @asynccontextmanager
    async def serve(self, **given: object) -> AsyncIterator[EmbeddedMetadataServer]:
        options = self.options(**given)
        owner = await EmbeddedOwner.open(str(options.data), keep_notices=True)
        bounds = serving_bounds(
            Callers(MemoryGovernor(16 << 20), Callers(MemoryGovernor(2 << 20))), options.max_sessions
        )
        server = EmbeddedMetadataServer(
            owner, "127.0.0.1", 0, await guarded(bounds, options, self.registry, self.strangers)
        )
        await server.start()
        self.uri = server.uri()
        try:
            yield server
        finally:
            await server.stop()
            await owner.close()

    async def open(self, token: str | None = TOKEN, timeout: float = 10, **options: object) -> MetadataService:
        shown = None
        if token is not None:
            (self.folder / "shown").write_text(f"{token}\n")
            shown = self.path("shown")
        return await open_metadata_service(self.uri, timeout=timeout, token_file=shown, **options)

    async def refused(self, told: str, **options: object) -> None:
        with pytest.raises(MetadataUnavailable, match=told):
            await self.open(timeout=0.5, **options)


@pytest.fixture
def guard(tmp_path: Path) -> Guarded:
    return Guarded(tmp_path)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    made = Certificates(tmp_path).make_all()
    made.make_named("server", "IP:127.0.0.1")
    return made


async def test_nobody_gets_an_answer_without_the_token(guard: Guarded) -> None:
    async with guard.serve() as server:
        service = await guard.open()
        await service.cluster.initialize()
        await guard.refused("refuses this client: a token is needed.*metadataServiceTokenFile", token=None)
        await guard.refused("refuses this client", token="another-token-than-that")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            stub = EmbeddedMetadataStub(channel)
            asked = (
                (stub.OpenSession, messages.OpenSessionRequest(timeout_ms=1000)),
                (stub.Heartbeat, messages.SessionRequest()),
                (stub.CloseSession, messages.SessionRequest()),
                (stub.Execute, messages.ExecuteRequest()),
            )
            for call, request in asked:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(request, metadata=(("authorization", "Bearer x"), ("authorization", f"Bearer {TOKEN}")))
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            with pytest.raises(grpc.aio.AioRpcError):
                async for _ in stub.Events(messages.SessionRequest()):
                    pass
        assert await service.cluster.exists()
        await service.close()
    counted = guard.registry.render()
    refusals = next(
        line for line in counted.splitlines() if line.startswith("bookie_audit_ACTIONS") and "refused" in line
    )
    assert float(refusals.split()[-1]) >= 7
    assert TOKEN not in counted


async def test_our_driver_for_oxia_reads_the_file_of_the_java_client(
    guard: Guarded, certificates: Certificates
) -> None:
    """One URI serves brokers and bookies."""
    file = guard.folder / "oxia.properties"
    file.write_text(
        f"enableTls=true\nauthPluginClassName=io.oxia.client.auth.TokenAuthentication\nauthParams=file:{guard.tokens}\n"
    )
    async with guard.serve(**guard.server_tls()) as server:
        uri = f"metadata-store:oxia://127.0.0.1:{server.port}/default"
        service = await open_metadata_service(f"{uri}?configFilePath={file}", timeout=10, tls=guard.tls())
        await service.cluster.initialize()
        assert await service.cluster.exists()
        await service.close()
        with pytest.raises(MetadataUnavailable):
            await open_metadata_service(uri, timeout=2, tls=guard.tls())


async def test_clients_of_oxia_show_the_token_too(guard: Guarded) -> None:
    async with guard.serve() as server:
        asked = {
            "GetShardAssignments": oxia.ShardAssignmentsRequest(namespace="default"),
            "Read": oxia.ReadRequest(shard=0),
            "List": oxia.ListRequest(shard=0),
            "RangeScan": oxia.RangeScanRequest(shard=0),
            "GetSequenceUpdates": oxia.GetSequenceUpdatesRequest(),
            "GetNotifications": oxia.NotificationsRequest(),
        }
        stranger = OxiaCalls(f"127.0.0.1:{server.port}")
        for name, request in asked.items():
            assert await stranger.many(name, request, oxia.ReadResponse).code() is grpc.StatusCode.UNAUTHENTICATED
        for call in (stranger.put("/a"), stranger.session(), stranger.keep_alive(1), stranger.close_session(1)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED

        async def writes() -> AsyncIterator[oxia.WriteRequest]:
            yield oxia.WriteRequest()

        assert await stranger.write_stream(writes()).code() is grpc.StatusCode.UNAUTHENTICATED
        await stranger.close()
        known = OxiaCalls(f"127.0.0.1:{server.port}", metadata=(("authorization", f"Bearer {TOKEN}"),))
        await known.put("/a", session_id=await known.session())
        assert await known.list() == ["/a"]
        assert len([each async for each in known.write_stream(writes())]) == 1
        await known.close()


async def test_a_role_that_is_less_than_everything_opens_nothing(guard: Guarded) -> None:
    guard.tokens.write_text(f"{TOKEN} viewer,operator looks\n")
    async with guard.serve():
        await guard.refused("needs the role admin")


async def test_over_tls_with_the_right_host_alone(guard: Guarded, certificates: Certificates) -> None:
    async with guard.serve(**guard.server_tls()):
        service = await guard.open(tls=guard.tls())
        await service.cluster.initialize()
        await service.close()
        await guard.refused("did not answer", tls=None)
        await guard.refused("CERTIFICATE_VERIFY_FAILED|unable to get local issuer", tls=guard.tls(ca="stranger"))
        guard.uri = guard.uri.replace("127.0.0.1", "localhost")
        await guard.refused("did not answer", tls=guard.tls())  # the certificate is that of another host


async def test_certificates_of_clients(guard: Guarded, certificates: Certificates) -> None:
    given = guard.server_tls(tls_trust=guard.path("authority.pem"))
    async with guard.serve(token_file=None, **given):
        service = await guard.open(token=None, tls=guard.tls("client"))
        await service.close()
        await guard.refused("did not answer", token=None, tls=guard.tls())
        await guard.refused("did not answer", token=None, tls=guard.tls("unknown"))


async def test_tokens_and_certificates_are_exchanged_under_an_open_session(
    guard: Guarded, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (tokens_module, tls_module, watched_file):
        monkeypatch.setattr(module, "CHECK_S", 0.0)
    # Another authority, and what it signs: made before, because the loop would wait for it, and sessions would not.
    (guard.folder / "later").mkdir()
    later = Certificates(guard.folder / "later").make_anew()
    later.make_named("server", "IP:127.0.0.1")
    async with guard.serve(**guard.server_tls()) as server:
        service = await guard.open(tls=guard.tls(), timeout=10)
        states: list[SessionState] = []
        service.session.add_listener(states.append)
        await service.cluster.initialize()
        _exchange(guard.tokens, "a-new-token-of-all\n")
        _exchange(guard.folder / "shown", "a-new-token-of-all\n")
        assert await service.cluster.exists()
        for name in ("authority.pem", "server.key", "server.pem"):
            _exchange(guard.folder / name, (later.folder / name).read_text())
        await server.stop()
        await server.start()
        assert await service.cluster.exists(timeout=30)
        assert SessionState.EXPIRED not in states
        guard.tokens.unlink()  # a file that is gone lets nobody in
        with pytest.raises(MetadataUnavailable, match="refuses"):
            await service.cluster.exists(timeout=0.5)
        await service.close()


async def test_authorities_that_are_gone_are_not_followed_by_those_of_the_web(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, open_channel = [], grpc.aio.secure_channel
    monkeypatch.setattr(grpc.aio, "secure_channel", lambda *of, **how: opened.append(of) or open_channel(*of, **how))
    good, trusted = (certificates.folder / "authority.pem").read_text(), tmp_path / "trusted"
    trusted.write_text(good)
    transport = GrpcTransport("127.0.0.1:1", MetadataTls(ca_file=str(trusted)))
    for content, channels in (("", 1), ("half a file", 1), (good, 2), (good, 3)):
        _exchange(trusted, content)
        await transport.reconnect()
        assert len(opened) == channels
    await transport.close()


def _exchange(path: Path, content: str) -> None:
    (path.parent / "new").write_text(content)
    os.replace(path.parent / "new", path)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"host": "0.0.0.0"}, "--token-file=.*/tokens: .*token"),
        ({"tls_key": "/k"}, "--tls-certificate"),
        ({"tls_trust": "/t"}, "--tls-trust"),
        ({"tls_key": "/k", "tls_certificate": "/c"}, "--tls-certificate=/c and --tls-key=/k: No such"),
        ({"token_file": "/nowhere"}, "--token-file=/nowhere: No such"),
    ],
)
async def test_a_start_is_refused(guard: Guarded, given: dict[str, str], told: str) -> None:
    bounds = serving_bounds(some_callers(), 20)
    with pytest.raises(InvalidConfiguration, match=told):
        await guarded(bounds, guard.options(**given), guard.registry, guard.strangers)


@pytest.mark.parametrize(
    ("uri", "options", "told"),
    [
        ("embedded://metadata:1/ledgers", {}, "metadataServiceTlsEnable=true"),
        ("zk://127.0.0.1:1/ledgers", {}, "ZooKeeper"),
        ("embedded://127.0.0.1:1/ledgers", {"token_file": "/nowhere"}, "metadataServiceTokenFile=/nowhere: No such"),
        ("embedded://127.0.0.1:1/ledgers", {"token_file": "/dev/null"}, "a file"),
        ("embedded://127.0.0.1:1/ledgers", {"tls": MetadataTls(ca_file="/nowhere")}, "of /nowhere: No such"),
        ("zk://127.0.0.1:1/ledgers", {"token_file": None, "tls": MetadataTls(ca_file="/dev/null")}, "no PEM"),
    ],
)
async def test_a_client_is_told_what_it_lacks(guard: Guarded, uri: str, options: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidConfiguration, match=told):
        await open_metadata_service(uri, timeout=1, **{"token_file": str(guard.tokens), **options})


async def test_connections_of_strangers_are_bounded(guard: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie_pod.node.processes.metadata_service.IDLE_MS", 300)
    monkeypatch.setattr("bookie_pod.node.processes.metadata_service.MORE_CONNECTIONS", -12)
    async with guard.serve() as server:
        service = await guard.open()
        held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(12)]
        for _, writer in held:  # HTTP/2 begins, and then nothing
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        ended = await asyncio.gather(*(asyncio.wait_for(_until_closed(reader), 20) for reader, _ in held))
        assert len(ended) == 12
        assert await service.cluster.exists() is False
        for _, writer in held:
            writer.close()
        await service.close()


async def test_strangers_whose_calls_are_refused_hold_no_connection_that_others_need(guard: Guarded) -> None:
    async with guard.serve() as server:
        service = await guard.open()
        held = [
            grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", (("grpc.use_local_subchannel_pool", 1),))
            for _ in range(5)
        ]
        for channel in held:
            with pytest.raises(grpc.aio.AioRpcError, match="token"):
                await EmbeddedMetadataStub(channel).Heartbeat(messages.SessionRequest())
            await guard.strangers.look(server.port)
        states = [channel.get_state() for channel in held]
        assert guard.strangers.sent_away == 2
        async with asyncio.timeout(20):
            for channel in held[:2]:  # the oldest, and not whoever has a token
                await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        assert [channel.get_state() for channel in held[2:]] == states[2:] == [grpc.ChannelConnectivity.READY] * 3
        for _ in range(3):
            await guard.strangers.look(server.port)
        assert guard.strangers.sent_away == 2
        assert await service.cluster.exists() is False
        for channel in held:
            await channel.close()
        await service.close()


async def _until_closed(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(4096):
            pass
    except ConnectionError:
        pass
