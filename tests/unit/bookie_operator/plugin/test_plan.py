"""`kubectl bookie plan`: the operator's own decision, through forwarded ports; nothing is changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bookie_operator.api.kinds import CLUSTER, DEPLOYMENT, SECRET, STATEFUL_SET
from bookie_operator.builders.secrets import secret_texts
from bookie_operator.crds import names
from bookie_operator.plugin.planning import _repository
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE
from tests.support.fake_kubernetes.faults import Fault
from tests.support.kubectl_rig import KubectlRig, kubectl_rig


async def _lines(rig: KubectlRig, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    capsys.readouterr()
    assert await rig.run("plan", NAME, *arguments) == 0
    return capsys.readouterr().out.splitlines()


async def _with_operator(rig: KubectlRig) -> None:
    container = {"name": "operator", "image": "podkeeper:1", "env": [{"name": "PODKEEPER_IMAGE", "value": "podkeeper"}]}
    rig.fake.store.create(
        DEPLOYMENT,
        "operators",
        {
            "metadata": {"name": "podkeeper-operator", "labels": {names.NAME: "podkeeper-operator"}},
            "spec": {"template": {"spec": {"containers": [container]}}, "replicas": 1},
        },
    )


async def test_what_would_be_done_is_what_the_operator_does_then(
    rig: KubectlRig, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.fake.apply(replicas=4)
    before = rig.fake.store.version
    lines = await _lines(rig, capsys)
    assert rig.fake.store.version == before, "nothing is changed"
    assert lines[0].startswith("note: the operator's Deployment was not found, so its settings are guessed")
    assert set(rig.fake.pods()) <= set(rig.forwarded), "every bookie was asked"
    assert "would do now: ApplyObjects (keys=Secret/demo-identity)" in lines
    rig.fake.server.requests.clear()
    await rig.fake.one_pass()
    assert any("secrets/demo-identity" in line for line in rig.fake.server.writes())
    (told,) = [line for line in await _lines(rig, capsys) if line.startswith("would ")]
    assert told.startswith("would record: ScaleUp")
    await rig.fake.one_pass()
    assert rig.fake.status["operation"]["type"] == "ScaleUp"


async def test_with_the_operators_settings_there_is_no_doubt(
    rig: KubectlRig, capsys: pytest.CaptureFixture[str]
) -> None:
    await _with_operator(rig)
    lines = await _lines(rig, capsys)
    assert not any(line.startswith("note: ") for line in lines), lines


async def test_the_token_of_the_pods_is_shown_to_them_alone(
    rig: KubectlRig, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = rig.fake.store.get(SECRET, NAMESPACE, f"{NAME}-admin-token")
    rig.fake.admin.token = (secret_texts(secret) or {})["token"]
    told = json.loads("\n".join(await _lines(rig, capsys, "-o", "json")))
    assert not any("no pod could tell" in doubt for doubt in told["doubts"])
    rig.fake.admin.token = "another"
    told = json.loads("\n".join(await _lines(rig, capsys, "-o", "json")))
    assert any("no pod could tell about the cluster" in doubt for doubt in told["doubts"])


async def test_who_may_not_read_the_token_hears_it(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.fake.server.faults.append(_forbidden("demo-admin-token"))
    told = json.loads("\n".join(await _lines(rig, capsys, "-o", "json")))
    assert "you may not read Secret demo-admin-token, so no bookie was asked" in told["doubts"]


def _forbidden(name: str):
    return Fault(f"GET .*/secrets/{name}", status=403, times=100)


async def test_a_wrong_spec(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.fake.apply(config={"gcWaitTimes": "1"})
    lines = await _lines(rig, capsys)
    assert "spec is wrong: spec.config.gcWaitTimes: there is no such key; did you mean gcWaitTime?" in lines
    assert any(line.startswith("needs a person: InvalidSpec: ") for line in lines)
    rig.fake.store.patch(CLUSTER, NAMESPACE, NAME, {"spec": {"pools": []}})
    lines = await _lines(rig, capsys)
    assert any(line.startswith("note: spec.pools: this release of the operator does not know it") for line in lines)
    rig.fake.store.patch(CLUSTER, NAMESPACE, NAME, {"spec": {"replicas": "many"}})
    lines = await _lines(rig, capsys)
    assert any(line.startswith("spec is wrong: spec.replicas: ") for line in lines)
    assert lines[-1] == "nothing is changed until spec is mended"


async def test_a_paused_cluster(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.fake.annotate(names.PAUSED, "true")
    assert any(line.startswith("waits: Paused: ") for line in await _lines(rig, capsys))


async def test_the_image_is_guessed_from_the_bookies(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    """Else the plan would be a rollout to another image that nobody wants."""
    for each in rig.fake.store.list(STATEFUL_SET, NAMESPACE):
        (container,) = each["spec"]["template"]["spec"]["containers"]
        assert _repository(container["image"]) == "podkeeper"
    lines = await _lines(rig, capsys)
    assert not any("Rollout" in line for line in lines), lines


@pytest.mark.parametrize(
    ("image", "repository"),
    [
        ("podkeeper:1.2", "podkeeper"),
        ("registry:5000/a/podkeeper:1.2", "registry:5000/a/podkeeper"),
        ("registry:5000/podkeeper", "registry:5000/podkeeper"),
        ("podkeeper@sha256:abc", "podkeeper"),
    ],
)
def test_repositories(image: str, repository: str) -> None:
    assert _repository(image) == repository


async def test_members_of_etcd_are_left_out_and_not_taken_for_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the operator has a way to them."""
    async with kubectl_rig(tmp_path) as rig:
        rig.fake.apply(metadataService={"type": "Etcd", "uri": ""})
        await rig.fake.settle()
        lines = await _lines(rig, capsys)
        assert any(line.startswith("note: the members of etcd were not asked") for line in lines)
        assert not any("Member" in line for line in lines), lines
