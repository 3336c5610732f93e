"""One ZooKeeper and one cluster for the whole ring; `--bookie` says what kind of bookie is tested."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.interop.cluster import KINDS, Cluster
from tests.interop.java_client import JavaClient
from tests.interop.java_programs import PROJECT
from tests.interop.pulsar_broker import PulsarBroker

_OPTION = "--bookie"
_VARIABLE = "PODKEEPER_BOOKIE"
_SECONDS = 300


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        _OPTION, choices=KINDS, default=None, help=f"kind of bookie under test (or ${_VARIABLE}); default ours"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "interop" in item.path.parts:
            item.add_marker(pytest.mark.interop)
            item.add_marker(pytest.mark.timeout(_SECONDS))


def kind_under_test(config: pytest.Config) -> str:
    # The option exists only if pytest was given this directory; the variable works everywhere.
    kind = config.getoption(_OPTION, None) or os.environ.get(_VARIABLE, "ours")
    if kind not in KINDS:
        raise pytest.UsageError(f"{_VARIABLE}={kind}; known: {', '.join(KINDS)}")
    return kind


@pytest.fixture(scope="session")
def bookie_kind(pytestconfig: pytest.Config) -> str:
    return kind_under_test(pytestconfig)


@pytest.fixture(scope="session")
def class_path() -> str:
    return PROJECT.class_path()


@pytest.fixture(scope="session")
def make_cluster(class_path, zookeeper, tmp_path_factory) -> Iterator:
    clusters: list[Cluster] = []

    def make() -> Cluster:
        cluster = Cluster(class_path, zookeeper.hosts, tmp_path_factory.mktemp("cluster"))
        clusters.append(cluster)
        return cluster

    yield make
    for cluster in clusters:
        cluster.stop()


@pytest.fixture(scope="session")
def cluster(make_cluster, bookie_kind) -> Cluster:
    """Three bookies, shared by all classes."""
    made = make_cluster()
    for _ in range(3):
        made.bookie(bookie_kind).start()
    return made


@pytest.fixture(scope="session")
def solo(make_cluster) -> Cluster:
    """A cluster in which each test runs one bookie of its own, and discards it."""
    return make_cluster()


@pytest.fixture(scope="session", params=KINDS)
def quartet(request, make_cluster) -> Cluster:
    """Four bookies of one kind, first of ours, then Java's. Tests may stop them, and leave them running."""
    made = make_cluster()
    # One that hangs for the client's time-out keeps its session, so that the test after it finds all four.
    settings = {"zkTimeout": "30000"}
    with ThreadPoolExecutor(4) as threads:
        for started in [threads.submit(made.bookie(request.param, settings).start) for _ in range(4)]:
            started.result()
    return made


@pytest.fixture(scope="session")
def java_client(quartet, class_path, tmp_path_factory) -> Iterator[JavaClient]:
    """The stock client on that cluster."""
    client = JavaClient(class_path, quartet.metadata_uri, tmp_path_factory.mktemp("java") / "client.log")
    yield client
    client.stop()


@pytest.fixture(scope="module")
def brokers(tmp_path_factory) -> Iterator[Callable[..., PulsarBroker]]:
    """Starts brokers of Pulsar; those that still run at the end are ended."""
    started: list[PulsarBroker] = []

    def start(metadata_uri: str, driver: str = "pulsar") -> PulsarBroker:
        log = tmp_path_factory.mktemp("broker") / "log"
        started.append(PulsarBroker(metadata_uri, log, driver=driver))
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.fixture(scope="module")
def broker(brokers, cluster) -> PulsarBroker:
    return brokers(cluster.metadata_uri)


@pytest.fixture
def made(make_cluster) -> Iterator[Cluster]:
    """A cluster of this test alone, without bookies yet."""
    cluster = make_cluster()
    yield cluster
    cluster.stop()


@pytest.fixture
async def service(made: Cluster) -> AsyncIterator[MetadataService]:
    opened = await open_metadata_service(made.metadata_uri)
    yield opened
    await opened.close()
