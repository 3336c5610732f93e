"""The certificates of a cluster's admin API and of the metadata service that the operator runs.

The first is the operator's, made and renewed here, or one of the user's or of cert-manager, which is judged; the others
are always the operator's.

    CLUSTER-admin-ca     tls.crt, tls.key            the authority: no pod mounts it
    CLUSTER-admin-tls    tls.crt, tls.key, ca.crt    what pods mount, and read again when it changes
    CLUSTER-metadata-tls                             the same of the metadata service; others mount ca.crt alone
    CLUSTER-metadata-client                          the same of clients of etcd, which has to know them

An authority that follows another one has its key, so what either signed is good with both. One that was lost is
followed by a stranger: then `ca.crt` has the last one too, until the pods serve what the new one signed.

Invariants
- A Secret of that name that has another owner is never written; one of an earlier cluster of the name is waited for.
- What there is is replaced only when it is to be renewed, lacks something, or does not have the names that it should.
- A renewal that fails leaves what there is in use, and is tried again with the next pass.

Threads: one event loop; certificates are made and judged in threads (`certificates`).
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from bookie_operator.api.errors import Conflict
from bookie_operator.api.kinds import SECRET, KubernetesObject
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.builders import naming
from bookie_operator.builders.common import content_hash, is_outlived, is_own, manifest, owner_of
from bookie_operator.builders.container import admin_tls_secret
from bookie_operator.builders.metadata_uri import is_etcd, is_protected, member_hosts, metadata_host
from bookie_operator.builders.network import dns_names
from bookie_operator.builders.secrets import secret_data, secret_texts
from bookie_operator.crds import names
from bookie_operator.executor.workloads import apply_own
from bookie_operator.reconcile.certificates import (
    CLIENT,
    SERVER,
    CertificateError,
    Pair,
    Uses,
    fault_of,
    make_authority,
    make_certificate,
)
from bookie_operator.world.model import ClusterView

_log = structlog.get_logger(__name__)
_DAY_S: Final = 86_400.0
AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 365
_RENEWED_AFTER: Final = 2 / 3
"""Part of its time after which it is renewed: the rest is for clusters that are paused, and operators that are away."""
_JUDGED_S: Final = 600.0
"""Seconds for which a judgement of the user's certificate counts: it may expire meanwhile."""
_PART: Final = ("tls.crt", "tls.key", "ca.crt")
_END: Final = "-----END CERTIFICATE-----\n"
_AT: Final = "spec.tls.adminApi"


class AdminCertificates:
    """The admin certificates of all clusters of one operator."""

    def __init__(self) -> None:
        self._judged: dict[str, tuple[float, str]] = {}
        """Judgements by a hash of what was looked at: until when each counts, and the fault."""

    async def keep(self, kubernetes: Kubernetes, cluster: ClusterView, now: float) -> tuple[str, ...]:
        """Keep the certificates; return why pods cannot have them, as errors of `spec`; empty: they can.

        Raises KubernetesError; Conflict: it has to be looked at again soon.
        """
        if cluster.deleting:
            return ()
        return (*await self._of_admin(kubernetes, cluster, now), *await self._of_metadata(kubernetes, cluster, now))

    async def _of_metadata(self, kubernetes: Kubernetes, cluster: ClusterView, now: float) -> tuple[str, ...]:
        hosts = [metadata_host(cluster), *member_hosts(cluster).values()]
        server, client = naming.metadata_certificate(cluster.name), naming.metadata_client(cluster.name)
        wanted: dict[str, tuple[list[str], Uses]] = {}
        if is_protected(cluster):
            wanted = {server: (hosts, SERVER)}
        elif is_etcd(cluster):  # members are each other's clients
            wanted = {server: (hosts, SERVER | CLIENT), client: ([client], CLIENT)}
        faults: list[str] = []
        for name, (names_in_it, uses) in wanted.items():
            remedy = "give what is there another name"
            at = "spec.metadataService"
            faults += await _keep_own(kubernetes, cluster, name, names_in_it, now, at, remedy, uses)
        return tuple(faults)

    async def _of_admin(self, kubernetes: Kubernetes, cluster: ClusterView, now: float) -> tuple[str, ...]:
        wanted = cluster.spec.tls.admin_api
        if not wanted.enabled:
            return ()
        if wanted.secret_name is not None or wanted.issuer_ref is not None:
            by = "secretName" if wanted.secret_name is not None else "issuerRef"
            fault = await self._fault(kubernetes, cluster, now)
            return (f"{_AT}.{by}: {fault}",) if fault else ()
        name, remedy = naming.admin_certificate(cluster.name), "give secretName, or set enabled to false"
        return await _keep_own(kubernetes, cluster, name, dns_names(cluster), now, _AT, remedy)

    async def _fault(self, kubernetes: Kubernetes, cluster: ClusterView, now: float) -> str:
        """Return what is wrong with the Secret of the user or of cert-manager, with the remedy.

        Empty: it is good, or cert-manager is to make it, for which the planner waits.
        """
        name, users = admin_tls_secret(cluster), cluster.spec.tls.admin_api.secret_name is not None
        texts = secret_texts(await kubernetes.find(SECRET, cluster.namespace, name))
        if texts is None:
            return f"there is no Secret {name}; make it, with {', '.join(_PART)}" if users else ""
        lacking = [key for key in _PART if not texts.get(key)]
        if lacking:
            remedy = (
                "add what is missing" if users else "name an issuer that tells its authority, such as one of kind CA"
            )
            return f"Secret {name} has no {', '.join(lacking)}; {remedy}"
        host = naming.admin_server_name(cluster.name, cluster.namespace)
        content = content_hash([host, *(texts[key] for key in _PART)], length=64)
        until, fault = self._judged.get(content, (0.0, ""))
        if now >= until:
            try:
                pair = Pair(texts["tls.crt"], texts["tls.key"])
                fault = await asyncio.to_thread(fault_of, pair, texts["ca.crt"], host)
            except CertificateError as exc:  # bookies judge it themselves
                _log.warning("a certificate was not looked at", cluster=cluster.name, secret=name, reason=str(exc))
                fault = ""
            self._judged = {key: each for key, each in self._judged.items() if each[0] > now}
            self._judged[content] = (now + _JUDGED_S, fault)
        return f"the certificate of Secret {name} cannot be used: {fault}" if fault else ""


