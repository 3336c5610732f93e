"""Who may use an etcd: users, certificates, and passwords that nobody is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bookie_protocol.errors import InvalidConfiguration, MetadataRefused, MetadataUnavailable
from bookie_protocol.metadata_service.etcd.connection import EtcdConnection
from bookie_protocol.metadata_service.etcd.tree import EtcdTree
from bookie_protocol.metadata_service.options import MetadataTls
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.support.certificates import Certificates
from tests.support.etcd import EtcdServer
from tests.support.metadata_examples import INFO, W, ledger, listed

pytestmark = pytest.mark.etcd

PASSWORD = "s3cret-of-podkeeper"


@dataclass
class Guarded:
    server: EtcdServer
    certificates: Path

    def tls(self, client: str | None = "client") -> MetadataTls:
        folder = self.certificates
        return MetadataTls(
            ca_file=f"{folder}/authority.pem",
            certificate_file=None if client is None else f"{folder}/{client}.pem",
            key_file=None if client is None else f"{folder}/{client}.key",
        )

    async def open(
        self, root: str = "/podkeeper", *, user: str = "podkeeper", password: str = PASSWORD, timeout: float = 10.0
    ) -> MetadataService:
        auth = (("digest", f"{user}:{password}"),) if user else ()
        return await open_metadata_service(self.server.uri(root), tls=self.tls(), auth=auth, timeout=timeout)

    def as_root(self, *words: str) -> str:
        return self.server.control("--user", "root:root", *words)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """TLS with certificates of clients, and users; `podkeeper` has a role for `/podkeeper/`."""
    folder = tmp_path_factory.mktemp("certificates")
    certificates = Certificates(folder).make_all()
    certificates.make_named("server", "IP:127.0.0.1")
    server = EtcdServer(tmp_path_factory.mktemp("guarded"), tls=folder)
    server.start()
    try:
        for words in (
            ("user", "add", "root:root"),
            ("user", "grant-role", "root", "root"),
            ("role", "add", "podkeeper"),
            ("role", "grant-permission", "podkeeper", "readwrite", "/podkeeper/", "--prefix=true"),
            ("user", "add", f"podkeeper:{PASSWORD}"),
            ("user", "grant-role", "podkeeper", "podkeeper"),
            ("auth", "enable"),
        ):
            server.control(*words)
        yield Guarded(server, folder)
    finally:
        server.stop()


async def test_a_user_over_tls_needs_no_more_than_the_prefix(guarded: Guarded) -> None:
    service = await guarded.open()
    await service.cluster.initialize()
    await service.bookies.register("b:1", W, INFO)
    assert await service.bookies.rack_assignments() == b""
    assert await service.ledgers.generate_id() == 0
    await service.ledgers.create(ledger(1))
    async with service.ledgers.watch(1) as changes:
        found = await anext(changes)
        assert found is not None
        await service.ledgers.write(found.value.in_recovery(), found.identity)
        second = await anext(changes)
        assert second is not None
        assert second.version == 1
    assert await listed(service) == [1]
    # the token of before is not taken any more, and nobody hears of it
    guarded.as_root("role", "add", "another")
    await service.ledgers.create(ledger(2))
    guarded.as_root("role", "delete", "another")
    async with service.bookies.watch(W) as bookies:
        assert (await anext(bookies)).bookies == {"b:1"}
        await service.bookies.unregister("b:1", W)
        assert (await anext(bookies)).bookies == frozenset()
    await service.cluster.nuke(instance_id=await service.cluster.instance_id(), with_ledgers=True)
    await service.close()


@pytest.mark.parametrize(
    ("user", "password", "root", "told"),
    [
        ("podkeeper", PASSWORD + "x", "/podkeeper", "zkAuthCredentialsPath"),
        ("nobody", PASSWORD, "/podkeeper", "zkAuthCredentialsPath"),
        ("podkeeper", PASSWORD, "/elsewhere", "/elsewhere/.*readwrite"),
        ("", "", "/podkeeper", "zkAuthCredentialsPath"),
    ],
)
async def test_whoever_may_not_is_told_at_once_and_no_password(
    guarded: Guarded, user: str, password: str, root: str, told: str
) -> None:
    started = asyncio.get_running_loop().time()
    with pytest.raises(MetadataRefused, match=told) as caught:
        await guarded.open(root, user=user, password=password, timeout=30.0)
    assert asyncio.get_running_loop().time() - started < 20
    chain: BaseException | None = caught.value
    while chain is not None:
        assert PASSWORD not in f"{chain!r}{getattr(chain, 'debug_error_string', str)()}"
        chain = chain.__cause__ or chain.__context__


async def test_a_certificate_that_nobody_signed_is_no_way_in(guarded: Guarded) -> None:
    with pytest.raises(MetadataUnavailable) as caught:
        await open_metadata_service(guarded.server.uri(), tls=guarded.tls(None), timeout=1.5)
    assert not isinstance(caught.value, MetadataRefused)


async def test_a_password_is_not_said_aloud() -> None:
    auth = (("digest", f"podkeeper:{PASSWORD}"),)
    with pytest.raises(InvalidConfiguration, match="metadataServiceTlsEnable=true") as caught:
        await open_metadata_service("etcd://etcd.example:2379/podkeeper", auth=auth, timeout=1.0)
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [({"token_file": "/a"}, "metadataServiceTokenFile"), ({"secure": True}, "zkEnableSecurity")],
)
async def test_what_etcd_does_not_have_is_refused_by_name(options: dict[str, object], told: str) -> None:
    given = {"auth": (("digest", "a:b"),), **options}
    with pytest.raises(InvalidConfiguration, match=told):
        await open_metadata_service("etcd://127.0.0.1:1/podkeeper", timeout=1.0, **given)  # type: ignore[arg-type]


async def test_a_server_without_users_takes_those_that_name_one(etcd: EtcdServer) -> None:
    connection = EtcdConnection(etcd.endpoints.split(","), None, ("podkeeper", PASSWORD), "/without-users")
    tree = EtcdTree(connection, "/without-users", 5.0)
    await tree.connect()
    assert await tree.exists("/without-users", timeout=5) is None
    await tree.close()
