"""The Deployments that run beside the bookies, with their configuration: auto-recovery and gateways.

Invariants
- They read the same file as the bookies, and are rolled after them: the planner applies them last. Where the bookies'
  newest template waits (`planner.holding`) they keep theirs: their image may not know the keys of the newest file.
- Two pods of one Deployment avoid the same node and the same zone where they can: the loss of one stops nothing.
- Each Deployment has a budget of its own, which lets one pod go at a time.
- Their pods differ from bookies, and from each other, by the label of their component.
- Without `spec.gateway.enabled` nothing of gateways is there, and nothing else differs. They have no admin API: their
  HTTP port serves probes and metrics. While they are rolled as many serve as before: clients need not wait.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bookie_operator.builders import commands, naming
from bookie_operator.builders.common import (
    Manifest,
    account_name,
    common_pod_spec,
    environment,
    manifest,
    over_zones,
    pod_metadata,
    selector,
    stamped,
)
from bookie_operator.builders.container import CONFIG, container, http_port, http_probe, shared_extras, volumes
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.inputs import autorecovery_inputs, gateway_inputs
from bookie_operator.builders.settings import SMALLEST_BUDGET_MB, memory_budget_mb
from bookie_operator.crds import names
from bookie_operator.crds.pod_spec import LivenessProbe, Probe
from bookie_operator.world.model import ClusterView

_GRACE_SECONDS: Final = 30
"""The process takes up to 20 s to close the ledgers that are written through it."""
_STARTUP: Final = Probe(period_seconds=5, failure_threshold=60)


@dataclass(frozen=True)
class Beside:
    """The differences between auto-recovery and gateways."""

    name: str
    component: str
    arguments: tuple[str, ...]
    replicas: int
    resources: Mapping[str, Any]
    inputs: str
    """Digest of what people asked for: see `inputs`."""
    grace_seconds: int
    may_miss: int
    """Pods that may be missing while it is rolled."""
    env: Sequence[Mapping[str, Any]] = ()
    ports: Sequence[Mapping[str, Any]] = ()
    """Ports beside that of HTTP."""


def deployment(cluster: ClusterView, context: BuildContext, config_name: str, of: Beside) -> Manifest:
    content = {
        "replicas": of.replicas,
        "selector": {"matchLabels": selector(cluster, of.component)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": of.may_miss, "maxSurge": 1}},
        "revisionHistoryLimit": 3,
        "template": {
            "metadata": pod_metadata(cluster, of.component),
            "spec": _pod_spec(cluster, context, config_name, of),
        },
    }
    annotations = {names.TEMPLATE_INPUTS: of.inputs}
    return manifest(cluster, "apps/v1", "Deployment", of.name, of.component, {"spec": content}, annotations=annotations)


def as_bookies_are(newest: Manifest, live: Manifest | None, config_name: str, *, keeps: bool = False) -> Manifest:
    """Return, while the newest template of the bookies waits, the template that it has, unless people asked for another
    one, which gets the newest with the file that the bookies have. `config_name`: of that file; empty: it is not known.
    `keeps`: people asked for another one of the bookies too, and those come first."""
    template, header = newest["spec"]["template"], newest["metadata"]
    if live is not None and (keeps or _asked_for(live) == _asked_for(newest)):
        found, wanted = live["spec"]["template"]["metadata"], template["metadata"].get("annotations") or {}
        kept = {key: text for key, text in (found.get("annotations") or {}).items() if key in wanted}
        metadata = {"labels": found["labels"], **({"annotations": kept} if kept else {})}
        template = {"metadata": metadata, "spec": live["spec"]["template"]["spec"]}
        inputs = f"{_asked_for(live)}/{newest['spec']['replicas']}"
        header = {**header, "annotations": {**header["annotations"], names.TEMPLATE_INPUTS: inputs}}
    elif config_name:
        made = [
            {**each, "configMap": {"name": config_name}} if each["name"] == CONFIG else each
            for each in template["spec"]["volumes"]
        ]
        template = {**template, "spec": {**template["spec"], "volumes": made}}
    return stamped({**newest, "metadata": header, "spec": {**newest["spec"], "template": template}})


def _asked_for(deployment: Manifest) -> str:
    """Return the inputs of its template; empty: the Deployment does not name them."""
    annotations = deployment["metadata"].get("annotations") or {}
    return str(annotations.get(names.TEMPLATE_INPUTS, "")).partition("/")[0]


def _pod_spec(cluster: ClusterView, context: BuildContext, config_name: str, of: Beside) -> dict[str, Any]:
    more_volumes, more_mounts = shared_extras(cluster)
    made = container(cluster, context, of.arguments, of.env, of.resources)
    http = http_port(cluster)
    made["ports"] = [*map(dict, of.ports), http]
    made["startupProbe"] = http_probe(commands.ALIVE, _STARTUP, http["name"])
    made["livenessProbe"] = http_probe(commands.ALIVE, LivenessProbe(), http["name"])
    made["readinessProbe"] = http_probe(commands.READY, Probe(), http["name"])
    made["volumeMounts"] += more_mounts
    found = {
        **common_pod_spec(cluster, account_name(cluster)),
        "terminationGracePeriodSeconds": of.grace_seconds,
        "affinity": {"podAntiAffinity": _apart(cluster, of.component)},
        "topologySpreadConstraints": [over_zones(cluster, of.component)],
        "containers": [made],
        "volumes": [*volumes(cluster, config_name), *more_volumes],
    }
    if cluster.spec.pod.node_selector:
        found["nodeSelector"] = dict(cluster.spec.pod.node_selector)
    return found


def _apart(cluster: ClusterView, component: str) -> dict[str, Any]:
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": selector(cluster, component)},
    }
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}


def autorecovery(cluster: ClusterView, context: BuildContext, config_name: str) -> Manifest | None:
    """None: `spec` wants none."""
    wanted = cluster.spec.autorecovery
    if not wanted.enabled:
        return None
    env = [environment("BK_advertisedAddress", "$(POD_NAME)")]  # its name among the auditors
    if wanted.max_concurrent_ledgers is not None:
        env.append(environment("BK_replicationLedgersAtOnce", str(wanted.max_concurrent_ledgers)))
    of = Beside(
        naming.autorecovery(cluster.name),
        naming.AUTORECOVERY,
        commands.AUTORECOVERY,
        wanted.replicas,
        wanted.resources,
        autorecovery_inputs(cluster),
        grace_seconds=60,
        may_miss=1,
        env=env,
    )
    return deployment(cluster, context, config_name, of)


def gateway(cluster: ClusterView, context: BuildContext, config_name: str) -> Manifest | None:
    """None: `spec` wants none."""
    wanted = cluster.spec.gateway
    if not wanted.enabled:
        return None
    of = Beside(
        naming.gateway(cluster.name),
        naming.GATEWAY,
        commands.GATEWAY,
        wanted.replicas,
        wanted.resources,
        gateway_inputs(cluster),
        grace_seconds=_GRACE_SECONDS,
        may_miss=0,
        env=_budget_of_gateway(wanted.resources),
        ports=[{"name": "grpc", "containerPort": naming.GRPC_PORT}],
    )
    return deployment(cluster, context, config_name, of)


def _budget_of_gateway(resources: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The share of its own container's memory: the file has that of the bookies, whose containers are larger."""
    budget = memory_budget_mb(resources)
    return [] if budget is None else [environment("BK_memoryBudgetMb", str(max(SMALLEST_BUDGET_MB, budget // 2)))]


def disruption_budgets(cluster: ClusterView) -> tuple[Manifest, ...]:
    """One pod of each Deployment at a time is evicted, whatever the state of the data: they keep none. One that does
    not serve may always go."""
    spec = cluster.spec
    if not spec.disruption.enabled:
        return ()
    there = {naming.AUTORECOVERY: spec.autorecovery.enabled, naming.GATEWAY: spec.gateway.enabled}
    return tuple(_budget(cluster, component) for component, enabled in there.items() if enabled)


def _budget(cluster: ClusterView, component: str) -> Manifest:
    spec = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": selector(cluster, component)},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    name = {naming.AUTORECOVERY: naming.autorecovery, naming.GATEWAY: naming.gateway}[component](cluster.name)
    return manifest(cluster, "policy/v1", "PodDisruptionBudget", name, component, {"spec": spec})
