"""The identity of a cluster: what it takes to adopt its volumes after the resource itself was deleted.

A Secret without owner, so that it outlives the resource. It is written only once `status` knows the instance id: until
then it may be that of an earlier cluster of this name, which would be lost.

    instanceId            the metadata service's id of the cluster
    metadataServiceUri    where that is
    replicas              number of bookies that the operator has made, of all zones
    bookies               JSON: {pod: {"bookieId", "claims": [name, ...]}}; of so many that a Secret would not take it
                          without `claims`, and then without `bookieId`: both follow from the pod and `spec`
    spec                  JSON: the spec without what are defaults anyway, so that a new default changes nothing here

Threads: pure functions, any thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bookie_operator.builders import in_place, naming
from bookie_operator.builders.claims import volume_kinds
from bookie_operator.builders.common import Manifest, canonical, manifest
from bookie_operator.builders.desired_objects import BookieSet
from bookie_operator.builders.metadata_uri import metadata_service_uri
from bookie_operator.builders.secrets import secret_data
from bookie_operator.world.model import ClusterView

_MOST_BYTES: Final = 600_000
"""Largest size of `bookies`. A Secret takes 1 MiB, and `spec` is in it too."""


def identity(cluster: ClusterView, sets: Iterable[BookieSet]) -> dict[str, str]:
    """Return the content, not encoded."""
    made = {each.name: each.replicas for each in sets} | cluster.status.recorded_replicas
    pods = [naming.pod(name, ordinal) for name, replicas in made.items() for ordinal in range(replicas)]
    return {
        "instanceId": cluster.status.instance_id,
        "metadataServiceUri": metadata_service_uri(cluster),
        "replicas": str(len(pods)),
        "bookies": _bookies(cluster, pods),
        "spec": canonical(cluster.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)).decode(),
    }


def recorded_bookies(kept: Mapping[str, str] | None) -> frozenset[str]:
    """Return the pods that such a content names; empty where it cannot be read."""
    try:
        bookies = json.loads((kept or {}).get("bookies", "{}"))
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(bookies) if isinstance(bookies, dict) else frozenset()


def recorded_spec(kept: Mapping[str, str] | None) -> dict[str, Any] | None:
    """Return the spec in such a content; None: there is none that can be read."""
    try:
        spec = json.loads((kept or {}).get("spec", ""))
    except (ValueError, RecursionError):
        return None
    return spec if isinstance(spec, dict) else None


def identity_secret(cluster: ClusterView, sets: Iterable[BookieSet]) -> Manifest | None:
    """Return the Secret; None: the instance id is not known yet."""
    if not cluster.status.instance_id:
        return None
    content = {"type": "Opaque", "data": secret_data(identity(cluster, sets))}
    return manifest(cluster, "v1", "Secret", naming.identity(cluster.name), naming.BOOKIE, content, owned=False)


def _bookies(cluster: ClusterView, pods: list[str]) -> str:
    """Return the record of the bookies, with as much of each as there is room for."""
    ids = {pod: {"bookieId": _bookie_id(cluster, pod)} for pod in pods}
    whole = {pod: {**known, "claims": _claims(cluster, pod)} for pod, known in ids.items()}
    names: dict[str, dict[str, str]] = {pod: {} for pod in pods}
    texts = (canonical(content) for content in (whole, ids, names))
    return next((text for text in texts if len(text) <= _MOST_BYTES), canonical({})).decode()


def _bookie_id(cluster: ClusterView, pod: str) -> str:
    return f"{pod}{in_place.id_suffix(cluster)}"


def _claims(cluster: ClusterView, pod: str) -> list[str]:
    return [
        naming.claim(in_place.claim_template(cluster.spec, kind, index), pod)
        for kind, volume in volume_kinds(cluster.spec.storage).items()
        for index in range(volume.volumes)
    ]
