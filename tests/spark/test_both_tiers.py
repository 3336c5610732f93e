"""Streams whose older ledgers `offload` has moved to an archive, read by Spark as if they were whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from bookie_client import BlockingClient
from bookie_client.blocking.handles import BlockingLedgerReader
from bookie_protocol.errors import NotThere
from tests.spark.ledgers import load
from tests.spark.streams import append
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_cluster import ServeCluster
from tests.support.spark import SparkSessions
from tests.support.spark_jobs import run_job
from tests.support.until import until_true

STREAM_KEY = "podkeeper/stream"
COLLECTS = {"gcWaitTime": "300"}


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory, spark_sessions: SparkSessions) -> Iterator[str]:
    """Three bookies that drop deleted ledgers soon."""
    spark_sessions.get()
    metadata = MetadataProcess(tmp_path_factory.mktemp("metadata"))
    try:
        metadata.start()
        cluster = ServeCluster(tmp_path_factory.mktemp("bookies"), metadata.uri(), COLLECTS)
        try:
            cluster.add(3)
            yield cluster.uri
        finally:
            cluster.stop()
    finally:
        metadata.stop()


@pytest.fixture(scope="module")
def client(uri: str) -> Iterator[BlockingClient]:
    with BlockingClient(uri) as made:
        yield made


def ledgers_of(client: BlockingClient, name: str, count: int, entries: int) -> dict[int, list[bytes]]:
    """Further ledgers of a stream with what is in them, in order."""
    made: dict[int, list[bytes]] = {}
    for _ in range(count):
        payloads = [b"%d/%d/" % (len(made), number) + b"x" * (number % 50) for number in range(entries)]
        made[append(client, name, payloads, metadata={STREAM_KEY: name.encode()})] = payloads
    return made


def offload(
    capfd: pytest.CaptureFixture[str], client: BlockingClient, uri: str, ledgers: Sequence[int], archive: Path
) -> None:
    """Into the archive and out of the bookies; returns when these have dropped it."""
    handles = [client.open(ledger_id) for ledger_id in ledgers]
    ids = ",".join(map(str, ledgers))
    common = ("offload", "--metadata", uri, "--ledgers", ids, "--target", str(archive), "--niceness", "0")
    ran = run_job(capfd, *common, "--delete-after", "0", "--keep-listed")
    assert (ran.code, ran.row["offloaded"], ran.row["deleted"]) == (0, len(ledgers), len(ledgers)), ran.output
    for handle in handles:
        until_true(partial(is_gone, handle), 60)
        handle.close()


def is_gone(handle: BlockingLedgerReader) -> bool:
    """Whether a reader that has opened the ledger before finds nothing any more."""
    try:
        handle.read(0, 0)
    except NotThere:
        return True
    return False


def expected(written: dict[int, list[bytes]]) -> list[tuple[int, int, bytes]]:
    return [
        (ledger_id, entry, payload) for ledger_id, payloads in written.items() for entry, payload in enumerate(payloads)
    ]


def rows(frame: DataFrame) -> list[tuple[int, int, bytes]]:
    return [(row.ledger_id, row.entry_id, bytes(row.value)) for row in frame.collect()]


def test_a_stream_that_is_half_archived_is_what_was_written(
    spark: SparkSession, client: BlockingClient, uri: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    written = ledgers_of(client, "half-archived", 4, 300)
    ids = list(written)
    before = load(spark, uri, stream="half-archived").orderBy("ledger_id", "entry_id").collect()
    offload(capfd, client, uri, ids[:2], tmp_path / "archive")

    audit = run_job(capfd, "audit", "--metadata", uri, "--stream", "half-archived", "--niceness", "0")
    counters = ("ledgers", "archived", "no_such_ledger", "missing")
    assert (audit.code, *(audit.row[name] for name in counters)) == (0, 2, 2, 0, 0), audit.output
    assert f"2 ledgers were not inspected: they are in the archive file://{tmp_path}/archive alone" in audit.errors
    frame = load(spark, uri, stream="half-archived", minPartitions=5, includeMetadata="true")
    assert sorted(rows(frame)) == sorted(expected(written))
    after = frame.drop("_metadata").orderBy("ledger_id", "entry_id").collect()
    assert after == before, "all columns of all rows"
    tiers = frame.selectExpr("ledger_id", "_metadata.bookie LIKE 'archive:file:///%' AS archived").distinct().collect()
    assert {row.ledger_id: row.archived for row in tiers} == {each: each in ids[:2] for each in ids}
    one = load(spark, uri, ledgers=f"{ids[0]}-{ids[-1]}", maxBytesPerPartition="1g")
    assert rows(one.orderBy("ledger_id", "entry_id")) == expected(written)
    positions = {"startingPosition": f'{{"{ids[1]}": 290}}', "endingPosition": f'{{"{ids[2]}": 5}}'}
    assert sorted(rows(load(spark, uri, stream="half-archived", **positions))) == expected(written)[590:605]

    for options in ({"stream": "half-archived"}, {"ledgers": ids[0]}):
        with pytest.raises(Exception, match=rf"BOOKIE_NO_SUCH_LEDGER\] ledger {ids[0]}"):
            load(spark, uri, tiers="bookies", **options).count()
    with pytest.raises(Exception, match=rf"BOOKIE_NO_SUCH_LEDGER\] ledger {ids[0]}"):
        load(spark, uri, ledgers=ids[0], readMode="replica").count()


def test_a_ledger_that_goes_between_planning_and_reading(
    spark: SparkSession, client: BlockingClient, uri: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A DataFrame plans once: its second action still asks bookies, and its tasks go to the archive themselves."""
    written = ledgers_of(client, "gone-between", 2, 200)
    frame = load(spark, uri, stream="gone-between", includeMetadata="true")
    assert frame.where("_metadata.bookie LIKE 'archive:%'").count() == 0
    lost = load(spark, uri, stream="gone-between", tiers="bookies")
    assert lost.count() == 400
    offload(capfd, client, uri, list(written), tmp_path / "archive")
    assert frame.where("_metadata.bookie LIKE 'archive:%'").count() == 400
    assert sorted(rows(frame)) == sorted(expected(written))
    with pytest.raises(
        Exception, match=rf"BOOKIE_DATA_LOSS\] entries 0 to 199 of ledger ({'|'.join(map(str, written))})"
    ):
        lost.count()


def test_damage_in_the_archive_is_told_with_ledger_and_file(
    spark: SparkSession, client: BlockingClient, uri: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    [ledger_id] = ledgers_of(client, "damaged-archive", 1, 50)
    offload(capfd, client, uri, [ledger_id], tmp_path / "archive")
    [path] = (tmp_path / "archive").rglob("data/**/*.parquet")
    values = pq.read_metadata(path).row_group(0).column(3)
    data = bytearray(path.read_bytes())
    data[values.data_page_offset + values.total_compressed_size // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match=rf"ledger {ledger_id}: lost: {path} of ledger {ledger_id} is damaged"):
        load(spark, uri, stream="damaged-archive").count()
    path.unlink()
    with pytest.raises(Exception, match=rf"BOOKIE_ARCHIVED_FILE_MISSING\] ledger {ledger_id}: .*{path}"):
        load(spark, uri, stream="damaged-archive", failOnDataLoss="false").count()
