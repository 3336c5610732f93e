"""Versions and cipher suites of TLS: what a handshake comes to, by Java's names."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.tls_limits import limit_tls, openssl_name
from tests.support.certificates import Certificates

ECDSA_128, ECDSA_256 = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
CHACHA, NEWEST = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"
BOTH = ("TLSv1.2", "TLSv1.3")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates")).make_all()


def handshake(
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
    assert handshake(certificates.folder, protocols, suites, certificates.client_context()) == agreed


def test_an_older_client_of_a_bookie_that_wants_newer_ones(certificates: Certificates) -> None:
    older, narrow = certificates.client_context(), certificates.client_context()
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    narrow.maximum_version = ssl.TLSVersion.TLSv1_2
    narrow.set_ciphers(openssl_name(ECDSA_256))
    for client, protocols, suites in ((older, ("TLSv1.3",), ()), (older, (), (NEWEST,)), (narrow, (), (ECDSA_128,))):
        with pytest.raises(ssl.SSLError):
            handshake(certificates.folder, protocols, suites, client)


@pytest.mark.parametrize(
    ("protocols", "suites", "says"),
    [
        (("TLSv1.1", "TLSv1"), (), "tlsEnabledProtocols=TLSv1.1,TLSv1: none is TLSv1.2 or TLSv1.3"),
        (("TLSv1.2", "TLSv1.4"), (), "tlsEnabledProtocols: TLSv1.4 is none of TLSv1.2, TLSv1.3"),
        ((), ("TLS_RSA_WITH_RC4_128_MD5", ECDSA_128), "TLS_RSA_WITH_RC4_128_MD5 is not a cipher suite"),
        (("TLSv1.3",), (ECDSA_128,), f"{ECDSA_128}: none of them is of tlsEnabledProtocols=TLSv1.3"),
        (("TLSv1.2",), (NEWEST,), "none of them is of tlsEnabledProtocols=TLSv1.2"),
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
