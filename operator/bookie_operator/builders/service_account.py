"""The account of the cluster's pods. It may do nothing, and its token is mounted nowhere.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from bookie_operator.builders import naming
from bookie_operator.builders.common import manifest
from bookie_operator.builders.hashing import Manifest
from bookie_operator.world.model import ClusterView


def account_name(cluster: ClusterView) -> str:
    return cluster.spec.pod.service_account_name or naming.bookies(cluster.name)


def service_account(cluster: ClusterView) -> Manifest | None:
    """None: the user brings one."""
    if cluster.spec.pod.service_account_name:
        return None
    content = {"automountServiceAccountToken": False}
    return manifest(cluster, "v1", "ServiceAccount", naming.bookies(cluster.name), naming.BOOKIE, content)
