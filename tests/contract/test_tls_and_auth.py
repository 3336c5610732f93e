"""START_TLS and authentication over real sockets, on the event loop that bookies run on."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import uvloop

from bookie_pod.server.tcp.strangers import SECONDS
from bookie_protocol.errors import InvalidConfiguration, Unauthorized
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v2, v3
from bookie_protocol.wire.auth import AuthMessage, AuthStep, Peer
from bookie_protocol.wire.v2 import Flag
from tests.support.auth import TwoTokens
from tests.support.certificates import Certificates
from tests.support.frames import (
    LAST,
    entry,
    v2_add,
    v2_batch,
    v2_code,
    v2_entry,
    v2_fence,
    v2_read,
    v3_add,
    v3_answer,
    v3_auth,
    v3_fence,
    v3_force,
    v3_list,
    v3_poll,
    v3_read,
    v3_read_lac,
    v3_start_tls,
    v3_status,
    v3_write_lac,
)
from tests.support.garbage import left_in_cycles
from tests.support.served_bookie import RawClient, ServedBookie
from tests.support.until import until


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates")).make_all()


def v3_priority_read(ledger_id: int, entry_id: int, *, txn: int) -> bytes:
    return v3_read(ledger_id, entry_id, txn=txn, priority=True)


def v3_last_entry(ledger_id: int, entry_id: int, *, txn: int) -> bytes:
    return v3_read_lac(ledger_id, txn=txn)


def v2_priority_read(ledger_id: int, entry_id: int) -> bytes:
    return v2_read(ledger_id, entry_id, Flag.HIGH_PRIORITY)


def v2_small_batch(ledger_id: int, entry_id: int) -> bytes:
    return v2_batch(ledger_id, max(0, entry_id), 3)


def on_uvloop(run: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def upgraded(port: int, context: ssl.SSLContext) -> RawClient:
    """A connection after START_TLS. Raises what the handshake raises."""
    client = await RawClient.connect(port)
    answer = v3_answer(await client.ask(v3_start_tls(txn=3)))
    assert (answer.status, answer.header.txnId, answer.HasField("startTLSResponse")) == (pb.EOK, 3, True)
    try:
        await client.writer.start_tls(context, server_hostname="bookie")
    except BaseException:
        client.writer.transport.abort()
        raise
    return client


def test_there_is_one_layer_of_tls(tmp_path: Path, certificates: Certificates) -> None:
    async def run() -> None:
        async with ServedBookie(tmp_path, certificates.settings()) as bookie:
            client = await upgraded(bookie.port, certificates.client_context())
            assert v3_status(await client.ask(v3_start_tls())) == pb.EBADREQ
            assert v3_status(await client.ask(v3_add(entry(1, 0)))) == 0
            await client.close()

    on_uvloop(run)


def test_after_the_upgrade_both_versions_are_served(tmp_path: Path, certificates: Certificates) -> None:
    async def run() -> None:
        async with ServedBookie(tmp_path, certificates.settings()) as bookie:
            two = await upgraded(bookie.port, certificates.client_context())
            three = await upgraded(bookie.port, certificates.client_context("client"))
            assert two.writer.get_extra_info("ssl_object").version() in ("TLSv1.2", "TLSv1.3")
            assert v3_status(await three.ask(v3_add(entry(1, 0, bytes(200_000))))) == 0
            assert v2_code(await two.ask(v2_add(entry(1, 1)))) == 0
            assert v2_entry(await two.ask(v2_read(1, 0))) == entry(1, 0, bytes(200_000))
            assert v3_answer(await three.ask(v3_read(1, 1))).readResponse.body == entry(1, 1)
            async with await RawClient.connect(bookie.port) as plain:
                assert v2_code(await plain.ask(v2_read(1, 1))) == 0
            for wire in bookie.server.clients.connections:
                assert wire.answers.transport is not None
            await two.close()
            await three.close()

    on_uvloop(run)


def test_a_burst_over_tls(tmp_path: Path, certificates: Certificates) -> None:
    async def run() -> None:
        async with ServedBookie(tmp_path, certificates.settings()) as bookie:
            client = await upgraded(bookie.port, certificates.client_context())
            client.send(*(v2_add(entry(1, e, bytes(1000))) for e in range(2000)))
            for _ in range(2000):
                assert v2_code(await client.frame()) == 0
            client.send(*(v2_read(1, e) for e in range(2000)))
            found = [v2_entry(await client.frame()) for _ in range(2000)]
            assert sorted(found) == [entry(1, e, bytes(1000)) for e in range(2000)]
            await client.close()

    on_uvloop(run)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("newer", [False, True], ids=["version 2", "version 3"])
def test_reads_that_come_together_over_tls_get_what_each_gets_alone(
    tmp_path: Path, certificates: Certificates, newer: bool, seed: int
) -> None:
    """From disk and memory, of what is not there too; cut wherever it may be."""
    random = Random(seed)

    def request(txn: int) -> bytes:
        of = random.choice([1, 1, 1, 2, 9]), random.randrange(-1, 220)
        if newer:
            make = random.choice([v3_read, v3_read, v3_read, v3_priority_read, v3_last_entry])
            return make(*of, txn=txn)
        return random.choice([v2_read, v2_read, v2_read, v2_priority_read, v2_small_batch])(*of)

    requests = [request(1000 + number) for number in range(400)]
    together = b"".join(requests)

    async def run() -> None:
        async with ServedBookie(tmp_path, certificates.settings()) as bookie:
            async with await RawClient.connect(bookie.port) as plain:
                for first in (0, 100):
                    add = v3_add if newer else v2_add
                    for ledger in (1, 2):
                        adds = [add(entry(ledger, first + each, bytes(100 * ledger))) for each in range(100)]
                        plain.send(*adds)
                        for _ in adds:
                            await plain.frame()
                    if not first:
                        await bookie.checkpoint()
                alone = [await plain.ask(each) for each in requests]
            client = await upgraded(bookie.port, certificates.client_context())
            places = sorted(random.sample(range(1, len(together)), 40))
            for start, end in pairwise([0, *places, len(together)]):
                client.send(together[start:end])
                if random.random() < 0.5:
                    await asyncio.sleep(0)
            assert sorted([await client.frame() for _ in requests]) == sorted(alone)
            await client.close()

    on_uvloop(run)


@pytest.mark.parametrize(("shown", "accepted"), [("client", True), (None, False), ("unknown", False)])
def test_a_client_certificate_is_demanded(
    tmp_path: Path, certificates: Certificates, shown: str | None, accepted: bool
) -> None:
    async def run() -> None:
        async with ServedBookie(tmp_path, certificates.settings(demand_client=True)) as bookie:
            served = False
            try:
                client = await upgraded(bookie.port, certificates.client_context(shown))
                served = v2_code(await client.ask(v2_add(entry(1, 0)))) == 0  # TLS 1.3 tells a client only now
                await client.close()
            except (ssl.SSLError, ConnectionError, EOFError):
                pass
            assert served == accepted
            # A handshake that failed leaves no connection behind.
            await until(lambda: not bookie.server.clients.connections)
            async with await RawClient.connect(bookie.port) as plain:
                assert v2_code(await plain.ask(v2_read(1, 0))) == (0 if accepted else 1)

    on_uvloop(run)


@pytest.mark.parametrize("what", ["rubbish", "hang up"])
def test_a_handshake_that_fails_leaves_nothing_behind(tmp_path: Path, certificates: Certificates, what: str) -> None:
    async def run() -> None:
        async with ServedBookie(tmp_path, certificates.settings()) as bookie:
            client = await RawClient.connect(bookie.port)
            assert v3_status(await client.ask(v3_start_tls())) == 0
            assert len(bookie.server.clients.connections) == 1
            if what == "rubbish":
                client.send(b"GET / HTTP/1.1\r\n\r\n" * 10)
                await until(lambda: not bookie.server.clients.connections)
            await client.close()
            await until(lambda: not bookie.server.clients.connections)

    on_uvloop(run)


def test_what_tls_holds_is_gone_with_its_connection(tmp_path: Path, certificates: Certificates) -> None:
    """Some hundred kilobytes each, which only the collector of cycles would find."""
    context = certificates.client_context()

    def come_and_go(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as plain:
            plain.sendall(v3_start_tls())
            plain.recv(int.from_bytes(plain.recv(4, socket.MSG_WAITALL)), socket.MSG_WAITALL)
            with context.wrap_socket(plain, server_hostname="bookie") as client:
                client.sendall(v3_add(entry(1, 0)))
                client.recv(1)

    async def run() -> None:
        async with ServedBookie(tmp_path, certificates.settings()) as bookie:
            with left_in_cycles() as left:
                for _ in range(3):  # the loop may hold the last of them still
                    await asyncio.to_thread(come_and_go, bookie.port)
                    await until(lambda: not bookie.server.clients.connections)
            assert not left & {"SSLProtocol", "SSLObject", "TlsReads", "MemoryBIO", "TCPTransport"}

    on_uvloop(run)


@pytest.mark.parametrize("required", ["true", "false"])
def test_a_handshake_that_does_not_end_is_ended(tmp_path: Path, certificates: Certificates, required: str) -> None:
    async def run() -> None:
        async with ServedBookie(tmp_path, {**certificates.settings(), "tlsRequired": required}) as bookie:
            clients = bookie.server.clients
            served = await upgraded(bookie.port, certificates.client_context())
            assert v2_code(await served.ask(v2_add(entry(1, 0)))) == 0
            silent = await RawClient.connect(bookie.port)
            assert v3_status(await silent.ask(v3_start_tls())) == 0
            assert len(clients.strangers) == 1
            clients.strangers.look(time.perf_counter() + SECONDS + 1, 0.0)
            assert await silent.closed()
            await until(lambda: len(clients.connections) == 1)
            assert (len(clients.strangers), clients.strangers.sent_away) == (0, 1)
            assert v2_code(await served.ask(v2_read(1, 0))) == 0
            await silent.close()
            await served.close()

    on_uvloop(run)


def test_requests_slipped_in_before_the_handshake_are_not_served(tmp_path: Path, certificates: Certificates) -> None:
    """Somebody in the middle could put an add in front of an authenticated client's requests."""

    async def run() -> None:
        async with ServedBookie(tmp_path, certificates.settings()) as bookie:
            client = await RawClient.connect(bookie.port)
            client.send(v3_start_tls() + v3_add(entry(1, 0)))
            assert v3_status(await client.frame()) == 0
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await client.writer.start_tls(certificates.client_context(), server_hostname="bookie")
                await client.ask(v3_read(1, 0))
            client.writer.transport.abort()
            await until(lambda: not bookie.server.clients.connections)
            assert bookie.side.storage.ledger(1) is None

    on_uvloop(run)


