"""`kubectl bookie support-bundle`: everything that helps, nothing that is secret, and what is missing is told."""

from __future__ import annotations

import base64
import json
import os
import stat
import tarfile
from pathlib import Path

import pytest
import yaml

from bookie_operator.api.kinds import POD, SECRET
from bookie_operator.builders.secrets import secret_texts
from bookie_operator.plugin.bundle import _cluster_of
from bookie_protocol.redaction import REDACTED
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE
from tests.support.kubectl_rig import KubectlRig


def _contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        read = {}
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None
            read[member.name.removeprefix(f"{NAME}-support/")] = file.read().decode()
        return read


async def test_what_is_in_it(rig: KubectlRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = (secret_texts(rig.fake.store.get(SECRET, NAMESPACE, f"{NAME}-admin-token")) or {})["token"]
    rig.fake.admin.token = token
    rig.logs["demo-bookie-0"] = [f"2027-01-01T00:00:01Z started with Authorization: Bearer {token}"]
    rig.fake.apply(config={"httpServerKeyStorePassword": "hunter2"})
    path = tmp_path / "bundle.tar.gz"
    assert await rig.run("support-bundle", NAME, "-o", str(path)) == 0
    assert capsys.readouterr().out.startswith(f"{path}: ")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    files = _contents(path)
    for name in ("cluster.yaml", "pods.yaml", "statefulsets.yaml", "persistentvolumeclaims.yaml", "secrets.yaml"):
        assert yaml.safe_load(files[name]), name
    assert files["logs/demo-bookie-0.log"].startswith("2027-01-01T00:00:01Z started")
    assert json.loads(files["facts/demo-bookie-0/cluster.json"])["instanceId"] == rig.fake.bookkeeper.instance_id
    assert json.loads(files["facts/demo-bookie-2/info.json"])["totalSpace"] == 10**9
    everything = "".join(files.values())
    assert token not in everything
    assert "hunter2" not in everything
    secrets = yaml.safe_load(files["secrets.yaml"])["items"]
    assert {value for each in secrets for value in each["data"].values()} == {REDACTED}


async def test_what_is_missing_is_told_and_stops_nothing(
    rig: KubectlRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.fake.server.forbidden |= {"nodes", "configmaps"}
    rig.fake.admin.silent.add(rig.fake.bookie_id("demo-bookie-1"))
    path = tmp_path / "bundle.tar.gz"
    assert await rig.run("support-bundle", NAME, "-o", str(path)) == 0
    assert "parts could not be read (missing.txt)" in capsys.readouterr().out
    files = _contents(path)
    assert "nodes.yaml" not in files
    assert "statefulsets.yaml" in files
    missing = files["missing.txt"]
    assert "nodes: GET /api/v1/nodes: 403" in missing
    assert "configmaps: " in missing
    assert "the log of pod demo-bookie-0 cannot be read" in missing
    assert "/api/v1/bookie/info of pod demo-bookie-1" in missing


async def test_an_unwritable_place_leaves_nothing(
    rig: KubectlRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await rig.run("support-bundle", NAME, "-o", str(tmp_path / "nowhere" / "x.tar.gz")) == 12
    assert "No such file or directory" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["kubeconfig"]


@pytest.mark.parametrize(
    ("name", "cluster"),
    [
        ("events", "events"),
        ("events-bookie-0", "events"),
        ("ledger-0-events-bookie-0", "events"),
        ("events-eu-bookie-0", "events-eu"),
        ("journal-0-events-eu-bookie-0", "events-eu"),
        ("eventsourcing", ""),
        ("shop-events-1", ""),
    ],
)
def test_events_are_of_the_cluster_that_they_are_about(name: str, cluster: str) -> None:
    assert _cluster_of({"involvedObject": {"name": name}}, {"events", "events-eu"}) == cluster


async def test_secrets_of_pods_are_in_nothing_that_is_written(rig: KubectlRig, tmp_path: Path) -> None:
    """Canaries: wherever a cluster takes a secret, and wherever something may tell it again."""
    store = rig.fake.store
    for name, value in {
        "s3": "canary-of-the-environment",
        "wholesale": "canary-of-env-from",
        "disk": "canary-of-a-volume",
        "driver": "canary-of-a-driver",
    }.items():
        data = {"k": base64.b64encode(value.encode()).decode()}
        store.create(SECRET, NAMESPACE, {"metadata": {"name": name, "namespace": NAMESPACE}, "data": data})
    spec = store.kind(POD)[NAMESPACE, "demo-bookie-0"]["spec"]
    spec["containers"][0]["env"] = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s3", "key": "k"}}}]
    spec["containers"][0]["envFrom"] = [{"secretRef": {"name": "wholesale"}}]
    spec.setdefault("volumes", []).append({"name": "v", "secret": {"secretName": "disk"}})
    spec["volumes"].append({"name": "c", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "driver"}}})
    rig.logs["demo-bookie-0"] = [
        "2027-01-01T00:00:01Z canary-of-the-environment canary-of-env-from",
        "2027-01-01T00:00:02Z canary-of-a-volume canary-of-a-driver",
    ]
    path = tmp_path / "bundle.tar.gz"
    assert await rig.run("support-bundle", NAME, "-o", str(path)) == 0
    everything = "".join(_contents(path).values())
    assert f"{REDACTED} {REDACTED}" in everything
    assert "canary-of" not in everything
