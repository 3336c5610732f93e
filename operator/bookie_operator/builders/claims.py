"""The volumes of each bookie, as claim templates of its StatefulSet.

Claims outlive everything else: they have no owner, and only the operator deletes them, with a proof. Their labels
tell whose data they hold, and hold no version: a template cannot be changed.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bookie_operator.builders import in_place, naming
from bookie_operator.builders.common import labels
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.zones import ZoneShare
from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import Storage, Volume
from bookie_operator.world.model import ClusterView


def volume_kinds(storage: Storage) -> dict[str, Volume]:
    """The volumes by kind: `journal`, `ledger` and, if it has volumes of its own, `index`."""
    kinds = {naming.JOURNAL: storage.journal, naming.LEDGER: storage.ledger}
    return kinds if storage.index is None else {**kinds, naming.INDEX: storage.index}


def volume_sizes(storage: Storage) -> dict[str, str]:
    return {kind: volume.size for kind, volume in volume_kinds(storage).items()}


def volume_classes(storage: Storage) -> dict[str, str]:
    """Return the storage class by kind, of those that name one."""
    named = {kind: volume.storage_class_name for kind, volume in volume_kinds(storage).items()}
    return {kind: name for kind, name in named.items() if name is not None}


def volume_attributes(storage: Storage, context: BuildContext) -> dict[str, str] | None:
    """VolumeAttributesClass by kind, of those that have one; None: this Kubernetes knows no such classes, and would
    drop their names."""
    if not context.has_volume_attributes:
        return None
    named = {kind: volume.volume_attributes_class_name for kind, volume in volume_kinds(storage).items()}
    return {kind: name for kind, name in named.items() if name is not None}


def claim_templates(cluster: ClusterView, context: BuildContext, share: ZoneShare) -> list[dict[str, Any]]:
    """The templates in the order journal, ledger, index. They bear the instance id once `status` has it, which is
    before any StatefulSet is made."""
    common = labels(cluster, naming.BOOKIE)
    if cluster.status.instance_id:
        common[names.INSTANCE_ID] = cluster.status.instance_id
    if share.label:
        common[names.ZONE] = share.label
    attributes = volume_attributes(cluster.spec.storage, context) or {}
    return [
        _template(
            in_place.claim_template(cluster.spec, kind, index),
            volume,
            {**volume.labels, **common, names.VOLUME: kind},
            attributes.get(kind),
        )
        for kind, volume in volume_kinds(cluster.spec.storage).items()
        for index in range(volume.volumes)
    ]


def _template(
    name: str, volume: Volume, with_labels: Mapping[str, str], attributes_class: str | None
) -> dict[str, Any]:
    made = claim(name, volume.size, volume.storage_class_name, with_labels, volume.annotations)
    if attributes_class is not None:
        made["spec"]["volumeAttributesClassName"] = attributes_class
    return made


def claim(
    name: str,
    size: str,
    storage_class: str | None,
    with_labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """One claim template."""
    metadata: dict[str, Any] = {"name": name, "labels": dict(with_labels)}
    if annotations:
        metadata["annotations"] = dict(annotations)
    spec: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
