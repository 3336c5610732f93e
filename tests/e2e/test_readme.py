"""What README says to do on Kubernetes, word by word, where only three nodes take pods: fewer than bookies."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.support.helm import Helm
from tests.e2e.support.kube import Kube

ROOT = Path(__file__).parents[2]
_SECONDS = 600


@pytest.fixture
def three_nodes(kube, nodes):
    """The others take no pods."""
    for node in nodes[3:]:
        kube.patch("Node", node, {"spec": {"unschedulable": True}})
    yield nodes[:3]
    for node in nodes[3:]:
        kube.patch("Node", node, {"spec": {"unschedulable": None}})


@pytest.fixture
def storage(settings, operator):
    """The namespace of README's cluster, which it makes itself; what it left goes, in the order that a user would take.
    `operator`: its definitions are there, which two releases cannot have."""
    names = [f"{settings.namespace}-storage", f"{settings.namespace}-podkeeper"]
    kubes = [Kube(settings.kubeconfig, name) for name in names]
    yield kubes[0]
    Helm(settings.kubeconfig, names[0]).uninstall("demo")
    kubes[0].wait_gone("BookieCluster", "demo", 120)
    Helm(settings.kubeconfig, names[1]).uninstall("podkeeper")
    for kube in kubes:
        kube.delete("Namespace", kube.namespace)
        kube.close()


def commands(namespace: str, image: str) -> str:
    """README's, but for the image, which is there, and for namespaces of the test's own."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Run it on Kubernetes")[2]
    build, _, script = section.split("```")[1].strip().partition("\n")
    assert build.startswith("docker build"), build
    repository, _, tag = image.rpartition(":")
    own = {
        "podkeeper-operator": f"--set crds.install=false,image.repository={repository},image.tag={tag}",
        "podkeeper-cluster": f"--set spec.image={image}",
    }
    for chart, options in own.items():
        script, times = re.subn(rf"(charts/{chart})\b", rf"\1 {options}", script)
        assert times == 1, f"README installs {chart} {times} times"
    script, times = re.subn(r"(-n |--namespace |namespace |{)(storage|podkeeper)\b", rf"\1{namespace}-\2", script)
    assert times == 7, script
    return script


def test_the_quick_start_on_three_nodes(storage, three_nodes, settings):
    environment = {
        **os.environ,
        "KUBECONFIG": settings.kubeconfig,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    script = commands(settings.namespace, settings.image)
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert "4 of 4 serve, 4 writable" in done.stdout, done.stdout[-5000:]
    pods = [pod for pod in storage.list("Pod") if pod["metadata"]["name"].startswith("demo-bookie-")]
    assert {pod["spec"]["nodeName"] for pod in pods} <= set(three_nodes)
