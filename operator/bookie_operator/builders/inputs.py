"""The inputs from people, as far as the pods of bookies depend on them; and where they are written down.

A StatefulSet bears the annotation `podkeeper.dev/template-inputs`: the hash of its template, a slash, and the hash of
the inputs that it was made for. Where only the template differs later, another release of the operator makes it so, and
no user asked for a restart: see `planner.holding`. The Deployments of auto-recovery and gateways bear the inputs alone.

Invariants
- A part of `spec` counts unless `_APART` names it: a new one counts by itself. A part that counts without need restarts
  no bookie, because bookies restart for another template only.
- What has its default does not count: a field that a release adds changes no hash.
- Secrets and ConfigMaps that `spec` names count with their names: bookies read them again by themselves.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bookie_operator.builders.common import content_hash
from bookie_operator.builders.metadata_uri import moves_to
from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import Autorecovery, Gateway
from bookie_operator.crds.config_keys import RESERVED, static_part
from bookie_operator.world.model import ClusterView

_VOLUME: Final = {"size", "volume_attributes_class_name", "labels", "annotations"}
_APART: Final[dict[str, Any]] = {
    "replicas": True,
    "metadata_service": {"etcd"},
    "backup": True,
    "durability": True,
    "storage": {"journal": _VOLUME, "ledger": _VOLUME, "index": _VOLUME, "retention": True},
    "placement": {"zones": {"__all__": {"replicas"}}},
    "config": True,  # its static part counts
    "autorecovery": True,
    "gateway": True,
    "update": True,
    "decommission": True,
    "repair": True,
    "disruption": True,
    "network_policy": True,
    "services": True,
    "monitoring": True,
    "bootstrap": True,
}
"""Parts of `spec` on which no template of bookies depends."""


_NOT_IN_ITS_TEMPLATE: Final = {"enabled", "replicas", "lost_bookie_recovery_delay_seconds"}
"""Fields of `spec.autorecovery` and `spec.gateway` that are not in the template."""


def inputs_hash(cluster: ClusterView) -> str:
    """Return the hash of `spec` and of the annotation that asks for a restart."""
    config = {key: text for key, text in static_part(cluster.spec.config).items() if key not in RESERVED}
    spec = cluster.spec.model_dump(mode="json", by_alias=True, exclude=_APART, exclude_defaults=True)
    if moves_to(cluster):  # not yet: the template is still that of the place where the metadata are known to be
        known = cluster.status.metadata_service_uri.removesuffix(cluster.spec.metadata_service.root_path)
        spec["metadataService"]["uri"] = known
    return content_hash(
        {
            "spec": spec,
            "config": config,
            "restart": cluster.annotations.get(names.RESTART, ""),
        }
    )


def autorecovery_inputs(cluster: ClusterView) -> str:
    """Return the inputs of auto-recovery: `inputs_hash` of its template, a slash, and the number of its pods."""
    return _beside(cluster, "autorecovery", cluster.spec.autorecovery)


def gateway_inputs(cluster: ClusterView) -> str:
    """Return the inputs of gateways, as `autorecovery_inputs` does."""
    return _beside(cluster, "gateway", cluster.spec.gateway)


def _beside(cluster: ClusterView, part: str, spec: Autorecovery | Gateway) -> str:
    own = spec.model_dump(mode="json", by_alias=True, exclude=_NOT_IN_ITS_TEMPLATE, exclude_defaults=True)
    return f"{content_hash({'bookies': inputs_hash(cluster), part: own})}/{spec.replicas}"


def record(template_hash: str, inputs: str) -> str:
    """Value of the annotation."""
    return f"{template_hash}/{inputs}"


def recorded(annotations: Mapping[str, str]) -> str:
    """Hash of the inputs, from a StatefulSet's annotations; empty: it is not written down, or for another template than
    it has now."""
    template_hash, _, inputs = annotations.get(names.TEMPLATE_INPUTS, "").partition("/")
    return inputs if template_hash and template_hash == annotations.get(names.TEMPLATE_HASH) else ""
