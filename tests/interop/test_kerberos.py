"""Logins by Kerberos between clients and bookies of either kind, with a KDC of MIT's."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

from bookie_client import Client, ClientOptions, KerberosAuth
from bookie_protocol.auth.kerberos import KerberosKeys
from bookie_protocol.auth.sasl import JaasAuth, SaslServer, accounts_of
from bookie_protocol.errors import InvalidConfiguration, MetadataUnavailable, PodkeeperError, Unauthorized
from bookie_protocol.metadata_service.options import SaslLogin, SaslMechanism
from bookie_protocol.metadata_service.uri import open_metadata_service
from bookie_protocol.wire.auth import Peer
from tests.interop.cluster import KINDS, Cluster
from tests.interop.java_client import JavaClientError
from tests.interop.security import (
    SASL_CLIENT,
    UNAUTHORIZED,
    UNREACHABLE,
    Connect,
    exchange,
    java,
    python_exchange,
    refused,
)
from tests.support.kdc import REALM, Kdc
from tests.support.zookeeper import ZooKeeperServer

__all__ = ["java"]  # a fixture
HOST = "127.0.0.1"
BOOKIE = f"bookkeeper/{HOST}"
CLIENT = "client-bookkeeper"
MODULE = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true doNotPrompt=true"
EVERYBODY = re.compile(".*bookkeeper.*")
HERE = Peer(HOST)


@pytest.fixture(scope="module")
def kdc(tmp_path_factory) -> Iterator[Kdc]:
    made = Kdc(tmp_path_factory.mktemp("kdc"))
    for name in (BOOKIE, CLIENT, "stranger", "bookkeeper/elsewhere"):
        made.principal(name)
    made.start()
    with pytest.MonkeyPatch.context() as patch:
        for name, text in made.environment.items():
            patch.setenv(name, text)
        yield made
    made.stop()


def keytab(kdc: Kdc, principal: str) -> str:
    return str(kdc.folder / f"{principal.replace('/', '-')}.keytab")


def keytab_of(kdc: Kdc, *principals: str) -> str:
    """One with the keys of all of them: two bytes of its version, and what stands in theirs."""
    path = kdc.folder / "several.keytab"
    path.write_bytes(b"\x05\x02" + b"".join(Path(keytab(kdc, each)).read_bytes()[2:] for each in principals))
    return str(path)


def auth(kdc: Kdc, principal: str = CLIENT, path: str | None = None) -> KerberosAuth:
    return KerberosAuth(principal, path or keytab(kdc, principal))


def jaas(kdc: Kdc, client: str, path: str | None = None) -> Path:
    file = kdc.folder / f"{client}-{'other' if path else 'own'}.jaas"
    file.write_text(
        f'Bookie {{ {MODULE} keyTab="{keytab(kdc, BOOKIE)}" principal="{BOOKIE}@{REALM}"; }};\n'
        f'BookKeeper {{ {MODULE} keyTab="{path or keytab(kdc, client)}" principal="{client}@{REALM}"; }};\n'
    )
    return file


def java_properties(kdc: Kdc, file: Path) -> dict[str, str]:
    return {
        "clientAuthProviderFactoryClass": SASL_CLIENT,
        "java.security.auth.login.config": str(file),
        "java.security.krb5.conf": str(kdc.configuration),
    }


@pytest.fixture(scope="module", params=KINDS)
def kerberos_cluster(request: pytest.FixtureRequest, make_cluster, kdc: Kdc) -> Cluster:
    """One bookie of each kind. It is no client of its own, but has to be able to be."""
    cluster = make_cluster()
    file = jaas(kdc, CLIENT)
    settings = {
        "bookieAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory",
        "clientAuthProviderFactoryClass": SASL_CLIENT,
    }
    if request.param == "ours":
        settings["saslJaasConfigFile"] = str(file)
    bookie = cluster.bookie(request.param, settings)
    options = {"java.security.auth.login.config": file, "java.security.krb5.conf": kdc.configuration}
    bookie.environment = {
        **kdc.environment,
        "JAVA_TOOL_OPTIONS": " ".join(f"-D{name}={path}" for name, path in options.items()),
    }
    bookie.start()
    return cluster


def test_java_clients(kerberos_cluster: Cluster, java: Connect, kdc: Kdc) -> None:
    with java(kerberos_cluster, java_properties(kdc, jaas(kdc, CLIENT))) as client:
        for _ in range(20):  # an add waits for 2 s, and may take longer where the JVM loads its Kerberos only now
            with suppress(JavaClientError):
                client.append(client.create((1, 1, 1), protocol="V3"), 1)
                break
        exchange(client)
    with java(kerberos_cluster, java_properties(kdc, jaas(kdc, "stranger"))) as client:
        assert refused(client) <= {UNAUTHORIZED, *UNREACHABLE}
    keyless = java_properties(kdc, jaas(kdc, CLIENT, keytab(kdc, "stranger")))
    with java(kerberos_cluster, keyless) as client, pytest.raises(AssertionError, match="password"):
        client.create((1, 1, 1), protocol="V3")  # it ends without having asked a bookie
    with java(kerberos_cluster, {}) as client:
        assert refused(client) == {UNAUTHORIZED}


@pytest.mark.parametrize("version", [2, 3])
async def test_python_clients(kerberos_cluster: Cluster, kdc: Kdc, version: int) -> None:
    def options(given: KerberosAuth | None) -> ClientOptions:
        return ClientOptions(auth=given, protocol_version=version)

    await python_exchange(kerberos_cluster, options(auth(kdc)))
    wrong = (auth(kdc, "stranger"), auth(kdc, CLIENT, keytab(kdc, "stranger")), None)
    for given in wrong:
        with pytest.raises(PodkeeperError):
            await python_exchange(kerberos_cluster, options(given))
    other = KerberosAuth(CLIENT, keytab(kdc, CLIENT), service="nobody")
    with pytest.raises(PodkeeperError, match=r"nobody/127\.0\.0\.1@PODKEEPER\.TEST"):
        async with Client(kerberos_cluster.metadata_uri, options(other)) as client:
            await (await client.create(ensemble=1, write_quorum=1, ack_quorum=1)).append(b"")


async def test_zookeeper(kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that asks for Kerberos, a client with a ticket, and clients without one."""
    service = f"zookeeper/{HOST}"
    kdc.principal(service)
    own = f'useKeyTab=true storeKey=true doNotPrompt=true keyTab="{keytab(kdc, service)}" principal="{service}@{REALM}"'
    server = ZooKeeperServer(str(tmp_path), kerberos=(own, str(kdc.configuration)))
    login = SaslLogin(mechanism=SaslMechanism.GSSAPI)
    await asyncio.to_thread(server.start)
    try:
        monkeypatch.setenv("KRB5CCNAME", str(tmp_path / "tickets"))
        with pytest.raises(MetadataUnavailable, match="kinit"):
            await open_metadata_service(server.uri(), sasl=login, timeout=10)
        with pytest.raises(MetadataUnavailable):
            await open_metadata_service(server.uri(), timeout=5)
        kdc.ticket(CLIENT, tmp_path / "tickets")
        opened = await open_metadata_service(server.uri(), sasl=login, timeout=30)
        await opened.cluster.initialize()
        await opened.close()
    finally:
        server.stop()


