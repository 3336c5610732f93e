"""Certificates of the admin API: made once, renewed in time, and those of users judged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509

from bookie_operator.api.kinds import SECRET
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.builders.secrets import secret_data, secret_texts
from bookie_operator.crds.cluster_spec import BookieClusterSpec
from bookie_operator.crds.cluster_status import BookieClusterStatus
from bookie_operator.reconcile import certificates
from bookie_operator.reconcile.admin_certificate import AUTHORITY_DAYS, CERTIFICATE_DAYS, AdminCertificates
from bookie_operator.reconcile.certificates import Pair, fault_of, make_authority, make_certificate
from bookie_operator.world.model import ClusterView
from tests.support.fake_kubernetes.cluster import SPEC
from tests.support.fake_kubernetes.serving import NOW, kubernetes_alone
from tests.support.fake_kubernetes.store import Store

DAY_S = 86_400.0
NO_STATUS = BookieClusterStatus()
HOST = "demo-bookie.storage.svc"
POD = f"demo-bookie-0.{HOST}"
SERVED, AUTHORITY, ISSUED = "demo-admin-tls", "demo-admin-ca", "demo-admin-issued"


class Kept:
    """A cluster without anything but Secrets."""

    def __init__(self, kubernetes: Kubernetes, store: Store) -> None:
        self.kubernetes = kubernetes
        self.store = store
        self.certificates = AdminCertificates()

    async def keep(
        self, now: float = NOW, *, paused: bool = False, embedded: bool = False, **admin_api: Any
    ) -> tuple[str, ...]:
        more = {"metadataService": {"type": "Embedded"}} if embedded else {}
        spec = BookieClusterSpec.model_validate({**SPEC, "tls": {"adminApi": admin_api}, **more})
        marks = {"podkeeper.dev/paused": "true"} if paused else {}
        view = ClusterView(
            name="demo", namespace="storage", uid="u", generation=1, spec=spec, status=NO_STATUS, annotations=marks
        )
        return await self.certificates.keep(self.kubernetes, view, now)

    def texts(self, name: str = SERVED) -> dict[str, str]:
        found = secret_texts(self.store.find(SECRET, "storage", name))
        assert found is not None, name
        return found

    def put(self, texts: dict[str, str]) -> None:
        if self.store.find(SECRET, "storage", "mine") is None:
            self.store.create(SECRET, "storage", {"metadata": {"name": "mine"}})
        self.store.patch(SECRET, "storage", "mine", {"data": secret_data(texts)})


@pytest.fixture
async def kept() -> AsyncIterator[Kept]:
    async with kubernetes_alone() as (kubernetes, server):
        yield Kept(kubernetes, server.store)


def fault(texts: dict[str, str], authorities: str, host: str = HOST) -> str:
    return fault_of(Pair(texts["tls.crt"], texts["tls.key"]), authorities, host)


async def test_the_embedded_metadata_service_has_a_certificate_of_its_own(kept: Kept) -> None:
    """Of the same authority, whoever makes that of the admin API; other pods need its `ca.crt` alone."""
    assert await kept.keep(embedded=True, enabled=False) == ()
    made = kept.texts("demo-metadata-tls")
    assert fault(made, made["ca.crt"], "demo-metadata.storage.svc") == ""
    assert kept.store.find(SECRET, "storage", SERVED) is None
    assert await kept.keep(embedded=True) == ()
    assert kept.texts("demo-metadata-tls") == made
    assert kept.texts()["ca.crt"] == made["ca.crt"]


async def test_a_secret_of_the_metadata_services_name_that_somebody_else_made_is_left_alone(kept: Kept) -> None:
    theirs = {"metadata": {"name": "demo-metadata-tls"}, "data": secret_data({"mine": "x"})}
    kept.store.create(SECRET, "storage", theirs)
    (error,) = await kept.keep(embedded=True, enabled=False)
    assert "Secret demo-metadata-tls is not this cluster's own" in error
    assert kept.texts("demo-metadata-tls") == {"mine": "x"}
    kept.store.delete(SECRET, "storage", "demo-metadata-tls")  # it has another name now
    assert await kept.keep(embedded=True, enabled=False) == ()


async def test_a_certificate_is_made_once(kept: Kept) -> None:
    assert await kept.keep() == ()
    made = kept.texts()
    for host in (HOST, POD, "demo-client.storage.svc"):
        assert fault(made, made["ca.crt"], host) == ""
    assert "it does not name elsewhere" in fault(made, made["ca.crt"], "elsewhere")
    assert "PRIVATE KEY" not in made["ca.crt"] + made["tls.crt"]
    owner = kept.store.get(SECRET, "storage", SERVED)["metadata"]["ownerReferences"]
    assert [each["kind"] for each in owner] == ["BookieCluster"]
    assert await kept.keep(NOW + CERTIFICATE_DAYS * DAY_S / 2) == ()
    assert kept.texts() == made


@pytest.mark.parametrize("make", [make_authority, lambda *_: make_certificate(make_authority("a", 2), "a", ["b"], 2)])
def test_a_certificate_is_valid_on_nodes_whose_clocks_are_behind(make: Any) -> None:
    now, pair = datetime.now(UTC), make("a", 2)
    begins = x509.load_pem_x509_certificate(pair.certificate.encode()).not_valid_before_utc
    assert timedelta(minutes=4) < now - begins < timedelta(minutes=6)


async def test_it_is_renewed_before_it_ends_and_nobody_has_to_trust_anew(kept: Kept) -> None:
    await kept.keep()
    first = kept.texts()
    assert await kept.keep(NOW + CERTIFICATE_DAYS * DAY_S * 0.7) == ()
    second = kept.texts()
    assert second["tls.crt"] != first["tls.crt"]
    assert second["ca.crt"] == first["ca.crt"]
    assert await kept.keep(NOW + AUTHORITY_DAYS * DAY_S * 0.9) == ()
    third = kept.texts()
    assert kept.texts(AUTHORITY)["tls.crt"] not in second["ca.crt"], "the authority is another one"
    assert fault(third, first["ca.crt"]) == "", "its key is not: who has not heard of it trusts what it signs"
    assert fault(first, kept.texts(AUTHORITY)["tls.crt"]) == ""


async def test_after_the_loss_of_the_authority_what_it_signed_is_trusted_until_pods_have_the_new_one(
    kept: Kept,
) -> None:
    await kept.keep()
    first = kept.texts()
    kept.store.delete(SECRET, "storage", AUTHORITY)
    assert await kept.keep() == ()
    assert kept.texts() == first, "nothing is amiss before the next renewal"
    await kept.keep(NOW + CERTIFICATE_DAYS * DAY_S * 0.7)
    second = kept.texts()
    assert fault(second, first["ca.crt"]) != ""
    assert fault(second, second["ca.crt"]) == fault(first, second["ca.crt"]) == ""


@pytest.mark.parametrize("key", ["tls.crt", "tls.key", "ca.crt"])
async def test_what_was_spoilt_is_made_anew(kept: Kept, key: str) -> None:
    await kept.keep()
    kept.store.patch(SECRET, "storage", SERVED, {"data": {key: None}})
    assert await kept.keep() == ()
    made = kept.texts()
    assert fault(made, made["ca.crt"]) == ""


async def test_none_is_made_where_none_is_wanted(kept: Kept) -> None:
    assert await kept.keep(enabled=False) == ()
    assert await kept.keep(paused=True) == ()
    assert kept.store.list(SECRET, "storage") == []


@pytest.mark.parametrize("damaged", ["tls.crt", "tls.key"])
async def test_an_authority_that_cannot_be_used_is_told_with_a_remedy_and_certificates_stay(
    kept: Kept, damaged: str
) -> None:
    await kept.keep()
    served = kept.texts()
    kept.store.patch(SECRET, "storage", AUTHORITY, {"data": secret_data({damaged: "damaged"})})
    assert await kept.keep(NOW + CERTIFICATE_DAYS * DAY_S * 0.7) == (), "the one in use is good still"
    assert kept.texts() == served
    kept.store.delete(SECRET, "storage", SERVED)
    (error,) = await kept.keep()
    assert error.startswith("spec.tls.adminApi: no certificate can be made: ")
    assert error.endswith("give secretName, or set enabled to false")
    assert await kept.keep(enabled=False) == ()


async def test_a_secret_of_the_user_is_judged(kept: Kept) -> None:
    async def told() -> str:
        errors = await kept.keep(secretName="mine")
        assert all(each.startswith("spec.tls.adminApi.secretName: ") for each in errors)
        return "".join(errors)

    assert "there is no Secret mine; make it, with tls.crt, tls.key, ca.crt" in await told()
    authority = make_authority("ours", 30)
    good = make_certificate(authority, "x", [HOST, f"*.{HOST}"], 30)
    kept.put({"tls.crt": good.certificate, "tls.key": good.key})
    assert "Secret mine has no ca.crt; add what is missing" in await told()
    kept.put({"ca.crt": authority.certificate})
    assert await told() == ""
    assert kept.store.find(SECRET, "storage", SERVED) is None, "the operator makes none beside it"
    other = make_certificate(authority, "x", ["elsewhere"], 30)
    kept.put({"tls.crt": other.certificate})
    assert "no PEM files that belong together" in await told()
    kept.put({"tls.key": other.key})
    assert f"it does not name {HOST}: make one that does" in await told()
    kept.put({"tls.crt": good.certificate, "tls.key": good.key, "ca.crt": make_authority("theirs", 30).certificate})
    assert "ca.crt has not the authority that signed it" in await told()
    kept.put({"ca.crt": "no certificate"})
    assert "ca.crt has not the authority that signed it" in await told()
    kept.put({"ca.crt": authority.certificate})
    assert await told() == ""


async def test_one_of_cert_manager_is_judged_once_it_is_there(kept: Kept) -> None:
    issuer = {"name": "ca"}
    assert await kept.keep(issuerRef=issuer) == (), "the planner waits for it"
    assert kept.store.list(SECRET, "storage") == [], "the operator makes none beside it"
    authority = make_authority("ours", 30)
    good = make_certificate(authority, "x", [HOST, f"*.{HOST}"], 30)
    texts = {"tls.crt": good.certificate, "tls.key": good.key}
    kept.store.create(SECRET, "storage", {"metadata": {"name": ISSUED}, "data": secret_data(texts)})
    (error,) = await kept.keep(issuerRef=issuer)
    assert error.startswith(
        f"spec.tls.adminApi.issuerRef: Secret {ISSUED} has no ca.crt; name an issuer that tells its"
    )
    kept.store.patch(SECRET, "storage", ISSUED, {"data": secret_data({"ca.crt": authority.certificate})})
    assert await kept.keep(issuerRef=issuer) == ()


@pytest.mark.parametrize(
    ("made", "reason"), [(-20, "it has expired: renew it"), (0, ""), (5, "it is not valid yet: look at the clocks")]
)
def test_one_that_is_over_or_not_valid_yet(monkeypatch: pytest.MonkeyPatch, made: int, reason: str) -> None:
    """`made`: days from now."""
    authority = make_authority("ours", 30)
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "_now", lambda: datetime.now(UTC) + timedelta(days=made))
        certificate = make_certificate(authority, "x", [HOST], 10)
    assert fault_of(certificate, authority.certificate, HOST) == reason


def test_certificates_are_those_that_openssl_made() -> None:
    """The extensions, their order of importance, and names longer than a common name may be."""
    authority = make_authority("a" * 70, 30)
    shown = x509.load_pem_x509_certificate(authority.certificate.encode())
    assert shown.subject.rfc4514_string() == "CN=" + "a" * 64
    assert {each.oid._name: each.critical for each in shown.extensions} == {
        "basicConstraints": True,
        "keyUsage": True,
        "subjectKeyIdentifier": False,
    }
    made = x509.load_pem_x509_certificate(make_certificate(authority, "x", [HOST], 30).certificate.encode())
    made.verify_directly_issued_by(shown)
    assert {each.oid._name: each.critical for each in made.extensions} == {
        "authorityKeyIdentifier": False,
        "basicConstraints": True,
        "extendedKeyUsage": False,
        "keyUsage": True,
        "subjectAltName": False,
        "subjectKeyIdentifier": False,
    }


def test_a_server_may_not_sign_others() -> None:
    authority = make_authority("ours", 30)
    server = make_certificate(authority, "x", [HOST], 30)
    forged = make_certificate(server, "x", [HOST], 30)
    chain = Pair(forged.certificate + server.certificate, forged.key)
    assert fault_of(chain, authority.certificate, HOST) != ""
