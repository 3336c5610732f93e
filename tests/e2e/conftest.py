"""One namespace with restricted Pod Security, one ZooKeeper beside the cluster, one operator; clusters of their own for
the tests. What a failed test left is written down before it is cleared away."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.support import manifests
from tests.e2e.support.bookie_cluster import CONFIRM_DELETE, BookieCluster, spec
from tests.e2e.support.diagnostics import write_state
from tests.e2e.support.environment import Environment, environment
from tests.e2e.support.helm import Helm
from tests.e2e.support.installed_operator import InstalledOperator
from tests.e2e.support.kube import PATIENCE, Kube, condition_of
from tests.e2e.support.machine import Machine
from tests.e2e.support.operator_process import EFFECTS, DyingOperator
from tests.e2e.support.recorder import Recorder
from tests.e2e.support.workload import Workload
from tests.support.zookeeper import ZooKeeperServer

_SECONDS = 1800
_GONE_SECONDS, _AGAIN_SECONDS = 300, 20


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "e2e" in item.path.parts:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(_SECONDS * PATIENCE))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item):
    """Fixtures see by `item.failed` whether the test failed."""
    report = yield
    if report.failed:
        item.failed = True  # type: ignore[attr-defined]
    return report


# --- the cluster ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def settings() -> Environment:
    return environment()


@pytest.fixture(scope="session")
def kube(settings: Environment) -> Iterator[Kube]:
    """The API server, in a namespace that nothing else is in."""
    made = Kube(settings.kubeconfig, settings.namespace)
    _clear_namespace(made)
    made.apply(manifests.namespace(settings.namespace))
    yield made
    if not settings.keep:
        _clear_namespace(made)
    made.close()


def _clear_namespace(kube: Kube) -> None:
    """Until its pod is gone an operator that an interrupted run left may take finalizers up again."""
    if kube.get("Namespace", kube.namespace) is None:
        return
    _forget_clusters(kube)
    kube.delete("Namespace", kube.namespace)
    for _ in range(_GONE_SECONDS // _AGAIN_SECONDS):
        with contextlib.suppress(AssertionError):
            kube.wait_gone("Namespace", kube.namespace, _AGAIN_SECONDS)
            return
        _forget_clusters(kube)
    raise AssertionError(f"namespace {kube.namespace} does not go")


def _forget_clusters(kube: Kube) -> None:
    """Without an operator nobody takes the finalizers of what an interrupted run left."""
    if kube.get("CustomResourceDefinition", "bookieclusters.podkeeper.dev") is None:
        return
    for cluster in kube.list("BookieCluster"):
        kube.patch("BookieCluster", cluster["metadata"]["name"], {"metadata": {"finalizers": None}})
        kube.delete("BookieCluster", cluster["metadata"]["name"])


@pytest.fixture(scope="session")
def nodes(kube: Kube) -> list[str]:
    """Names of the ready ones. The first is never broken: the workload runs there."""
    ready = [node["metadata"]["name"] for node in kube.list("Node") if condition_of(node, "Ready")["status"] == "True"]
    assert len(ready) >= 5, f"the ring needs five nodes, for four bookies and a spare node; ready: {ready}"
    return sorted(ready)


@pytest.fixture
def machine(settings: Environment, nodes: list[str]) -> Machine:
    return Machine(settings.faults)


@pytest.fixture(scope="session")
def zookeeper_service(settings: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """On this machine, at the address that pods reach."""
    server = ZooKeeperServer(str(tmp_path_factory.mktemp("zookeeper")), host=settings.host)
    server.start()
    yield server
    server.stop()


# --- the operator -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def helm(settings: Environment) -> Helm:
    return Helm(settings.kubeconfig, settings.namespace)


@pytest.fixture(scope="session")
def operator(
    helm: Helm, kube: Kube, settings: Environment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InstalledOperator]:
    """Installed with its chart, and ready."""
    made = InstalledOperator(helm, kube, settings, tmp_path_factory.mktemp("operator"))
    made.install()
    yield made
    made.stop_local()
    if not settings.keep:
        made.uninstall()


@pytest.fixture
def dying_operator(operator: InstalledOperator, tmp_path: Path) -> Iterator[DyingOperator]:
    """Instead of the installed one: a process of this machine that dies after every few side effects."""
    operator.scale(0)
    try:
        with operator.local(tmp_path, EFFECTS) as dying:
            yield dying
    finally:
        operator.scale(1)


# --- clusters of bookies ----------------------------------------------------------------------------------------------

MakeCluster = Callable[..., BookieCluster]
_numbers = itertools.count(1)


@pytest.fixture
def make_cluster(
    request: pytest.FixtureRequest,
    operator: InstalledOperator,
    kube: Kube,
    nodes: list[str],
    zookeeper_service: ZooKeeperServer,
    settings: Environment,
    tmp_path: Path,
) -> Iterator[MakeCluster]:
    """`make_cluster(**changes of the spec)`: applied, not waited for."""
    made: list[BookieCluster] = []

    def make(name: str = "", **changes: object) -> BookieCluster:
        name = name or f"e2e-{next(_numbers)}"
        cluster = BookieCluster(kube, name)
        made.append(cluster)
        uri = zookeeper_service.uri("", "hierarchical")
        cluster.apply(spec(settings.image, uri, f"/{name}", **changes))
        return cluster

    yield make
    if getattr(request.node, "failed", False):
        folder = Path(settings.artifacts or tmp_path) / request.node.name
        write_state(kube, folder, [cluster.name for cluster in made], operator.logs)
        print(f"state of the cluster: {folder}")
        if settings.keep:
            return
    for cluster in made:
        _clear(cluster)


def _clear(cluster: BookieCluster) -> None:
    """Delete it with its data, whatever state it is in."""
    kube = cluster.kube
    if kube.get("BookieCluster", cluster.name) is not None:
        kube.annotate("BookieCluster", cluster.name, {CONFIRM_DELETE: cluster.name, "podkeeper.dev/paused": None})
        cluster.delete()
        try:
            cluster.wait_gone(120)
        except AssertionError:
            with contextlib.suppress(Exception):
                kube.patch("BookieCluster", cluster.name, {"metadata": {"finalizers": None}})
    mine = f"app.kubernetes.io/instance={cluster.name}"
    for kind in ("StatefulSet", "Deployment", "Job", "PodDisruptionBudget", "Service", "ConfigMap", "Secret", "Pod"):
        for each in kube.list(kind, mine):
            kube.delete(kind, each["metadata"]["name"], propagation="Background")
    for claim in cluster.claims():
        kube.delete("PersistentVolumeClaim", claim)
    kube.wait_for("Pod", lambda pods: not pods, _GONE_SECONDS, f"the end of {cluster.name}'s pods", selector=mine)


@pytest.fixture
def make_recorder(zookeeper_service: ZooKeeperServer, settings: Environment) -> Iterator[Callable[[str], Recorder]]:
    """`make_recorder(cluster's name)`: follows what goes, and is judged at the end of the test."""
    made: list[Recorder] = []

    def make(name: str) -> Recorder:
        recorder = Recorder(Kube(settings.kubeconfig, settings.namespace), zookeeper_service.hosts, f"/{name}").start()
        made.append(recorder)
        return recorder

    yield make
    for recorder in made:
        recorder.stop()
    for recorder in made:
        recorder.judge()


@pytest.fixture
def make_workload(
    kube: Kube, settings: Environment, zookeeper_service: ZooKeeperServer, nodes: list[str]
) -> Callable[..., Workload]:
    """`make_workload(cluster's name)`: writer and reader of a cluster, as a context manager. `uri`: of its metadata, if
    the ring's ZooKeeper does not have them; `placement`: policy of its ledgers."""

    def make(name: str, uri: str = "", placement: str = "rack-aware") -> Workload:
        secrets: dict[str, list[str]] = {}
        if uri.startswith("embedded:"):
            secrets = {f"{name}-metadata-token": ["token"], f"{name}-metadata-tls": ["ca.crt"]}
        elif uri.startswith(f"etcd://{name}-metadata-0."):
            secrets = {f"{name}-metadata-client": ["ca.crt", "tls.crt", "tls.key"]}
        uri = uri or zookeeper_service.uri(f"/{name}", "hierarchical")
        pod = f"workload-{name}"
        return Workload(
            kube, settings.image, uri, node=nodes[0], name=pod, placement=placement, metadata_secrets=secrets
        )

    return make
