"""Spark on a cluster whose metadata are in etcd or in Oxia."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie_client import BlockingClient
from tests.spark.ledgers import FULL, load, numbered, write_ledger
from tests.spark.streams import append
from tests.support.etcd import EtcdServer
from tests.support.oxia import OxiaServer
from tests.support.serve_cluster import ServeCluster


@pytest.fixture(params=[pytest.param("etcd", marks=pytest.mark.etcd), pytest.param("oxia", marks=pytest.mark.oxia)])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServeCluster]:
    server: EtcdServer | OxiaServer = request.getfixturevalue(request.param)
    made = ServeCluster(tmp_path, server.uri(f"/spark-{uuid.uuid4().hex[:8]}"))
    try:
        made.add(3)
        yield made
    finally:
        made.stop()


def test_ledgers_and_streams_are_read_and_written(spark, cluster: ServeCluster) -> None:
    with BlockingClient(cluster.uri) as client:
        ledger_id = write_ledger(client, numbered(500), **FULL)
        append(client, "orders", numbered(50))
    rows = load(spark, cluster.uri, ledgers=ledger_id).orderBy("entry_id").collect()
    assert [bytes(row.value) for row in rows] == numbered(500)
    assert load(spark, cluster.uri, streams="orders").count() == 50
    frame = spark.createDataFrame([(bytes([number]),) for number in range(20)], "value binary")
    frame.write.format("bookkeeper").option("metadataServiceUri", cluster.uri).option("stream", "written").mode(
        "append"
    ).save()
    assert load(spark, cluster.uri, streams="written").count() == 20
