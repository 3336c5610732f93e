"""Clusters for tests of the operator's builders, and the golden files that are made of them.

    python -m tests.support.operator_clusters          writes the golden files

A golden file holds every object that a cluster consists of. Read what changed in them before you commit it: another
template hash is a rolling restart of everybody's bookies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from bookie_operator.builders.build import build
from bookie_operator.builders.context import CERT_MANAGER, PROMETHEUS_OPERATOR, VOLUME_ATTRIBUTES, BuildContext
from bookie_operator.builders.desired_objects import DesiredObjects
from bookie_operator.crds.cluster_spec import BookieClusterSpec
from bookie_operator.crds.cluster_status import BookieClusterStatus
from bookie_operator.world.model import ClusterView

GOLDEN: Final = Path(__file__).parents[1] / "unit" / "bookie_operator" / "builders" / "golden"
INSTANCE_ID: Final = "6f0b1c2d-1111-4222-8333-944445555666"
LONGEST_NAME: Final = "a-cluster-with-a-name-of-forty-characte0"
FULL: Final = BuildContext(
    "registry.example/podkeeper", frozenset({CERT_MANAGER, PROMETHEUS_OPERATOR, VOLUME_ATTRIBUTES}), "operators"
)

Spec = Mapping[str, Any]

MINIMAL: Final[Spec] = {
    "version": "0.1.0",
    "metadataService": {"uri": "zk+hierarchical://zk-0.zk:2181;zk-1.zk:2181"},
    "storage": {"journal": {"size": "20Gi"}, "ledger": {"size": "500Gi"}},
}
_ZONES: Final[Spec] = {
    **MINIMAL,
    "replicas": 7,
    "placement": {"zones": [{"name": "eu-1a"}, {"name": "eu-1b"}, {"name": "eu-1c"}], "minZonesPerWriteQuorum": 2},
    "pod": {"nodeSelector": {"disk": "nvme"}, "resources": {"limits": {"cpu": "2", "memory": "6Gi"}}},
}
_INDEX_TLS: Final[Spec] = {
    **MINIMAL,
    "storage": {
        "journal": {"size": "10Gi", "volumes": 2, "storageClassName": "fast"},
        "ledger": {"size": "100Gi", "volumes": 3, "storageClassName": "large"},
        "index": {"size": "5Gi", "volumes": 2, "storageClassName": "fast"},
    },
    "tls": {"enabled": True, "issuerRef": {"name": "ca", "kind": "ClusterIssuer"}},
}
EMBEDDED: Final[Spec] = {
    "version": "0.1.0",
    "metadataService": {"type": "Embedded", "size": "1Gi", "storageClassName": "standard"},
    "storage": {"journal": {"size": "1Gi"}, "ledger": {"size": "2Gi"}},
}
ETCD: Final[Spec] = {
    "version": "0.1.0",
    "backup": {"schedule": "@hourly", "claimName": "mine"},
    "metadataService": {"type": "Etcd", "size": "4Gi", "rootPath": "/demo"},
    "storage": {"journal": {"size": "1Gi"}, "ledger": {"size": "2Gi"}},
}
_BARE: Final[Spec] = {
    **MINIMAL,
    "autorecovery": {"enabled": False},
    "disruption": {"enabled": False},
    "networkPolicy": {"enabled": False},
    "placement": {"zones": [{"name": "eu-1a"}]},
    "tls": {"enabled": True, "secretName": "our-own"},
}
_GATEWAY: Final[Spec] = {
    **MINIMAL,
    "gateway": {"enabled": True, "replicas": 3, "resources": {"limits": {"cpu": "1", "memory": "512Mi"}}},
    "tls": {"enabled": True, "issuerRef": {"name": "ca", "kind": "ClusterIssuer"}},
    "networkPolicy": {
        "clients": [{"podSelector": {"matchLabels": {"app": "broker"}}}],
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}],
    },
    "monitoring": {"podMonitor": {"enabled": True}},
}
_EVERYTHING: Final[Spec] = {
    "version": "0.2.0",
    "image": "registry.example/bookies@sha256:" + "ab" * 32,
    "imagePullPolicy": "Always",
    "imagePullSecrets": [{"name": "registry"}],
    "replicas": 4,
    "metadataService": {"uri": "zk+hierarchical://zk:2181/", "rootPath": "/pulsar/ledgers"},
    "durability": {"ensembleSize": 3, "writeQuorum": 3, "ackQuorum": 2},
    "storage": {
        "journal": {"size": "8Gi", "labels": {"tier": "fast"}, "annotations": {"backup": "never"}},
        "ledger": {"size": "12G", "labels": {"tier": "slow"}, "volumeAttributesClassName": "more-iops"},
        "retention": {"whenDeleted": "Delete", "whenScaled": "Retain"},
    },
    "placement": {
        "zoneTopologyKey": "rack.example/name",
        "zones": [{"name": "Rack_1.upper", "replicas": 1}, {"name": "rack-2", "replicas": 3}],
    },
    "pod": {
        "resources": {"requests": {"cpu": "500m", "memory": "2Gi"}},
        "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "noisy"}}}
                ]
            }
        },
        "priorityClassName": "storage",
        "labels": {"team": "data", "app.kubernetes.io/name": "not-ours"},
        "annotations": {"sidecar.istio.io/inject": "false"},
        "env": [{"name": "BK_logLevel", "value": "debug"}, {"name": "POD_NAME", "value": "not-ours"}],
        "extraVolumes": [
            {"name": "zookeeper-login", "secret": {"secretName": "zookeeper-login"}},
            {"name": "scratch", "persistentVolumeClaim": {"claimName": "scratch"}},
            {"name": "config", "configMap": {"name": "of-the-user"}},
        ],
        "extraVolumeMounts": [
            {"name": "zookeeper-login", "mountPath": "/etc/zookeeper", "readOnly": True},
            {"name": "scratch", "mountPath": "/scratch"},
        ],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "rack.example/row", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
        "initContainers": [{"name": "tune", "image": "tune:1"}],
        "sidecars": [{"name": "logs", "image": "logs:1"}],
        "serviceAccountName": "bookies",
        "terminationGracePeriodSeconds": 300,
        "startupProbe": {"failureThreshold": 360},
    },
    "config": {
        "zkAuthCredentialsPath": "/etc/zookeeper/login",
        "compactionRate": "500",
        "gcWaitTime": "300000",
        "journalMaxSizeMB": "512",
        "diskUsageThreshold": "0.97",
        "enforceMinNumRacksPerWriteQuorum": "true",
    },
    "backup": {
        "schedule": "30 2 * * 1-5",
        "timeZone": "Europe/Berlin",
        "keep": 7,
        "size": "3Gi",
        "storageClassName": "slow",
    },
    "logging": {"level": "warning", "format": "console"},
    "autorecovery": {
        "replicas": 3,
        "resources": {"limits": {"memory": "1Gi"}},
        "lostBookieRecoveryDelaySeconds": 900,
        "maxConcurrentLedgers": 4,
    },
    "disruption": {"maxUnavailable": 2},
    "tls": {"enabled": True, "issuerRef": {"name": "ours", "kind": "Issuer", "group": "cert-manager.io"}},
    "networkPolicy": {
        "clients": [{"podSelector": {"matchLabels": {"app": "broker"}}}],
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}],
    },
    "monitoring": {"podMonitor": {"enabled": True, "labels": {"prometheus": "main"}, "interval": "15s"}},
}


def cluster(
    spec: Spec = MINIMAL,
    *,
    name: str = "demo",
    instance_id: str = INSTANCE_ID,
    annotations: Mapping[str, str] | None = None,
    recorded: Mapping[str, int] | None = None,
    uid: str = "0b7c1f0e-2222-4333-8444-955556666777",
    protected: bool = False,
) -> ClusterView:
    """`protected`: its embedded metadata service, as that of a new cluster is."""
    status = BookieClusterStatus(
        instance_id=instance_id, recorded_replicas=dict(recorded or {}), metadata_protected=protected
    )
    parsed = BookieClusterSpec.model_validate(dict(spec))
    return ClusterView(name, "storage", uid, 1, parsed, status, dict(annotations or {}))


CASES: Final[Mapping[str, tuple[ClusterView, BuildContext]]] = {
    "minimal": (cluster(MINIMAL), BuildContext()),
    "zones": (cluster(_ZONES, name="prod"), BuildContext()),
    "index-tls": (cluster(_INDEX_TLS, annotations={"podkeeper.dev/restart": "2026-01-02T03:04:05Z"}), FULL),
    "embedded": (cluster(EMBEDDED, name="dev", protected=True), BuildContext()),
    "etcd": (cluster(ETCD), BuildContext()),
    "gateway": (cluster(_GATEWAY), FULL),
    "bare": (cluster(_BARE, instance_id=""), BuildContext()),
    "everything": (cluster(_EVERYTHING, name=LONGEST_NAME), FULL),
}


def built(case: str) -> DesiredObjects:
    return build(*CASES[case])


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as they are read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def yaml_dumper() -> type[yaml.SafeDumper]:
    """As golden files are written."""
    return _Dumper


def rendered(case: str) -> str:
    """The golden file's content."""
    objects = built(case)
    manifests = [
        *objects.objects.values(),
        objects.destroy_job,
        *(objects.budgets[key] for key in sorted(objects.budgets) if not key.count),
    ]
    return yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, width=120)


def write_golden(folder: Path, cases: Iterable[str], content: Callable[[str], str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for case in cases:
        (folder / f"{case}.yaml").write_text(content(case), encoding="utf-8")


def environment(manifest: Mapping[str, Any], objects: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """As the kubelet makes it for the first container."""
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    found: dict[str, str] = {}
    for source in container["envFrom"]:
        data = objects[f"ConfigMap/{source['configMapRef']['name']}"]["data"]
        found |= {f"{source['prefix']}{key}": text for key, text in data.items()}
    found["POD_NAME"] = "pod-0"
    for variable in container["env"]:
        if "value" in variable:
            found[variable["name"]] = variable["value"].replace("$(POD_NAME)", found["POD_NAME"])
    return found


if __name__ == "__main__":
    write_golden(GOLDEN, CASES, rendered)
