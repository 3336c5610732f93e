"""The HTTP port with TLS: certificates, those that change, and handshakes that do not end, or fail."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
from pathlib import Path

import aiohttp
import pytest
import uvloop
from structlog.testing import capture_logs

from benchmarks.key_updates import KeyUpdates
from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.sections.service import HttpConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.server.http import server as server_module
from bookie_pod.server.http import tls
from bookie_pod.server.http.start import start_http
from bookie_protocol.errors import InvalidConfiguration
from tests.support.certificates import Certificates
from tests.support.until import until
from tests.unit.bookie_pod.server.http.connections import closed
from tests.unit.bookie_pod.server.nodes import FakeNode


def make_certificate(tmp_path: Path) -> tuple[str, str]:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "1",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ],
        check=True,
        capture_output=True,
    )
    store = tmp_path / "store.pem"
    store.write_bytes(key.read_bytes() + certificate.read_bytes())
    return str(store), str(certificate)


def with_tls(tmp_path: Path) -> tuple[HttpConfig, ssl.SSLContext]:
    """And what its clients use."""
    store, authorities = make_certificate(tmp_path)
    config = HttpConfig(
        server_port=0,
        server_host="127.0.0.1",
        tls_enable=True,
        key_store_path=store,
        trust_store_path=authorities,
    )
    context = ssl.create_default_context(cafile=authorities)
    context.load_cert_chain(store)
    return config, context


async def test_however_many_handshakes_never_end_there_are_few_at_a_time_and_others_are_served(
    node: FakeNode, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MOST_HANDSHAKES", 10)
    config, context = with_tls(tmp_path)
    server = await start_http(config, node, registry)
    assert server is not None
    silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(30)]
    async with asyncio.timeout(5):
        for reader, _ in silent[:20]:
            assert await reader.read() == b"", "whoever has been here for longest goes"
    assert not any(reader.at_eof() for reader, _ in silent[20:])
    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            async with session.get(f"https://127.0.0.1:{server.port}/healthz", ssl=context) as answer:
                assert answer.status == 200
    assert [reader.at_eof() for reader, _ in silent[20:]] == [True] + 9 * [False]
    await server.stop()
    async with asyncio.timeout(5):
        for reader, _ in silent:
            assert await reader.read() == b""
    await closed(*(writer for _, writer in silent))


async def test_a_crowd_that_comes_all_at_once_drives_out_nobody_who_comes_from_elsewhere(
    node: FakeNode, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than there may be handshakes lie in the backlog, behind a probe."""
    monkeypatch.setattr(server_module, "MOST_HANDSHAKES", 10)
    config, context = with_tls(tmp_path)
    server = await start_http(config, node, registry)
    assert server is not None
    with contextlib.ExitStack() as opened:
        probe = opened.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        there = ("127.0.0.1", server.port)
        crowd = [
            opened.enter_context(socket.create_connection(there, source_address=("127.0.0.2", 0))) for _ in range(30)
        ]
        for each in crowd:
            each.setblocking(False)

        def gone() -> int:
            """How many were sent away."""
            found = 0
            for each in crowd:
                with contextlib.suppress(BlockingIOError):
                    found += each.recv(1, socket.MSG_PEEK) == b""
            return found

        await until(lambda: gone() >= 20)
        async with asyncio.timeout(5):
            _, writer = await asyncio.open_connection(sock=probe, ssl=context, server_hostname="127.0.0.1")
        writer.close()
        await until(lambda: gone() == 21)
    await server.stop()


async def test_a_client_whose_first_word_comes_with_its_connection_is_served(
    node: FakeNode, registry: Registry, tmp_path: Path
) -> None:
    config, context = with_tls(tmp_path)
    server = await start_http(config, node, registry)
    assert server is not None
    client, _, outgoing = _tls_client(context)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:  # the loop sees all of it at once
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        connection.sendall(outgoing.read())
        connection.setblocking(False)
        async with asyncio.timeout(5):
            answer = await asyncio.get_running_loop().sock_recv(connection, 1)
    assert answer == b"\x16", "its handshake goes on"
    await server.stop()


async def test_what_is_accepted_when_the_server_stops_is_closed(
    node: FakeNode, registry: Registry, tmp_path: Path
) -> None:
    """In whichever turn of the loop that is."""
    config, _ = with_tls(tmp_path)
    for turns in range(6):
        server = await start_http(config, node, registry)
        assert server is not None
        clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop()
        for client in clients:
            client.setblocking(False)
            async with asyncio.timeout(5):
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
            client.close()


async def test_a_handshake_that_is_over_is_none_to_be_ended(node: FakeNode, registry: Registry, tmp_path: Path) -> None:
    """Its descriptor belongs to the connection behind it: closed here, its number could be another's already."""
    config, context = with_tls(tmp_path)
    server = await start_http(config, node, registry)
    assert server is not None
    assert server._handshakes is not None
    handshakes, made = server._handshakes, server._handshakes._new_protocol

    def at_once() -> asyncio.Protocol:
        asyncio.get_running_loop().call_soon(handshakes.stop)
        return made()

    handshakes._new_protocol = at_once
    url = f"https://127.0.0.1:{server.port}/readyz"
    async with asyncio.timeout(5), aiohttp.ClientSession() as session, session.get(url, ssl=context) as answer:
        assert answer.status == 200
    await server.stop()


