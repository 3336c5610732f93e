"""The bearer tokens of a cluster's admin API and of its gRPC port: made once, kept in Secrets that pods mount.

Threads: one event loop.
"""

from __future__ import annotations

import secrets
from typing import Final

from bookie_operator.api.errors import Conflict
from bookie_operator.api.kinds import SECRET, KubernetesObject
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.builders import naming
from bookie_operator.builders.common import manifest
from bookie_operator.builders.config import TOKEN_KEY
from bookie_operator.builders.secrets import secret_data, token_in
from bookie_operator.world.model import ClusterView

_BYTES: Final = 32


async def bearer_token(kubernetes: Kubernetes, cluster: ClusterView, name: str) -> str:
    """The first token of the Secret, which people may rotate; made if it is not there and the cluster is to be.

    Empty: there is none, and none is made for a cluster that goes or is paused.
    """
    found = await kubernetes.find(SECRET, cluster.namespace, name)
    if found is None:
        if cluster.deleting or cluster.paused:
            return ""
        try:
            found = await kubernetes.create(_secret(cluster, name))
        except Conflict:  # another operator was faster
            found = await kubernetes.get(SECRET, cluster.namespace, name)
    return token_in(found)


def _secret(cluster: ClusterView, name: str) -> KubernetesObject:
    content = {"type": "Opaque", "data": secret_data({TOKEN_KEY: secrets.token_urlsafe(_BYTES)})}
    return manifest(cluster, "v1", "Secret", name, naming.BOOKIE, content)
