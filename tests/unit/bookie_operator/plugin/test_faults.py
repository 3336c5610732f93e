"""Each fault is one line that says what is wrong and what to do, with an exit code of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_operator.api.kinds import CLUSTER
from bookie_operator.plugin.clusters import NAMESPACE as NAMESPACES
from bookie_operator.plugin.main import run
from tests.support.fake_kubernetes.cluster import NAME, SPEC
from tests.support.fake_kubernetes.statuses import judge_status
from tests.support.fake_kubernetes.store import RESOURCES
from tests.support.kubectl_rig import KubectlRig, write_kubeconfig


@pytest.fixture
async def namespaces(rig: KubectlRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake knows them too."""
    monkeypatch.setitem(RESOURCES, (NAMESPACES.api_version, NAMESPACES.plural), NAMESPACES)
    rig.fake.store.create(NAMESPACES, "", {"metadata": {"name": "empty"}})


def _line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


async def test_no_cluster_of_that_name(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("status", "plan", "pause", "resume", "audit", "logs", "support-bundle"):
        assert await rig.run(command, "nowhere") == 11
        assert _line(capsys) == "kubectl-bookie: no BookieCluster nowhere in namespace storage; there are: demo"


async def test_which_one(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.fake.store.create(CLUSTER, "storage", {"metadata": {"name": "other"}, "spec": SPEC})
    assert await rig.run("plan") == 1
    assert _line(capsys) == "kubectl-bookie: which one? there are: demo, other"


@pytest.mark.usefixtures("namespaces")
async def test_no_such_namespace(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    assert await rig.run("status", NAME, "-n", "nowhere") == 11
    assert _line(capsys) == "kubectl-bookie: no namespace nowhere; give another with -n"
    assert await rig.run("status", NAME, "-n", "storage") == 0


@pytest.mark.usefixtures("namespaces")
async def test_a_namespace_without_clusters(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    assert await rig.run("status", "-n", "empty") == 11
    assert (
        _line(capsys)
        == "kubectl-bookie: no BookieCluster in namespace empty, which has none; elsewhere there are: demo (-n storage)"
    )


async def test_no_access(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.fake.server.forbidden.add("bookieclusters")
    assert await rig.run("status", NAME) == 10
    line = _line(capsys)
    assert line.startswith("kubectl-bookie: no access: GET /apis/podkeeper.dev/v1alpha1/namespaces/storage/")
    assert line.endswith("ask for a role that allows it")


async def test_no_definitions(
    rig: KubectlRig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.delitem(RESOURCES, (CLUSTER.api_version, CLUSTER.plural))
        assert await rig.run("status", NAME) == 11
    assert "this Kubernetes has no BookieClusters: install the chart podkeeper-operator" in _line(capsys)
    assert await rig.run("status", NAME) == 0


def test_nobody_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "config")
    write_kubeconfig(file, "http://127.0.0.1:1", "default")
    assert run(["status", NAME, "--kubeconfig", file]) == 12
    line = _line(capsys)
    assert line.startswith("kubectl-bookie: the API server http://127.0.0.1:1 could not be asked: ")
    assert line.endswith("does it run, and is the context right?")


def test_no_kubeconfig(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    assert run(["status", NAME]) == 1
    assert _line(capsys).endswith("set KUBECONFIG or give --kubeconfig")
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run(["status", NAME]) == 1
    assert _line(capsys) == "kubectl-bookie: no kubeconfig: set KUBECONFIG or give --kubeconfig"
    file = str(tmp_path / "config")
    write_kubeconfig(file, "http://127.0.0.1:1", "default")
    assert run(["status", NAME, "--kubeconfig", file]) == 12
    monkeypatch.setenv("KUBECONFIG", file)
    assert run(["status", NAME]) == 12


def test_no_such_context(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(tmp_path / "config")
    write_kubeconfig(file, "http://127.0.0.1:1", "default", ("east", "west"))
    monkeypatch.setenv("KUBECONFIG", file)
    assert run(["status", NAME, "--context", "north"]) == 1
    assert _line(capsys) == f"kubectl-bookie: no context north in {file}; there are: east, west"


def test_a_broken_kubeconfig(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config"
    file.write_text("contexts: 5\n")
    assert run(["status", NAME, "--kubeconfig", str(file)]) == 1
    assert _line(capsys).startswith(f"kubectl-bookie: kubeconfig {file} cannot be used: ")


async def test_a_status_of_a_newer_operator(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.fake.store.admission.remove(judge_status)  # its definition is newer, too
    operation = {"id": "Magic-1", "type": "Magic", "step": "x"}
    rig.fake.store.patch(CLUSTER, "storage", NAME, {"status": {"operation": operation}}, "status")
    assert await rig.run("status", NAME) == 12
    assert _line(capsys).endswith("is this kubectl-bookie older than the operator?")


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in ("status", "plan", "decommission", "replace", "restart", "audit", "accept-loss", "logs"):
        assert f"  {command} " in shown
    assert run(["version"]) == 0
    assert "kubectl-bookie 0." in capsys.readouterr().out
    assert run(["nonsense"]) == 1
