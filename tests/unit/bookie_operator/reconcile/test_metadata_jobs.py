"""The Jobs that make and remove a cluster's metadata, while image and configuration change, in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bookie_operator.api.kinds import CLUSTER, CONFIG_MAP, JOB, POD, STATEFUL_SET
from bookie_operator.builders import config
from bookie_operator.crds import names
from bookie_operator.observe.workloads import config_maps
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE, FakeCluster, fake_cluster, settled_cluster

INIT, DESTROY = "demo-metadata-init", "demo-metadata-destroy"
STORAGE = {"journal": {"size": "10Gi"}, "ledger": {"size": "100Gi"}, "retention": {"whenDeleted": "Delete"}}
LOGIN = {"extraVolumes": [{"name": "login", "secret": {"secretName": "old"}}, {"name": "own", "ephemeral": {}}]}


def fits(pod_spec: dict[str, Any]) -> tuple[str, list[str]]:
    """Image and ConfigMaps."""
    return pod_spec["containers"][0]["image"], sorted(config_maps(pod_spec))


def pod_of(fake: FakeCluster, job: str) -> dict[str, Any]:
    return dict(fake.store.get(JOB, NAMESPACE, job)["spec"]["template"]["spec"])


async def destroying(fake: FakeCluster) -> dict[str, Any]:
    """The cluster is deleted with its data; the pod of the Job that removes the metadata."""
    fake.controllers.no_pods.add(DESTROY)
    fake.annotate(names.CONFIRM_DELETE, NAME)
    fake.store.delete(CLUSTER, NAMESPACE, NAME)
    await fake.until(lambda: fake.store.find(JOB, NAMESPACE, DESTROY) is not None)
    found = pod_of(fake, DESTROY)
    missing = [name for name in config_maps(found) if fake.store.find(CONFIG_MAP, NAMESPACE, name) is None]
    assert missing == [], "its pod would never begin"
    return found


def newer_release(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator whose configuration has a key that the bookies' image may not know."""
    known = config.default_keys
    monkeypatch.setattr(config, "default_keys", lambda of: {**known(of), "journalMaxSizeMB": "512"})


