"""Who may use an Oxia: certificates of both sides, and tokens that it checks. The coordinator and its servers trust one
another here."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bookie_protocol.auth import watched_file
from bookie_protocol.errors import InvalidConfiguration, MetadataRefused, MetadataUnavailable
from bookie_protocol.metadata_service.interface import SessionState
from bookie_protocol.metadata_service.options import MetadataTls
from bookie_protocol.metadata_service.oxia.connection import SessionGone
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.support.certificates import Certificates
from tests.support.metadata_drivers import oxia_tree
from tests.support.metadata_examples import INFO, W, ledger, listed
from tests.support.oxia import MISSING, OxiaCluster, is_program
from tests.support.until import until

pytestmark = [pytest.mark.oxia, pytest.mark.skipif(not is_program(), reason=MISSING)]

ISSUER: Final = "https://issuer.example"
AUDIENCE: Final = "oxia"
_namespaces = itertools.count()


@dataclass
class Guarded:
    """An Oxia with TLS, which demands certificates, and with `key` also tokens that are signed by it."""

    cluster: OxiaCluster
    certificates: Path
    """Those of the servers; clients have the copies that were handed out."""
    key: rsa.RSAPrivateKey | None = None

    def __post_init__(self) -> None:
        self.hand_out()

    def hand_out(self) -> None:
        shutil.copytree(self.certificates, self._of_clients, dirs_exist_ok=True)

    @property
    def _of_clients(self) -> Path:
        return self.certificates.with_name("of-clients")

    def tls(self, *, authority: str = "authority", client: str | None = "client") -> MetadataTls:
        return MetadataTls(
            ca_file=f"{self._of_clients}/{authority}.pem",
            certificate_file=None if client is None else f"{self._of_clients}/{client}.pem",
            key_file=None if client is None else f"{self._of_clients}/{client}.key",
        )

    async def in_new_namespace(self, **options: Any) -> MetadataService:
        """Open it when its servers have heard of it."""
        name = f"test-{next(_namespaces)}"
        self.cluster.make_namespace(name)
        async with asyncio.timeout(60):
            while True:
                try:
                    return await self.open(name, **options)
                except InvalidConfiguration as error:
                    if "has no namespace" not in str(error):
                        raise
                    await asyncio.sleep(0.1)
                except MetadataRefused:
                    raise
                except MetadataUnavailable:
                    pass  # no coordinator yet, or no leaders

    async def open(self, namespace: str = "default", **options: Any) -> MetadataService:
        return await open_metadata_service(
            self.cluster.uri(namespace), **{"tls": self.tls(), "timeout": 10.0, **options}
        )

    def token(self, *, key: rsa.RSAPrivateKey | None = None, **claims: object) -> str:
        """A JWT by RS256."""
        signer = key or self.key
        assert signer is not None
        now = int(time.time())
        payload = {"iss": ISSUER, "aud": AUDIENCE, "sub": "podkeeper", "iat": now, "exp": now + 3600, **claims}
        parts = [_base64(json.dumps(each).encode()) for each in ({"alg": "RS256", "typ": "JWT"}, payload)]
        signature = signer.sign(".".join(parts).encode(), padding.PKCS1v15(), SHA256())
        return ".".join([*parts, _base64(signature)])


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def make_certificates(folder: Path) -> Path:
    folder.mkdir()
    Certificates(folder).make_all().make_named("server", "IP:127.0.0.1")
    return folder


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Three servers that demand certificates and tokens."""
    folder = tmp_path_factory.mktemp("guarded")
    key = rsa.generate_private_key(65537, 2048)
    (folder / "key.pem").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    issuer = {"allowedAudiences": AUDIENCE, "staticKeyFile": f"{folder}/key.pem"}
    words = ("--auth-provider-name", "oidc", "--auth-provider-params", json.dumps({"issuers": {ISSUER: issuer}}))
    certificates = make_certificates(folder / "certificates")
    cluster = OxiaCluster(folder, tls=certificates, options=words)
    try:
        cluster.start()
        yield Guarded(cluster, certificates, key)
    finally:
        cluster.stop()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Guarded]:
    """One server of this test alone, which demands certificates."""
    certificates = make_certificates(tmp_path / "certificates")
    cluster = OxiaCluster(tmp_path, 1, tls=certificates)
    try:
        cluster.start()
        yield Guarded(cluster, certificates)
    finally:
        cluster.stop()


