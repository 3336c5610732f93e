"""TLS and authentication of the client's connections, against a bookie of ours over real sockets."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import uvloop

from bookie_client.connection.connection import BookieConnection
from bookie_client.connection.network import tcp_connector
from bookie_client.options import TlsOptions
from bookie_pod.client_options import client_options
from bookie_protocol.auth import watched_file
from bookie_protocol.auth.sasl import SaslAuth
from bookie_protocol.auth.shared_token import TokenAuth
from bookie_protocol.errors import BadRequest, BookieUnavailable, Unauthorized
from bookie_protocol.versioned import LedgerLife
from bookie_protocol.wire.auth import AuthStep, ClientAuthProvider, Peer
from tests.support.auth import TwoTokens, TwoTokensClient
from tests.support.certificates import Certificates
from tests.support.client_operations import Operations, operations_on
from tests.support.frames import KEY, entry
from tests.support.served_bookie import ServedBookie
from tests.support.until import until

B = "bookie"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates")).make_all()


@pytest.fixture(params=[3, 2], ids=["v3", "v2"])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    """Run a test on each event loop: their TLS differs."""

    def run(main: Callable[[], Awaitable[None]]) -> None:
        async def wrapped() -> None:
            await main()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(wrapped())

    return run


Run = Callable[[Callable[[], Awaitable[None]]], None]


def tls(
    certificates: Certificates, *, name: str | None = None, ca: str = "authority", host: bool = False
) -> TlsOptions:
    folder = certificates.folder
    return TlsOptions(
        ca_file=str(folder / f"{ca}.pem"),
        certificate_file=str(folder / f"{name}.pem") if name else None,
        key_file=str(folder / f"{name}.key") if name else None,
        check_hostname=host,
    )


async def use(ask: Operations) -> None:
    """All the kinds of connections that a client makes."""
    for entry_id, size in enumerate((200_000, 10, 1_000_000)):
        await ask.add_entry(B, LedgerLife(1, 0), entry_id, entry(1, entry_id, bytes(size)), KEY)
        assert (await ask.read_entry(B, 1, entry_id)).entry == entry(1, entry_id, bytes(size))
    assert (await ask.batch_read(B, 1, 0, 2, 0)).split() == [entry(1, 0, bytes(200_000)), entry(1, 1, bytes(10))]
    assert (await ask.read_entry(B, 1, -1, fence_key=KEY)).entry == entry(1, 2, bytes(1_000_000))


def test_everything_over_tls(tmp_path: Path, certificates: Certificates, run: Run, version: int) -> None:
    async def main() -> None:
        async with (
            ServedBookie(tmp_path, certificates.settings()) as bookie,
            operations_on({B: bookie.port}, protocol_version=version, tls=tls(certificates)) as ask,
        ):
            await use(ask)
            connections = bookie.server.clients.connections
            assert len(connections) >= 2
            for wire in connections:
                assert wire.answers.transport is not None
                assert wire.answers.transport.get_extra_info("ssl_object") is not None

    run(main)


@pytest.mark.parametrize(("shown", "accepted"), [("client", True), (None, False), ("unknown", False)])
def test_a_bookie_that_demands_a_certificate(
    tmp_path: Path, certificates: Certificates, run: Run, shown: str | None, accepted: bool
) -> None:
    async def main() -> None:
        async with (
            ServedBookie(tmp_path, certificates.settings(demand_client=True)) as bookie,
            operations_on({B: bookie.port}, tls=tls(certificates, name=shown)) as ask,
        ):
            if accepted:
                await use(ask)
            else:
                with pytest.raises(BookieUnavailable):
                    await ask.add_entry(B, LedgerLife(1, 0), 0, entry(1, 0), KEY)
                assert bookie.side.storage.ledger(1) is None

    run(main)


def test_a_bookie_whose_certificate_nobody_vouches_for(tmp_path: Path, certificates: Certificates, run: Run) -> None:
    async def main() -> None:
        async with (
            ServedBookie(tmp_path, certificates.settings()) as bookie,
            operations_on({B: bookie.port}, tls=tls(certificates, ca="stranger")) as ask,
        ):
            with pytest.raises(BookieUnavailable, match=r"TLS .*certificate"):
                await ask.read_entry(B, 1, 0)
            await until(lambda: not bookie.server.clients.connections)

    run(main)


def test_the_host_name_is_checked(tmp_path: Path, certificates: Certificates, run: Run) -> None:
    certificates.make_named("named", "DNS:localhost")

    async def main() -> None:
        settings = certificates.settings(bookie="named")
        async with ServedBookie(tmp_path, settings) as bookie:
            async with operations_on({B: bookie.port}, tls=tls(certificates, host=True)) as ask:
                with pytest.raises(BookieUnavailable, match=r"127\.0\.0\.1: TLS .*mismatch"):
                    await ask.add_entry(B, LedgerLife(1, 0), 0, entry(1, 0), KEY)
            async with operations_on({B: bookie.port}, tls=tls(certificates, host=True)) as ask:
                ask.host = "localhost"
                await use(ask)
            # A complete name ends with a dot, which not every machine resolves of this one.
            found = partial(tcp_connector, host="localhost", port=bookie.port)
            async with operations_on(
                {B: bookie.port}, connector=lambda factory, *_: found(factory), tls=tls(certificates, host=True)
            ) as ask:
                ask.host = "localhost."
                await ask.add_entry(B, LedgerLife(2, 0), 0, entry(2, 0), KEY)

    run(main)


async def test_certificates_are_read_at_every_connect(tmp_path: Path, certificates: Certificates) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()

    def install(name: str) -> None:
        for kind in ("pem", "key"):
            shutil.copy(certificates.folder / f"{name}.{kind}", mine / f"client.{kind}")

    install("unknown")
    options = TlsOptions(
        ca_file=str(certificates.folder / "authority.pem"),
        certificate_file=str(mine / "client.pem"),
        key_file=str(mine / "client.key"),
        check_hostname=False,
    )
    async with (
        ServedBookie(tmp_path / "bookie", certificates.settings(demand_client=True)) as bookie,
        operations_on({B: bookie.port}, tls=options, reconnect_delay=0.01) as ask,
    ):
        with pytest.raises(BookieUnavailable):
            await ask.add_entry(B, LedgerLife(1, 0), 0, entry(1, 0), KEY)
        install("client")
        await asyncio.sleep(0.02)
        await use(ask)
        (mine / "client.pem").write_text("no certificate")
        with pytest.raises(BookieUnavailable, match=r"\(ca_file"):
            await ask.pool.channel(B, version=3, apart=True).connect()


def test_certificates_are_renewed_under_load(tmp_path: Path, certificates: Certificates, run: Run) -> None:
    """Key and certificate come one after the other, as files do; nobody who writes meanwhile notices."""
    served = tmp_path / "served"
    served.mkdir()

    def install(name: str, *kinds: str) -> None:
        for kind in kinds:
            shutil.copy(certificates.folder / f"{name}.{kind}", served / "new")
            (served / "new").rename(served / f"tls.{kind}")

    install("bookie", "key", "pem")
    settings = {
        **certificates.settings(),
        "tlsKeyStore": str(served / "tls.key"),
        "tlsCertificatePath": str(served / "tls.pem"),
        "tlsCertFilesRefreshDurationSeconds": "1",
    }

    async def main() -> None:
        async with (
            ServedBookie(tmp_path / "bookie", settings) as bookie,
            operations_on({B: bookie.port}, tls=tls(certificates)) as ask,
        ):
            clients, added = bookie.server.clients, 0
            assert clients.tls is not None
            old = clients.tls.context()
            for kind in ("key", "pem"):
                install("client", kind)  # the authority's, for another name
                clients.tls._looked_at -= 2  # the interval is over
                for _ in range(10):
                    await asyncio.gather(
                        *(
                            ask.add_entry(B, LedgerLife(1, 0), added + each, entry(1, added + each), KEY)
                            for each in range(50)
                        )
                    )
                    added += 50
                    async with operations_on({B: bookie.port}, tls=tls(certificates)) as fresh:
                        assert (await fresh.read_entry(B, 1, added - 1)).entry == entry(1, added - 1)
                assert (clients.tls.context() is old) == (kind == "key")  # half of a pair is no pair
            assert clients.context.connection_errors == 0

    run(main)


@pytest.mark.parametrize(
    ("given", "served"),
    [
        ({"protocols": ("TLSv1.2",)}, {"tlsEnabledProtocols": "TLSv1.3"}),
        (
            {"cipher_suites": ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",)},
            {"tlsEnabledCipherSuites": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"},
        ),
    ],
)
async def test_versions_and_cipher_suites_that_do_not_meet(
    tmp_path: Path, certificates: Certificates, given: dict[str, tuple[str, ...]], served: dict[str, str]
) -> None:
    options = tls(certificates)
    async with ServedBookie(tmp_path, {**certificates.settings(), **served}) as bookie:
        async with operations_on({B: bookie.port}, tls=options) as ask:
            await use(ask)
        async with operations_on({B: bookie.port}, tls=dataclasses.replace(options, **given)) as ask:
            with pytest.raises(BookieUnavailable, match="handshake"):
                await ask.add_entry(B, LedgerLife(1, 0), 9, entry(1, 9), KEY)


async def test_a_bookie_without_tls(tmp_path: Path, certificates: Certificates, version: int) -> None:
    async with (
        ServedBookie(tmp_path) as bookie,
        operations_on({B: bookie.port}, tls=tls(certificates), protocol_version=version) as ask,
    ):
        with pytest.raises(BookieUnavailable, match="EBADREQ to START_TLS"):
            await ask.add_entry(B, LedgerLife(1, 0), 0, entry(1, 0), KEY)
        await until(lambda: not bookie.server.clients.connections)


async def test_tls_is_switched_on_while_clients_go_on(tmp_path: Path, certificates: Certificates) -> None:
    """As the operator's page says: first beside plain text, then alone."""
    offered = certificates.settings()
    steps = (({}, "plain"), (offered, "plain, tls"), ({**offered, "tlsRequired": "true"}, "tls"))
    added = 0
    for settings, served in steps:
        async with ServedBookie(tmp_path, settings) as bookie:
            for how, options in (("plain", None), ("tls", tls(certificates))):
                async with operations_on({B: bookie.port}, tls=options) as ask:
                    if how in served:
                        await ask.add_entry(B, LedgerLife(1, 0), added, entry(1, added), KEY)
                        added += 1
                        assert (await ask.read_entry(B, 1, 0)).entry == entry(1, 0)
                    else:
                        with pytest.raises((BookieUnavailable, Unauthorized)):
                            await ask.add_entry(B, LedgerLife(1, 0), added, entry(1, added), KEY)
    assert added == 4


