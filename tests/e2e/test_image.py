"""The image by itself: three bookies of a plain StatefulSet, without any operator, which a client writes to."""

from __future__ import annotations

import pytest

from tests.e2e.support import manifests
from tests.e2e.support.kube import Object, pod_ready

NAME = "plain"
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": NAME},
    "spec": {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"app.kubernetes.io/name": NAME},
        "ports": [{"name": "bookie", "port": 3181}],
    },
}


def stateful_set(image: str, uri: str, namespace: str) -> Object:
    template = manifests.pod(NAME, image, ["bookie", "serve"], probe=("/readyz", 8000))
    container = template["spec"]["containers"][0]
    container["env"] = [
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "BK_metadataServiceUri", "value": uri},
        {"name": "BK_bookieId", "value": f"$(POD).{NAME}.{namespace}.svc:3181"},
        {"name": "BK_advertisedAddress", "value": f"$(POD).{NAME}.{namespace}.svc"},
        {"name": "BK_DATA_DIR", "value": "/data"},
        {"name": "BK_autoRecoveryDaemonEnabled", "value": "true"},
        {"name": "BK_lostBookieRecoveryDelay", "value": "5"},
    ]
    container["volumeMounts"].append({"name": "data", "mountPath": "/data"})
    template["spec"].pop("restartPolicy")
    template["spec"]["terminationGracePeriodSeconds"] = 30
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": NAME},
        "spec": {
            "replicas": 3,
            "serviceName": NAME,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
            "template": {"metadata": {"labels": template["metadata"]["labels"]}, "spec": template["spec"]},
            "volumeClaimTemplates": [
                {
                    "metadata": {"name": "data"},
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
                }
            ],
        },
    }


@pytest.fixture
def plain_bookies(kube, settings, zookeeper_service):
    uri = zookeeper_service.uri(f"/{NAME}", "hierarchical")
    kube.apply(manifests.pod("init", settings.image, ["bookie", "cluster", "init", uri, "--if-absent"]))
    kube.wait_for(
        "Pod", lambda pods: pods["init"]["status"].get("phase") == "Succeeded", 60, "the metadata", name="init"
    )
    kube.apply(SERVICE)
    kube.apply(stateful_set(settings.image, uri, kube.namespace))
    yield f"app.kubernetes.io/name={NAME}"
    for kind in ("StatefulSet", "Service"):
        kube.delete(kind, NAME)
    kube.delete("Pod", "init")
    kube.wait_for("Pod", lambda pods: not pods, 60, "the end", selector=f"app.kubernetes.io/name={NAME}")
    for number in range(3):
        kube.delete("PersistentVolumeClaim", f"data-{NAME}-{number}")


def test_three_bookies_and_a_client(plain_bookies, kube, make_workload):
    """Under restricted Pod Security, with a read-only root file system; a bookie stops in an orderly way meanwhile."""

    def ready(pods: dict[str, Object]) -> dict[str, Object] | None:
        return pods if len(pods) == 3 and all(map(pod_ready, pods.values())) else None

    pods = kube.wait_for("Pod", ready, 120, "three bookies", selector=plain_bookies)
    with make_workload(NAME) as workload:
        workload.progress(200)
        uid = pods[f"{NAME}-2"]["metadata"]["uid"]
        kube.delete("Pod", f"{NAME}-2")
        kube.wait_gone("Pod", f"{NAME}-2", 60, uid=uid)
        kube.wait_for("Pod", ready, 120, "three bookies again", selector=plain_bookies)
        workload.progress(200)
        state = workload.state()
        assert state["longestGap"] < 10


def test_it_is_small(kube, settings):
    """Bytes of all files, those of folders that are root's alone aside."""
    kube.apply(manifests.pod("size", settings.image, ["sh", "-c", "du --bytes -sx / 2>/dev/null || true"]))
    kube.wait_for("Pod", lambda pods: pods["size"]["status"].get("phase") == "Succeeded", 60, "its size", name="size")
    size = int(kube.logs("size").split()[0])
    kube.delete("Pod", "size")
    assert 100_000_000 < size < 250_000_000