async def _keep_own(
    kubernetes: Kubernetes,
    cluster: ClusterView,
    name: str,
    hosts: list[str],
    now: float,
    field: str,
    remedy: str,
    uses: Uses = SERVER,
) -> tuple[str, ...]:
    """Keep a certificate that is the operator's; return what `AdminCertificates.keep` returns."""
    if cluster.paused:
        return ()
    found = await kubernetes.find(SECRET, cluster.namespace, name)
    authority = await kubernetes.find(SECRET, cluster.namespace, naming.admin_authority(cluster.name))
    for each in (found, authority):
        if each is not None and is_outlived(each, cluster):
            raise Conflict(f"Secret {each['metadata']['name']} of an earlier {cluster.name} is not gone yet")
        if each is not None and not is_own(each, cluster):
            whose = f"Secret {each['metadata']['name']} is not this cluster's own: {owner_of(each)}"
            return (f"{field}: {whose}; give it another name, or {remedy}",)
    if _is_good(found, _PART, now, ",".join(hosts)):
        return ()
    try:
        await _make(kubernetes, cluster, name, hosts, found, authority, now, uses)
    except CertificateError as exc:
        if found is not None:
            _log.error("the certificate cannot be renewed", cluster=cluster.name, secret=name, reason=str(exc))
            return ()
        return (f"{field}: no certificate can be made: {exc}; {remedy}",)
    return ()


async def _make(
    kubernetes: Kubernetes,
    cluster: ClusterView,
    name: str,
    hosts: list[str],
    before: KubernetesObject | None,
    signed_by: KubernetesObject | None,
    now: float,
    uses: Uses,
) -> None:
    authority = await _authority(kubernetes, cluster, signed_by, now)
    made = await asyncio.to_thread(make_certificate, authority, name, hosts, CERTIFICATE_DAYS, uses)
    first, end, _ = (secret_texts(before) or {}).get("ca.crt", "").partition(_END)
    last = first + end if end else ""
    known = "" if authority.certificate in last else last
    content = {"tls.crt": made.certificate, "tls.key": made.key, "ca.crt": authority.certificate + known}
    about = {names.CERTIFICATE_FOR: ",".join(hosts)}
    await _write(kubernetes, cluster, name, content, CERTIFICATE_DAYS, now, about)
    _log.info("made a certificate", secret=name, cluster=cluster.name, namespace=cluster.namespace)


async def _authority(kubernetes: Kubernetes, cluster: ClusterView, found: KubernetesObject | None, now: float) -> Pair:
    name = naming.admin_authority(cluster.name)
    texts = secret_texts(found) or {}
    if _is_good(found, _PART[:2], now):
        return Pair(texts["tls.crt"], texts["tls.key"])
    title = f"admin API of {cluster.name}"
    made = await asyncio.to_thread(make_authority, title, AUTHORITY_DAYS, texts.get("tls.key", ""))
    content = {"tls.crt": made.certificate, "tls.key": made.key}
    await _write(kubernetes, cluster, name, content, AUTHORITY_DAYS, now, {})
    return made


def _is_good(found: KubernetesObject | None, part: tuple[str, ...], now: float, hosts: str = "") -> bool:
    texts = secret_texts(found) or {}
    about = (found or {}).get("metadata", {}).get("annotations") or {}
    try:
        renew_at = float(about.get(names.RENEW_AT, "0"))
    except ValueError:
        return False
    return all(texts.get(key) for key in part) and now < renew_at and about.get(names.CERTIFICATE_FOR, "") == hosts


async def _write(
    kubernetes: Kubernetes,
    cluster: ClusterView,
    name: str,
    content: dict[str, str],
    days: int,
    now: float,
    annotations: dict[str, str],
) -> None:
    about = {**annotations, names.RENEW_AT: f"{now + days * _DAY_S * _RENEWED_AFTER:.0f}"}
    secret = {"type": "kubernetes.io/tls", "data": secret_data(content)}
    made = manifest(cluster, "v1", "Secret", name, naming.BOOKIE, secret, annotations=about)
    await apply_own(kubernetes, cluster, made)