# --- both sides of ours, and what comes between them ----------------------------------------------------------------


async def log_in(client: KerberosAuth | JaasAuth, keys: object, host: str = HOST) -> None:
    mine = client.new_exchange(Peer(host))
    yours = SaslServer(lambda: keys, EVERYBODY).new_exchange(Peer("192.0.2.1:4000"))  # type: ignore[arg-type, return-value]
    said = await mine.start()
    while True:
        answer = await yours.process(said.token or b"")
        if answer.complete:
            assert (said.complete, answer.token) == (True, None)
            return
        assert answer.token is not None
        said = await mine.process(answer.token)


@pytest.fixture
def keys(kdc: Kdc) -> KerberosKeys:
    return KerberosKeys(BOOKIE, keytab(kdc, BOOKIE))


def refusing(says: str, error: type[PodkeeperError] = Unauthorized) -> AbstractContextManager[object]:
    return pytest.raises(error, match=says)


async def test_by_the_sections_of_a_login_configuration(kdc: Kdc) -> None:
    file = jaas(kdc, CLIENT)
    await log_in(JaasAuth(str(file)), accounts_of(file.read_bytes(), "Bookie"))


async def test_who_is_not_who_they_say(kdc: Kdc, keys: KerberosKeys) -> None:
    with refusing("'stranger@PODKEEPER.TEST' does not match saslJaasClientAllowedIds"):
        await log_in(auth(kdc, "stranger"), keys)
    with refusing("is there a key of client-bookkeeper in keytab", InvalidConfiguration):
        await log_in(auth(kdc, CLIENT, keytab(kdc, "stranger")), keys)
    with refusing("not found in keytab|Cannot decrypt"):  # a bookie that has the keys of another
        await log_in(auth(kdc), KerberosKeys(None, keytab(kdc, "bookkeeper/elsewhere")))
    both = keytab_of(kdc, BOOKIE, "bookkeeper/elsewhere")
    await log_in(auth(kdc), KerberosKeys(None, both), "elsewhere")
    with refusing("Wrong principal|not found in keytab|Cannot decrypt"):  # it is known, and not what was asked for
        await log_in(auth(kdc), KerberosKeys(BOOKIE, both), "elsewhere")
    with refusing("Server .* not found in Kerberos database", InvalidConfiguration):
        await log_in(auth(kdc), keys, "nowhere.invalid")
    with refusing("No key table entry found for bookkeeper/elsewhere", InvalidConfiguration):
        KerberosKeys("bookkeeper/elsewhere", keytab(kdc, BOOKIE))


