"""The admin API over HTTPS: only who shows a certificate of the pod's own Secret is taken for a pod."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from bookie_operator.api.admin import Admin, AdminUnreachable, Endpoint
from bookie_operator.api.kinds import SECRET
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.api.trust import Trust
from bookie_operator.builders.secrets import secret_data
from tests.support.certificates import Certificates
from tests.support.fake_kubernetes.serving import kubernetes_alone
from tests.support.fake_kubernetes.store import Store
from tests.support.served_admin import TOKEN, ServedAdmin

NAME = "demo-bookie.storage.svc"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("certificates")).make_all()
    made.make_named("pod", f"DNS:*.{NAME},DNS:{NAME}")
    return made


@pytest.fixture
async def api() -> AsyncIterator[tuple[Kubernetes, Store]]:
    async with kubernetes_alone() as (kubernetes, server):
        yield kubernetes, server.store


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as found:
        yield found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Endpoint]:
    """A pod."""
    file = tmp_path_factory.mktemp("admin") / "token"
    file.write_text(f"{TOKEN}\n")
    server = ServedAdmin(
        file,
        tls_enable=True,
        tls_client_authentication=False,
        certificate_path=str(certificates.folder / "pod.pem"),
        key_store_path=str(certificates.folder / "pod.key"),
    )
    yield Endpoint("pod-0", "127.0.0.1", int(server.url.rpartition(":")[2]), "demo-admin-tls")
    server.stop()


def put(store: Store, texts: dict[str, str]) -> None:
    store.create(SECRET, "storage", {"metadata": {"name": "demo-admin-tls"}, "data": secret_data(texts)})


@pytest.mark.parametrize(
    ("authority", "name", "reached"),
    [("authority", NAME, True), ("authority", "other-bookie.storage.svc", False), ("stranger", NAME, False)],
    ids=["its own", "of another cluster", "of another authority"],
)
async def test_who_is_a_pod(
    api: tuple[Kubernetes, Store],
    session: aiohttp.ClientSession,
    served: Endpoint,
    certificates: Certificates,
    authority: str,
    name: str,
    reached: bool,
) -> None:
    kubernetes, store = api
    put(store, {"ca.crt": (certificates.folder / f"{authority}.pem").read_text()})
    admin = Admin(session, TOKEN, trust=Trust(kubernetes, "storage", name))
    assert (await admin.bookie_facts(served) is not None) is reached
    if not reached:
        with pytest.raises(AdminUnreachable, match="certificate"):
            await admin.set_read_only(served, True)


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (None, "pod-0: there is no Secret demo-admin-tls, so its pods cannot be verified"),
        ({"tls.crt": "x"}, "pod-0: there is no ca.crt in Secret demo-admin-tls"),
        ({"ca.crt": "x"}, "pod-0: ca.crt of Secret demo-admin-tls holds no PEM certificates"),
    ],
    ids=["no Secret", "no authority", "no PEM"],
)
async def test_nobody_is_trusted_without_an_authority(
    api: tuple[Kubernetes, Store], session: aiohttp.ClientSession, texts: dict[str, str] | None, why: str
) -> None:
    kubernetes, store = api
    if texts is not None:
        put(store, texts)
    admin = Admin(session, TOKEN, trust=Trust(kubernetes, "storage", NAME))
    with pytest.raises(AdminUnreachable) as told:
        await admin.cluster_facts(Endpoint("pod-0", "127.0.0.1", 1, "demo-admin-tls"))
    assert str(told.value).startswith(why)


def test_what_is_spoken_follows_from_the_secret() -> None:
    assert Endpoint("p", "10.0.0.1", secret="s").url == "https://10.0.0.1:8000"
