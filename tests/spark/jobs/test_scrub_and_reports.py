"""`scrub`, `replication-check`, `space`, `compact-report` and `orphans` on real Spark and real bookies."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from bookie_client import BlockingClient
from bookie_client.streams.model import APPLICATION, STREAM_KEY
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import NoSuchLedger
from bookie_protocol.keys import master_key
from bookie_protocol.versioned import LedgerLife
from tests.support.bookie_process import free_port
from tests.support.serve_cluster import ServeCluster
from tests.support.serve_process import ServeProcess
from tests.support.spark_jobs import run_job
from tests.support.until import until_true

pytestmark = pytest.mark.timeout(300)
PASSWORD = b"secret"
HALF, LEAST_GARBAGE = 60 * 50_000, 2_000_000
"""Bytes: of ten ledgers, and of what of ten deleted ones lies in the entry logs that are not written any more."""


def write(client: BlockingClient, entries: int, **metadata: bytes) -> int:
    # All three acknowledge, so all three have everything when it is closed.
    tags = {name.replace("__", "/"): value for name, value in metadata.items()}
    with client.create(write_quorum=3, ack_quorum=3, password=PASSWORD, metadata=tags) as ledger:
        ledger.append_many(b"entry %d " % each * 10 for each in range(entries))
    return ledger.ledger_id


def overwrite(client: BlockingClient, bookie: str, ledger_id: int, entry_id: int) -> None:
    """Give one replica another entry, with a digest that is right."""
    entry = digest_manager(DigestType.CRC32C, PASSWORD).encode(ledger_id, entry_id, 0, 1, b"another payload")
    key = master_key(PASSWORD)
    client.run(
        lambda each: each.operations.add_entry(bookie, LedgerLife(ledger_id, 0), entry_id, entry, key, recovery=True)
    )


def test_a_pass_of_the_scrub_is_gone_on_with_and_finds_what_differs(
    spark: SparkSession, client: BlockingClient, uri: str, capfd: pytest.CaptureFixture[str]
) -> None:
    ledgers = [write(client, 400) for _ in range(3)]
    odd = client.metadata(ledgers[1]).ensemble_for(0)[1]
    overwrite(client, odd, ledgers[1], 250)
    ids = ",".join(map(str, ledgers))
    scrub = ("scrub", "--metadata", uri, "--ledgers", ids, "--recheck", "0", "--pass-name", "tests")
    records = client.run(lambda each: each.metadata_service.records("scrub-pass").names())
    dry = run_job(capfd, *scrub, "--dry-run")
    assert (dry.code, dry.row["divergent"]) == (2, 1), dry.output
    assert client.run(lambda each: each.metadata_service.records("scrub-pass").names()) == records

    stopped = run_job(capfd, *scrub, "--time-limit", "0")
    assert (stopped.row["complete"], stopped.row["entries"]) == (False, 0)
    ran = run_job(capfd, *scrub)
    assert (ran.code, ran.row["complete"], ran.row["entries"]) == (2, True, 3 * 3 * 400), ran.errors
    assert (ran.row["divergent"], ran.row["damaged"], ran.row["blocks_differing"]) == (1, 0, 1)
    assert f"{odd}" in ran.output
    assert "not what most replicas hold" in ran.output

    sampled = run_job(capfd, *scrub, "--sample", "1", "--restart")
    assert sampled.row["entries"] in range(0, 3 * 3 * 400, 3 * 400)
    client.delete(ledgers[1])


def test_what_names_a_bookie_is_told_from_metadata_alone(
    spark: SparkSession, client: BlockingClient, uri: str, capfd: pytest.CaptureFixture[str]
) -> None:
    ledger_id = write(client, 50)
    bookie = client.metadata(ledger_id).ensemble_for(0)[0]
    check = ("replication-check", "--metadata", uri, "--ledgers", str(ledger_id), "--bookies")
    found = run_job(capfd, *check, bookie)
    assert (found.code, found.row["named"], found.row["bytes"]) == (2, 1, client.metadata(ledger_id).length)
    assert "2 of 3 copies" in found.output
    nothing = run_job(capfd, *check, "nobody")
    assert (nothing.code, nothing.row["named"], nothing.row["ledgers"]) == (0, 0, 1)
    policy = run_job(capfd, *check[:-1], "--placement", "zone-aware")
    assert (policy.code, policy.row["misplaced"]) == (0, 0), policy.output
    assert policy.row["misplaced_without_remedy"] == 1, "in a cluster without zones there is nothing better"
    wrong = run_job(capfd, "replication-check", "--metadata", uri)
    assert (wrong.code, wrong.row["status"]) == (1, "error")


def test_orphans_are_listed_then_removed_then_gone(
    spark: SparkSession, client: BlockingClient, uri: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from bookie_client.streams import Streams

    client.run(lambda each: Streams(each).create("orphan-tests", if_absent=True))
    tags = {"application": APPLICATION.encode(), STREAM_KEY: b"orphan-tests", "podkeeper/sink": b"pyspark_bookie"}
    attempt = write(client, 5, **tags)
    orphans = ("orphans", "--metadata", uri, "--ledgers", str(attempt), "--kind", "sink-attempts")
    young = run_job(capfd, *orphans, "--no-dry-run")
    assert (young.code, young.row["sink_attempts"], young.row["too_young"]) == (0, 0, 1), young.output
    listed = run_job(capfd, *orphans, "--older-than", "0")
    assert (listed.code, listed.row["found"], listed.row["removed"], listed.row["dry_run"]) == (2, 1, 0, True)
    assert client.metadata(attempt).length
    removed = run_job(capfd, *orphans, "--older-than", "0", "--no-dry-run")
    assert (removed.code, removed.row["removed"]) == (0, 1), removed.output
    with pytest.raises(NoSuchLedger):
        client.metadata(attempt)
    assert run_job(capfd, *orphans, "--older-than", "0").row["sink_attempts"] == 0


def test_space_is_told_by_owner_and_bookies_without_admin_api_are_named(
    spark: SparkSession, client: BlockingClient, uri: str, capfd: pytest.CaptureFixture[str]
) -> None:
    ledger_id = write(client, 100, application=b"space tests")
    told = run_job(capfd, "space", "--metadata", uri, "--ledgers", str(ledger_id))
    assert "space: 0 of 1 ledgers" in told.errors
    length = client.metadata(ledger_id).length
    assert (told.row["payload_bytes"], told.row["replica_bytes"]) == (length, 3 * length)
    assert "application space tests" in told.output
    assert (told.code, told.row["bookies_not_told"]) == (2, 3), "these bookies serve no admin API"
    report = run_job(capfd, "compact-report", "--metadata", uri)
    assert (report.code, report.row["bookies"]) == (2, 3)
    assert "httpServerEnabled" in report.output


@pytest.fixture
def telling_bookie(uri: str, tmp_path: Path) -> Iterator[ServeProcess]:
    """The only one of its cluster, with an admin API. It looks for garbage all the time and compacts once an hour."""
    http = {"httpServerEnabled": "true", "httpServerHost": "127.0.0.1", "httpServerPort": str(free_port())}
    settings = {**http, "flushInterval": "200", "gcWaitTime": "500", "logSizeLimit": str(1 << 20)}
    cluster = ServeCluster(tmp_path / "bookies", f"{uri.rsplit('/', 1)[0]}/space", settings)
    try:
        (name,) = cluster.add(1)
        yield cluster.bookies[name]
    finally:
        cluster.stop()


def half_garbage(bookie: ServeProcess) -> None:
    """Of the ledgers in each entry log every second one is deleted, and the bookie knows it."""
    with BlockingClient(bookie.settings["metadataServiceUri"]) as client:
        ledgers = [client.create(ensemble=1, write_quorum=1, ack_quorum=1) for _ in range(20)]
        for _ in range(6):
            for ledger in ledgers:
                ledger.append(bytes(50_000))
        for number, ledger in enumerate(ledgers):
            ledger.close()
            if number % 2:
                client.delete(ledger.ledger_id)
    forecast = f"http://127.0.0.1:{bookie.settings['httpServerPort']}/api/v1/bookie/gc/forecast"

    def is_known() -> bool:
        with urlopen(forecast, timeout=30) as answer:
            found: int = sum(each["major"]["reclaimableBytes"] for each in json.load(answer))
        return found > LEAST_GARBAGE

    until_true(is_known, 60)


def test_bookies_with_an_admin_api_tell_what_they_hold_and_what_compaction_would_give_back(
    spark: SparkSession, telling_bookie: ServeProcess, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    half_garbage(telling_bookie)
    logs = {path.name: path.stat().st_size for path in telling_bookie.work.glob("ledgers/current/*.log")}
    common = ("--metadata", telling_bookie.settings["metadataServiceUri"], "--report", f"file://{tmp_path}/report")

    report = run_job(capfd, "compact-report", *common)
    assert (report.code, report.row["bookies"], report.row["bookies_not_told"]) == (0, 1, 0), report.output
    garbage = report.row["garbage_bytes"]
    assert LEAST_GARBAGE < garbage < HALF + 60 * 100, "no more than the deleted ledgers took"
    assert report.row["major_reclaimable_bytes"] == garbage, "each full log has more than a fifth of it"
    assert report.row["minor_reclaimable_bytes"] == report.row["quarantined_logs"] == 0, "and less than four fifths"
    told = {name: row for name, row in rows(tmp_path / "report", "entry log").items() if row["garbage_bytes"]}
    assert {name.split()[1]: row["used_bytes"] for name, row in told.items()}.items() <= logs.items()
    written = max(told, key=lambda name: int(name.split()[1].removesuffix(".log"), 16))
    complete = [row["garbage_bytes"] for name, row in told.items() if name != written]
    beside = sum(complete) - garbage
    assert 0 <= beside < 32 * 1024 * len(complete), "heads and ends of the files are nobody's entries"
    assert told[written]["garbage_bytes"] > 0, "compaction does not take it yet, so no sum has it"

    space = run_job(capfd, "space", *common)
    assert (space.code, space.row["bookies_not_told"], space.row["ledgers"]) == (0, 0, 10), space.output
    assert (space.row["payload_bytes"], space.row["replica_bytes"]) == (HALF, HALF)
    assert garbage <= space.row["garbage_bytes"] < HALF + 60 * 100
    assert space.row["bytes_per_day"] == round(HALF / 7)
    assert space.row["days_until_full"] == round(space.row["free_bytes"] / (HALF / 7), 1)
    (bookie,) = rows(tmp_path / "report", "bookie").values()
    assert bookie["used_bytes"] + bookie["free_bytes"] == shutil.disk_usage(telling_bookie.work).total
    assert (bookie["replica_bytes"], bookie["garbage_bytes"]) == (HALF, space.row["garbage_bytes"])


def rows(report: Path, section: str) -> dict[str, dict[str, Any]]:
    """Of the report, by name; it is removed."""
    found = pq.read_table(report).to_pylist()
    shutil.rmtree(report)
    return {row["name"]: row for row in found if row["section"] == section}
