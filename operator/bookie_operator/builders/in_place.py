"""The names of a bookie: the end of its id, the names of its claims, and the mounts of its volumes.

Where an earlier StatefulSet was taken over in place, they are as it had them. Cookies name all but the claims, so the
names never change.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.builders import naming
from bookie_operator.crds.cluster_spec import BookieClusterSpec, InPlaceVolume
from bookie_operator.world.model import ClusterView

_DATA: Final = "/data"


def host_suffix(cluster: ClusterView) -> str:
    return naming.bookie_host_suffix(cluster.name, cluster.namespace, _domain(cluster))


def id_suffix(cluster: ClusterView) -> str:
    return naming.bookie_id_suffix(cluster.name, cluster.namespace, _domain(cluster))


def claim_template(spec: BookieClusterSpec, kind: str, index: int) -> str:
    taken = _taken(spec, kind)
    return taken.claim if taken is not None else naming.claim_template(kind, index)


def mount_path(spec: BookieClusterSpec, kind: str, index: int) -> str:
    taken = _taken(spec, kind)
    return taken.mount_path if taken is not None else f"{_DATA}/{naming.claim_template(kind, index)}"


def directories(spec: BookieClusterSpec, kind: str, volumes: int) -> list[str]:
    """Return the directories on so many volumes of the kind."""
    taken = _taken(spec, kind)
    if taken is not None and taken.directories:
        return list(taken.directories)
    return [mount_path(spec, kind, index) for index in range(volumes)]


def _domain(cluster: ClusterView) -> str:
    found = cluster.spec.bootstrap.in_place
    return found.domain if found is not None else ""


def _taken(spec: BookieClusterSpec, kind: str) -> InPlaceVolume | None:
    found = spec.bootstrap.in_place
    return {naming.JOURNAL: found.journal, naming.LEDGER: found.ledger}.get(kind) if found is not None else None
