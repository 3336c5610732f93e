"""HTTPS of the admin API through all that changes, against an API server and pods in this process: bookies that serve
HTTP and those that serve HTTPS are reached alike."""

from __future__ import annotations

from typing import Any

from bookie_operator.api.kinds import CERTIFICATE, CLUSTER, POD, SECRET, STATEFUL_SET
from bookie_operator.builders.inputs import inputs_hash, record
from bookie_operator.builders.secrets import secret_data
from bookie_operator.crds import names
from bookie_operator.observe.others import cluster_view
from bookie_operator.reconcile.certificates import make_authority, make_certificate
from tests.support.fake_kubernetes.cluster import (
    NAME,
    NAMESPACE,
    FakeCluster,
    admin_secret,
    fake_cluster,
    settled_cluster,
)

SET = f"{NAME}-bookie"
HOST = f"{SET}.{NAMESPACE}.svc"
OFF = {"adminApi": {"enabled": False}}
ON = {"adminApi": {"enabled": True}}


def secrets(fake: FakeCluster, component: str = "bookie") -> set[str]:
    """With which the pods serve; empty text: HTTP."""
    return {admin_secret(pod) for pod in fake.store.list(POD, NAMESPACE, f"{names.COMPONENT}={component}")}


def put(fake: FakeCluster, name: str, texts: dict[str, str]) -> None:
    fake.store.create(SECRET, NAMESPACE, {"metadata": {"name": name}, "data": secret_data(texts)})


def own_certificate() -> dict[str, str]:
    authority = make_authority("ours", 30)
    made = make_certificate(authority, "x", [HOST, f"*.{HOST}"], 30)
    return {"tls.crt": made.certificate, "tls.key": made.key, "ca.crt": authority.certificate}


async def test_by_default_everything_is_encrypted_and_at_rest_nothing_is_written() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=3)
        await fake.settle()
        assert secrets(fake) == secrets(fake, "autorecovery") == {f"{NAME}-admin-tls"}
        assert fake.admin.encrypted == len(fake.admin.requests) > 0
        for _ in range(5):
            await fake.one_pass()
        written = len(fake.server.writes())
        for _ in range(10):
            await fake.one_pass()
        assert len(fake.server.writes()) == written


async def test_bookies_are_reached_while_it_is_switched_on_and_off() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=4, tls=OFF)
        await fake.settle()
        assert secrets(fake) == {""}
        assert fake.admin.encrypted == 0
        assert fake.store.find(SECRET, NAMESPACE, f"{NAME}-admin-tls") is None
        seen: list[set[str]] = []
        for tls, served in ((ON, f"{NAME}-admin-tls"), (OFF, "")):
            fake.apply(replicas=4, tls=tls)
            for _ in range(200):
                await fake.one_pass()
                assert fake.reason("Available") != "MetadataUnreachable"
                seen.append(secrets(fake))
                if seen[-1] == {served} and fake.reason("Upgrading") == "NotUnderWay":
                    break
            assert secrets(fake) == {served}
            await fake.settle()
        assert {"", f"{NAME}-admin-tls"} in seen, "it is done one bookie after the other"


async def test_an_upgrade_of_the_operator_leaves_bookies_with_http_and_reaches_them() -> None:
    async with settled_cluster(replicas=3, tls=OFF) as fake:
        before = {name: uid for name, uid in fake.uids().items() if name in fake.pods()}
        of_an_earlier_release(fake)
        for _ in range(25):
            await fake.one_pass()
        assert {name: uid for name, uid in fake.uids().items() if name in fake.pods()} == before
        assert secrets(fake) == {""}
        assert secrets(fake, "autorecovery") == {f"{NAME}-admin-tls"}
        assert (fake.condition("Ready"), fake.reason("Upgrading")) == ("True", "NewerTemplateWaits")
        fake.fill(9, 3)
        fake.apply(replicas=3, version="0.1.1", tls=None)
        await fake.settle()
        assert secrets(fake) == {f"{NAME}-admin-tls"}
        assert fake.whole()


