"""Two zones of real bookies: tasks read from their own, and copies go where the policy wants them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookie_client import BlockingClient
from tests.spark.ledgers import load, numbered, write_ledger
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_cluster import ServeCluster
from tests.support.serve_process import ServeProcess
from tests.support.spark_jobs import run_job

pytestmark = pytest.mark.timeout(300)
ENTRIES = 200
LEDGERS = 10


def add(cluster: ServeCluster, work: Path, *names: str) -> None:
    """Bookies such as a1, which stands in upgrade domain 1 of zone a."""
    for name in names:
        settings = {"bookieId": name, "metadataServiceUri": cluster.uri, "networkLocation": "/{}/{}".format(*name)}
        cluster.bookies[name] = ServeProcess(work / name, settings)
    cluster.start(names)


@pytest.fixture
def zones(tmp_path: Path) -> Iterator[ServeCluster]:
    """a1 and a2 in zone a, b1 in zone b."""
    metadata = MetadataProcess(tmp_path / "metadata")
    try:
        metadata.start()
        cluster = ServeCluster(tmp_path, metadata.uri())
        try:
            add(cluster, tmp_path, "a1", "a2", "b1")
            yield cluster
        finally:
            cluster.stop()
    finally:
        metadata.stop()


def ensembles(uri: str, ledgers: list[int]) -> list[set[str]]:
    with BlockingClient(uri) as client:
        return [set(client.metadata(ledger).ensemble_for(0)) for ledger in ledgers]


def test_tasks_read_near_and_copies_go_where_the_policy_wants_them(
    spark: SparkSession, zones: ServeCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    uri = zones.uri
    with BlockingClient(uri) as client:
        ledgers = [write_ledger(client, numbered(ENTRIES)) for _ in range(2 * LEDGERS)]

    for location, near in (("/b", {"b1"}), ("/a/2", {"a2"})):
        rows = load(spark, uri, ledgers=ledgers[0], includeMetadata="true", networkLocation=location)
        assert {row.bookie for row in rows.select("_metadata.bookie").collect()} == near
        assert rows.count() == ENTRIES

    # Whoever takes the place of b1: a rack of its own has each of them, zone b has b2 alone.
    add(zones, tmp_path, "a3", "a4", "b2")
    racks, zoned = ledgers[:LEDGERS], ledgers[LEDGERS:]
    for chosen, option in ((racks, "placement=rack-aware"), (zoned, "placement=zone-aware")):
        words = ("--metadata", uri, "--ledgers", ",".join(map(str, chosen)))
        run = run_job(capfd, "recover", *words, "--bookies", "b1", "--option", option)
        assert (run.code, run.row["status"]) == (0, "ok"), run.errors
        assert not any("b1" in ensemble for ensemble in ensembles(uri, chosen))
        check = run_job(capfd, "replication-check", *words, "--placement", "zone-aware")
        assert (check.code == 0) is (chosen is zoned), check.output
    assert ensembles(uri, zoned) == [{"a1", "a2", "b2"}] * LEDGERS
