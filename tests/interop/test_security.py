"""Logins and certificates between clients and bookies of either kind: right ones, wrong ones, and ways around them."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from bookie_client import ClientOptions, SaslAuth, TlsOptions
from bookie_protocol.errors import BookieUnavailable, PodkeeperError, Unauthorized
from tests.interop.cluster import KINDS, Cluster
from tests.interop.java_client import JavaClient, payloads
from tests.interop.security import (
    PROTOCOLS,
    SASL_CLIENT,
    UNAUTHORIZED,
    UNREACHABLE,
    Connect,
    exchange,
    java,
    python_exchange,
    refusal,
    refused,
)
from tests.support.bookie_process import BookieProcess
from tests.support.certificates import Certificates

__all__ = ["java"]  # a fixture
JAAS = """
Bookie {{ org.apache.zookeeper.server.auth.DigestLoginModule required
  user_bookkeeper="s3cret" user_app="appendix"; }};
BookKeeper {{ org.apache.zookeeper.server.auth.DigestLoginModule required username="{user}" password="{password}"; }};
"""
TLS = "org.apache.bookkeeper.tls.TLSContextFactory"
STORE_PASSWORD = "changeit"
OPENSSL_PASSWORD = f"pass:{STORE_PASSWORD}"
TRUST_OPTIONS = f"-storetype JKS -storepass {STORE_PASSWORD} -alias authority"
LOGINS = {
    "right": ("bookkeeper", "s3cret"),
    "wrong password": ("bookkeeper", "guess"),
    "wrong user": ("nobody-bookkeeper", "s3cret"),
    "not allowed": ("app", "appendix"),
}


def jaas(folder: Path, login: str) -> Path:
    user, password = LOGINS[login]
    path = folder / f"{login.replace(' ', '-')}.jaas"
    path.write_text(JAAS.format(user=user, password=password))
    return path


# --- SASL ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=KINDS)
def login_cluster(request: pytest.FixtureRequest, make_cluster, tmp_path_factory) -> Cluster:
    """One bookie of each kind that asks for a login by DIGEST-MD5."""
    file = jaas(tmp_path_factory.mktemp("jaas"), "right")
    cluster = make_cluster()
    settings = {
        "bookieAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory",
        "clientAuthProviderFactoryClass": SASL_CLIENT,
    }
    if request.param == "ours":
        settings["saslJaasConfigFile"] = str(file)
    bookie = cluster.bookie(request.param, settings)
    bookie.environment = {"JAVA_TOOL_OPTIONS": f"-Djava.security.auth.login.config={file}"}
    bookie.start()
    return cluster


def test_java_clients_log_in(login_cluster: Cluster, java: Connect, tmp_path: Path) -> None:
    for login in LOGINS:
        properties = {
            "clientAuthProviderFactoryClass": SASL_CLIENT,
            "java.security.auth.login.config": str(jaas(tmp_path, login)),
        }
        with java(login_cluster, properties) as client:
            if login == "right":
                exchange(client)
            else:
                assert refused(client) <= {UNAUTHORIZED, *UNREACHABLE}, login


def test_java_clients_that_skip_the_login(login_cluster: Cluster, java: Connect) -> None:
    with java(login_cluster, {}) as client:
        assert refused(client) == {UNAUTHORIZED}


@pytest.mark.parametrize("version", [2, 3])
async def test_python_clients_log_in(login_cluster: Cluster, version: int) -> None:
    for name, login in LOGINS.items():
        options = ClientOptions(auth=SaslAuth(*login), protocol_version=version)
        if name == "right":
            await python_exchange(login_cluster, options)
        else:
            with pytest.raises(PodkeeperError):
                await python_exchange(login_cluster, options)
    with pytest.raises(PodkeeperError):
        await python_exchange(login_cluster, ClientOptions(protocol_version=version))


# --- certificates -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> Path:
    """Keys and certificates of everybody, as PEM and as JKS, by keytool."""
    folder = tmp_path_factory.mktemp("stores")
    certificates = Certificates(folder).make_all()
    certificates.make_unit("broker", "0:broker;1:cluster")
    certificates.make_unit("proxy", "0:proxy")
    (folder / "password").write_text(STORE_PASSWORD)
    for name in ("bookie", "client", "broker", "proxy", "unknown"):
        _run(
            folder,
            f"openssl pkcs12 -export -in {name}.pem -inkey {name}.key -out {name}.p12 -passout {OPENSSL_PASSWORD}",
        )
        source, target = f"-srckeystore {name}.p12 -srcstorepass {STORE_PASSWORD}", f"-destkeystore {name}.jks"
        _run(folder, f"keytool -importkeystore {source} {target} -deststoretype JKS -deststorepass {STORE_PASSWORD}")
    _run(folder, f"keytool -importcert -noprompt -file authority.pem -keystore trust.jks {TRUST_OPTIONS}")
    return folder


def _run(folder: Path, command: str) -> None:
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)


def server_settings(stores: Path) -> dict[str, str]:
    """JKS, the default of `tlsKeyStoreType`, and certificate roles."""
    return {
        "tlsProviderFactoryClass": TLS,
        "tlsClientAuthentication": "true",
        "tlsKeyStore": str(stores / "bookie.jks"),
        "tlsKeyStorePasswordPath": str(stores / "password"),
        "tlsTrustStore": str(stores / "trust.jks"),
        "tlsTrustStorePasswordPath": str(stores / "password"),
    }


def client_settings(stores: Path, name: str) -> dict[str, str]:
    return {
        "tlsProviderFactoryClass": TLS,
        "tlsClientAuthentication": "true",
        "clientKeyStoreType": "JKS",
        "clientKeyStore": str(stores / f"{name}.jks"),
        "clientKeyStorePasswordPath": str(stores / "password"),
        "clientTrustStoreType": "JKS",
        "clientTrustStore": str(stores / "trust.jks"),
        "clientTrustStorePasswordPath": str(stores / "password"),
    }


def python_tls(stores: Path, name: str) -> TlsOptions:
    return TlsOptions(
        ca_type="JKS",
        ca_file=str(stores / "trust.jks"),
        ca_password_file=str(stores / "password"),
        key_type="JKS",
        key_file=str(stores / f"{name}.jks"),
        key_password_file=str(stores / "password"),
        check_hostname=False,
    )


@pytest.fixture(scope="module", params=KINDS)
def role_cluster(request: pytest.FixtureRequest, make_cluster, stores: Path) -> Cluster:
    """One bookie of each kind that lets in the role `broker`."""
    cluster = make_cluster()
    settings = {
        **server_settings(stores),
        "bookieAuthProviderFactoryClass": "org.apache.bookkeeper.tls.BookieAuthZFactory",
        "authorizedRoles": "broker",
    }
    cluster.bookie(request.param, settings).start()
    return cluster


def test_java_clients_by_the_role_in_their_certificate(role_cluster: Cluster, java: Connect, stores: Path) -> None:
    with java(role_cluster, client_settings(stores, "broker")) as client:
        exchange(client)
    for name in ("proxy", "client", "unknown"):
        with java(role_cluster, client_settings(stores, name)) as client:
            assert refused(client) <= {UNAUTHORIZED, *UNREACHABLE}, name
    with java(role_cluster, {}) as client:
        assert refused(client) == {UNAUTHORIZED}


@pytest.mark.parametrize("version", [2, 3])
async def test_python_clients_by_the_role_in_their_certificate(
    role_cluster: Cluster, stores: Path, version: int
) -> None:
    def options(name: str | None) -> ClientOptions:
        return ClientOptions(tls=python_tls(stores, name) if name else None, protocol_version=version)

    await python_exchange(role_cluster, options("broker"))
    for name in ("proxy", "client", "unknown", None):
        with pytest.raises((Unauthorized, BookieUnavailable, PodkeeperError)):
            await python_exchange(role_cluster, options(name))


def test_ways_around_tls_that_is_required(make_cluster, java: Connect, stores: Path, tmp_path: Path) -> None:
    """Of our bookie alone: Apache's has no such key."""
    cluster = make_cluster()
    cluster.bookie("ours", {**server_settings(stores), "tlsRequired": "true"}).start()
    login = {
        "clientAuthProviderFactoryClass": SASL_CLIENT,
        "java.security.auth.login.config": str(jaas(tmp_path, "right")),
    }
    for plain in ({}, login):  # a bookie without a provider agrees to any login
        with java(cluster, plain) as client:
            assert refused(client) == {UNAUTHORIZED}
    with java(cluster, client_settings(stores, "client")) as client:
        exchange(client)