async def test_without_tls_the_connection_stays_plain(tmp_path: Path) -> None:
    async with ServedBookie(tmp_path) as bookie, await RawClient.connect(bookie.port) as client:
        assert v3_status(await client.ask(v3_start_tls())) == pb.EBADREQ
        assert v3_status(await client.ask(v3_add(entry(1, 0)))) == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tlsKeyStoreType": "JKS"}, "PEM"),
        ({"tlsTrustStore": "", "tlsClientAuthentication": "true"}, "tlsTrustStore"),
        ({"tlsKeyStore": ""}, "tlsKeyStore"),
        ({"tlsKeyStore": "/nowhere/key.pem"}, "be used"),
        ({"tlsEnabledProtocols": "TLSv1.4"}, "TLSv1.4"),
        (
            {"tlsEnabledCipherSuites": "ECDHE-RSA-AES128-GCM-SHA256,NO_SUCH"},
            "NO_SUCH",
        ),
    ],
)
async def test_bad_tls_configuration(
    tmp_path: Path, certificates: Certificates, change: dict[str, str], says: str
) -> None:
    bookie = ServedBookie(tmp_path, {**certificates.settings(), **change})
    with pytest.raises(InvalidConfiguration, match=says):
        await bookie.start()
    await asyncio.to_thread(bookie.checkpoints.stop)
    await bookie._close()


