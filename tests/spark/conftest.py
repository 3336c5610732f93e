"""Spark with real bookies: one session and one cluster for all tests of a test process.

`spark`: the session. `cluster`: three bookies; tests do not kill them; `mortal`: three of one test, which may.
`uri`: their metadata service. `client`: a blocking client of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookie_client import BlockingClient
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_cluster import ServeCluster
from tests.support.spark import SparkSessions

BOOKIES = 3


@pytest.fixture
def spark(spark_sessions: SparkSessions) -> SparkSession:
    return spark_sessions.get()


@contextmanager
def three_bookies(metadata_folder: Path, folder: Path) -> Iterator[ServeCluster]:
    metadata = MetadataProcess(metadata_folder)
    try:
        metadata.start()
        made = ServeCluster(folder, metadata.uri())
        try:
            made.add(BOOKIES)
            yield made
        finally:
            made.stop()
    finally:
        metadata.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeCluster]:
    with three_bookies(tmp_path_factory.mktemp("metadata"), tmp_path_factory.mktemp("bookies")) as made:
        yield made


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stays until the process ends, as the cluster does: its ledgers name the archives that tests have made of them,
    and a query over all ledgers looks there."""
    return tmp_path_factory.mktemp("test")


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[ServeCluster]:
    with three_bookies(tmp_path / "metadata", tmp_path / "bookies") as made:
        yield made


@pytest.fixture(scope="session")
def uri(cluster: ServeCluster) -> str:
    return cluster.uri


@pytest.fixture(scope="session")
def client(uri: str, spark_sessions: SparkSessions) -> Iterator[BlockingClient]:
    spark_sessions.get()  # PySpark forks to start Java, which a process with the client's threads does not survive
    with BlockingClient(uri) as made:
        yield made


@pytest.fixture
def tool(uri: str) -> Iterator[BlockingClient]:
    """A client in a process that starts no Java of its own."""
    with BlockingClient(uri) as made:
        yield made
