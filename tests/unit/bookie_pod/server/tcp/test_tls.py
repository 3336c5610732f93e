"""TLS files of the BookKeeper port that are exchanged while the bookie runs."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bookie_pod.config.load import load_config
from bookie_pod.server.tcp.tls import server_tls
from bookie_pod.server.tls import RenewedTls
from bookie_protocol.errors import InvalidConfiguration
from tests.support.certificates import Certificates
from tests.support.clock import Clock

REFRESH_S = 60


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates")).make_all()


@pytest.fixture
def folder(tmp_path: Path, certificates: Certificates) -> Certificates:
    """A copy whose files a test may exchange."""
    return Certificates(Path(shutil.copytree(certificates.folder, tmp_path / "certificates")))


def served(folder: Certificates, clock: Clock, refresh_s: int = REFRESH_S) -> RenewedTls:
    settings = {**folder.settings(), "tlsCertFilesRefreshDurationSeconds": str(refresh_s)}
    tls = server_tls(load_config(environ={}, overrides=settings).tls, clock)
    assert tls is not None
    return tls


def shown(tls: RenewedTls, folder: Certificates) -> bytes:
    """The certificate that a client gets in a handshake."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = tls.context().wrap_bio(to_server, to_client, server_side=True)
    client = folder.client_context().wrap_bio(to_client, to_server)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    certificate = client.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


def exchange(folder: Certificates, name: str) -> None:
    for ending in ("key", "pem"):
        (folder.folder / f"{name}.{ending}").replace(folder.folder / f"bookie.{ending}")


def test_versions_that_are_left_out_are_told(folder: Certificates) -> None:
    settings = {**folder.settings(), "tlsEnabledProtocols": "TLSv1.2,TLSv1.1,TLSv1"}
    with capture_logs() as logs:
        server_tls(load_config(environ={}, overrides=settings).tls)
    assert [line["tlsEnabledProtocols"] for line in logs] == [["TLSv1.1", "TLSv1"]]


def test_new_files_count_after_the_interval_and_not_before(folder: Certificates) -> None:
    clock = Clock(0.0)
    tls = served(folder, clock)
    first = shown(tls, folder)
    exchange(folder, "client")
    clock.now = REFRESH_S - 1
    assert shown(tls, folder) == first
    clock.now = REFRESH_S
    assert shown(tls, folder) != first


def test_without_an_interval_the_files_are_read_once(folder: Certificates) -> None:
    clock = Clock(0.0)
    tls = served(folder, clock, refresh_s=0)
    first = shown(tls, folder)
    exchange(folder, "client")
    clock.now = 1e9
    assert shown(tls, folder) == first


@pytest.mark.parametrize("damage", ["rubbish", "another key", "gone"])
def test_files_that_are_no_good_leave_the_last_ones_in_use_until_they_are(folder: Certificates, damage: str) -> None:
    clock = Clock(0.0)
    tls = served(folder, clock)
    first = shown(tls, folder)
    key = folder.folder / "bookie.key"
    sound = key.read_bytes()
    if damage == "gone":
        key.unlink()
    else:
        key.write_bytes(b"rubbish" if damage == "rubbish" else (folder.folder / "client.key").read_bytes())
    clock.now += REFRESH_S
    assert shown(tls, folder) == first
    key.write_bytes(sound)
    exchange(folder, "client")
    clock.now += REFRESH_S
    assert shown(tls, folder) != first


def test_files_that_did_not_change_are_not_read_again(folder: Certificates) -> None:
    clock = Clock(0.0)
    tls = served(folder, clock)
    context = tls.context()
    clock.now = REFRESH_S
    assert tls.context() is context


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tlsKeyStore": ""}, "tlsKeyStore"),
        ({"tlsCertificatePath": ""}, "tlsKeyStore"),
        ({"tlsCertificatePath": "", "tlsKeyStoreType": "PKCS12"}, "bookie.key is PEM"),
        ({"tlsTrustStore": "", "tlsClientAuthentication": "true"}, "^tlsClientAuthentication=true: tlsTrustStore"),
        ({"tlsTrustStore": "/nowhere/authority.pem"}, "used: .*No such"),
    ],
)
def test_what_is_missing_is_told(folder: Certificates, change: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidConfiguration, match=says):
        server_tls(load_config(environ={}, overrides={**folder.settings(), **change}).tls)


@pytest.mark.parametrize("demanded", [True, False])
def test_clients_are_asked_for_a_certificate_where_one_is_demanded(folder: Certificates, demanded: bool) -> None:
    settings = {
        **folder.settings(demand_client=demanded),
        "tlsEnabledProtocols": "TLSv1.2",
        "tlsEnabledCipherSuites": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    }
    tls = server_tls(load_config(environ={}, overrides=settings).tls)
    assert tls is not None
    context = tls.context()
    assert context.verify_mode == (ssl.CERT_REQUIRED if demanded else ssl.CERT_NONE)
    assert [dict(entry[0] for entry in each["subject"]) for each in context.get_ca_certs()] == [
        {"commonName": "authority"}
    ]
    assert context.maximum_version == ssl.TLSVersion.TLSv1_2
    allowed = [each["name"] for each in context.get_ciphers() if each["protocol"] != "TLSv1.3"]
    assert allowed == ["ECDHE-ECDSA-AES256-GCM-SHA384"]


def test_without_a_trust_store_nobody_is_trusted(folder: Certificates) -> None:
    tls = server_tls(load_config(environ={}, overrides={**folder.settings(), "tlsTrustStore": ""}).tls)
    assert tls is not None
    assert tls.context().get_ca_certs() == []


def test_without_a_provider_there_is_no_tls(folder: Certificates) -> None:
    settings = {**folder.settings(), "tlsProviderFactoryClass": ""}
    assert server_tls(load_config(environ={}, overrides=settings).tls) is None