def of_an_earlier_release(fake: FakeCluster) -> None:
    """Nobody has asked for HTTP: the release that made the template knew nothing else."""
    resource: dict[str, Any] = fake.store.patch(CLUSTER, NAMESPACE, NAME, {"spec": {"tls": None}})
    inputs = inputs_hash(cluster_view(resource))
    has = fake.store.get(STATEFUL_SET, NAMESPACE, SET)["metadata"]["annotations"][names.TEMPLATE_HASH]
    mark = {names.TEMPLATE_INPUTS: record(has, inputs)}
    fake.store.patch(STATEFUL_SET, NAMESPACE, SET, {"metadata": {"annotations": mark}})


async def test_a_secret_of_the_user_that_is_not_there_stops_the_change_and_is_told() -> None:
    async with settled_cluster(replicas=3) as fake:
        before = fake.uids()
        fake.apply(replicas=3, tls={"adminApi": {"secretName": "mine"}})
        for _ in range(10):
            await fake.one_pass()
        assert (fake.condition("SpecValid"), fake.condition("Stalled")) == ("False", "True")
        assert "spec.tls.adminApi.secretName: there is no Secret mine; make it" in fake.message("SpecValid")
        assert fake.uids() == before
        put(fake, "mine", own_certificate())
        await fake.settle()
        assert secrets(fake) == secrets(fake, "autorecovery") == {"mine"}
        assert fake.condition("SpecValid") == "True"


async def test_a_change_to_an_issuer_waits_for_its_certificate() -> None:
    """No bookie is stopped for a certificate that cert-manager has not made, or cannot make."""
    issued = f"{NAME}-admin-issued"
    async with settled_cluster(replicas=4) as fake:
        before = fake.uids()
        fake.apply(replicas=4, tls={"adminApi": {"issuerRef": {"name": "ca"}}})
        for _ in range(10):
            await fake.one_pass()
        assert fake.uids() == before
        assert (fake.reason("Ready"), fake.condition("Stalled")) == ("CertificatePending", "False")
        assert f"kubectl describe certificate {issued}" in fake.message("Ready")
        made = fake.store.get(CERTIFICATE, NAMESPACE, issued)["spec"]
        assert (made["secretName"], made["issuerRef"]) == (issued, {"name": "ca"})

        put(fake, issued, own_certificate())
        await fake.settle()
        assert secrets(fake) == secrets(fake, "autorecovery") == {issued}
        assert fake.condition("Ready") == "True"

        fake.apply(replicas=4, tls=ON | {"adminApi": {"issuerRef": None}})
        await fake.settle()
        assert secrets(fake) == {f"{NAME}-admin-tls"}
        assert fake.store.find(CERTIFICATE, NAMESPACE, issued) is None


async def test_an_issuer_without_cert_manager_is_told() -> None:
    async with fake_cluster() as fake:
        fake.server.unknown.add("certificates")
        fake.apply(replicas=3, tls={"adminApi": {"issuerRef": {"name": "ca"}}})
        await fake.until(lambda: fake.reason("Stalled") == "CertificatePending")
        assert "there is no cert-manager here that could make Secret" in fake.message("Stalled")
        assert "spec.tls.adminApi.issuerRef: there is no cert-manager here; install it" in fake.message("SpecValid")
        assert fake.pods() == []


async def test_a_new_certificate_restarts_nobody() -> None:
    async with settled_cluster(replicas=3) as fake:
        before, first = fake.uids(), fake.store.get(SECRET, NAMESPACE, f"{NAME}-admin-tls")["data"]
        fake.time += 300 * 86_400.0
        for _ in range(5):
            await fake.one_pass()
        assert fake.store.get(SECRET, NAMESPACE, f"{NAME}-admin-tls")["data"] != first
        assert fake.uids() == before
        assert fake.condition("Ready") == "True"
