"""What Kubernetes' objects mean to the planner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bookie_operator.builders.secrets import secret_texts
from bookie_operator.crds import names
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.observe import faults, others, volumes, workloads
from bookie_operator.world.model import AttributesView, ModifyState, PodFault, ResizeState
from tests.support.operator_clusters import MINIMAL, cluster

AT = "2026-01-02T03:04:05Z"
SECONDS = 1767323045.0


def pod(**changes: Any) -> dict[str, Any]:
    status = {"phase": "Running", "podIP": "10.0.0.1", **changes}
    metadata = {
        "name": "demo-bookie-10",
        "uid": "u",
        "creationTimestamp": AT,
        "labels": {names.COMPONENT: "bookie", names.ZONE: "z"},
        "annotations": {names.TEMPLATE_HASH: "h"},
        "ownerReferences": [{"kind": "StatefulSet", "uid": "s", "controller": True}],
    }
    volume = {"name": "c", "configMap": {"name": "demo-config-1"}}
    source = {"projected": {"sources": [{"configMap": {"name": "demo-settings"}}]}}
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "mine", "key": "a"}}}]
    spec = {"nodeName": "n", "volumes": [volume, source], "containers": [{"name": "bookie", "env": env}]}
    return {"metadata": metadata, "spec": spec, "status": status}


def container(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "bookie", **state}]}


def test_a_pod() -> None:
    ready = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": AT}]}
    view = workloads.pod_view(pod(**ready, **container(state={"running": {}})))
    assert view is not None
    assert (view.stateful_set, view.ordinal, view.zone, view.node) == ("demo-bookie", 10, "z", "n")
    assert (view.ready, view.running, view.deleting) == (True, True, False)
    assert (view.ready_since, view.unready_since, view.created_at) == (SECONDS, None, SECONDS)
    assert (view.owner_uid, view.template_hash) == ("s", "h")
    assert view.config_maps == {"demo-config-1", "demo-settings", "mine"}


@pytest.mark.parametrize(
    ("bookie", "other", "runs"), [("running", "waiting", True), ("waiting", "running", False), ("", "running", False)]
)
def test_whether_the_bookie_runs_is_told_of_its_own_container(bookie: str, other: str, runs: bool) -> None:
    states = {"running": {}, "waiting": {"reason": "CrashLoopBackOff"}}
    statuses = [{"name": name, "state": {of: states[of]}} for name, of in (("bookie", bookie), ("tune", other)) if of]
    view = workloads.pod_view(pod(containerStatuses=statuses))
    assert view is not None
    assert view.bookie_runs is runs


def test_a_pod_without_a_number_is_none_of_a_statefulset() -> None:
    other = pod()
    other["metadata"]["name"] = "demo-autorecovery-7c9f8-abcde"
    assert workloads.pod_view(other) is None


@pytest.mark.parametrize(
    ("state", "fault", "words"),
    [
        ({"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no x"}}}, PodFault.IMAGE, "no x"),
        ({"state": {"waiting": {"reason": "ErrImageNeverPull"}}}, PodFault.IMAGE, "ErrImageNeverPull"),
        (
            {"state": {"waiting": {"reason": "CreateContainerConfigError", "message": "secret"}}},
            PodFault.CONFIG,
            "secret",
        ),
        ({"state": {"terminated": {"exitCode": 2, "message": "cookie"}}}, PodFault.COOKIE, "cookie"),
        (
            {"state": {"terminated": {"exitCode": 3, "message": "refused\n" * 100 + "bookie: no ZooKeeper at zk:1\n"}}},
            PodFault.CRASHING,
            "container bookie: bookie: no ZooKeeper at zk:1",
        ),
        (
            {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 2}}},
            PodFault.COOKIE,
            "exit code 2",
        ),
        (
            {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 5}}},
            PodFault.CRASHING,
            "CrashLoopBackOff: exit code 5",
        ),
        ({"state": {"running": {}}, "lastState": {"terminated": {"exitCode": 5}}}, PodFault.NONE, ""),
        ({"state": {"waiting": {"reason": "ContainerCreating"}}}, PodFault.NONE, ""),
        ({"state": {"terminated": {"exitCode": 0}}}, PodFault.NONE, ""),
    ],
)
def test_why_a_container_does_not_run(state: dict[str, Any], fault: PodFault, words: str) -> None:
    found, message = faults.fault_of(pod(**container(**state)))
    assert found is fault
    assert words in message


@pytest.mark.parametrize("statuses", ["initContainerStatuses", "containerStatuses"])
def test_the_code_of_a_container_of_the_user_says_nothing_of_cookies(statuses: str) -> None:
    """Else a bookie would count as lost, and might be replaced."""
    ended = {"name": "tune", "state": {"terminated": {"exitCode": 2, "message": "usage"}}}
    fault, message = faults.fault_of(pod(**{statuses: [ended]}))
    assert (fault, message) == (PodFault.CRASHING, "container tune: usage")


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("0/3 nodes are available: 3 Insufficient cpu.", PodFault.UNSCHEDULABLE),
        ("0/3 nodes are available: 3 node(s) had volume node affinity conflict.", PodFault.VOLUME),
        ("0/2 nodes are available: 2 node(s) didn't match PersistentVolume's node affinity.", PodFault.VOLUME),
        (
            "0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) had volume node affinity conflict."
            " preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
            PodFault.UNSCHEDULABLE,
        ),
        (
            "0/3 nodes are available: 1 node(s) had untolerated taint {maintenance: }, 2 node(s) didn't match"
            " PersistentVolume's node affinity.",
            PodFault.UNSCHEDULABLE,
        ),
        (
            "0/3 nodes are available: 1 Insufficient memory, 2 node(s) had volume node affinity conflict.",
            PodFault.UNSCHEDULABLE,
        ),
        (
            "0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind.",
            PodFault.UNSCHEDULABLE,
        ),
        ('persistentvolumeclaim "ledger-0-demo-bookie-1" not found', PodFault.VOLUME),
    ],
)
def test_why_a_pod_is_not_scheduled(message: str, fault: PodFault) -> None:
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    told = message.partition(" preemption:")[0]  # which says the same once more
    assert faults.fault_of(pod(phase="Pending", conditions=[waiting])) == (fault, told)


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) had volume node affinity conflict.", True),
        (
            "0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) didn't match PersistentVolume's node"
            " affinity. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
            True,
        ),
        ("0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient memory.", False),
        ("0/3 nodes are available: 1 Insufficient memory, 2 node(s) had volume node affinity conflict.", False),
        ("0/3 nodes are available: 3 node(s) had volume node affinity conflict.", False),
    ],
)
def test_a_pod_whose_only_node_is_cordoned(message: str, kept: bool) -> None:
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    assert faults.kept_by_cordon(pod(phase="Pending", conditions=[waiting])) is kept


def test_why_a_pod_does_not_begin_stands_in_its_events() -> None:
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": AT}
    waiting = pod(phase="Pending", conditions=[scheduled])
    assert faults.starts_slowly(waiting, SECONDS + 60)
    assert not faults.starts_slowly(waiting, SECONDS + 5)
    missing = {"reason": "FailedMount", "message": 'MountVolume.SetUp failed: secret "demo-tls" not found'}
    assert faults.fault_of(waiting, [{"reason": "Pulled"}, missing])[0] is PodFault.CONFIG
    assert faults.fault_of(waiting, [{"reason": "FailedAttachVolume", "message": "timed out"}])[0] is PodFault.VOLUME
    assert faults.fault_of(waiting, [{"reason": "Pulled", "message": "x"}])[0] is PodFault.NONE


def claim(name: str = "ledger-0-demo-bookie-12", **status: Any) -> dict[str, Any]:
    finalizers = ["kubernetes.io/pvc-protection", "backup.example/keep"]
    metadata = {"name": name, "uid": "u", "labels": {names.INSTANCE_ID: "i"}, "finalizers": finalizers}
    spec = {"resources": {"requests": {"storage": "20Gi"}}, "storageClassName": "fast"}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Bound", "capacity": {"storage": "10Gi"}, **status}}


def test_a_claim() -> None:
    view = volumes.claim_view(claim(), cluster())
    assert view is not None
    assert (view.bookie, view.ordinal, view.volume) == ("demo-bookie-12", 12, "ledger")
    assert (view.requested, view.actual, view.bound, view.lost) == ("20Gi", "10Gi", True, False)
    assert (view.instance_id, view.retired, view.storage_class, view.resize) == ("i", False, "fast", ResizeState.NONE)
    assert (view.finalizers, view.adoption) == (("backup.example/keep",), False)
    assert volumes.claim_view(claim("data-other-0"), cluster()) is None
    assert volumes.claim_view(claim("mine"), cluster()) is None


def test_whose_a_claim_is_its_labels_say() -> None:
    made = cluster()
    own = replace(made, status=made.status.model_copy(update={"instance_id": "i"}))
    labels = {names.NAME: "podkeeper", names.INSTANCE: made.name, names.INSTANCE_ID: "i"}
    for changes, foreign in (
        ({}, False),
        ({names.INSTANCE_ID: "another"}, True),
        ({names.INSTANCE_ID: None}, True),
        ({names.INSTANCE: "another"}, True),
        ({names.NAME: None}, True),
    ):
        found = claim()
        found["metadata"]["labels"] = {key: text for key, text in (labels | changes).items() if text is not None}
        view = volumes.claim_view(found, own)
        assert view is not None
        assert view.foreign is foreign, changes


def test_a_claim_of_a_bookie_that_was_taken_over_is_known_by_its_template_alone() -> None:
    volume = {"mountPath": "/disks/a"}
    layout = {"journal": {**volume, "claim": "journal-9"}, "ledger": {**volume, "claim": "data"}}
    made = cluster({**MINIMAL, "bootstrap": {"mode": "Adopt", "instanceId": "i", "inPlace": layout}})
    for template, kind in (("journal-9", "journal"), ("data", "ledger")):
        found = claim(f"{template}-demo-bookie-1")
        found["metadata"]["labels"] = {}
        view = volumes.claim_view(found, made)
        assert view is not None
        assert (view.bookie, view.volume, view.foreign) == ("demo-bookie-1", kind, True)


def test_the_claim_of_the_embedded_metadata_service() -> None:
    found = claim("data-demo-metadata-0")
    found["metadata"]["labels"][names.VOLUME] = "metadata"
    view = volumes.claim_view(found, cluster())
    assert view is not None
    assert (view.volume, view.bookie) == ("metadata", "demo-metadata-0")


@pytest.mark.parametrize(
    ("status", "resize"),
    [
        ({"conditions": [{"type": "Resizing", "status": "True", "lastTransitionTime": AT}]}, ResizeState.RESIZING),
        ({"conditions": [{"type": "FileSystemResizePending", "status": "True"}]}, ResizeState.FILE_SYSTEM_PENDING),
        ({"conditions": [{"type": "Resizing", "status": "False"}]}, ResizeState.NONE),
        ({"conditions": [{"type": "ControllerResizeError", "status": "True", "message": "x"}]}, ResizeState.FAILED),
        ({"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}, ResizeState.FAILED),
        ({"allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"}}, ResizeState.RESIZING),
    ],
)
def test_how_far_a_volume_has_grown(status: dict[str, Any], resize: ResizeState) -> None:
    view = volumes.claim_view(claim(**status), cluster())
    assert view is not None
    assert view.resize is resize


@pytest.mark.parametrize(
    ("phase", "bound", "lost", "actual"), [("Pending", False, False, ""), ("Lost", False, True, "10Gi")]
)
def test_the_phase_of_a_claim(phase: str, bound: bool, lost: bool, actual: str) -> None:
    view = volumes.claim_view(claim(phase=phase), cluster())
    assert view is not None
    assert (view.bound, view.lost, view.actual) == (bound, lost, actual)


def modified(**status: Any) -> AttributesView:
    found = claim(**status)
    found["spec"]["volumeAttributesClassName"] = "gold"
    view = volumes.claim_view(found, cluster())
    assert view is not None
    return view.attributes


def modify(state: str, target: str = "gold") -> dict[str, Any]:
    return {"modifyVolumeStatus": {"targetVolumeAttributesClassName": target, "status": state}}


ERROR = {"conditions": [{"type": "ModifyVolumeError", "status": "True", "message": "too many iops"}]}


@pytest.mark.parametrize(
    ("status", "state", "message"),
    [
        ({}, ModifyState.NONE, ""),
        (modify("Pending"), ModifyState.PENDING, ""),
        (modify("InProgress"), ModifyState.IN_PROGRESS, ""),
        (modify("SomethingNew"), ModifyState.IN_PROGRESS, ""),
        ({**modify("InProgress"), **ERROR}, ModifyState.FAILED, "too many iops"),
        ({**modify("Infeasible"), **ERROR}, ModifyState.FAILED, "too many iops"),
        (modify("Infeasible"), ModifyState.FAILED, ""),
        ({**modify("Infeasible", "silver"), **ERROR}, ModifyState.NONE, ""),
    ],
)
def test_what_became_of_another_class(status: dict[str, Any], state: ModifyState, message: str) -> None:
    assert modified(**status) == AttributesView("gold", "", state, message)
    assert modified(currentVolumeAttributesClassName="bronze", **status).current == "bronze"
    assert modified(currentVolumeAttributesClassName="gold", **status) == AttributesView("gold", "gold")


def test_the_classes_of_claim_templates() -> None:
    def template(name: str, attributes_class: str | None) -> dict[str, Any]:
        spec = {"resources": {"requests": {"storage": "5Gi"}}, "volumeAttributesClassName": attributes_class}
        return {"metadata": {"name": name}, "spec": spec}

    templates = [template("journal-0", None), template("ledger-0", "gold"), template("of-the-user", "silver")]
    spec = {"volumeClaimTemplates": templates, "template": {}}
    view = workloads.stateful_set_view({"metadata": {"name": "s", "uid": "u", "resourceVersion": "7"}, "spec": spec})
    assert view.volume_attributes == {"ledger": "gold"}


def test_a_statefulset_that_its_controller_has_not_seen_is_not_settled() -> None:
    template = {"metadata": {"name": "journal-1"}, "spec": {"resources": {"requests": {"storage": "5Gi"}}}}
    metadata = {"name": "s", "uid": "u", "resourceVersion": "7", "generation": 3, "labels": {}, "annotations": {}}
    spec = {"replicas": 0, "volumeClaimTemplates": [template], "template": {}}
    view = workloads.stateful_set_view({"metadata": metadata, "spec": spec, "status": {"observedGeneration": 2}})
    assert not view.settled
    assert (view.replicas, view.volume_sizes) == (0, {"journal": "5Gi"})
    assert (view.template_hash, view.inputs_hash, view.restart) == ("", "", "")


def test_a_stateful_set_tells_what_it_was_made_for() -> None:
    annotations = {names.TEMPLATE_HASH: "t", names.TEMPLATE_INPUTS: "t/i"}
    metadata = {"name": "s", "uid": "u", "resourceVersion": "7", "annotations": annotations}
    template = {"metadata": {"annotations": {names.RESTART: "monday"}}}
    view = workloads.stateful_set_view({"metadata": metadata, "spec": {"template": template}})
    assert (view.template_hash, view.inputs_hash, view.restart) == ("t", "i", "monday")


def test_a_job_tells_what_its_pod_told() -> None:
    job = {
        "metadata": {"uid": "j"},
        "status": {"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": AT}]},
    }
    ended = pod(
        phase="Succeeded", containerStatuses=[{"state": {"terminated": {"exitCode": 0, "message": "log\nid-1\n"}}}]
    )
    ended["metadata"]["ownerReferences"] = [{"uid": "j"}]
    view = workloads.job_view(job, [pod(), ended])
    assert (view.state, view.told, view.finished_at) == ("Complete", "id-1", SECONDS)
    assert workloads.job_view(None, [ended]) == workloads.JobView()
    assert workloads.job_view({"metadata": {"uid": "j"}}, []).state == "Running"


def test_a_job_that_failed_tells_why() -> None:
    job = {
        "metadata": {"uid": "j"},
        "status": {"conditions": [{"type": "Failed", "status": "True", "message": "limit"}]},
    }
    ended = pod(phase="Failed", containerStatuses=[{"state": {"terminated": {"exitCode": 1, "message": "no zk"}}}])
    ended["metadata"]["ownerReferences"] = [{"uid": "j"}]
    view = workloads.job_view(job, [ended])
    assert view.state == "Failed"
    assert "no zk" in view.message
    assert workloads.job_view(job, []).message == "limit"


def test_a_job_whose_pod_cannot_begin_tells_what_is_missing() -> None:
    waiting = pod(phase="Pending")
    waiting["metadata"] |= {"uid": "p", "ownerReferences": [{"uid": "j"}]}
    event = {"reason": "FailedMount", "message": 'MountVolume.SetUp failed: secret "tls" not found'}
    view = workloads.job_view({"metadata": {"uid": "j"}}, [waiting], {"p": [event]})
    assert view.state == "Running"
    assert 'secret "tls" not found' in view.message


def test_ready_replicas_count_for_a_deployment_that_was_seen() -> None:
    status = {"observedGeneration": 2, "readyReplicas": 2, "updatedReplicas": 1}
    found = {"metadata": {"generation": 2}, "spec": {"replicas": 2}, "status": status}
    assert workloads.ready_replicas(found) == (1, 2)
    assert workloads.ready_replicas({**found, "metadata": {"generation": 3}}) == (0, 2)
    assert workloads.ready_replicas(None) == (0, 0)


def test_nodes_and_classes() -> None:
    node = {
        "metadata": {"name": "n"},
        "spec": {"taints": [{"key": "node.kubernetes.io/out-of-service"}]},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
    }
    view = others.node_view(node)
    assert (view.ready, view.out_of_service) == (False, True)
    classes = [{"metadata": {"name": "a"}, "allowVolumeExpansion": True}, {"metadata": {"name": "b"}}]
    assert volumes.growing_classes(classes) == {"a": True, "b": False}


def task(name: str, cluster: str = "demo", **status: Any) -> dict[str, Any]:
    spec = {"cluster": cluster, "type": "Restart", "bookies": ["demo-bookie-1"], "ttlSecondsAfterFinished": 60}
    return {"metadata": {"name": name, "uid": f"u-{name}", "creationTimestamp": AT}, "spec": spec, "status": status}


MINE = replace(cluster(), created_at=SECONDS)


def owners(uid: str) -> list[dict[str, str]]:
    return [{"kind": "BookieCluster", "name": "demo", "uid": uid}]


def test_tasks() -> None:
    newer = task("a")
    newer["metadata"]["creationTimestamp"] = "2026-01-02T03:04:06Z"
    unreadable = task("x")
    unreadable["spec"]["type"] = "Explode"
    done = task("done", phase="Done", finishedAt=AT)
    earlier, owned, inherited = task("earlier"), task("owned"), task("inherited")
    earlier["metadata"]["creationTimestamp"] = "2026-01-02T03:04:04Z"
    owned["metadata"] |= {"creationTimestamp": "2026-01-02T03:04:04Z", "ownerReferences": owners(MINE.uid)}
    inherited["metadata"]["ownerReferences"] = owners("of-the-one-before")
    found = [newer, task("b", phase="Running"), task("other", "other"), unreadable, done, earlier, owned, inherited]
    views, outlived = others.task_views(found, MINE)
    assert [view.name for view in outlived] == ["earlier", "inherited"]
    assert [(view.name, view.phase, view.type) for view in views] == [
        ("owned", "", TaskType.RESTART),
        ("b", "Running", TaskType.RESTART),
        ("a", "", TaskType.RESTART),
    ]
    assert others.expired_tasks(found, "demo", SECONDS + 59) == ()
    assert others.expired_tasks(found, "demo", SECONDS + 60) == (("done", "u-done"),)


def test_secrets() -> None:
    assert secret_texts(None) is None
    assert secret_texts({}) == {}
    assert secret_texts({"data": {"a": "aGk=", "b": "/w==", "c": "!"}}) == {"a": "hi"}
