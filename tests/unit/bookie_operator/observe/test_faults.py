"""What a pod's events say of its volumes: only a claim's volume can be lost, and what was overcome is not told.

What a quota or a policy does not let Kubernetes make is told in the status, in Kubernetes' own words.
"""

from __future__ import annotations

from typing import Any

import pytest

from bookie_operator.api.kinds import DEPLOYMENT, JOB, POD_EVENT, STATEFUL_SET, Resource
from bookie_operator.observe import faults
from bookie_operator.observe.faults import refusals
from bookie_operator.world.model import PodFault
from tests.support.fake_kubernetes.cluster import NAMESPACE, FakeCluster, fake_cluster, settled_cluster

_POD = {
    "metadata": {"name": "demo-bookie-0"},
    "spec": {
        "volumes": [
            {"name": "podkeeper-config", "configMap": {"name": "demo-config"}},
            {"name": "podkeeper-tls", "secret": {"secretName": "demo-tls"}},
            {"name": "ledger-0", "persistentVolumeClaim": {"claimName": "ledger-0-demo-bookie-0"}},
        ]
    },
    "status": {"phase": "Pending"},
}
_SLOW_CACHE = 'MountVolume.SetUp failed for volume "podkeeper-config" : failed to sync configmap cache: timed out'
_MISSING = 'MountVolume.SetUp failed for volume "podkeeper-tls" : secret "demo-tls" not found'
_NO_KEY = 'MountVolume.SetUp failed for volume "podkeeper-tls" : references non-existent secret key: tls.crt'
_GONE = 'MountVolume.NewMounter initialization failed for volume "pvc-1" : path "/disks/disk1/pvc-1" does not exist'
_ELSEWHERE = 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) demo-bookie-0'
_WAITS_PLAIN = "Unable to attach or mount volumes: unmounted volumes=[podkeeper-tls], unattached volumes=[], timed out"
_WAITS_CLAIM = "Unable to attach or mount volumes: unmounted volumes=[podkeeper-tls ledger-0], timed out"


def event(second: int, message: str, reason: str = "FailedMount") -> dict[str, Any]:
    at = f"2026-01-01T00:00:{second:02}Z"
    return {"reason": reason, "message": message, "lastTimestamp": at, "metadata": {"creationTimestamp": at}}


def fault_of(*events: dict[str, Any]) -> tuple[PodFault, str]:
    return faults.fault_of(_POD, events)


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (_SLOW_CACHE, PodFault.NONE),
        (_ELSEWHERE, PodFault.NONE),
        (_WAITS_PLAIN, PodFault.NONE),
        (_MISSING, PodFault.CONFIG),
        (_NO_KEY, PodFault.CONFIG),
        ('MountVolume.SetUp failed for volume "podkeeper-config" : no such host path', PodFault.CONFIG),
        (_GONE, PodFault.VOLUME),
        (_WAITS_CLAIM, PodFault.VOLUME),
    ],
)
def test_what_one_event_means(message: str, fault: PodFault) -> None:
    assert fault_of(event(1, message)) == (fault, message if fault is not PodFault.NONE else "")


def test_a_slow_start_of_the_node_does_not_hide_what_is_missing() -> None:
    """Nor is it a lost volume, for which a bookie would be replaced."""
    assert fault_of(event(4, _SLOW_CACHE), event(9, _MISSING)) == (PodFault.CONFIG, _MISSING)
    assert fault_of(event(9, _SLOW_CACHE), event(4, _MISSING)) == (PodFault.CONFIG, _MISSING)


def test_the_newest_counts() -> None:
    assert fault_of(event(4, _MISSING), event(9, _GONE)) == (PodFault.VOLUME, _GONE)
    assert fault_of(event(9, _MISSING), event(4, _GONE)) == (PodFault.CONFIG, _MISSING)
    series = {**event(1, _GONE), "series": {"lastObservedTime": "2026-01-01T00:00:30.000000Z"}}
    assert fault_of(event(9, _MISSING), series) == (PodFault.VOLUME, _GONE)


@pytest.mark.parametrize("reason", ["Pulling", "Pulled", "Created", "FailedCreatePodSandBox"])
def test_what_comes_after_all_volumes_were_mounted(reason: str) -> None:
    """While a large image is pulled, a volume that came late is not lost."""
    assert fault_of(event(4, _GONE), event(9, "image", reason)) == (PodFault.NONE, "")
    assert fault_of(event(9, _GONE), event(4, "image", reason)) == (PodFault.VOLUME, _GONE)