@pytest.fixture
def token_file(guarded: Guarded, tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(guarded.token())
    return file


async def failed_request(service: MetadataService) -> str:
    """Return what the driver says of a request to a leader; empty if it was answered."""
    connection = oxia_tree(service)._connection
    try:
        await connection.keep_alive(min(connection.known.leaders), 1, 10)
    except ConnectionLost as error:
        await asyncio.sleep(0.1)  # as the driver does
        return str(error)
    except SessionGone:
        pass
    return ""


async def write(file: Path, text: str) -> None:
    await asyncio.to_thread(file.write_text, text)


async def test_certificates_and_a_token_open_every_shard(guarded: Guarded, token_file: Path) -> None:
    """The coordinator names one of the leaders with `tls://`, and the others without."""
    service = await guarded.in_new_namespace(token_file=str(token_file))
    await service.cluster.initialize()
    await service.bookies.register("b:1", W, INFO)
    async with service.bookies.watch(W) as bookies:
        assert (await anext(bookies)).bookies == {"b:1"}
        await service.bookies.unregister("b:1", W)
        assert (await anext(bookies)).bookies == frozenset()
    for number in range(20):
        await service.ledgers.create(ledger(number))
    assert await listed(service) == list(range(20))
    assert len(oxia_tree(service)._open_sessions.ids) == 2
    await service.close()


@pytest.mark.parametrize(
    ("tls", "key"),
    [
        ({"authority": "stranger"}, "metadataServiceTrustStorePath"),
        ({"client": None}, "metadataServiceCertificatePath"),
        ({"client": "unknown"}, "metadataServiceCertificatePath"),
        (None, "metadataServiceTlsEnable"),
    ],
    ids=["another authority", "no certificate", "unknown certificate", "no TLS"],
)
async def test_a_failed_handshake_names_the_key_to_look_at(
    guarded: Guarded, tls: dict[str, str | None] | None, key: str
) -> None:
    with pytest.raises(MetadataUnavailable) as caught:
        await guarded.open(tls=None if tls is None else guarded.tls(**tls), timeout=4.0)  # type: ignore[arg-type]
    told = str(caught.value)
    assert (key in told.partition("(")[2], "\n" in told) == (True, False), told


@pytest.mark.parametrize("wrong", ["none", "expired", "audience", "issuer", "key"])
async def test_a_token_that_oxia_does_not_take_is_refused_at_once_and_not_shown(
    guarded: Guarded, tmp_path: Path, wrong: str
) -> None:
    token = {
        "none": lambda: "",
        "expired": lambda: guarded.token(exp=int(time.time()) - 60),
        "audience": lambda: guarded.token(aud="another"),
        "issuer": lambda: guarded.token(iss="https://another.example"),
        "key": lambda: guarded.token(key=rsa.generate_private_key(65537, 2048)),
    }[wrong]()
    (tmp_path / "token").write_text(token)
    started = time.monotonic()
    with pytest.raises(MetadataRefused) as caught:
        await guarded.open(timeout=60.0, **({"token_file": str(tmp_path / "token")} if token else {}))
    assert time.monotonic() - started < 30
    told = str(caught.value)
    assert ("metadataServiceTokenFile" in told, "\n" in told) == (True, False), told
    assert not token or token.rpartition(".")[2] not in told


async def test_a_session_outlives_a_token_that_was_replaced_too_late(
    guarded: Guarded, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_file, "CHECK_S", 0.0)
    service = await guarded.in_new_namespace(token_file=str(token_file), timeout=30.0)
    await service.cluster.initialize()
    session = service.tree.session_id
    await write(token_file, guarded.token(exp=int(time.time()) - 60))
    with pytest.raises(MetadataUnavailable):
        await service.ledgers.create(ledger(1), timeout=1.0)
    await until(lambda: service.session.state is SessionState.SUSPENDED, seconds=30)
    await write(token_file, guarded.token())
    await until(lambda: service.session.state is SessionState.CONNECTED, seconds=30)
    await service.ledgers.create(ledger(1))
    assert service.tree.session_id == session
    await service.close()


async def test_certificates_are_replaced_while_a_session_lasts(own: Guarded, tmp_path: Path) -> None:
    """All of them, by those of another authority: first those of the server, which starts again."""
    service = await own.in_new_namespace(timeout=60.0)
    await service.cluster.initialize()
    await service.bookies.register("b:1", W, INFO)
    session = service.tree.session_id
    (server,) = own.cluster.servers
    own.cluster.kill(server)
    Certificates(own.certificates).make_anew().make_named("server", "IP:127.0.0.1")
    own.cluster.restart(server)
    async with asyncio.timeout(60):
        while "metadataServiceTrustStorePath" not in await failed_request(service):
            pass  # nobody listens yet
    own.hand_out()
    await until(lambda: service.session.state is SessionState.CONNECTED, seconds=60)
    await service.ledgers.create(ledger(1))
    assert (service.tree.session_id, (await service.bookies.list(W)).bookies) == (session, {"b:1"})
    await service.close()
