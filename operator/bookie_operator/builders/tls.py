"""The certificates that cert-manager makes, where `spec.tls` names issuers: of bookies, and of their admin API.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bookie_operator.builders import naming
from bookie_operator.builders.common import Manifest, manifest
from bookie_operator.builders.container import admin_tls_secret, tls_secret
from bookie_operator.builders.context import BuildContext
from bookie_operator.world.model import ClusterView


@dataclass(frozen=True)
class _Issued:
    secret: str
    issuer: Mapping[str, Any]
    usages: tuple[str, ...]
    hosts: list[str]


def _issued(cluster: ClusterView) -> Iterator[_Issued]:
    tls = cluster.spec.tls
    if tls.enabled and tls.issuer_ref is not None:
        # Bookies are clients of each other.
        hosts = [*dns_names(cluster), *_gateway_names(cluster)]
        yield _Issued(tls_secret(cluster), tls.issuer_ref, ("server auth", "client auth"), hosts)
    if tls.admin_api.enabled and tls.admin_api.issuer_ref is not None:
        yield _Issued(admin_tls_secret(cluster), tls.admin_api.issuer_ref, ("server auth",), dns_names(cluster))


def issued_secrets(cluster: ClusterView) -> tuple[str, ...]:
    """Names of the Secrets that pods mount and cert-manager is to fill."""
    return tuple(each.secret for each in _issued(cluster))


def certificates(cluster: ClusterView, context: BuildContext) -> list[Manifest]:
    """One for each of `issued_secrets`, with its name; empty also where this Kubernetes has no cert-manager."""
    return [_certificate(cluster, each) for each in _issued(cluster)] if context.has_cert_manager else []


def _certificate(cluster: ClusterView, of: _Issued) -> Manifest:
    spec = {
        "secretName": of.secret,
        "issuerRef": dict(of.issuer),
        "dnsNames": of.hosts,
        "usages": list(of.usages),
        "privateKey": {"algorithm": "ECDSA", "size": 256, "encoding": "PKCS8", "rotationPolicy": "Always"},
    }
    return manifest(cluster, "cert-manager.io/v1", "Certificate", of.secret, naming.BOOKIE, {"spec": spec})


def dns_names(cluster: ClusterView) -> list[str]:
    """What clients may call the bookies: each by its bookie id, and all of them by their Services."""
    bookies = naming.admin_server_name(cluster.name, cluster.namespace)
    return [f"*.{bookies}", bookies, *_service_names(cluster, naming.client_service(cluster.name))]


def _gateway_names(cluster: ClusterView) -> list[str]:
    """What clients may call the gateways that run by themselves; empty: there are none."""
    return _service_names(cluster, naming.gateway(cluster.name)) if cluster.spec.gateway.enabled else []


def _service_names(cluster: ClusterView, name: str) -> list[str]:
    return [name, f"{name}.{cluster.namespace}", f"{name}.{cluster.namespace}.svc"]
