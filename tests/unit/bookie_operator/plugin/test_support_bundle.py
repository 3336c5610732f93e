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
from bookie_operator.plugin.redaction import REDACTED, Redactor, sensitive
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


def test_secrets_keep_their_keys_alone() -> None:
    secret = {
        "kind": "Secret",
        "metadata": {"name": "x", "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{data}"}},
        "data": {"a": "YQ=="},
        "stringData": {"b": "c"},
    }
    assert Redactor().redacted(secret) == {
        "kind": "Secret",
        "metadata": {"name": "x", "annotations": {}},
        "data": {"a": REDACTED},
        "stringData": {"b": REDACTED},
    }


def test_what_sounds_like_a_secret_goes_and_what_says_where_it_is_stays() -> None:
    thing = {
        "spec": {
            "config": {"httpServerKeyStorePassword": "x", "gcWaitTime": "5"},
            "tls": {"secretName": "tls"},
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "env": [
                        {"name": "AWS_SECRET_ACCESS_KEY", "value": "x"},
                        {"name": "BK_httpServerAuthTokenFile", "value": "/etc/token"},
                        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                    ]
                }
            ],
        },
        "data": {"bookie.conf": "gcWaitTime=5\nhttpServerKeyStorePassword=x\nzkAuthCredentialsPath=/etc/zk\n"},
    }
    clean = Redactor().redacted(thing)
    assert clean["spec"]["config"] == {"httpServerKeyStorePassword": REDACTED, "gcWaitTime": "5"}
    assert clean["spec"]["tls"] == {"secretName": "tls"}
    assert clean["spec"]["automountServiceAccountToken"] is False
    first, second, third = clean["spec"]["containers"][0]["env"]
    assert first["value"] == REDACTED
    assert second["value"] == "/etc/token"
    assert third == {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    assert clean["data"]["bookie.conf"].splitlines() == [
        "gcWaitTime=5",
        f"httpServerKeyStorePassword={REDACTED}",
        "zkAuthCredentialsPath=/etc/zk",
    ]


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Authorization: Bearer abcdefgh.ijk", f"Authorization: {REDACTED}"),
        ("with Bearer abcdefgh.ijk", f"with Bearer {REDACTED}"),
        ('{"password": "x y", "a": 1}', f'{{"password": "{REDACTED}", "a": 1}}'),
        (r'"{\"password\": \"x y\", \"a\": 1}"', rf'"{{\"password\": \"{REDACTED}\", \"a\": 1}}"'),
        ("url?token=abc&b=1", f"url?token={REDACTED}&b=1"),
        ("bookie --password hunter2 --ledger 5", f"bookie --password {REDACTED} --ledger 5"),
        ("bookie --password 'hunter 2' go", f"bookie --password '{REDACTED}' go"),
        ("zk://ada:hunter2@zk-1:2181/x", f"zk://ada:{REDACTED}@zk-1:2181/x"),
        ("via ada:hunter2@proxy.example", f"via ada:{REDACTED}@proxy.example"),
        ("passphrase=x", f"passphrase={REDACTED}"),
        ("env DB_PASS=x MYSQL_PWD=y dbPass=z", f"env DB_PASS={REDACTED} MYSQL_PWD={REDACTED} dbPass={REDACTED}"),
        ("tlsKeyStorePassword = correct horse battery", f"tlsKeyStorePassword = {REDACTED}"),
        ("Protocol=https;AccountKey=a+b/c==;X=y", f"Protocol=https;AccountKey={REDACTED};X=y"),
        ("key AKIAABCDEFGHIJKLMNOP of", f"key {REDACTED} of"),
        (
            "x\n-----BEGIN EC PRIVATE KEY-----\nMHcC\nAQE=\n-----END EC PRIVATE KEY-----\ny",
            f"x\n-----BEGIN EC PRIVATE KEY-----{REDACTED}\ny",
        ),
        ("-----BEGIN PRIVATE KEY-----\nMIIE cut off", f"-----BEGIN PRIVATE KEY-----{REDACTED}"),
        ("a=1\nzkPassword=it's {b,c}; \"d\nb=2", f"a=1\nzkPassword={REDACTED}\nb=2"),
        ("zkPassword='tis", f"zkPassword='{REDACTED}'"),
        ("bookie --json --password hunter2", f"bookie --json --password {REDACTED}"),
        ("zkPassword: it's {b,c}", f"zkPassword: {REDACTED}"),
        ("began with zkPassword=ab'cd\"ef in", f"began with zkPassword={REDACTED} in"),
        ('{"a": "zkPassword=abc"}', f'{{"a": "zkPassword={REDACTED}"}}'),
        ('{"password": "cut o', f'{{"password": "{REDACTED}"'),
        ("zk://ada:hunter@2@zk-1:2181,eve:x@zk-2/x", f"zk://ada:{REDACTED}@zk-1:2181,eve:{REDACTED}@zk-2/x"),
    ],
)
def test_shapes_of_secrets(text: str, clean: str) -> None:
    assert Redactor().text(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "nothing of that kind: 5",
        "adminTokenFile=/etc/podkeeper/token",
        "bookie --password-file /etc/x --token-file y",
        "image: podkeeper:1.0@sha256:0123456789abcdef",
        "registry.example/podkeeper:1.0@sha256:0123456789abcdef",
        "12:34:56.789 bypass: the checks passed: 5",
        "    secrets:\n    - name: x",
        "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----",
        "ledger 5 on bookie-0.bookies:3181, bookie-1.bookies:3181",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert Redactor().text(text) == text


def test_what_is_known_to_be_secret_is_looked_for_everywhere() -> None:
    redactor = Redactor()
    redactor.learn_secret(
        {"data": {"any": "aHVudGVyMjI=", "username": "cG9ka2VlcGVy", "jaas.conf": "bGluZSBvbmUgaXMgbG9uZwp4Cg=="}}
    )
    redactor.redacted({"env": [{"name": "DB_PASS", "value": "Tr0ub4dor"}, {"name": "A_TOKEN", "value": "disabled"}]})
    redactor.redacted({"command": ["bookie", "--password", "s3same street", "--x"]})
    text = "hunter22 aHVudGVyMjI= podkeeper line one is long Tr0ub4dor disabled s3same street"
    assert redactor.text(text) == f"{REDACTED} {REDACTED}= podkeeper {REDACTED} {REDACTED} disabled {REDACTED}"


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        ('quo"te\\d', json.dumps('quo"te\\d')),
        ("pässwörd", json.dumps("pässwörd")),
        ("p@ss/word", "https://ada:p%40ss%2Fword@host"),
        ('Client {\n  password="inside-jaas"; };', "said inside-jaas"),
        ('{"auths": {"r": {"username": "ada-the-first", "password": "of-a-registry"}}}', "said of-a-registry"),
        ("ada:of-zookeeper", "said of-zookeeper"),
        ("a-first-token\n  of-a-line reader,operator ada-the-first\n", "said of-a-line"),
        ("user=ada-the-first\nbookiePassword = of a property", "said of a property"),
    ],
)
def test_what_a_secret_says_is_known_in_every_form(secret: str, text: str) -> None:
    redactor = Redactor()
    redactor.learn_secret({"data": {"any": base64.b64encode(secret.encode()).decode()}})
    clean = redactor.text(f"{text} and ada-the-first")
    assert clean.endswith(" and ada-the-first")
    assert clean.removesuffix(" and ada-the-first") in (
        REDACTED,
        f"said {REDACTED}",
        f'"{REDACTED}"',
        f"https://ada:{REDACTED}@host",
    )


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


def test_names() -> None:
    assert all(map(sensitive, ("password", "zkPasswd", "apiKey", "client_secret", "adminToken")))
    assert not any(map(sensitive, ("secretName", "tokenFile", "tlsKeyStorePasswordPath", "secretRef", "gcWaitTime")))
