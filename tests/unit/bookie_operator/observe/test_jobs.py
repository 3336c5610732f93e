"""Jobs of BookieJobs as the planner sees them."""

from __future__ import annotations

from typing import Any

import pytest

from bookie_operator.api.kinds import JOB, POD_EVENT
from bookie_operator.crds.validation import parse_spec
from bookie_operator.observe.jobs import object_view, run_view
from bookie_operator.world.model import RunState
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE, SPEC, fake_cluster, settled_cluster
from tests.support.fake_kubernetes.jobs import FakeJobs

CREATED = "2026-11-21T20:00:00Z"
ENDED = "2026-11-21T20:10:00Z"


def job(*conditions: dict[str, Any], **status: Any) -> dict[str, Any]:
    metadata = {"name": "weekly-job", "uid": "job", "creationTimestamp": CREATED}
    return {"kind": "Job", "metadata": metadata, "spec": {}, "status": {"conditions": list(conditions), **status}}


def over(kind: str, reason: str = "") -> dict[str, Any]:
    return {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": ENDED}


def pod(
    name: str, state: dict[str, Any], *, owner: str = "job", created: str = CREATED, component: str = "job"
) -> dict[str, Any]:
    metadata = {
        "name": name,
        "uid": name,
        "creationTimestamp": created,
        "labels": {"app.kubernetes.io/component": component},
        "ownerReferences": [{"uid": owner, "controller": True}],
    }
    statuses = [{"name": "sidecar", "state": {"running": {}}}, {"name": "job", "state": state}]
    return {"metadata": metadata, "spec": {}, "status": {"phase": "Running", "containerStatuses": statuses}}


def terminated(code: int, message: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "message": message}}


def test_the_last_driver_tells() -> None:
    """Pods of a Job are tried one after the other; executors and pods of other runs tell nothing."""
    pods = [
        pod("second", terminated(2, "{}"), created="2026-11-21T20:05:00Z"),
        pod("first", terminated(1, "it broke")),
        pod("executor", terminated(137, "killed"), owner="second", created=ENDED),
        pod("other", terminated(0, "other"), owner="another", created=ENDED),
    ]
    view = run_view(job(over("Failed", "PodFailurePolicy")), pods)
    assert (view.state, view.exit_code, view.told, view.message) == (RunState.FAILED, 2, "{}", "")
    assert view.finished_at is not None
    assert view.finished_at - view.created_at == 600.0


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("BackoffLimitExceeded", ""),
        ("DeadlineExceeded", "it took longer than spec.activeDeadlineSeconds"),
        ("Another", "Another"),
    ],
)
def test_why_kubernetes_gave_it_up(reason: str, words: str) -> None:
    assert run_view(job(over("Failed", reason)), []).message == words


def test_one_that_goes_on() -> None:
    view = run_view(job(active=1), [pod("first", {"running": {}})])
    assert (view.state, view.message, view.exit_code, view.finished_at) == (RunState.RUNNING, "", None, None)


def test_one_that_is_tried_again() -> None:
    first, second = pod("first", terminated(1, "a\nit broke")), pod("second", {"running": {}}, created=ENDED)
    assert (
        run_view(job(failed=1), [first, second]).message
        == "tried again after 1 failed attempts; the last one: it broke"
    )


@pytest.mark.parametrize("component", ["job", "job-executor"])
def test_what_does_not_begin(component: str) -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    stuck = pod("stuck", waiting, component=component, owner="job" if component == "job" else "driver")
    pods = [stuck] if component == "job" else [pod("driver", {"running": {}}), stuck]
    role = "driver" if component == "job" else "executor"
    assert run_view(job(), pods).message == f"{role} stuck: container job: ImagePullBackOff: no such image"


def test_no_pod_at_all() -> None:
    events = [
        {"type": "Normal", "message": "fine"},
        {"type": "Warning", "message": 'serviceaccount "demo-spark" not found'},
    ]
    assert run_view(job(), [], {"job": events}).message == ('no pod can be made: serviceaccount "demo-spark" not found')


def test_who_owns_an_object() -> None:
    owner = {"kind": "BookieJob", "uid": "mine", "controller": True}
    labels = {"annotations": {"podkeeper.dev/object-hash": "abc"}}
    mine = object_view({"metadata": {"uid": "u", "ownerReferences": [owner], **labels}, "spec": {"suspend": True}})
    assert (mine.owner_uid, mine.digest, mine.suspended) == ("mine", "abc", True)
    other = object_view({"metadata": {"uid": "u", "ownerReferences": [{**owner, "kind": "Deployment"}]}})
    assert (other.owner_uid, other.digest, other.suspended) == ("", "", False)


async def test_events_tell_why_there_is_no_pod() -> None:
    """Only once a while has passed: most Jobs have their pod at once."""
    async with settled_cluster() as fake:
        jobs = FakeJobs(fake)
        jobs.apply()
        fake.controllers.no_pods.add("weekly-job")
        await jobs.until(lambda: jobs.phase == "Running")
        (made,) = [each for each in fake.store.list(JOB, NAMESPACE) if each["metadata"]["name"] == "weekly-job"]
        event = {
            "metadata": {"name": "why"},
            "type": "Warning",
            "message": "exceeded quota",
            "involvedObject": {"uid": made["metadata"]["uid"]},
        }
        fake.store.create(POD_EVENT, NAMESPACE, event)
        await jobs.until(lambda: "exceeded quota" in str(jobs.status))
        assert jobs.status["active"][0]["message"] == "no pod can be made: exceeded quota"


async def test_a_cluster_that_cannot_be_read_is_none() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas="many")
        assert parse_spec({**SPEC, "replicas": "many"})[0] is None
        jobs = FakeJobs(fake)
        jobs.apply()
        await jobs.one_pass()
        assert jobs.condition("Ready") == ("False", "ClusterNotFound")
        assert f"BookieCluster {NAME} cannot be read: spec.replica" in str(jobs.status)
