"""The network of a cluster's pods: Services, network policies, and certificates.

The policies say who may use which port, and what the pods may reach. cert-manager makes the certificates of bookies and
of their admin API, where `spec.tls` names issuers.

Services give the bookies names, and clients that speak gRPC or HTTP one address.

Network policies. In: the data ports, and the HTTP port with probes (the kubelet is always let through), metrics and the
admin API. No pod of another namespace but the operator may use any of them, unless `spec.networkPolicy` names it. Out:
DNS, the metadata service, bookies, which may be others' in the same root (Apache's, while a cluster moves), and what
`spec.networkPolicy.egress` adds. Only the users of jobs know what these have to reach, such as object stores: they
reach everything (`jobs.build` says what reaches them).

Threads: pure functions, any thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bookie_operator.builders import naming
from bookie_operator.builders.common import MANAGER, Manifest, manifest, selector
from bookie_operator.builders.container import admin_tls_secret, http_port, tls_secret
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.jobs import common as jobs
from bookie_operator.builders.metadata_uri import is_etcd, metadata_service_uri, moves_to
from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import MetadataServiceKind
from bookie_operator.world.model import ClusterView

NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
EVERY_POD: Final[dict[str, Any]] = {"podSelector": {}}
"""Peer for every pod of the namespace."""
_OF_JOBS: Final = (jobs.DRIVER, jobs.EXECUTOR)
_DNS_PORTS: Final = (53, 5353)
"""The second one is that of OpenShift's pods behind the first."""
_ZOOKEEPER_PORT: Final = 2181
_PORTS: Final = {"etcd": 2379, "oxia": 6648}
_HOST: Final = re.compile(r"(\[[^]]*\]|[^:]*)(?::([0-9]{1,5}))?")


def network_policies(cluster: ClusterView, context: BuildContext) -> list[Manifest]:
    """None if `spec.networkPolicy` says so."""
    if not cluster.spec.network_policy.enabled:
        return []
    data = _rule(_peers(cluster, cluster.spec.network_policy.clients), naming.BOOKIE_PORT, naming.GRPC_PORT)
    admin = _rule(_admins(cluster, context), naming.HTTP_PORT)
    policies = [
        _policy(cluster, naming.bookies(cluster.name), naming.BOOKIE, [data, admin]),
        _egress(cluster),
    ]
    if cluster.spec.autorecovery.enabled:
        policies.append(_policy(cluster, naming.autorecovery(cluster.name), naming.AUTORECOVERY, [admin]))
    if cluster.spec.gateway.enabled:
        grpc = _rule(_peers(cluster, cluster.spec.network_policy.clients), naming.GRPC_PORT)
        policies.append(_policy(cluster, naming.gateway(cluster.name), naming.GATEWAY, [grpc, admin]))
    if cluster.spec.metadata_service.type is MetadataServiceKind.EMBEDDED:
        metadata = _rule(_peers(cluster, cluster.spec.network_policy.clients), naming.METADATA_PORT)
        policies.append(_policy(cluster, naming.metadata(cluster.name), naming.METADATA, [metadata]))
    if is_etcd(cluster):
        policies.append(_policy(cluster, naming.metadata(cluster.name), naming.METADATA, _of_etcd(cluster, context)))
    return policies


def _of_etcd(cluster: ClusterView, context: BuildContext) -> list[dict[str, Any]]:
    clients = [*_peers(cluster, cluster.spec.network_policy.clients), _operator(context)]
    return [
        _rule(clients, naming.ETCD_PORT),
        _rule([_members(cluster)], naming.ETCD_PEER_PORT),
        _rule(_peers(cluster, cluster.spec.network_policy.metrics_from), naming.ETCD_METRICS_PORT),
    ]


def _members(cluster: ClusterView) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": selector(cluster, naming.METADATA)}}


