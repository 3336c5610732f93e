"""What README says to do on Kubernetes, word by word, where only three nodes take pods; `make try-kubernetes`, but for
the image, which is there; and the clusters of examples/kubernetes that need nothing else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.e2e.support.helm import Helm
from tests.e2e.support.kube import Kube
from tests.e2e.support.shell import run

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


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
    for name in ("smallest", "development"):
        kubes[0].delete("BookieCluster", name)
        kubes[0].wait_gone("BookieCluster", name, 120)
    Helm(settings.kubeconfig, names[1]).uninstall("podkeeper")
    for kube in kubes:
        kube.delete("Namespace", kube.namespace)
    for kube in kubes:  # the next test makes them again
        kube.wait_gone("Namespace", kube.namespace, 180)
        kube.close()


def commands(namespace: str, image: str, smallest: Path) -> str:
    """README's, but for the image, which is there, and for namespaces of the test's own."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## On Kubernetes")[2]
    (script,) = [each for each in section.split("```sh\n") if each.startswith("kubectl create namespace")]
    script = script.partition("```")[0]
    script, times = re.subn(r"(charts/podkeeper-operator)\b", rf"\1 {operator_options(image)}", script)
    assert times == 1, script
    script, times = re.subn(r"examples/kubernetes/smallest\.yaml", str(smallest), script)
    assert times == 1, script
    script, times = re.subn(r"(-n |--namespace |namespace |{)(storage|podkeeper)\b", rf"\1{namespace}-\2", script)
    assert times >= 6, script
    return script


def operator_options(image: str) -> str:
    repository, _, tag = image.rpartition(":")
    return f"--set crds.install=false,image.repository={repository},image.tag={tag}"


def with_image(name: str, image: str, folder: Path) -> Path:
    text = (ROOT / "examples" / "kubernetes" / f"{name}.yaml").read_text(encoding="utf-8")
    made = folder / f"{name}.yaml"
    made.write_text(
        text.replace(f"  version: {VERSION}\n", f"  version: {VERSION}\n  image: {image}\n"), encoding="utf-8"
    )
    return made


def test_the_quick_start_on_three_nodes(storage, three_nodes, settings, tmp_path):
    script = commands(settings.namespace, settings.image, with_image("smallest", settings.image, tmp_path))
    told = run(script, settings)
    assert "3 of 3 serve, 3 writable" in told, told[-5000:]
    run(f"kubectl apply --dry-run=server -n {storage.namespace} -f examples/kubernetes/production.yaml", settings)
    pods = [pod for pod in storage.list("Pod") if pod["metadata"]["name"].startswith("smallest-bookie-")]
    assert {pod["spec"]["nodeName"] for pod in pods} <= set(three_nodes)
    run(f"kubectl apply -n {storage.namespace} -f {with_image('development', settings.image, tmp_path)}", settings)
    run(
        f"kubectl -n {storage.namespace} wait bookiecluster/development --for=condition=Ready --timeout=8m",
        settings,
    )


def test_one_command_installs_a_cluster_and_removes_it(storage, settings):
    own = {
        "IMAGE": settings.image,
        "NAMESPACE": storage.namespace,
        "OPERATOR_NAMESPACE": f"{settings.namespace}-podkeeper",
        "OPERATOR_ARGS": "--set crds.install=false",
        "SKIP_IMAGES": "1",
    }
    told = run("docker/try-kubernetes", settings, **own)
    assert "\n1000\n" in told, told[-5000:]
    run("docker/try-kubernetes down", settings, **own)