async def test_what_is_said_twice_cut_changed_or_too_long(kdc: Kdc, keys: KerberosKeys) -> None:
    token = (await auth(kdc).new_exchange(HERE).start()).token
    assert token is not None
    for wrong in (b"", b"rubbish", token[:60], token[:-9] + bytes(9), bytes(64 * 1024 + 1)):
        with refusing("Kerberos|empty token"):
            await keys.new_login().step(wrong)
    assert (await keys.new_login().step(token))[0]
    with refusing("Request is a replay"):
        await keys.new_login().step(token)


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        (b"\x02\x00\x00\x00", "wants what follows to be wrapped"),
        (b"\x01\x00", "wants what follows to be wrapped"),
        (b"\x01\x00\x00\x00bookkeeper@PODKEEPER.TEST", "in the name of another user"),
        (b"\x01\x00\x00\x00client-bookkeeper@PODKEEPER.TEST", None),
        (None, "login of 'client-bookkeeper@PODKEEPER.TEST'"),  # not wrapped by who has the ticket
    ],
)
async def test_the_end_of_a_login(kdc: Kdc, keys: KerberosKeys, chosen: bytes | None, says: str | None) -> None:
    mine, yours = auth(kdc).new_exchange(HERE), keys.new_login()
    answer, _ = await yours.step((await mine.start()).token or b"")
    assert (await mine.process(answer or b"")).token == b""
    offered, _ = await yours.step(b"")
    assert offered is not None
    assert mine._client._context.unwrap(offered).message == b"\x01\x00\x00\x00"
    last = b"rubbish" if chosen is None else mine._client._context.wrap(chosen, False).message
    if says is None:
        assert await yours.step(last) == (None, "client-bookkeeper@PODKEEPER.TEST")
    else:
        with refusing(says):
            await yours.step(last)


async def test_a_bookie_that_proves_nothing(kdc: Kdc) -> None:
    mine = auth(kdc).new_exchange(HERE)
    await mine.start()
    with refusing("does not prove that it is bookkeeper@127.0.0.1"):
        await mine.process(b"trust me")


