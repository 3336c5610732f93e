"""Who gets at the gRPC port: TLS, client certificates, tokens."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from structlog.testing import capture_logs

from bookie_pod.audit import Audit
from bookie_pod.config.sections.service import AccessConfig, GrpcConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.roles import Role
from bookie_pod.server import tokens
from bookie_pod.server.access import Access
from bookie_pod.server.grpc import tls
from bookie_pod.server.grpc.access import DemandRole, _subject_of
from bookie_pod.server.grpc.start import start_grpc
from bookie_protocol.errors import InvalidConfiguration
from tests.support.certificates import Certificates
from tests.unit.bookie_pod.server.nodes import FakeNode


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("certificates")).make_all()
    made.make_named("server", "DNS:localhost")
    return made


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text("the-first-token-of-all\nthe-second-token-of-all\n")
    return path


def tls_config(certificates: Certificates, **others: object) -> GrpcConfig:
    folder = certificates.folder
    files = {
        "certificate_path": str(folder / "server.pem"),
        "key_path": str(folder / "server.key"),
        "trust_store_path": str(folder / "authority.pem"),
    }
    return GrpcConfig(server_port=0, server_host="127.0.0.1", tls_enable=True, **{**files, **others})  # type: ignore[arg-type]


@pytest.mark.parametrize("pem", [b"", b"-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----\n"])
def test_a_certificate_that_cannot_be_read_is_not_one_without_a_role(pem: bytes) -> None:
    assert _subject_of(pem) is None


@asynccontextmanager
async def served(config: GrpcConfig) -> AsyncIterator[int]:
    server = await start_grpc(config, FakeNode())
    assert server is not None
    yield server.port
    await server.stop()


def credentials(certificates: Certificates, name: str | None = None) -> grpc.ChannelCredentials:
    read: Callable[[str], bytes] = lambda file: (certificates.folder / file).read_bytes()  # noqa: E731
    shown = (read(f"{name}.key"), read(f"{name}.pem")) if name is not None else (None, None)
    return grpc.ssl_channel_credentials(read("authority.pem"), *shown)


async def health(channel: grpc.aio.Channel, **call: object) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    return int((await stub.Check(health_pb2.HealthCheckRequest(service=""), timeout=10, **call)).status)


async def reflect(port: int, *authorization: str) -> grpc.StatusCode:
    """What becomes of a stream. By a client that blocks: one of asyncio calls it INTERNAL when the refusal comes before
    it has written."""
    return await asyncio.to_thread(_reflect, port, authorization)


def _reflect(port: int, authorization: tuple[str, ...]) -> grpc.StatusCode:
    metadata = [("authorization", value) for value in authorization]
    requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    with grpc.insecure_channel(f"localhost:{port}") as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        try:
            assert list(stub.ServerReflectionInfo(requests, metadata=metadata, timeout=10))
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def put(path: Path, text: str) -> None:
    path.write_text(text)


async def refused(channel: grpc.aio.Channel) -> bool:
    try:
        await health(channel)
    except grpc.aio.AioRpcError as error:
        return error.code() is grpc.StatusCode.UNAVAILABLE
    return False


async def test_with_tls_nothing_is_served_unencrypted(certificates: Certificates) -> None:
    async with served(tls_config(certificates)) as port:
        async with grpc.aio.secure_channel(f"localhost:{port}", credentials(certificates)) as channel:
            assert await health(channel) == health_pb2.HealthCheckResponse.SERVING
        async with grpc.aio.insecure_channel(f"localhost:{port}") as channel:
            assert await refused(channel)


async def test_client_certificates_are_demanded(certificates: Certificates) -> None:
    async with served(tls_config(certificates, client_authentication=True)) as port:
        answers = {}
        for name in ("client", "unknown", None):
            async with grpc.aio.secure_channel(f"localhost:{port}", credentials(certificates, name)) as channel:
                answers[name] = await refused(channel)
        assert answers == {"client": False, "unknown": True, None: True}


async def test_a_renewed_certificate_is_taken_up(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "CHECK_S", 0.0)
    chain, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def put(name: str, *targets: Path) -> None:
        for target in targets or (chain, key):
            new = target.with_suffix(".new")
            new.write_bytes((certificates.folder / (name + (".pem" if target == chain else ".key"))).read_bytes())
            os.replace(new, target)

    put("server")
    async with served(tls_config(certificates, certificate_path=str(chain), key_path=str(key))) as port:

        async def shown() -> bool:
            """Whether the server's certificate names localhost: only that of "server" does."""
            options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
            async with grpc.aio.secure_channel(f"localhost:{port}", credentials(certificates), options) as channel:
                return not await refused(channel)

        for target, still in ((key, True), (chain, False)):  # half of a pair is no pair, however many come meanwhile
            assert await shown()
            put("bookie", target)
            assert set(await asyncio.gather(*(shown() for _ in range(8)))) == {still}
        chain.write_text("nothing of use")
        assert not await shown()  # the last good ones stay
        put("server")
        assert await shown()


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"certificate_path": "/nowhere"}, "grpcServerCertificatePath=/nowhere .*No such"),
        ({"key_path": "unknown.key"}, "PEM"),
        ({"key_path": "encrypted.key"}, "grpcServerKeyPath=.*encrypted.key: gRPC"),
        ({"trust_store_path": "server.key"}, "grpcServerTrustStorePath=.*server.key"),
    ],
)
async def test_bad_files_end_the_start(certificates: Certificates, files: dict[str, str], problem: str) -> None:
    folder = certificates.folder
    encrypt = ("openssl", "pkey", "-in", "server.key", "-aes256", "-passout", "pass:x", "-out", "encrypted.key")
    await asyncio.to_thread(subprocess.run, encrypt, cwd=folder, check=True)
    config = tls_config(
        certificates, client_authentication=True, **{name: str(folder / path) for name, path in files.items()}
    )
    with pytest.raises(InvalidConfiguration, match=problem):
        await start_grpc(config, FakeNode())