def test_tls_is_switched_on_in_a_mixed_cluster_while_clients_go_on(make_cluster, java: Connect, stores: Path) -> None:
    """As docs/operator.md says: bookies offer it one after the other, then clients use it, then ours demand it."""
    cluster = make_cluster()
    for kind in ("ours", "java", "ours"):
        cluster.bookie(kind).start()

    def restart(bookie: BookieProcess, settings: dict[str, str], *writers: Writer) -> None:
        bookie.stop()
        for each in writers:
            each.go_on()
        bookie.configuration |= settings
        bookie.start()
        for each in writers:
            each.go_on()

    with java(cluster, {}) as plain:
        writer = Writer(plain)
        for bookie in cluster.bookies:
            restart(bookie, server_settings(stores), writer)
        with java(cluster, client_settings(stores, "client")) as encrypted:
            later = Writer(encrypted)
            writer.go_on()
            for bookie in cluster.bookies:
                if bookie.kind == "ours":
                    restart(bookie, {"tlsRequired": "true"}, later)
            while (code := refusal(plain, (3, 3, 3), "V3")) in UNREACHABLE:
                time.sleep(0.1)  # it has not heard yet where the bookie that was started last is
            assert code == UNAUTHORIZED
            writer.is_read_by(encrypted)
            later.is_read_by(encrypted)