async def test_what_comes_with_the_end_of_a_handshake_is_served_and_what_is_none_ends(
    node: FakeNode, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie_pod.server.http.handshakes.HANDSHAKE_S", 0.2)
    config, context = with_tls(tmp_path)
    server = await start_http(config, node, registry)
    assert server is not None
    client, incoming, outgoing = _tls_client(context)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    while True:
        try:
            client.do_handshake()
            break
        except ssl.SSLWantReadError:
            writer.write(outgoing.read())
            incoming.write(await reader.read(1 << 16))
    client.write(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
    writer.write(outgoing.read())  # with what the handshake had left
    answer = b""
    while b"\r\n" not in answer:
        incoming.write(await reader.read(1 << 16))
        with contextlib.suppress(ssl.SSLWantReadError):
            answer += client.read(1 << 16)
    assert answer.startswith(b"HTTP/1.1 200")
    for nonsense in (b"GET /healthz HTTP/1.1\r\n\r\n", b""):
        ended, other = await asyncio.open_connection("127.0.0.1", server.port)
        other.write(nonsense)
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionError):
                await ended.read()
        await closed(other)
    await closed(writer)
    await server.stop()


def _tls_client(context: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    return context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1"), incoming, outgoing


async def test_tls_demands_a_client_certificate(node: FakeNode, registry: Registry, tmp_path: Path) -> None:
    config, context = with_tls(tmp_path)
    server = await start_http(config, node, registry)
    assert server is not None
    url = f"https://127.0.0.1:{server.port}/readyz"
    anonymous = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    async with aiohttp.ClientSession() as session:
        async with session.get(url, ssl=context) as answer:
            assert answer.status == 200
        with pytest.raises(aiohttp.ClientError):
            await session.get(url, ssl=anonymous)
    await server.stop()


def mounted(folder: Path, certificates: Certificates, name: str) -> HttpConfig:
    """Files of `name` as Kubernetes mounts a Secret: behind a link that is exchanged as a whole."""
    version = folder / f"..{name}"
    version.mkdir()
    for file, source in (("tls.crt", f"{name}.pem"), ("tls.key", f"{name}.key"), ("ca.crt", "authority.pem")):
        (version / file).write_bytes((certificates.folder / source).read_bytes())
    link = folder / "..next"
    link.symlink_to(version)
    link.replace(folder / "..data")
    return HttpConfig(
        server_port=0,
        server_host="127.0.0.1",
        tls_enable=True,
        tls_client_authentication=False,
        certificate_path=str(folder / "..data/tls.crt"),
        key_store_path=str(folder / "..data/tls.key"),
        trust_store_path=str(folder / "..data/ca.crt"),
    )


async def serial(port: int, context: ssl.SSLContext, name: str | None) -> str:
    """Of the certificate that is served to a new connection."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    found: str = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    return found


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_client_that_asks_for_nothing_but_new_keys_loses_its_connection(
    node: FakeNode, registry: Registry, tmp_path: Path, loop: str
) -> None:
    """And one that sends very many short requests does not."""
    certificates = Certificates(tmp_path).make_all()
    config = mounted(tmp_path, certificates, "bookie")

    async def run() -> None:
        server = await start_http(config, node, registry)
        assert server is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        updates = KeyUpdates(reader, writer)
        async with asyncio.timeout(20):
            await updates.shake_hands()
            with capture_logs() as logs, contextlib.suppress(ConnectionError):
                await updates.flood()
        assert [line["reason"] for line in logs] == ["TLS without data"]
        writer.close()
        updates.free()
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, ssl=certificates.client_context(), server_hostname="bookie.example"
        )
        for _ in range(1000):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(2)
        writer.close()
        await server.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        runner.run(run())


async def test_a_handshake_that_fails_leaves_nothing(node: FakeNode, registry: Registry, tmp_path: Path) -> None:
    memory = MemoryGovernor(1 << 20)
    config = mounted(tmp_path, Certificates(tmp_path).make_all(), "bookie")
    server = await start_http(config, node, registry, memory=memory)
    assert server is not None
    for _ in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"no handshake\r\n\r\n")
        await reader.read()
        writer.close()
    assert not memory._shares
    await server.stop()


@pytest.mark.parametrize("name", ["bookie.example", None], ids=["with a name", "without a name"])
async def test_new_certificates_count_without_a_restart(
    node: FakeNode, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    certificates = Certificates(tmp_path).make_all()
    monkeypatch.setattr(tls, "LOOK_S", 1e-9)
    server = await start_http(mounted(tmp_path, certificates, "bookie"), node, registry)
    assert server is not None
    context = certificates.client_context()
    if name is None:
        context.check_hostname = False
    first = await serial(server.port, context, name or "")
    mounted(tmp_path, certificates, "client")
    second = await serial(server.port, context, name or "")
    assert first != second
    (tmp_path / "..client/tls.key").write_text("half written")
    together = await asyncio.gather(*(serial(server.port, context, name or "") for _ in range(8)))
    assert set(together) == {second}
    await server.stop()


async def test_a_store_that_is_not_pem(node: FakeNode, registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "store.jks").write_bytes(b"\xfe\xed\xfe\xed" * 100)
    paths = {"key_store_path": str(tmp_path / "store.jks"), "trust_store_path": str(tmp_path / "none")}
    with pytest.raises(InvalidConfiguration, match=r"httpServerKeyStorePath=.*store\.jks: .*PEM"):
        await start_http(HttpConfig(tls_enable=True, **paths), node, registry)
