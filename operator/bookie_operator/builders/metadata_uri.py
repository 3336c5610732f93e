"""The address of the cluster's metadata, for bookies and clients, and whether it is protected.

Servers of an external service may come to be others, under another name. Until it is proved that the cluster is found
there (`planner.flows.move`), everything goes on where it was, as `status` has it.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from bookie_operator.builders import naming
from bookie_operator.crds.cluster_spec import MetadataServiceKind
from bookie_operator.world.model import ClusterView


def metadata_service_uri(cluster: ClusterView) -> str:
    """`metadataServiceUri` with the cluster's root, as every component and client sets it."""
    return cluster.status.metadata_service_uri if moves_to(cluster) else _asked_for(cluster)


def is_protected(cluster: ClusterView) -> bool:
    """Return whether an embedded service demands a token, over TLS.

    That of a cluster that was there before operators did so goes on without, since its bookies have neither.
    """
    embedded = cluster.spec.metadata_service.type is MetadataServiceKind.EMBEDDED
    return embedded and (cluster.status.metadata_protected or not cluster.status.instance_id)


def moves_to(cluster: ClusterView) -> str:
    """Return where `spec` says that the cluster is, though it is known to be elsewhere; empty: it is where `spec`
    says."""
    status, asked = cluster.status, _asked_for(cluster)
    external = cluster.spec.metadata_service.type is MetadataServiceKind.EXTERNAL
    known = external and status.instance_id and status.metadata_service_uri
    return asked if known and status.metadata_service_uri != asked else ""


def _asked_for(cluster: ClusterView) -> str:
    service = cluster.spec.metadata_service
    if service.type is MetadataServiceKind.EMBEDDED:
        host = metadata_host(cluster)
        return f"embedded://{host}:{naming.METADATA_PORT}{service.root_path}"
    if service.type is MetadataServiceKind.ETCD:
        targets = ",".join(f"{host}:{naming.ETCD_PORT}" for host in member_hosts(cluster).values())
        return f"etcd://{targets}{service.root_path}"
    return f"{service.uri.rstrip('/')}{service.root_path}"


def metadata_host(cluster: ClusterView) -> str:
    """Return the host of a service that the operator runs: of all its pods."""
    return f"{naming.metadata(cluster.name)}.{cluster.namespace}.svc"


def is_etcd(cluster: ClusterView) -> bool:
    """Return whether the operator runs an etcd for the cluster."""
    return cluster.spec.metadata_service.type is MetadataServiceKind.ETCD


def member_hosts(cluster: ClusterView) -> dict[str, str]:
    """Return the host of each member of the etcd that the operator runs, by pod name; empty: it runs none."""
    if not is_etcd(cluster):
        return {}
    pods = (naming.pod(naming.metadata(cluster.name), n) for n in range(cluster.spec.metadata_service.etcd.replicas))
    return {pod: f"{pod}.{metadata_host(cluster)}" for pod in pods}