# --- authentication -----------------------------------------------------------------------------------------------


def auth_v2(token: bytes, plugin: str = "TestAuth") -> bytes:
    return v2.encode_auth(AuthMessage(plugin, token))


def auth_v3(token: bytes, txn: int = 1) -> bytes:
    return v3_auth(AuthMessage("TestAuth", token), txn=txn)


async def test_the_exchange_of_version_2(tmp_path: Path) -> None:
    async with ServedBookie(tmp_path) as bookie:
        bookie.server.clients.auth = TwoTokens()
        async with await RawClient.connect(bookie.port) as client:
            assert v2_code(await client.ask(v2_add(entry(1, 0)))) == 102
            assert (await client.ask(auth_v2(b"hello"))).endswith(b"welcome?")
            assert v2_code(await client.ask(v2_read(1, 0))) == 102
            # What follows a step is judged by its outcome, also if it comes in the same segment.
            client.send(auth_v2(b"secret") + v2_add(entry(1, 0)))
            assert (await client.frame()).endswith(b"ok")
            assert v2_code(await client.frame()) == 0
        async with await RawClient.connect(bookie.port) as client:
            client.send(auth_v2(b"hello") + auth_v2(b"guess") + v2_add(entry(1, 1)))
            assert (await client.frame()).endswith(b"welcome?")
            assert await client.closed()
        assert bookie.side.storage.cached(1, 1) is None