def test_a_key_without_its_certificate() -> None:
    with pytest.raises(BadRequest, match="key_file needs certificate_file"):
        TlsOptions(key_file="key.pem")


# --- authentication -----------------------------------------------------------------------------------------


def test_no_request_before_the_exchange_is_done(
    tmp_path: Path, run: Run, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What comes from a socket behind the handshake is received into the connection's own memory.
    monkeypatch.delattr(BookieConnection, "data_received")

    async def main() -> None:
        async with ServedBookie(tmp_path) as bookie:
            bookie.server.clients.auth = TwoTokens()
            provider = TwoTokensClient()
            async with operations_on({B: bookie.port}, auth=provider, protocol_version=version) as ask:
                await asyncio.gather(*(ask.add_entry(B, LedgerLife(1, 0), e, entry(1, e), KEY) for e in range(50)))
                assert len(provider.peers) == 1
                assert (await ask.batch_read(B, 1, 0, 0, 0)).split() == [entry(1, e) for e in range(50)]
                assert (await ask.read_entry(B, 1, 7, fence_key=KEY)).entry == entry(1, 7)
                assert (await ask.bookie_info(B)).total_bytes > 0

    run(main)


async def test_a_wrong_token(tmp_path: Path, version: int) -> None:
    async with ServedBookie(tmp_path) as bookie:
        bookie.server.clients.auth = TwoTokens()
        async with operations_on({B: bookie.port}, auth=TwoTokensClient(b"guess"), protocol_version=version) as ask:
            # Version 2 has no answer for a refusal: the bookie hangs up.
            with pytest.raises(Unauthorized if version == 3 else BookieUnavailable, match=f"bookie {B}"):
                await ask.add_entry(B, LedgerLife(1, 0), 0, entry(1, 0), KEY)
            assert not await ask.pool.reachable(B)
        assert bookie.side.storage.ledger(1) is None


async def test_without_credentials(tmp_path: Path, version: int) -> None:
    async with ServedBookie(tmp_path) as bookie:
        bookie.server.clients.auth = TwoTokens()
        async with operations_on({B: bookie.port}, protocol_version=version) as ask:
            with pytest.raises(Unauthorized):
                await ask.add_entry(B, LedgerLife(1, 0), 0, entry(1, 0), KEY)


async def test_another_plug_in(tmp_path: Path, version: int) -> None:
    async with ServedBookie(tmp_path) as bookie:
        bookie.server.clients.auth = TwoTokens()
        provider = TwoTokensClient(plugin_name="sasl")
        async with operations_on({B: bookie.port}, auth=provider, protocol_version=version) as ask:
            with pytest.raises(Unauthorized if version == 3 else BookieUnavailable):
                await ask.add_entry(B, LedgerLife(1, 0), 0, entry(1, 0), KEY)


async def test_a_bookie_that_asks_for_nothing(tmp_path: Path, version: int) -> None:
    async with (
        ServedBookie(tmp_path) as bookie,
        operations_on({B: bookie.port}, auth=TwoTokensClient(), protocol_version=version) as ask,
    ):
        await use(ask)


def test_authentication_inside_tls(tmp_path: Path, certificates: Certificates, run: Run, version: int) -> None:
    async def main() -> None:
        async with ServedBookie(tmp_path, certificates.settings()) as bookie:
            bookie.server.clients.auth = TwoTokens()
            provider = TwoTokensClient()
            options = {"tls": tls(certificates), "auth": provider, "protocol_version": version}
            async with operations_on({B: bookie.port}, **options) as ask:
                await use(ask)
            assert all(peer.certificate for peer in provider.peers)

    run(main)


def test_a_certificate_that_the_bookies_plug_in_refuses(tmp_path: Path, certificates: Certificates, run: Run) -> None:
    class NobodyGetsIn(TwoTokens):
        def new_exchange(self, peer: Peer) -> Refusal:  # type: ignore[override]
            return Refusal()

    class Refusal:
        async def process(self, token: bytes) -> AuthStep:
            raise Unauthorized("certificates only")

        async def tls_established(self, peer: Peer) -> bool:
            raise Unauthorized("not this one")

    async def main() -> None:
        async with ServedBookie(tmp_path, certificates.settings()) as bookie:
            bookie.server.clients.auth = NobodyGetsIn()
            async with operations_on({B: bookie.port}, tls=tls(certificates, name="client")) as ask:
                with pytest.raises((BookieUnavailable, Unauthorized)):
                    await ask.add_entry(B, LedgerLife(1, 0), 0, entry(1, 0), KEY)
            await until(lambda: not bookie.server.clients.connections)

    run(main)


# --- the providers that there are -------------------------------------------------------------------------------


JAAS = """
Bookie { org.apache.zookeeper.server.auth.DigestLoginModule required user_bookkeeper="s3cret" user_app="appendix"; };
BookKeeper { org.apache.zookeeper.server.auth.DigestLoginModule required username="bookkeeper" password="s3cret"; };
"""


def sasl_settings(work: Path) -> dict[str, str]:
    (work / "jaas").write_text(JAAS)
    return {
        "bookieAuthProviderFactoryClass": "SASLBookieAuthProviderFactory",
        "clientAuthProviderFactoryClass": "SASLClientProviderFactory",
        "saslJaasConfigFile": str(work / "jaas"),
    }


def token_settings(work: Path) -> dict[str, str]:
    (work / "tokens").write_text("the-token-of-this-cluster\n")
    return {
        "bookieAuthProviderFactoryClass": "SharedToken",
        "clientAuthProviderFactoryClass": "SharedToken",
        "authTokenFile": str(work / "tokens"),
    }


@pytest.mark.parametrize("settings", [sasl_settings, token_settings])
def test_the_clients_of_a_configuration_log_in_to_its_bookies(
    tmp_path: Path, run: Run, version: int, settings: Callable[[Path], dict[str, str]]
) -> None:
    async def main() -> None:
        async with ServedBookie(tmp_path, settings(tmp_path)) as bookie:
            auth = client_options(bookie.config).auth
            async with operations_on({B: bookie.port}, auth=auth, protocol_version=version) as ask:
                await use(ask)
            assert bookie.server.clients.refusals == 0

    run(main)


@pytest.mark.parametrize(
    "auth",
    [
        lambda work: SaslAuth("bookkeeper", "guess"),
        lambda work: SaslAuth("nobody", "s3cret"),
        lambda work: SaslAuth("app", "appendix"),  # who is known, but not one of saslJaasClientAllowedIds
        lambda work: TokenAuth(str(work / "jaas")),
        lambda work: None,
    ],
    ids=["password", "user", "not allowed", "another provider", "nothing"],
)
async def test_other_logins_are_refused(
    tmp_path: Path, version: int, auth: Callable[[Path], ClientAuthProvider | None]
) -> None:
    async with ServedBookie(tmp_path, sasl_settings(tmp_path)) as bookie:
        async with operations_on({B: bookie.port}, auth=auth(tmp_path), protocol_version=version) as ask:
            with pytest.raises((Unauthorized, BookieUnavailable)):
                await ask.add_entry(B, LedgerLife(1, 0), 0, entry(1, 0), KEY)
        assert bookie.side.storage.ledger(1) is None
        await until(lambda: not bookie.server.clients.connections)


async def test_passwords_are_changed_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_file, "CHECK_S", 0.0)
    async with ServedBookie(tmp_path, sasl_settings(tmp_path)) as bookie:
        (tmp_path / "jaas").write_text(JAAS.replace("s3cret", "another"))
        async with operations_on({B: bookie.port}, auth=SaslAuth("bookkeeper", "another")) as ask:
            await use(ask)
        (tmp_path / "jaas").write_text("Bookie {")
        async with operations_on({B: bookie.port}, auth=SaslAuth("bookkeeper", "another")) as ask:
            with pytest.raises(BookieUnavailable):  # for which a writer takes another one
                await ask.add_entry(B, LedgerLife(1, 0), 0, entry(1, 0), KEY)
