"""Stores that keytool made are read, and what is none is refused in one line.

Versions and cipher suites of TLS: what a handshake comes to, by Java's names.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

import pytest

from bookie_client.connection.channel import tls_context
from bookie_client.options import TlsOptions
from bookie_pod.config.sections.security import TlsConfig
from bookie_pod.server.tcp.tls import server_tls
from bookie_protocol.errors import BadRequest, InvalidConfiguration
from bookie_protocol.tls import BadStore, limit_tls, openssl_name, read_store
from tests.support.certificates import Certificates

STORES: Final = Path(__file__).parents[2] / "golden" / "key-stores"
KINDS: Final = {"PKCS12": "p12", "JKS": "jks"}


@pytest.fixture
def password(tmp_path: Path) -> str:
    (tmp_path / "password").write_text("hunter22\n")
    return str(tmp_path / "password")


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[object, object]:
    """The certificates that the two have seen of each other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname="bookie"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(6):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return sides[0].getpeercert(), sides[1].getpeercert()


def bookie(kind: str, password: str | None, key_store: str = "bookie", trust_store: str = "trusted") -> ssl.SSLContext:
    """`kind`: what the files are. The configuration calls both JKS, its default, as most do."""
    tls = server_tls(
        TlsConfig(
            provider_factory_class="x",
            client_authentication=True,
            key_store=str(STORES / f"{key_store}.{KINDS[kind]}"),
            key_store_password_path=password,
            trust_store=str(STORES / f"{trust_store}.{KINDS[kind]}"),
            trust_store_password_path=password,
        )
    )
    assert tls is not None
    return tls.context()


def client(kind: str, password: str | None, trust_store: str = "trusted") -> ssl.SSLContext:
    return tls_context(
        TlsOptions(
            ca_file=str(STORES / f"{trust_store}.{KINDS[kind]}"),
            ca_type=kind,
            ca_password_file=password,
            key_file=str(STORES / f"client.{KINDS[kind]}"),
            key_type=kind,
            key_password_file=password,
            check_hostname=False,
        )
    )


@pytest.mark.parametrize("kind", KINDS)
def test_both_sides_by_stores(kind: str, password: str) -> None:
    seen = handshake(bookie(kind, password), client(kind, password))
    assert [dict(part[0] for part in each["subject"])["commonName"] for each in seen] == ["bookie", "client"]