async def test_the_exchange_of_version_3(tmp_path: Path) -> None:
    async with ServedBookie(tmp_path) as bookie:
        bookie.server.clients.auth = TwoTokens()
        async with await RawClient.connect(bookie.port) as client:
            assert v3_status(await client.ask(v3_add(entry(1, 0)))) == pb.EUA
            assert v3_answer(await client.ask(auth_v3(b"hello"))).authResponse.payload == b"welcome?"
            client.send(auth_v3(b"secret") + v3_add(entry(1, 0)))
            assert v3_answer(await client.frame()).authResponse.payload == b"ok"
            assert v3_status(await client.frame()) == 0
        async with await RawClient.connect(bookie.port) as client:
            assert v3_status(await client.ask(auth_v3(b"guess"))) == pb.EUA
            assert await client.closed()


async def test_a_plug_in_that_breaks_closes_its_connection_only(tmp_path: Path) -> None:
    class Broken(TwoTokens):
        def new_exchange(self, peer: Peer) -> BrokenExchange:  # type: ignore[override]
            return BrokenExchange()

    class BrokenExchange:
        async def process(self, token: bytes) -> AuthStep:
            raise ZeroDivisionError

        async def tls_established(self, peer: Peer) -> bool:
            return False

    async with ServedBookie(tmp_path) as bookie:
        bookie.server.clients.auth = Broken()
        async with await RawClient.connect(bookie.port) as client:
            client.send(auth_v2(b"hello"))
            assert await client.closed()
        bookie.server.clients.auth = None
        async with await RawClient.connect(bookie.port) as client:
            assert v2_code(await client.ask(v2_add(entry(1, 0)))) == 0


def test_the_certificate_is_shown_to_the_plug_in(tmp_path: Path, certificates: Certificates) -> None:
    seen: list[bytes | None] = []

    class ByCertificate(TwoTokens):
        def new_exchange(self, peer: Peer) -> CertificateExchange:  # type: ignore[override]
            return CertificateExchange()

    class CertificateExchange:
        async def process(self, token: bytes) -> AuthStep:
            return AuthStep(None, complete=True)

        async def tls_established(self, peer: Peer) -> bool:
            seen.append(peer.certificate)
            if peer.certificate is None:
                raise Unauthorized("no certificate")
            return True

    async def run() -> None:
        async with ServedBookie(tmp_path, certificates.settings(demand_client=False)) as bookie:
            clients = bookie.server.clients
            assert clients.tls is not None
            clients.tls.context().verify_mode = ssl.CERT_OPTIONAL
            clients.auth = ByCertificate()
            async with await RawClient.connect(bookie.port) as plain:
                assert v2_code(await plain.ask(v2_add(entry(1, 0)))) == 102
            client = await upgraded(bookie.port, certificates.client_context("client"))
            assert v2_code(await client.ask(v2_add(entry(1, 0)))) == 0
            await client.close()
            nobody = await upgraded(bookie.port, certificates.client_context())
            assert v3_status(await nobody.frame()) == pb.EIO
            for request in (v3_add(entry(1, 0)), auth_v3(b"secret"), v3_add(entry(1, 0))):
                assert v3_status(await nobody.ask(request)) == pb.EUA
            assert v2_code(await nobody.ask(v2_add(entry(1, 0)))) == v2.V2Code.EUA
            nobody.send(auth_v2(b"secret"))
            assert await nobody.closed()
            await nobody.close()

    on_uvloop(run)
    assert len(seen) == 2
    assert seen[0]
    assert seen[1] is None


def test_a_half_open_handshake_does_not_hold_up_a_stop(tmp_path: Path, certificates: Certificates) -> None:
    async def run() -> None:
        bookie = ServedBookie(tmp_path, certificates.settings())
        await bookie.start()
        client = await RawClient.connect(bookie.port)
        assert v3_status(await client.ask(v3_start_tls())) == 0
        silent = socket.create_connection(("127.0.0.1", bookie.port))
        async with asyncio.timeout(10):
            await bookie.stop()
        silent.close()
        client.writer.transport.abort()

    on_uvloop(run)


# --- who may connect ------------------------------------------------------------------------------------------------


def bookie_info() -> bytes:
    request = v3.new_request(pb.GET_BOOKIE_INFO, 1)
    request.getBookieInfoRequest.requested = 3
    return v3.encode_frame(request)