async def test_clocks_that_differ_are_told_with_what_helps(
    kdc: Kdc, keys: KerberosKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = (await auth(kdc).new_exchange(HERE).start()).token
    strict = kdc.folder / "strict.conf"  # any difference is too much
    strict.write_text(kdc.configuration.read_text().replace("[libdefaults]", "[libdefaults]\n clockskew = -1"))
    monkeypatch.setenv("KRB5_CONFIG", str(strict))
    with refusing("(Clock skew too great|Ticket not yet valid): set the clocks of the client, the bookie and the KDC"):
        await keys.new_login().step(token or b"")


async def test_a_fault_of_the_machine_is_no_word_against_the_client(
    kdc: Kdc, keys: KerberosKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRB5RCACHEDIR", "/nowhere")
    with refusing("No such file or directory.*/nowhere", InvalidConfiguration):
        await log_in(auth(kdc), keys)


async def test_keytabs_come_go_and_are_replaced(kdc: Kdc) -> None:
    for name in ("bookkeeper/passing", "passing-bookkeeper"):
        kdc.principal(name)
    server, client = kdc.folder / "bookkeeper-passing.keytab", kdc.folder / "passing-bookkeeper.keytab"
    keys, mine = KerberosKeys(None, str(server)), auth(kdc, "passing-bookkeeper")
    assert mine.credentials().lifetime > 0
    kdc.keytab("passing-bookkeeper")  # the old key counts no more; the new one is asked with at once
    assert mine.credentials().lifetime > 0
    for path, use in ((server, keys.credentials), (client, mine.credentials)):
        content = path.read_bytes()
        path.unlink()
        with refusing(f"Kerberos keytab {path}: No such file", InvalidConfiguration):
            use()
        path.write_bytes(b"half a fi")
        with refusing("Kerberos|ticket", InvalidConfiguration):
            use()
        path.write_bytes(content)
        use()


async def test_keytabs_that_were_not_replaced_with_their_keys(kdc: Kdc) -> None:
    for name in ("bookkeeper/stale", "stale-bookkeeper"):
        kdc.principal(name)
    stale = keytab_of(kdc, "bookkeeper/stale")
    kdc.keytab("bookkeeper/stale")  # no word against the client, which may go to another bookie
    with refusing("kvno 3 in keytab|keytab is likely out of date", InvalidConfiguration):
        await log_in(auth(kdc), KerberosKeys("bookkeeper/stale", stale), "stale")
    stale = keytab_of(kdc, "stale-bookkeeper")
    kdc.keytab("stale-bookkeeper")
    with refusing("there is no Kerberos ticket: Decrypt integrity check failed", InvalidConfiguration):
        await log_in(auth(kdc, "stale-bookkeeper", stale), KerberosKeys(BOOKIE, keytab(kdc, BOOKIE)))


async def test_tickets_are_renewed_before_they_end(kdc: Kdc, keys: KerberosKeys) -> None:
    kdc.principal("brief-bookkeeper", "-maxlife", "2sec")
    mine = auth(kdc, "brief-bookkeeper")
    ends = time.monotonic() + mine.credentials().lifetime + 1
    while time.monotonic() < ends:
        assert 0 < mine.credentials().lifetime <= 2
        await asyncio.sleep(0.1)
    await log_in(mine, keys)


async def test_by_a_ticket_that_somebody_else_keeps_fresh(kdc: Kdc, keys: KerberosKeys) -> None:
    import gssapi

    cache = kdc.folder / "cache"
    mine = KerberosAuth(ticket_cache=str(cache))
    with refusing("there is no Kerberos ticket: .*; run kinit", InvalidConfiguration):
        await log_in(mine, keys)
    store = {"client_keytab": keytab(kdc, CLIENT), "ccache": f"FILE:{cache}"}
    name = gssapi.Name(CLIENT, gssapi.NameType.kerberos_principal)
    assert gssapi.Credentials(usage="initiate", name=name, store=store).lifetime > 0
    await log_in(mine, keys)


async def test_a_kdc_that_is_not_there(kdc: Kdc, keys: KerberosKeys) -> None:
    kdc.stop()
    try:
        fresh = kdc.folder / "fresh.keytab"
        fresh.write_bytes((kdc.folder / f"{CLIENT}.keytab").read_bytes())
        with refusing("Cannot contact any KDC", InvalidConfiguration):
            await log_in(auth(kdc, CLIENT, str(fresh)), keys)
    finally:
        kdc.start()
