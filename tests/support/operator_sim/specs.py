"""A `spec`, and what the builders would make of it, as far as plans depend on it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from bookie_operator.builders.claims import volume_classes
from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import Autorecovery, BookieClusterSpec, Gateway
from bookie_operator.planner.desired import Desired, DesiredDeployment, DesiredStatefulSet, Evictions
from bookie_operator.world.model import ClusterView

NAME: Final = "c"
NAMESPACE: Final = "ns"
SUFFIX: Final = f".{NAME}-bookie.{NAMESPACE}.svc:3181"
DYNAMIC: Final = {"gcWaitTime": "600000", "minorCompactionThreshold": "0.2"}
"""Keys without a restart, with their defaults."""


def spec(**changes: Any) -> BookieClusterSpec:
    """Fields by their names in the resource; nested ones as dicts, merged into the defaults of these tests."""
    base: dict[str, Any] = {
        "version": "1.0",
        "replicas": 4,
        "metadataService": {"uri": "zk+hierarchical://zk:2181"},
        "storage": {"journal": {"size": "1Gi"}, "ledger": {"size": "10Gi"}},
        "update": {"soakSeconds": 5, "progressDeadlineSeconds": 300},
        "decommission": {"stallSeconds": 600},
    }
    return BookieClusterSpec.model_validate(merged(base, changes))


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:10]


def volume_sizes(of: BookieClusterSpec) -> dict[str, str]:
    sizes = {"journal": of.storage.journal.size, "ledger": of.storage.ledger.size}
    return sizes if of.storage.index is None else {**sizes, "index": of.storage.index.size}


def volume_attributes(of: BookieClusterSpec) -> dict[str, str]:
    volumes = {"journal": of.storage.journal, "ledger": of.storage.ledger, "index": of.storage.index}
    named = {kind: one.volume_attributes_class_name for kind, one in volumes.items() if one is not None}
    return {kind: name for kind, name in named.items() if name is not None}


def desired_of(cluster: ClusterView, release: str = "") -> Desired:
    """`release`: of the operator, which makes pods in its own way."""
    of = cluster.spec
    static = {key: value for key, value in of.config.items() if key not in DYNAMIC}
    dynamic = {**DYNAMIC, **{key: value for key, value in of.config.items() if key in DYNAMIC}}
    config = digest("config", sorted(static.items()))
    inputs = digest(of.version, of.image, config, cluster.annotations.get(names.RESTART, ""), of.pod.labels)
    template = digest(inputs, release)
    settings = f"ConfigMap/{NAME}-bookie-settings"
    support = {
        f"ServiceAccount/{NAME}-bookie": "account",
        f"ConfigMap/{NAME}-config-{config}": config,
        settings: digest("settings", sorted(dynamic.items())),
        f"Service/{NAME}-bookie": "service",
        f"Service/{NAME}-client": "client",
    }
    if of.network_policy.enabled:
        support[f"NetworkPolicy/{NAME}-bookie"] = "policy"
    if of.gateway.enabled:
        support |= {f"Service/{NAME}-gateway": "gateway", f"PodDisruptionBudget/{NAME}-gateway": "one"}
    if cluster.status.instance_id:
        support[f"Secret/{NAME}-identity"] = digest(cluster.status.instance_id, of.replicas)
    sets = tuple(
        DesiredStatefulSet(
            name,
            zone,
            number,
            digest(template, zone) if zone else template,
            volume_sizes(of),
            config,
            inputs,
            volume_attributes(of),
            volume_classes(of.storage),
        )
        for name, zone, number in _zones(of)
    )
    return Desired(
        stateful_sets=sets,
        support=support,
        metadata_job=f"Job/{NAME}-metadata-init",
        metadata_job_hash=digest("metadata-init", template),
        budget=f"PodDisruptionBudget/{NAME}-bookie" if of.disruption.enabled else "",
        budget_hashes={one: f"budget-{one.zone}-{one.count}" for one in _evictions(of)},
        autorecovery=_beside("autorecovery", of.autorecovery, inputs, template),
        gateway=_beside("gateway", of.gateway, inputs, template),
        dynamic_config=dynamic,
        given_config=frozenset(of.config) & frozenset(DYNAMIC),
        settings=settings,
        bookie_id_suffix=SUFFIX,
    )


def _beside(part: str, of: Autorecovery | Gateway, inputs: str, template: str) -> DesiredDeployment:
    if not of.enabled:
        return DesiredDeployment()
    made, asked = digest(part, template, of.replicas), f"{digest(part, inputs)}/{of.replicas}"
    return DesiredDeployment(f"Deployment/{NAME}-{part}", made, asked)


def _evictions(of: BookieClusterSpec) -> list[Evictions]:
    if not of.disruption.enabled:
        return []
    zones = [zone for _, zone, _ in _zones(of) if zone and of.disruption.whole_zone]
    return [Evictions(0), Evictions(of.disruption.max_unavailable), *(Evictions(0, zone) for zone in zones)]


def _zones(of: BookieClusterSpec) -> list[tuple[str, str, int]]:
    zones = of.placement.zones
    if len(zones) < 2:
        return [(f"{NAME}-bookie", "", of.replicas)]
    share, more = divmod(of.replicas, len(zones))
    return [
        (
            f"{NAME}-bookie-{zone.name}",
            zone.name,
            zone.replicas if zone.replicas is not None else share + (1 if place < more else 0),
        )
        for place, zone in enumerate(zones)
    ]
