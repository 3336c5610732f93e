"""Where the cluster's metadata is, for bookies and clients.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from bookie_operator.builders import naming
from bookie_operator.crds.cluster_spec import MetadataServiceKind
from bookie_operator.world.model import ClusterView


def metadata_service_uri(cluster: ClusterView) -> str:
    """`metadataServiceUri` with the cluster's root, as every component and client sets it."""
    service = cluster.spec.metadata_service
    if service.type is MetadataServiceKind.EMBEDDED:
        host = f"{naming.metadata(cluster.name)}.{cluster.namespace}.svc"
        return f"embedded://{host}:{naming.METADATA_PORT}{service.root_path}"
    return f"{service.uri.rstrip('/')}{service.root_path}"
