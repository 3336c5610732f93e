"""What a quota or a policy does not let Kubernetes make is told in the status, in Kubernetes' own words."""

from __future__ import annotations

from typing import Any

import pytest

from bookie_operator.api.kinds import DEPLOYMENT, JOB, POD_EVENT, STATEFUL_SET, Resource
from bookie_operator.observe.refusals import refusals
from tests.support.fake_kubernetes.cluster import NAMESPACE, FakeCluster, fake_cluster

NOW = 1_800_000_000.0
QUOTA = 'pods "demo-bookie-0" is forbidden: exceeded quota: small, requested: pods=1, used: pods=4, limited: pods=4'


def at(seconds: float) -> str:
    from bookie_operator.planner.operations import written

    return written(seconds)


def event(message: str = QUOTA, told_at: float = NOW - 5, reason: str = "FailedCreate") -> dict[str, Any]:
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
        (stateful_set(3), [pod(NOW - 100)], [event("older", NOW - 9), event()], {"StatefulSet/b": QUOTA}),
        (stateful_set(1), [pod(NOW - 100)], [event()], {}),  # it has what it is to have
        (stateful_set(3), [pod(NOW - 1)], [event()], {}),  # it was let make another one since
        (stateful_set(3), [], [event(told_at=NOW - 5000)], {}),  # nobody says so any more
        (stateful_set(3), [], [event(reason="FailedMount")], {}),
        (job(), [], [event()], {"Job/j": QUOTA}),
        (job(**DONE), [], [event()], {}),
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
    body = {**event(told_at=fake.time + 1), "involvedObject": {"uid": uid}, "metadata": {"name": f"e-{name}"}}
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
    async with fake_cluster() as fake:
        fake.apply(replicas=3)
        await fake.settle()
        fake.store.patch(STATEFUL_SET, NAMESPACE, "demo-bookie", {"spec": {"replicas": 3}})
        failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "denied by policy"}
        live = fake.store.get(DEPLOYMENT, NAMESPACE, "demo-autorecovery")["status"]
        fake.store.patch(
            DEPLOYMENT, NAMESPACE, "demo-autorecovery", {"status": {**live, "conditions": [failure]}}, "status"
        )
        await fake.one_pass()
        assert fake.condition("Ready") == "False"
        assert "Deployment/demo-autorecovery: denied by policy" in fake.message("Stalled")