async def test_calls_must_carry_a_token_but_probes_need_none(token_file: Path) -> None:
    config = GrpcConfig(server_port=0, server_host="127.0.0.1", auth_token_file=str(token_file))
    async with served(config) as port, grpc.aio.insecure_channel(f"localhost:{port}") as channel:
        assert await health(channel) == health_pb2.HealthCheckResponse.SERVING
        for good in ("Bearer the-first-token-of-all", "bearer the-second-token-of-all"):
            assert await reflect(port, good) is grpc.StatusCode.OK
        for bad in (
            (),
            ("Bearer wrong",),
            ("the-first-token-of-all",),
            ("Bearer the-first-token-of-all", "Bearer wrong"),
        ):
            assert await reflect(port, *bad) is grpc.StatusCode.UNAUTHENTICATED, bad


async def test_tokens_change_without_a_restart(token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "CHECK_S", 0.0)
    config = GrpcConfig(server_port=0, server_host="127.0.0.1", auth_token_file=str(token_file))
    async with served(config) as port:
        os.unlink(token_file)
        assert await reflect(port, "Bearer the-first-token-of-all") is grpc.StatusCode.UNAUTHENTICATED
        put(token_file, "the-third-token-of-all\n")
        assert await reflect(port, "Bearer the-first-token-of-all") is grpc.StatusCode.UNAUTHENTICATED
        assert await reflect(port, "Bearer the-third-token-of-all") is grpc.StatusCode.OK


async def test_a_token_file_that_is_no_good_ends_the_start(tmp_path: Path) -> None:
    config = GrpcConfig(server_port=0, server_host="127.0.0.1", auth_token_file=str(tmp_path / "none"))
    with pytest.raises(InvalidConfiguration, match=r"grpcServerAuthTokenFile=.*No such"):
        await start_grpc(config, FakeNode())


@pytest.mark.parametrize(("bound", "seconds"), [(8, 3600.0), (1000, 0.1)])
async def test_who_is_never_let_in_holds_no_connection_that_others_need(
    token_file: Path, monkeypatch: pytest.MonkeyPatch, bound: int, seconds: float
) -> None:
    """Neither by asking for what everybody may know, nor by being refused, nor by silence."""
    monkeypatch.setattr("bookie_pod.server.grpc.server.MAX_CONNECTIONS", bound)
    monkeypatch.setattr("bookie_pod.server.grpc.server.STRANGER_S", seconds)
    monkeypatch.setattr("bookie_pod.server.grpc.access.LOOK_S", 0.02)
    config = GrpcConfig(server_port=0, server_host="127.0.0.1", auth_token_file=str(token_file))
    own_connection = (("grpc.use_local_subchannel_pool", 1),)
    async with served(config) as port, AsyncExitStack() as held:
        known, *strangers = [
            await held.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}", own_connection))
            for _ in range(bound if bound < 10 else 3)
        ]
        for channel in strangers:
            await health(channel)
        assert await first_reflection(known, "Bearer the-first-token-of-all")
        with pytest.raises(grpc.aio.AioRpcError):
            await first_reflection(strangers[-1], "Bearer wrong")
        async with asyncio.timeout(20):
            await strangers[0].wait_for_state_change(grpc.ChannelConnectivity.READY)
        assert await reflect(port, "Bearer the-second-token-of-all") is grpc.StatusCode.OK
        assert known.get_state() is grpc.ChannelConnectivity.READY


async def first_reflection(channel: grpc.aio.Channel, authorization: str) -> bool:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(metadata=(("authorization", authorization),), timeout=10)
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    answer = await call.read()
    await call.done_writing()
    return bool(answer.list_services_response.service)


class Gone:
    """The context of a call whose client hung up before it was told that it is refused."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:4711"

    def auth_context(self) -> dict[str, object]:
        return {}

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise grpc.aio.InternalError("Failed execute_batch")


async def test_who_hangs_up_before_it_is_refused_is_no_fault_of_ours(token_file: Path) -> None:
    access = Access(AccessConfig(), "a key", await tokens.Tokens.load("a key", str(token_file)), certificates=False)
    asks = DemandRole(access, Audit("grpc", Registry()), {"/a/Call": Role.ADMIN})
    call = SimpleNamespace(method="/a/Call", invocation_metadata=())

    async def handler(_: object) -> grpc.RpcMethodHandler:
        return grpc.stream_unary_rpc_method_handler(lambda requests, context: None)

    judged = await asks.intercept_service(handler, call)
    assert judged is not None
    with capture_logs() as lines, pytest.raises(asyncio.CancelledError):
        await judged.stream_unary(None, Gone())
    assert [line["event"] for line in lines if line["log_level"] == "error"] == []
