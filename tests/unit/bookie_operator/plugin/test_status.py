"""`kubectl bookie status`: what is, what is waited for, and why."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from bookie_operator.api.kinds import CLUSTER
from bookie_operator.crds import names
from bookie_operator.plugin import status as status_command
from bookie_operator.plugin.status_view import details
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE, SPEC
from tests.support.fake_kubernetes.jobs import FakeJobs
from tests.support.kubectl_rig import KubectlRig

NOW = datetime(2027, 1, 1, 12, 0, tzinfo=UTC)


def _shown(cluster: dict[str, Any], tasks: list[dict[str, Any]] | None = None) -> str:
    console = Console(width=400, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(details(cluster, tasks or [], now=NOW))
    return captured.get()


def _cluster(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": NAME, "namespace": NAMESPACE, **metadata}, "spec": SPEC, "status": status}


async def test_a_healthy_cluster(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    assert await rig.run("status", NAME) == 0
    shown = capsys.readouterr().out
    assert f"{NAME} in namespace {NAMESPACE}" in shown
    assert "3 of 3 serve, 3 writable, 3 up to date" in shown
    for bookie in rig.fake.pods():
        assert f"{bookie}" in shown
    assert "True: AllBookiesReady" in shown


async def test_what_nobody_can_tell_is_shown_as_unknown(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.fake.bookkeeper.reachable = False
    await rig.fake.until(lambda: rig.fake.condition("Available") == "Unknown", limit=20)
    assert await rig.run("status", NAME) == 0
    assert "3 of 3 serve, ? writable, 3 up to date" in capsys.readouterr().out


async def test_without_a_name_the_only_one_and_of_several_a_list(
    rig: KubectlRig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await rig.run("status") == 0
    assert "Conditions" in capsys.readouterr().out
    rig.fake.store.create(CLUSTER, NAMESPACE, {"metadata": {"name": "other"}, "spec": SPEC})
    assert await rig.run("status") == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["NAMESPACE", "NAME", "READY"]
    assert [line.split()[1:4] for line in lines] == [[NAME, "True", "3/3"], ["other", "Unknown", "0/3"]]


async def test_its_jobs(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = FakeJobs(rig.fake, "weekly-audit")
    jobs.apply(schedule="@weekly")
    await jobs.until(lambda: jobs.phase == "Scheduled")
    assert await rig.run("status", NAME) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "weekly-audit" in line]
    assert line.split() == ["weekly-audit", "audit", "@weekly", "Scheduled", "-"]
    jobs.ends(1, "it broke")
    jobs.fire()
    rig.fake.run_controllers()
    await jobs.until(lambda: bool(jobs.status["history"]))
    assert await rig.run("status", NAME) == 0
    shown = capsys.readouterr().out
    assert "Failed, " in shown
    assert "failed: it broke" in shown
    rig.fake.server.unknown.add("bookiejobs")
    assert await rig.run("status", NAME) == 0, "an older Kubernetes has none"
    assert "Jobs" not in capsys.readouterr().out


async def test_json(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    assert await rig.run("status", NAME, "-o", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["cluster"]["status"]["readyReplicas"] == 3
    assert (told["tasks"], told["jobs"]) == ([], [])


async def test_watch_shows_each_change_once(
    rig: KubectlRig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    looks = 0

    async def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        loop.call_soon_threadsafe(looked.put_nowait, None)
        if looks == 4:
            raise KeyboardInterrupt
        await real_sleep(0.01)

    real_sleep = asyncio.sleep
    monkeypatch.setattr(status_command.asyncio, "sleep", sleep)
    assert await rig.run("status", NAME, "--watch", "-o", "json") == 130
    assert looked.qsize() == 4
    assert len(capsys.readouterr().out.splitlines()) == 1, "nothing changed"


def test_what_is_waited_for_where_no_operation_runs() -> None:
    def operation(status: str, reason: str, message: str) -> str:
        ready = {"type": "Ready", "status": status, "reason": reason, "message": message}
        lines = _shown(_cluster({"conditions": [ready]})).splitlines()
        return lines[lines.index("Operation") + 1].strip()

    why = "waits for Job/demo-metadata-init to make the cluster in the metadata service: no such image"
    assert operation("False", "Creating", why) == f"none; {why}"
    assert operation("True", "AllBookiesReady", "3 bookies serve") == "none"
    assert _shown(_cluster({})).splitlines().count("none; the operator has not looked yet") == 1


def test_what_the_operator_waits_for_and_why() -> None:
    status = {
        "operation": {
            "id": "Decommission-7",
            "type": "Decommission",
            "step": "Drain",
            "bookie": "demo-bookie-3",
            "startedAt": "2027-01-01T10:00:00Z",
            "lastProgressAt": "2027-01-01T11:58:30Z",
            "message": "12 ledgers are left: ledger 5 has no spare bookie",
            "stalled": True,
            "attempts": 2,
        },
        "conditions": [
            {
                "type": "Stalled",
                "status": "True",
                "reason": "DecommissionBlocked",
                "message": "add a bookie",
                "lastTransitionTime": "2027-01-01T11:00:00Z",
            }
        ],
        "bookies": [
            {"name": "demo-bookie-3", "ordinal": 3, "zone": "a", "state": "Draining", "ledgersRemaining": 12},
        ],
        "history": [
            {"id": "Rollout-6", "type": "Rollout", "finishedAt": "2027-01-01T09:00:00Z", "message": "to 1.3"},
        ],
    }
    shown = _shown(_cluster(status))
    assert "Decommission of demo-bookie-3 (Decommission-7), begun 2h ago" in shown
    assert "Drain, no progress for 1m30s" in shown
    assert "12 ledgers are left: ledger 5 has no spare bookie (a person is needed)" in shown
    assert "2 in a row" in shown
    assert "DecommissionBlocked" in shown
    assert "ZONE" in shown
    assert "Rollout-6" in shown
    assert "3h ago" in shown


def test_what_a_person_has_to_know() -> None:
    shown = _shown(
        _cluster(
            {"observedGeneration": 1},
            generation=2,
            annotations={names.PAUSED: "true"},
            deletionTimestamp="2027-01-01T11:59:00Z",
        )
    )
    assert "nothing is changed until `kubectl bookie resume`" in shown
    assert "the operator has not yet seen the newest spec" in shown
    assert "asked for" in shown
    assert "the operator has not looked yet: does it run?" in shown
    assert "? ledgers" in shown, "what nobody could tell is not 0"


def test_tasks() -> None:
    task = {
        "metadata": {"name": "restart-1", "creationTimestamp": "2027-01-01T11:59:00Z"},
        "spec": {"cluster": NAME, "type": "Restart", "bookies": ["demo-bookie-0"]},
        "status": {"phase": "Running", "message": "waits for the canary"},
    }
    shown = _shown(_cluster({}), [task])
    assert "restart-1" in shown
    assert "waits for the canary" in shown
