"""What Argo CD is told of a resource, by the scripts that people put into its configuration."""

from __future__ import annotations

from typing import Any

import pytest
from lupa.lua51 import LuaRuntime  # the language of Argo CD's interpreter

from tests.support.chart_files import OPERATOR

GENERATION = 4


def health(script: str, resource: dict[str, Any]) -> tuple[str, str]:
    """As Argo CD runs it: the resource is the global `obj`, and the answer has `status` and `message`."""
    lua = LuaRuntime(unpack_returned_tuples=True)
    lua.globals().obj = lua.table_from(resource, recursive=True)
    answer = lua.execute((OPERATOR / "argocd" / script).read_text(encoding="utf-8"))
    return str(answer["status"]), str(answer["message"])


def cluster(*conditions: tuple[str, str, str], observed: int = GENERATION, **metadata: Any) -> dict[str, Any]:
    """With conditions of type, status and reason."""
    listed = [
        {"type": kind, "status": status, "reason": reason, "message": f"about {reason}"}
        for kind, status, reason in conditions
    ]
    return {
        "metadata": {"name": "events", "generation": GENERATION, **metadata},
        "status": {"observedGeneration": observed, "conditions": listed},
    }


def with_operation(resource: dict[str, Any]) -> dict[str, Any]:
    resource["status"]["operation"] = {"id": "Rollout-3", "type": "Rollout", "step": "Soak"}
    return resource


READY = ("Ready", "True", "AllBookiesReady")
CASES = {
    "healthy": (cluster(READY, ("Available", "True", "Writable")), "Healthy", "AllBookiesReady: about AllBookiesReady"),
    "under way": (
        cluster(("Ready", "False", "Upgrading"), ("Available", "True", "Writable")),
        "Progressing",
        "Upgrading: about Upgrading",
    ),
    "being created": (
        cluster(
            ("Ready", "False", "Creating"), ("Available", "False", "BelowEnsemble"), ("Reconciling", "True", "Applying")
        ),
        "Progressing",
        "Creating: about Creating",
    ),
    "not writable": (
        cluster(("Ready", "False", "Repairing"), ("Available", "False", "BelowEnsemble")),
        "Degraded",
        "BelowEnsemble: about BelowEnsemble",
    ),
    "metadata service away": (
        cluster(("Ready", "Unknown", "MetadataUnreachable"), ("Available", "Unknown", "MetadataUnreachable")),
        "Progressing",
        "MetadataUnreachable: about MetadataUnreachable",
    ),
    "not writable while an operation runs": (
        with_operation(
            cluster(
                ("Ready", "False", "Upgrading"),
                ("Available", "False", "BelowEnsemble"),
                ("Reconciling", "True", "Soak"),
            )
        ),
        "Degraded",
        "BelowEnsemble: about BelowEnsemble",
    ),
    "needs a person": (
        cluster(("Ready", "False", "Blocked"), ("Stalled", "True", "DecommissionBlocked")),
        "Degraded",
        "DecommissionBlocked: about DecommissionBlocked",
    ),
    "invalid": (
        cluster(("Ready", "False", "Blocked"), ("SpecValid", "False", "Invalid")),
        "Degraded",
        "Invalid: about Invalid",
    ),
    "old conditions of a new generation": (
        cluster(READY, ("Stalled", "True", "CanaryFailed"), observed=GENERATION - 1),
        "Progressing",
        "Waiting for the operator",
    ),
    "paused": (
        cluster(("Stalled", "True", "CanaryFailed"), annotations={"podkeeper.dev/paused": "True"}),
        "Suspended",
        "Paused by the annotation podkeeper.dev/paused",
    ),
    "not paused any more": (
        cluster(READY, annotations={"podkeeper.dev/paused": "false"}),
        "Healthy",
        "AllBookiesReady: about AllBookiesReady",
    ),
    "may not be deleted": (
        cluster(READY, ("DeletionBlocked", "True", "ConfirmationMissing"), observed=GENERATION - 1),
        "Degraded",
        "ConfirmationMissing: about ConfirmationMissing",
    ),
    "new": ({"metadata": {"name": "events", "generation": 1}}, "Progressing", "Waiting for the operator"),
}


@pytest.mark.parametrize("case", CASES)
def test_health_of_a_cluster(case: str):
    resource, status, message = CASES[case]
    assert health("health.lua", resource) == (status, message)


def test_message_is_optional():
    resource = cluster(READY)
    del resource["status"]["conditions"][0]["message"]
    assert health("health.lua", resource) == ("Healthy", "AllBookiesReady")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, ("Progressing", "Waiting for its turn")),
        ({"phase": "Running", "message": "copies"}, ("Progressing", "copies")),
        ({"phase": "Done", "message": "restarted"}, ("Healthy", "restarted")),
        ({"phase": "Failed", "message": "no spare bookie"}, ("Degraded", "no spare bookie")),
    ],
)
def test_health_of_a_task(status: dict[str, str], expected: tuple[str, str]):
    assert health("bookietask-health.lua", {"metadata": {"name": "x"}, "status": status}) == expected
    if not status:
        assert health("bookietask-health.lua", {"metadata": {"name": "x"}}) == expected


def job(phase: str, ready: str, reason: str, stalled: str = "False", observed: int = GENERATION) -> dict[str, Any]:
    conditions = [
        {"type": "Ready", "status": ready, "reason": reason, "message": f"about {reason}"},
        {"type": "Stalled", "status": stalled, "reason": reason},
    ]
    status = {"observedGeneration": observed, "phase": phase, "conditions": conditions}
    return {"metadata": {"name": "x", "generation": GENERATION}, "status": status}


JOBS = {
    "scheduled": (job("Scheduled", "True", "Scheduled"), "Healthy", "about Scheduled"),
    "a run of a schedule": (job("Running", "True", "Running"), "Healthy", "about Running"),
    "runs once": (job("Running", "False", "Running"), "Progressing", "about Running"),
    "ended": (job("Succeeded", "True", "Succeeded"), "Healthy", "about Succeeded"),
    "failed": (job("Failed", "False", "RunFailed", "True"), "Degraded", "about RunFailed"),
    "suspended": (job("Suspended", "True", "Suspended"), "Suspended", "about Suspended"),
    "waits": (job("Pending", "False", "ClusterNotFound"), "Progressing", "about ClusterNotFound"),
    "invalid": (job("Pending", "False", "InvalidSpec", "True"), "Degraded", "about InvalidSpec"),
    "not seen": (
        job("Scheduled", "True", "Scheduled", observed=GENERATION - 1),
        "Progressing",
        "Waiting for the operator",
    ),
    "new": ({"metadata": {"name": "x", "generation": 1}}, "Progressing", "Waiting for the operator"),
}


@pytest.mark.parametrize("case", JOBS)
def test_health_of_a_job(case: str):
    resource, status, message = JOBS[case]
    assert health("bookiejob-health.lua", resource) == (status, message)