def _peers(cluster: ClusterView, given: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the peers that `spec` names, else every pod of the namespace; the cluster's own pods always may."""
    return [*given, {"podSelector": {"matchLabels": _own(cluster)}}] if given else [EVERY_POD]


def _admins(cluster: ClusterView, context: BuildContext) -> list[dict[str, Any]]:
    return [*_peers(cluster, cluster.spec.network_policy.metrics_from), _operator(context)]


def _own(cluster: ClusterView) -> dict[str, str]:
    """Labels of the cluster's own pods, those of its jobs too."""
    whole = selector(cluster, "")
    del whole[names.COMPONENT]
    return whole


def _egress(cluster: ClusterView) -> Manifest:
    others = {"key": names.COMPONENT, "operator": "NotIn", "values": list(_OF_JOBS)}
    dns = [{"protocol": protocol, "port": port} for port in _DNS_PORTS for protocol in ("UDP", "TCP")]
    rules = [
        {"ports": dns},
        {"ports": _tcp(*metadata_ports(cluster))},
        {"ports": _tcp(naming.BOOKIE_PORT, naming.HTTP_PORT), "to": [EVERY_POD]},
        *([{"ports": _tcp(naming.ETCD_PEER_PORT), "to": [_members(cluster)]}] if is_etcd(cluster) else []),
        *cluster.spec.network_policy.egress,
    ]
    spec = {
        "podSelector": {"matchLabels": _own(cluster), "matchExpressions": [others]},
        "policyTypes": ["Egress"],
        "egress": rules,
    }
    name = naming.egress(cluster.name)
    return manifest(cluster, "networking.k8s.io/v1", "NetworkPolicy", name, naming.BOOKIE, {"spec": spec})


def metadata_ports(cluster: ClusterView) -> list[int]:
    """Return the ports of where the metadata are, and of where they are to be.

    The hosts may be names, which no policy can have.
    """
    return sorted({port for uri in (metadata_service_uri(cluster), moves_to(cluster)) for port in _ports(uri)})


def _ports(uri: str) -> Iterator[int]:
    scheme, _, rest = uri.partition("://")
    for host in filter(None, re.split("[;,]", rest.partition("/")[0])):
        found = _HOST.fullmatch(host)
        yield int(found[2]) if found and found[2] else _PORTS.get(scheme, _ZOOKEEPER_PORT)


def _operator(context: BuildContext) -> dict[str, Any]:
    if context.operator_namespace:
        return {"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: context.operator_namespace}}}
    return {"namespaceSelector": {}, "podSelector": {"matchLabels": {names.NAME: MANAGER}}}


def _rule(peers: Sequence[dict[str, Any]], *ports: int) -> dict[str, Any]:
    return {"ports": _tcp(*ports), "from": list(peers)}


def _tcp(*ports: int) -> list[dict[str, Any]]:
    return [{"protocol": "TCP", "port": port} for port in ports]


def _policy(cluster: ClusterView, name: str, component: str, rules: list[dict[str, Any]]) -> Manifest:
    spec = {
        "podSelector": {"matchLabels": selector(cluster, component)},
        "policyTypes": ["Ingress"],
        "ingress": rules,
    }
    return manifest(cluster, "networking.k8s.io/v1", "NetworkPolicy", name, component, {"spec": spec})


def _service_port(name: str, port: int) -> dict[str, Any]:
    return {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}


def _http(cluster: ClusterView) -> dict[str, Any]:
    """The port by number: while bookies change from HTTP to HTTPS, or back, it has one name here and another there."""
    port = http_port(cluster)
    return {**_service_port(port["name"], naming.HTTP_PORT), "targetPort": naming.HTTP_PORT}


def headless_service(cluster: ClusterView) -> Manifest:
    """Gives each pod its name, which is part of its bookie id. Also before it is ready: bookies that start, and those
    that look after a cluster with an absent metadata service, have to be found."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector(cluster, naming.BOOKIE),
        "ports": [
            _service_port("bookie", naming.BOOKIE_PORT),
            _service_port("grpc", naming.GRPC_PORT),
            _http(cluster),
        ],
    }
    return _service(cluster, naming.bookies(cluster.name), naming.BOOKIE, spec)


def _service(cluster: ClusterView, name: str, component: str, spec: Mapping[str, Any]) -> Manifest:
    annotations = cluster.spec.services.annotations
    return manifest(cluster, "v1", "Service", name, component, {"spec": spec}, annotations=annotations)


def gateway_service(cluster: ClusterView) -> Manifest | None:
    """The gateways that run by themselves, and no bookie. None: `spec` wants none."""
    if not cluster.spec.gateway.enabled:
        return None
    spec = {
        "type": cluster.spec.services.gateway_type,
        "selector": selector(cluster, naming.GATEWAY),
        "ports": [_service_port("grpc", naming.GRPC_PORT)],
    }
    return _service(cluster, naming.gateway(cluster.name), naming.GATEWAY, spec)


def client_service(cluster: ClusterView) -> Manifest:
    """Any bookie that serves: for the gateway and the admin API. Not for the BookKeeper protocol, whose clients choose
    each bookie themselves."""
    spec = {
        "type": "ClusterIP",
        "selector": selector(cluster, naming.BOOKIE),
        "ports": [_service_port("grpc", naming.GRPC_PORT), _http(cluster)],
    }
    return _service(cluster, naming.client_service(cluster.name), naming.BOOKIE, spec)


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
    """Return the names that clients may use for the bookies: each by its bookie id, and all of them by their
    Services."""
    bookies = naming.admin_server_name(cluster.name, cluster.namespace)
    return [f"*.{bookies}", bookies, *_service_names(cluster, naming.client_service(cluster.name))]


def _gateway_names(cluster: ClusterView) -> list[str]:
    """Return the names that clients may use for the gateways that run by themselves; empty: there are none."""
    return _service_names(cluster, naming.gateway(cluster.name)) if cluster.spec.gateway.enabled else []


def _service_names(cluster: ClusterView, name: str) -> list[str]:
    return [name, f"{name}.{cluster.namespace}", f"{name}.{cluster.namespace}.svc"]