REQUESTS_V2 = (
    v2_add(entry(1, 0)),
    v2_add(entry(1, 0), flags=Flag.RECOVERY_ADD),
    v2_add(entry(1, 0), flags=Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY),
    v2_read(1, 0),
    v2_read(1, LAST),
    v2_fence(1),
    v2_fence(1, 0),
)
REQUESTS_V3 = (
    v3_add(entry(1, 0)),
    v3_add(entry(1, 0), sync=False),
    v3_add(entry(1, 0), recovery=True, priority=True),
    v3_read(1, 0),
    v3_read(1, LAST),
    v3_poll(1, 0, 0),
    v3_fence(1),
    v3_write_lac(1, 0),
    v3_read_lac(1),
    v3_force(1),
    v3_list(1),
    bookie_info(),
    *(
        v3.encode_frame(v3.new_request(operation, 1))
        for operation in pb.OperationType.values()
        if operation not in (5, 9)
    ),
)
"""Each operation, and each with nothing but its header."""


async def refused_everywhere(port: int) -> None:
    """A client without TLS: requests of both dialects are answered as unauthorized, and change nothing."""
    async with await RawClient.connect(port) as plain:
        for frame in REQUESTS_V2:
            assert v2_code(await plain.ask(frame)) == v2.V2Code.EUA
        plain.send(v2_batch(1, 0))
        assert await plain.closed()  # as the reference does
    async with await RawClient.connect(port) as plain:
        for frame in REQUESTS_V3:
            answer = v3_answer(await plain.ask(frame))
            assert ([name.name for name, _ in answer.ListFields()], answer.status) == (["header", "status"], pb.EUA)
    async with await RawClient.connect(port) as plain:  # from version 3 to 2, and many at once
        plain.send(*REQUESTS_V3, *REQUESTS_V2)
        assert {v3_status(await plain.frame()) for _ in REQUESTS_V3} == {pb.EUA}
        assert {v2_code(await plain.frame()) for _ in REQUESTS_V2} == {v2.V2Code.EUA}


def test_without_tls_nothing_is_served_where_it_is_required(tmp_path: Path, certificates: Certificates) -> None:
    async def run() -> None:
        async with ServedBookie(tmp_path, {**certificates.settings(), "tlsRequired": "true"}) as bookie:
            await refused_everywhere(bookie.port)
            async with await RawClient.connect(bookie.port) as hopeful:
                # A bookie without a plug-in agrees to any login; that is no way around the handshake.
                await hopeful.ask(auth_v2(b"hello"))
                assert v2_code(await hopeful.ask(v2_add(entry(1, 0)))) == v2.V2Code.EUA
            secured = await upgraded(bookie.port, certificates.client_context())
            assert v2_code(await secured.ask(v2_read(1, 0))) == v2.V2Code.ENOLEDGER
            assert v2_code(await secured.ask(v2_add(entry(1, 0)))) == 0
            await secured.close()
            assert bookie.server.clients.refusals == 1 + 2 * len(REQUESTS_V2 + REQUESTS_V3)

    on_uvloop(run)


def test_only_clients_with_one_of_the_authorized_roles_are_served(tmp_path: Path, certificates: Certificates) -> None:
    """By `BookieAuthZFactory`, as the reference implementation judges certificates."""
    certificates.make_unit("broker", "0:broker,proxy;1:cluster")
    certificates.make_unit("proxy", "0:proxy,broker")
    certificates.make_unit("odd", "broker")
    certificates.make_unit("forged", "0:broker", authority="stranger")
    certificates.make_unit("ended", "0:broker", days=-1)
    settings = {
        **certificates.settings(demand_client=True),
        "bookieAuthProviderFactoryClass": "org.apache.bookkeeper.tls.BookieAuthZFactory",
        "authorizedRoles": "admin,broker",
    }

    async def run() -> None:
        async with ServedBookie(tmp_path, settings) as bookie:
            await refused_everywhere(bookie.port)
            async with await RawClient.connect(bookie.port) as plain:
                plain.send(v2.encode_auth(AuthMessage("BookieAuthZFactory", b"let me in"), 2) + v2_add(entry(1, 0)))
                assert v2_code(await plain.frame()) == v2.V2Code.EUA
            broker = await upgraded(bookie.port, certificates.client_context("broker"))
            assert v2_code(await broker.ask(v2_add(entry(1, 0)))) == 0
            await broker.close()
            for name in ("proxy", "odd", "client"):
                stranger = await upgraded(bookie.port, certificates.client_context(name))
                stranger.send(v2_read(1, 0))
                assert v3_status(await stranger.frame()) == pb.EIO
                assert v2_code(await stranger.frame()) == v2.V2Code.EUA
                await stranger.close()
            for name in ("forged", "ended"):
                with pytest.raises((EOFError, OSError)):  # TLS 1.3 tells a client only with the first answer
                    await (await upgraded(bookie.port, certificates.client_context(name))).ask(v2_read(1, 0))

    on_uvloop(run)
