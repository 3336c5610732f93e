"""A cluster on etcd: each pod knows all endpoints and the root, and gets the login as files of a Secret."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from bookie_operator.builders.build import build
from bookie_operator.builders.config import FILE
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.jobs import spark
from bookie_operator.builders.jobs.build import build_job
from bookie_operator.crds.validation import validate
from bookie_operator.world.model import ClusterView
from bookie_protocol.metadata_service.uri_parser import parse_metadata_service_uri
from tests.support.operator_clusters import MINIMAL, cluster
from tests.support.operator_jobs import job

URI = "etcd://etcd-0.etcd:2379,etcd-1.etcd:2379,etcd-2.etcd:2379"
DIRECTORY = "/etc/etcd-login"
LOGIN = {
    "zkAuthCredentialsPath": f"{DIRECTORY}/login",
    "metadataServiceTlsEnable": "true",
    "metadataServiceTrustStorePath": f"{DIRECTORY}/ca.crt",
    "metadataServiceCertificatePath": f"{DIRECTORY}/tls.crt",
    "metadataServiceKeyPath": f"{DIRECTORY}/tls.key",
}
SPEC = {
    **MINIMAL,
    "metadataService": {"uri": URI, "rootPath": "/demo"},
    "gateway": {"enabled": True},
    "backup": {"schedule": "@daily"},
    "config": LOGIN,
    "pod": {
        "extraVolumes": [{"name": "etcd-login", "secret": {"secretName": "etcd-login"}}],
        "extraVolumeMounts": [{"name": "etcd-login", "mountPath": DIRECTORY, "readOnly": True}],
    },
}


@pytest.fixture
def view() -> ClusterView:
    return cluster(SPEC)


def pods(view: ClusterView) -> Iterator[tuple[str, dict[str, Any]]]:
    """The specs of all pods that open the metadata service, by what makes them."""
    objects = build(view, BuildContext())
    made = [*objects.objects.values(), *(each.manifest for each in objects.sets), objects.destroy_job]
    for each in made:
        spec = each.get("spec", {}) if each is not None else {}
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if "template" in spec:
            yield f"{each['kind']}/{each['metadata']['name']}", spec["template"]["spec"]
    spec = {"clusterRef": {"name": "demo"}, "kind": "audit", "executors": {"instances": 2}}
    jobs = build_job(view, job(spec), BuildContext())
    yield "driver", jobs.runner["spec"]["template"]["spec"]
    yield "executor", json.loads(jobs.support[0]["data"][spark.EXECUTOR_FILE])["spec"]


def test_its_spec_is_valid(view: ClusterView) -> None:
    assert validate(view.spec, view.status) == ()


def test_every_pod_mounts_the_login(view: ClusterView) -> None:
    found = dict(pods(view))
    assert {name.partition("/")[0] for name in found} == {
        *("StatefulSet", "Deployment", "Job", "CronJob", "driver", "executor")
    }
    assert len(found) >= 7
    for name, spec in found.items():
        assert any(each.get("secret") == {"secretName": "etcd-login"} for each in spec["volumes"]), name
        mounts = [each for each in spec["containers"][0]["volumeMounts"] if each["mountPath"] == DIRECTORY]
        assert len(mounts) == 1, name


def test_every_pod_knows_all_endpoints_and_the_root(view: ClusterView) -> None:
    parsed = parse_metadata_service_uri(f"{URI}/demo")
    assert ([host for host, _ in parsed.hosts], parsed.root) == ([f"etcd-{n}.etcd" for n in range(3)], "/demo")
    objects = build(view, BuildContext())
    (file,) = [each["data"][FILE] for each in objects.objects.values() if FILE in each.get("data", {})]
    assert f"metadataServiceUri={URI}/demo\n" in file
    for key, path in LOGIN.items():
        assert f"{key}={path}\n" in file
    assert objects.destroy_job["spec"]["template"]["spec"]["containers"][0]["args"][-1] == f"{URI}/demo"
    (init,) = [each for name, each in objects.objects.items() if name.startswith("Job/")]
    assert f"{URI}/demo" in init["spec"]["template"]["spec"]["containers"][0]["command"]
    driver = dict(pods(view))["driver"]["containers"][0]
    assert {"name": "BK_metadataServiceUri", "value": f"{URI}/demo"} in driver["env"]
    for key, path in LOGIN.items():
        assert f"{key}={path}" in driver["args"]