class Writer:
    """Ledgers of one client, with two copies of each entry among three bookies: one of them may be away."""

    def __init__(self, client: JavaClient) -> None:
        self._client = client
        self._ledgers = {protocol: client.create((2, 2, 2), protocol=protocol) for protocol in PROTOCOLS}
        self._written = 0
        self.go_on()

    def go_on(self) -> None:
        for ledger in self._ledgers.values():
            # One first: of many that fail at once, because the bookie has just left, while it replaces that bookie,
            # Apache's client may forget some, and never end.
            self._client.append(ledger, 1)
            self._client.append(ledger, 19)
        self._written += 20

    def is_read_by(self, client: JavaClient) -> None:
        for protocol, ledger in self._ledgers.items():
            assert client.open(ledger, recover=True, protocol=protocol)["lac"] == self._written - 1
            assert client.read(ledger, 0, self._written - 1) == payloads(ledger, self._written)


def test_stores_are_replaced_while_java_clients_go_on(
    make_cluster, java: Connect, stores: Path, tmp_path: Path
) -> None:
    """Nothing is restarted: who comes next sees the new certificate, and who is connected stays so."""
    served = tmp_path / "served.jks"

    def serve(name: str) -> None:
        shutil.copy(stores / f"{name}.jks", tmp_path / "new.jks").rename(served)

    serve("bookie")
    cluster = make_cluster()
    settings = {"tlsKeyStore": str(served), "tlsRequired": "true", "tlsCertFilesRefreshDurationSeconds": "1"}
    cluster.bookie("ours", {**server_settings(stores), **settings}).start()
    mine = client_settings(stores, "client")
    with java(cluster, mine) as writer:
        ledger = writer.create((1, 1, 1))
        for name in ("bookie", "unknown", "client"):  # of nobody's authority, and another one of ours
            serve(name)
            with java(cluster, mine) as fresh:  # which takes longer to start than the file may be old
                if name == "unknown":
                    assert refused(fresh) <= UNREACHABLE
                else:
                    exchange(fresh)
            writer.append(ledger, 50)
        assert writer.open(ledger, recover=True)["lac"] == 149
        assert writer.read(ledger, 0, 149) == payloads(ledger, 150)
