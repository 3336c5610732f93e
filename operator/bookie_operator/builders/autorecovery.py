"""Auto-recovery: a Deployment of auditors and replication workers, apart from the bookies.

Invariants
- It reads the same file as the bookies, and is rolled after them: the planner applies it last. Where their newest
  template waits (`planner.holding`) it keeps theirs: their image may not know the keys of the newest file.
- Two of its pods avoid the same node where they can; the loss of one node stops no repair.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Any, Final

from bookie_operator.builders import commands, naming
from bookie_operator.builders.common import common_pod_spec, environment, labels, manifest, selector
from bookie_operator.builders.container import CONFIG, container, http_port, http_probe, shared_extras, volumes
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.hashing import Manifest, stamped
from bookie_operator.builders.inputs import autorecovery_inputs
from bookie_operator.builders.service_account import account_name
from bookie_operator.crds import names
from bookie_operator.crds.pod_spec import LivenessProbe, Probe
from bookie_operator.world.model import ClusterView

_STARTUP: Final = Probe(period_seconds=5, failure_threshold=60)


def autorecovery(cluster: ClusterView, context: BuildContext, config_name: str) -> Manifest | None:
    """None: `spec` wants none."""
    spec = cluster.spec
    if not spec.autorecovery.enabled:
        return None
    content = {
        "replicas": spec.autorecovery.replicas,
        "selector": {"matchLabels": selector(cluster, naming.AUTORECOVERY)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 1}},
        "revisionHistoryLimit": 3,
        "template": {
            "metadata": {"labels": labels(cluster, naming.AUTORECOVERY)},
            "spec": _pod_spec(cluster, context, config_name),
        },
    }
    name = naming.autorecovery(cluster.name)
    annotations = {names.TEMPLATE_INPUTS: autorecovery_inputs(cluster)}
    return manifest(
        cluster, "apps/v1", "Deployment", name, naming.AUTORECOVERY, {"spec": content}, annotations=annotations
    )


def as_bookies_are(newest: Manifest, live: Manifest | None, config_name: str) -> Manifest:
    """While the newest template of the bookies waits: the template that it has, unless people asked for another one,
    which gets the newest with the file that the bookies have. `config_name`: of that file; empty: it is not known."""
    template = newest["spec"]["template"]
    if live is not None and _asked_for(live) == _asked_for(newest):
        metadata = {"labels": live["spec"]["template"]["metadata"]["labels"]}
        template = {"metadata": metadata, "spec": live["spec"]["template"]["spec"]}
    elif config_name:
        made = [
            {**each, "configMap": {"name": config_name}} if each["name"] == CONFIG else each
            for each in template["spec"]["volumes"]
        ]
        template = {**template, "spec": {**template["spec"], "volumes": made}}
    return stamped({**newest, "spec": {**newest["spec"], "template": template}})


def _asked_for(deployment: Manifest) -> str:
    """Inputs of its template; empty: nobody wrote them down."""
    annotations = deployment["metadata"].get("annotations") or {}
    return str(annotations.get(names.TEMPLATE_INPUTS, "")).partition("/")[0]


def _pod_spec(cluster: ClusterView, context: BuildContext, config_name: str) -> dict[str, Any]:
    more_volumes, more_mounts = shared_extras(cluster)
    env = [environment("BK_advertisedAddress", "$(POD_NAME)")]  # its name among the auditors
    if (ledgers := cluster.spec.autorecovery.max_concurrent_ledgers) is not None:
        env.append(environment("BK_replicationLedgersAtOnce", str(ledgers)))
    made = container(cluster, context, commands.AUTORECOVERY, env, cluster.spec.autorecovery.resources)
    http = http_port(cluster)
    made["ports"] = [http]
    made["startupProbe"] = http_probe(commands.ALIVE, _STARTUP, http["name"])
    made["livenessProbe"] = http_probe(commands.ALIVE, LivenessProbe(), http["name"])
    made["readinessProbe"] = http_probe(commands.READY, Probe(), http["name"])
    made["volumeMounts"] += more_mounts
    found = {
        **common_pod_spec(cluster, account_name(cluster)),
        "terminationGracePeriodSeconds": 60,
        "affinity": {"podAntiAffinity": _apart(cluster)},
        "containers": [made],
        "volumes": [*volumes(cluster, config_name), *more_volumes],
    }
    if cluster.spec.pod.node_selector:
        found["nodeSelector"] = dict(cluster.spec.pod.node_selector)
    return found


def _apart(cluster: ClusterView) -> dict[str, Any]:
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": selector(cluster, naming.AUTORECOVERY)},
    }
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
