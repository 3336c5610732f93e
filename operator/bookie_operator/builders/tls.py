"""The certificate that cert-manager makes, where `spec.tls` names an issuer.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from bookie_operator.builders import naming
from bookie_operator.builders.common import manifest
from bookie_operator.builders.container import tls_secret
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.hashing import Manifest
from bookie_operator.world.model import ClusterView


def certificate(cluster: ClusterView, context: BuildContext) -> Manifest | None:
    """None: the user brings one, or this Kubernetes has no cert-manager."""
    tls = cluster.spec.tls
    if not tls.enabled or tls.issuer_ref is None or not context.has_cert_manager:
        return None
    name = naming.certificate(cluster.name)
    spec = {
        "secretName": tls_secret(cluster),
        "issuerRef": dict(tls.issuer_ref),
        "dnsNames": dns_names(cluster),
        "usages": ["server auth", "client auth"],  # bookies are clients of each other
        "privateKey": {"algorithm": "ECDSA", "size": 256, "encoding": "PKCS8", "rotationPolicy": "Always"},
    }
    return manifest(cluster, "cert-manager.io/v1", "Certificate", name, naming.BOOKIE, {"spec": spec})


def dns_names(cluster: ClusterView) -> list[str]:
    """What clients may call the bookies: each by its bookie id, and all of them by their Services."""
    bookies = naming.admin_server_name(cluster.name, cluster.namespace)
    client = naming.client_service(cluster.name)
    return [f"*.{bookies}", bookies, client, f"{client}.{cluster.namespace}", f"{client}.{cluster.namespace}.svc"]
