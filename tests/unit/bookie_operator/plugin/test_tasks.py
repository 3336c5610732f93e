"""Commands that make BookieTasks, pause and resume."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bookie_operator.api.kinds import CLAIM, TASK
from bookie_operator.crds import names
from bookie_operator.crds.task_spec import BookieTaskSpec
from bookie_operator.plugin import tasks
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE
from tests.support.fake_kubernetes.faults import Fault
from tests.support.fake_kubernetes.store import Refused
from tests.support.kubectl_rig import KubectlRig
from tests.support.until import until


def _made(rig: KubectlRig) -> list[dict[str, Any]]:
    return rig.fake.store.list(TASK, NAMESPACE)


@pytest.mark.parametrize(
    ("arguments", "spec"),
    [
        (["decommission", NAME, "demo-bookie-2"], {"type": "Decommission", "bookies": ["demo-bookie-2"]}),
        (["replace", NAME, "demo-bookie-0"], {"type": "Replace", "bookies": ["demo-bookie-0"]}),
        (["restart", NAME], {"type": "Restart"}),
        (
            ["restart", NAME, "demo-bookie-1", "demo-bookie-0", "demo-bookie-1"],
            {"type": "Restart", "bookies": ["demo-bookie-1", "demo-bookie-0"]},
        ),
        (["audit", NAME], {"type": "Audit"}),
        (["accept-loss", NAME, "7", "5", "7", "--yes"], {"type": "AcceptLoss", "ledgers": [5, 7]}),
    ],
)
async def test_the_task_that_is_made(
    rig: KubectlRig, capsys: pytest.CaptureFixture[str], arguments: list[str], spec: dict[str, Any]
) -> None:
    assert await rig.run(*arguments) == 0
    (task,) = _made(rig)
    assert task["spec"] == {"cluster": NAME, **spec}
    BookieTaskSpec.model_validate(task["spec"])
    assert f"bookietask/{task['metadata']['name']} created" in capsys.readouterr().out


async def test_options_of_the_connection_count_before_the_command_too(rig: KubectlRig) -> None:
    assert await rig.run("-n", "elsewhere", "audit", NAME, "-n", NAMESPACE) == 0
    assert await rig.run("-n", "elsewhere", "audit", NAME) == 11
    assert await rig.run("-n", NAMESPACE, "audit", NAME) == 0
    assert len(_made(rig)) == 2


async def test_no_such_bookie(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("decommission", "replace", "restart"):
        assert await rig.run(command, NAME, "demo-bookie-9") == 11
        assert capsys.readouterr().err == (
            "kubectl-bookie: cluster demo has no bookie demo-bookie-9; "
            "it has: demo-bookie-0, demo-bookie-1, demo-bookie-2\n"
        )
    assert _made(rig) == []


async def test_loss_is_not_accepted_by_accident(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    assert await rig.run("accept-loss", NAME, "5") == 1
    assert capsys.readouterr().err == "kubectl-bookie: accept-loss gives up data: add --yes\n"
    assert _made(rig) == []
    assert await rig.run("accept-loss", NAME, "5", "--yes") == 0
    assert [task["spec"]["ledgers"] for task in _made(rig)] == [[5]]


async def test_claims_that_are_adopted(rig: KubectlRig) -> None:
    claims = [each["metadata"]["name"] for each in rig.fake.store.list(CLAIM, NAMESPACE)][:2]
    assert await rig.run("adopt", NAME, claims[0], "no-such-claim") == 11
    assert names.ADOPT not in (rig.fake.store.get(CLAIM, NAMESPACE, claims[0])["metadata"].get("annotations") or {})
    assert await rig.run("adopt", NAME, *claims) == 0
    for each in claims:
        assert rig.fake.store.get(CLAIM, NAMESPACE, each)["metadata"]["annotations"][names.ADOPT] == NAME


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_EVERY_S", 0.01)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("end", "code"), [("Done", 0), ("Failed", 10)])
async def test_progress_is_shown_until_the_end(
    rig: KubectlRig, capsys: pytest.CaptureFixture[str], end: str, code: int
) -> None:
    command = asyncio.create_task(rig.run("restart", NAME, "--wait"))
    shown = ""
    for status, line in (
        ({"phase": "Running", "message": "waits for the canary"}, "Running: waits for the canary"),
        ({"phase": end, "message": "that was it"}, f"{end}: that was it"),
    ):
        await until(lambda: bool(_made(rig)))
        rig.fake.store.patch(TASK, NAMESPACE, _made(rig)[0]["metadata"]["name"], {"status": status}, "status")
        printed: list[str] = []

        def told(line: str = line, printed: list[str] = printed) -> bool:
            printed.append(capsys.readouterr().out)
            return line in "".join(printed)

        await until(told)
        shown += "".join(printed)
    assert await command == code
    shown += capsys.readouterr().out
    assert shown.count("waits for the canary") == 1, "a line for each change"


@pytest.mark.usefixtures("quick")
async def test_waiting_ends_with_the_time_and_with_the_task(
    rig: KubectlRig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await rig.run("audit", NAME, "--wait", "--timeout", "0.1") == 12
    assert "is not over after 0.1 s; it goes on by itself" in capsys.readouterr().err
    (task,) = _made(rig)
    command = asyncio.create_task(rig.run("audit", NAME, "--wait"))
    await until(lambda: len(_made(rig)) == 2)
    (new,) = [each for each in _made(rig) if each["metadata"]["uid"] != task["metadata"]["uid"]]
    rig.fake.store.delete(TASK, NAMESPACE, new["metadata"]["name"], new["metadata"]["uid"], "Background")
    assert await command == 10
    assert "was deleted before it was over" in capsys.readouterr().err


@pytest.mark.usefixtures("quick")
async def test_waiting_goes_on_while_nobody_answers(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    command = asyncio.create_task(rig.run("audit", NAME, "--wait"))
    await until(lambda: bool(_made(rig)))
    fault = Fault("GET .*/bookietasks/", 500, times=3)
    rig.fake.server.faults.append(fault)
    await until(lambda: fault.times == 0)
    name = _made(rig)[0]["metadata"]["name"]
    rig.fake.store.patch(TASK, NAMESPACE, name, {"status": {"phase": "Done"}}, "status")
    assert await command == 0
    assert capsys.readouterr().err.count("asks again") == 3


async def test_a_refusal_of_the_server_is_told_in_its_words(
    rig: KubectlRig, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(resource: Any, obj: Any, before: Any) -> None:
        if resource == TASK:
            raise Refused(422, "Invalid", "BookieTask is invalid: spec.ledgers: AcceptLoss needs the ids")

    rig.fake.store.admission.append(refuse)
    assert await rig.run("audit", NAME) == 10
    assert capsys.readouterr().err == "kubectl-bookie: BookieTask is invalid: spec.ledgers: AcceptLoss needs the ids\n"


async def test_pause_and_resume(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    assert await rig.run("pause", NAME) == 0
    assert rig.fake.resource["metadata"]["annotations"][names.PAUSED] == "true"
    assert await rig.run("pause", NAME) == 0
    assert await rig.run("resume", NAME) == 0
    assert names.PAUSED not in (rig.fake.resource["metadata"].get("annotations") or {})
    assert await rig.run("resume", NAME) == 0
    assert capsys.readouterr().out.splitlines() == [
        "demo is paused: nothing is changed until `kubectl bookie resume demo`",
        "demo was paused already",
        "demo goes on",
        "demo was not paused",
    ]