def newer_spec(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody changes it and deletes the cluster at once."""
    pod = {"extraVolumes": [{"name": "login", "secret": {"secretName": "new"}}]}
    fake.apply(version="0.1.1", config={"journalMaxSizeMB": "512"}, storage=STORAGE, pod=pod)


@pytest.mark.parametrize("change", [newer_release, newer_spec])
async def test_metadata_are_removed_with_the_image_and_the_configuration_of_the_bookies(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[FakeCluster, pytest.MonkeyPatch], None]
) -> None:
    async with fake_cluster() as fake:
        mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("login", "own")]
        fake.apply(storage=STORAGE, pod={**LOGIN, "extraVolumeMounts": mounts})
        await fake.settle()
        bookies = fake.store.get(STATEFUL_SET, NAMESPACE, "demo-bookie")["spec"]["template"]["spec"]
        change(fake, monkeypatch)
        job = await destroying(fake)
        assert fits(job) == fits(bookies)
        assert {each["name"]: each for each in job["volumes"]}["login"]["secret"]["secretName"] == "old"
        mounted = {each["name"] for each in job["containers"][0]["volumeMounts"]}
        assert (
            mounted
            == {each["name"] for each in job["volumes"]}
            == {each["name"] for each in bookies["volumes"]} - {"own", "podkeeper-pod"}
        )
        assert job["containers"][0]["args"][:2] == ["cluster", "nuke"]
        assert not {"ports", "lifecycle", "livenessProbe"} & job["containers"][0].keys()


async def test_metadata_are_removed_by_what_spec_says_where_no_bookies_have_a_template(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with settled_cluster(storage=STORAGE) as fake:
        newer_spec(fake, monkeypatch)
        fake.store.delete(STATEFUL_SET, NAMESPACE, "demo-bookie")
        image, _ = fits(await destroying(fake))
        assert image == "podkeeper:0.1.1"


@pytest.mark.parametrize(
    ("release", "own", "image"),
    [
        ("0.2.0", "podkeeper:0.2.0", "podkeeper:0.2.0"),
        ("0.1.7", "podkeeper:0.1.7", "podkeeper:0.1.0"),
        ("0.0.9", "podkeeper:0.0.9", "podkeeper:0.1.0"),
        ("0.2.0", "", "podkeeper:0.1.0"),
    ],
)
async def test_metadata_of_older_bookies_are_removed_by_the_image_of_the_operator(
    release: str, own: str, image: str
) -> None:
    """That of the bookies may not know the options which keep it from removing another cluster's metadata."""
    async with settled_cluster(storage=STORAGE) as fake:
        operator = fake.operators[0]
        operator.settings = replace(operator.settings, own_image=own, release=release)
        assert fits(await destroying(fake))[0] == image
        assert (
            fake.store.get(STATEFUL_SET, NAMESPACE, f"{NAME}-bookie")["spec"]["template"]["spec"]["containers"][0][
                "image"
            ]
            == "podkeeper:0.1.0"
        )


async def test_a_mended_spec_is_taken_at_once_where_the_metadata_cannot_be_made() -> None:
    async with fake_cluster() as fake:
        fake.controllers.no_pods.add(INIT)
        fake.apply(image="nowhere/podkeeper:typo")
        await fake.until(lambda: fake.store.find(JOB, NAMESPACE, INIT) is not None)
        began, uid = fake.time, fake.store.get(JOB, NAMESPACE, INIT)["metadata"]["uid"]
        for _ in range(5):
            await fake.one_pass()
        assert fake.store.get(JOB, NAMESPACE, INIT)["metadata"]["uid"] == uid
        fake.controllers.no_pods.clear()
        fake.apply(image="somewhere/podkeeper:0.1.0")
        await fake.settle()
        assert fake.condition("Ready") == "True"
        assert pod_of(fake, INIT)["containers"][0]["image"] == "somewhere/podkeeper:0.1.0"
        assert fake.time - began < 300.0


# --- other servers ----------------------------------------------------------------------------------------------------

CHECK = "demo-metadata-check"
THERE = "zk+hierarchical://new-0:2181;new-1:2181"


def uris(fake: FakeCluster) -> tuple[str, str, list[str]]:
    """Of the status, of the template of the bookies, and of each bookie."""
    template = fake.store.get(STATEFUL_SET, NAMESPACE, "demo-bookie")["spec"]["template"]["spec"]
    return (
        fake.status["metadataServiceUri"],
        _uri(fake, template),
        [_uri(fake, fake.store.get(POD, NAMESPACE, pod)["spec"]) for pod in fake.pods()],
    )


def _uri(fake: FakeCluster, pod_spec: dict[str, Any]) -> str:
    (file,) = (name for name in config_maps(pod_spec) if not name.endswith("-settings"))
    text = fake.store.get(CONFIG_MAP, NAMESPACE, file)["data"]["bookie.conf"]
    return next(line.partition("=")[2] for line in text.splitlines() if line.startswith("metadataServiceUri="))


async def moving(fake: FakeCluster, told: str | None = None) -> None:
    """A cluster at rest whose spec names other servers, where the cluster of this instance id is; None: its own."""
    fake.apply(replicas=3)
    await fake.settle()
    fake.controllers.job_messages[CHECK] = f"{fake.resource['metadata']['uid']} 2 1" if told is None else told
    fake.apply(metadataService={"uri": THERE})


async def test_the_same_cluster_elsewhere_is_a_change_of_the_configuration() -> None:
    async with fake_cluster() as fake:
        await moving(fake)
        before = uris(fake)
        await fake.until(lambda: fake.store.find(JOB, NAMESPACE, CHECK) is not None)
        assert uris(fake) == before, "nothing knows the new place before it is proved"
        (container,) = pod_of(fake, CHECK)["containers"]
        assert {"name": "BK_metadataServiceUri", "value": f"{THERE}/ledgers"} in container["env"]
        await fake.settle(limit=900)
        there = f"{THERE}/ledgers"
        assert uris(fake) == (there, there, [there] * 3)
        assert fake.condition("Ready") == "True"
        assert fake.store.find(JOB, NAMESPACE, CHECK) is None
        assert fake.whole()


@pytest.mark.parametrize("found", ["another-instance", ""])
async def test_another_cluster_elsewhere_is_told_and_nothing_else_waits(found: str) -> None:
    async with fake_cluster() as fake:
        await moving(fake, found)
        before = uris(fake)
        await fake.until(lambda: fake.reason("Stalled") == "MetadataElsewhere", 900)
        fake.apply(replicas=4, metadataService={"uri": THERE})
        await fake.until(lambda: fake.status["readyReplicas"] == 4, 900)
        assert uris(fake)[:2] == before[:2]
        fake.apply(replicas=4)
        await fake.settle(limit=900)
        assert fake.condition("Ready") == "True"
        assert fake.store.find(JOB, NAMESPACE, CHECK) is None
        assert uris(fake)[:2] == before[:2]


async def test_a_job_of_somebody_else_that_has_the_name_is_told_and_nothing_else_waits() -> None:
    theirs = {"metadata": {"name": CHECK}, "spec": {"template": {"spec": {"containers": [{"name": "theirs"}]}}}}
    async with fake_cluster() as fake:
        fake.store.create(JOB, NAMESPACE, theirs)
        await moving(fake)
        before = uris(fake)
        await fake.until(lambda: fake.reason("Stalled") == "NameTaken", 60)
        assert f"Job/{CHECK}" in fake.message("Stalled")
        fake.apply(replicas=4, metadataService={"uri": THERE})
        await fake.until(lambda: fake.status["readyReplicas"] == 4, 900)
        assert uris(fake)[:2] == before[:2]
        assert pod_of(fake, CHECK)["containers"][0]["name"] == "theirs"
        fake.store.delete(JOB, NAMESPACE, CHECK)
        await fake.settle(limit=900)
        assert uris(fake) == (f"{THERE}/ledgers", f"{THERE}/ledgers", [f"{THERE}/ledgers"] * 4)


async def test_a_place_that_does_not_answer_may_be_corrected() -> None:
    async with fake_cluster() as fake:
        fake.controllers.no_pods.add(CHECK)
        await moving(fake, "")
        await fake.until(lambda: fake.reason("Reconciling") == "MetadataMoves")
        first = fake.store.get(JOB, NAMESPACE, CHECK)["metadata"]["uid"]
        fake.controllers.no_pods.clear()
        fake.controllers.job_messages[CHECK] = f"{fake.resource['metadata']['uid']} 0 3"
        fake.apply(metadataService={"uri": "zk://right:2181"})
        await fake.until(lambda: fake.status["metadataServiceUri"] == "zk://right:2181/ledgers", 900)
        found = fake.store.find(JOB, NAMESPACE, CHECK)
        assert found is None or found["metadata"]["uid"] != first


async def test_a_copy_of_the_metadata_is_not_taken_for_the_same_service() -> None:
    """Servers that a backup was restored to: bookies that went there would delete what was written since."""
    async with fake_cluster() as fake:
        await moving(fake)
        uid = fake.resource["metadata"]["uid"]
        fake.controllers.job_messages[CHECK] = f"{uid} 0 0"
        before = uris(fake)
        await fake.until(lambda: fake.reason("Stalled") == "MetadataElsewhere", 900)
        assert uris(fake) == before
        fake.controllers.job_messages[CHECK] = f"{uid} 3 0"
        await fake.until(lambda: fake.status["metadataServiceUri"] == f"{THERE}/ledgers", 900)


async def test_a_copy_is_not_taken_for_the_service_while_nobody_can_be_asked() -> None:
    async with fake_cluster() as fake:
        await moving(fake)
        before = uris(fake)
        fake.controllers.job_messages[CHECK] = f"{fake.resource['metadata']['uid']} 0 0"
        fake.bookkeeper.reachable = False
        await fake.until(lambda: fake.reason("Stalled") == "MetadataElsewhere", 900)
        assert uris(fake) == before
        fake.bookkeeper.reachable = True
        await fake.until(lambda: fake.reason("Stalled") == "MetadataElsewhere", 900)
        assert uris(fake) == before