def test_without_proc_a_key_is_in_a_file_for_a_moment(
    password: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie_protocol.tls._OPEN_FILES", str(tmp_path / "none"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    handshake(bookie("JKS", password), client("JKS", password))
    assert [path.name for path in tmp_path.iterdir()] == ["password"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_certificate_of_a_key_is_trusted(kind: str, password: str) -> None:
    """As by Java, whoever has signed it. Configurations exist whose trust store is the other side's key store."""
    handshake(bookie(kind, password, trust_store="client"), client(kind, password, trust_store="bookie"))
    if kind == "JKS":  # PKCS12 does not tell the key's authority from one that is trusted
        with pytest.raises(ssl.SSLError):
            handshake(bookie(kind, password, trust_store="bookie"), client(kind, password))


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_cannot_be_used_is_told_in_one_line(kind: str, password: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=f"bookie.{KINDS[kind]}: no {kind} .*password"):
        bookie(kind, None)
    with pytest.raises(BadRequest, match=f"trusted.{KINDS[kind]}: no {kind} .*password"):
        client(kind, None)
    with pytest.raises(InvalidConfiguration, match="private"):
        bookie(kind, password, key_store="trusted")


@pytest.mark.parametrize("kind", KINDS)
def test_no_damage_is_more_than_a_refusal(kind: str, password: str, tmp_path: Path) -> None:
    whole, damaged = (STORES / f"client.{KINDS[kind]}").read_bytes(), tmp_path / "damaged"
    for cut in range(0, len(whole), 7):
        damaged.write_bytes(whole[:cut])
        with pytest.raises(BadStore):
            read_store(str(damaged), password)
    for at in range(0, len(whole), 11):
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        try:
            read_store(str(damaged), password)
        except BadStore:
            continue
        assert kind == "PKCS12", "every byte of JKS counts in its digest"


def test_what_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "pem").write_text("-----BEGIN CERTIFICATE-----\n")
    with pytest.raises(BadStore, match="is PEM"):
        read_store(str(tmp_path / "pem"), None)
    (tmp_path / "large").write_bytes(b"")
    with (tmp_path / "large").open("r+b") as file:
        file.truncate(20 * 1024 * 1024)
    with pytest.raises(BadStore, match="larger"):
        read_store(str(tmp_path / "large"), None)
    (tmp_path / "password").write_bytes(b"\xff\xfe")
    with pytest.raises(BadStore, match="is not UTF-8"):
        read_store(str(STORES / "client.jks"), str(tmp_path / "password"))


def test_a_key_of_jks_with_another_password_is_told(password: str) -> None:
    with pytest.raises(BadStore, match=r"key .*password"):
        read_store(str(STORES / "other-key.jks"), password)


def test_a_key_that_nobody_here_understands_is_told(password: str) -> None:
    """A renewed certificate of this kind must leave the last good one in use."""
    with pytest.raises(BadStore, match="supported"):
        read_store(str(STORES / "other-curve.p12"), password)


ECDSA_128, ECDSA_256 = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
CHACHA, NEWEST = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"
BOTH = ("TLSv1.2", "TLSv1.3")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates")).make_all()


def limited_handshake(
    folder: Path, protocols: tuple[str, ...], suites: tuple[str, ...], client: ssl.SSLContext
) -> tuple[str, str]:
    """Version and cipher suite that a limited server and this client agree on. Raises ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "bookie.pem", folder / "bookie.key")
    limit_tls(context, protocols, suites)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    mine = client.wrap_bio(to_client, to_server)
    for _ in range(4):
        for side in (mine, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    cipher = mine.cipher()
    assert cipher is not None
    return str(mine.version()), cipher[0]


@pytest.mark.parametrize(
    ("protocols", "suites", "agreed"),
    [
        ((), (), ("TLSv1.3", "TLS_AES_256_GCM_SHA384")),
        (BOTH, (), ("TLSv1.3", "TLS_AES_256_GCM_SHA384")),
        (("TLSv1.2",), (), ("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384")),
        (("TLSv1.2", "TLSv1.1"), (), ("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384")),
        ((), (ECDSA_128,), ("TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256")),  # and so no TLS 1.3
        ((), (CHACHA,), ("TLSv1.2", "ECDHE-ECDSA-CHACHA20-POLY1305")),
        ((), ("ECDHE-ECDSA-AES128-GCM-SHA256",), ("TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256")),
        ((), (ECDSA_128, NEWEST), ("TLSv1.3", "TLS_AES_256_GCM_SHA384")),
        (("TLSv1.2",), (ECDSA_128, NEWEST), ("TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256")),
    ],
)
def test_what_is_agreed_on(
    certificates: Certificates, protocols: tuple[str, ...], suites: tuple[str, ...], agreed: tuple[str, str]
) -> None:
    assert limited_handshake(certificates.folder, protocols, suites, certificates.client_context()) == agreed


def test_an_older_client_of_a_bookie_that_wants_newer_ones(certificates: Certificates) -> None:
    older, narrow = certificates.client_context(), certificates.client_context()
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    narrow.maximum_version = ssl.TLSVersion.TLSv1_2
    narrow.set_ciphers(openssl_name(ECDSA_256))
    for client, protocols, suites in ((older, ("TLSv1.3",), ()), (older, (), (NEWEST,)), (narrow, (), (ECDSA_128,))):
        with pytest.raises(ssl.SSLError):
            limited_handshake(certificates.folder, protocols, suites, client)


@pytest.mark.parametrize(
    ("protocols", "suites", "says"),
    [
        (("TLSv1.1", "TLSv1"), (), "tlsEnabledProtocols=TLSv1.1,TLSv1: none is TLSv1.2 or TLSv1.3"),
        (("TLSv1.2", "TLSv1.4"), (), "tlsEnabledProtocols: TLSv1.4 "),
        ((), ("TLS_RSA_WITH_RC4_128_MD5", ECDSA_128), "TLS_RSA_WITH_RC4_128_MD5"),
        (("TLSv1.3",), (ECDSA_128,), "tlsEnabledProtocols=TLSv1.3"),
        (("TLSv1.2",), (NEWEST,), "tlsEnabledProtocols=TLSv1.2"),
    ],
)
def test_what_is_not_there(protocols: tuple[str, ...], suites: tuple[str, ...], says: str) -> None:
    with pytest.raises(InvalidConfiguration, match=says):
        limit_tls(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), protocols, suites)


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
        ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384", "ECDHE-RSA-AES256-SHA384"),
        ("TLS_DHE_RSA_WITH_AES_128_GCM_SHA256", "DHE-RSA-AES128-GCM-SHA256"),
        ("HIGH", "HIGH"),
    ],
)
def test_names(java: str, openssl: str) -> None:
    assert openssl_name(java) == openssl