NOW = 1_800_000_000.0
QUOTA = 'pods "demo-bookie-0" is forbidden: exceeded quota: small, requested: pods=1, used: pods=4, limited: pods=4'


def at(seconds: float) -> str:
    from bookie_operator.planner.operations import written

    return written(seconds)


def event_of_refusals(message: str = QUOTA, told_at: float = NOW - 5, reason: str = "FailedCreate") -> dict[str, Any]:
    return {"type": "Warning", "reason": reason, "message": message, "lastTimestamp": at(told_at)}


def stateful_set(replicas: int) -> dict[str, Any]:
    return {"kind": "StatefulSet", "metadata": {"name": "b", "uid": "u"}, "spec": {"replicas": replicas}}


def pod(created: float) -> dict[str, Any]:
    return {"metadata": {"name": "b-0", "ownerReferences": [{"uid": "u"}], "creationTimestamp": at(created)}}


def job(**status: Any) -> dict[str, Any]:
    return {"kind": "Job", "metadata": {"name": "j", "uid": "u"}, "spec": {}, "status": status}


DONE = {"conditions": [{"type": "Complete", "status": "True"}]}


@pytest.mark.parametrize(
    ("maker", "pods", "events", "told"),
    [
        (
            stateful_set(3),
            [pod(NOW - 100)],
            [event_of_refusals("older", NOW - 9), event_of_refusals()],
            {"StatefulSet/b": QUOTA},
        ),
        (stateful_set(1), [pod(NOW - 100)], [event_of_refusals()], {}),  # it has what it is to have
        (stateful_set(3), [pod(NOW - 1)], [event_of_refusals()], {}),  # it was let make another one since
        (stateful_set(3), [], [event_of_refusals(told_at=NOW - 5000)], {}),  # nobody says so any more
        (stateful_set(3), [], [event_of_refusals(reason="FailedMount")], {}),
        (job(), [], [event_of_refusals()], {"Job/j": QUOTA}),
        (job(**DONE), [], [event_of_refusals()], {}),
    ],
)
async def test_who_is_not_let_make_pods(
    maker: dict[str, Any], pods: list[dict[str, Any]], events: list[dict[str, Any]], told: dict[str, str]
) -> None:
    async def events_of(obj: Any) -> list[dict[str, Any]]:
        return events

    assert await refusals([maker], pods, events_of, NOW) == told


async def refuse(fake: FakeCluster, resource: Resource, name: str) -> None:
    uid = fake.store.get(resource, NAMESPACE, name)["metadata"]["uid"]
    body = {
        **event_of_refusals(told_at=fake.time + 1),
        "involvedObject": {"uid": uid},
        "metadata": {"name": f"e-{name}"},
    }
    fake.store.create(POD_EVENT, NAMESPACE, body)


async def test_a_quota_that_refuses_the_first_job_is_told() -> None:
    async with fake_cluster() as fake:
        fake.controllers.no_pods.add("demo-metadata-init")
        fake.apply(replicas=3)
        await fake.until(lambda: fake.store.find(JOB, NAMESPACE, "demo-metadata-init") is not None)
        await refuse(fake, JOB, "demo-metadata-init")
        await fake.until(lambda: fake.reason("Stalled") == "PodsRefused")
        assert "exceeded quota: small" in fake.message("Ready")
        assert [kind for _, _, kind in fake.events("PodsRefused")] == ["Warning"]
        fake.controllers.no_pods.clear()
        await fake.settle()


async def test_a_quota_that_refuses_a_bookie_or_auto_recovery_is_told() -> None:
    async with settled_cluster(replicas=3) as fake:
        fake.store.patch(STATEFUL_SET, NAMESPACE, "demo-bookie", {"spec": {"replicas": 3}})
        failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "denied by policy"}
        live = fake.store.get(DEPLOYMENT, NAMESPACE, "demo-autorecovery")["status"]
        fake.store.patch(
            DEPLOYMENT, NAMESPACE, "demo-autorecovery", {"status": {**live, "conditions": [failure]}}, "status"
        )
        await fake.one_pass()
        assert fake.condition("Ready") == "False"
        assert "Deployment/demo-autorecovery: denied by policy" in fake.message("Stalled")
