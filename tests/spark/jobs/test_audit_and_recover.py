"""`audit` and `recover` on real Spark and real bookies: what is damaged or missing is found, restored, and gone."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from bookie_client import BlockingClient, Client
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from tests.support.flipped_bits import flip_bit
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_cluster import ServeCluster
from tests.support.spark_jobs import run_job, start_job
from tests.support.until import until_true

pytestmark = pytest.mark.timeout(300)
BOOKIES = 4
ENTRIES = 300
PATIENCE_S = 150.0


@pytest.fixture(scope="module")
def bookies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeCluster]:
    """Bookies that these tests may stop, damage and empty."""
    metadata = MetadataProcess(tmp_path_factory.mktemp("metadata"))
    try:
        metadata.start()
        # A bookie that mends by itself what a read finds would leave nothing to recover.
        made = ServeCluster(tmp_path_factory.mktemp("bookies"), metadata.uri(), {"localScrubRepair": "false"})
        try:
            made.add(BOOKIES)
            yield made
        finally:
            made.stop()
    finally:
        metadata.stop()


def payload(ledger_id: int, entry_id: int) -> bytes:
    return b"entry %06d of ledger %06d " % (entry_id, ledger_id) * 20


def write(uri: str, entries: int = ENTRIES) -> LedgerMetadata:
    with BlockingClient(uri) as client:
        # All three acknowledge, so all three have everything when it is closed.
        ledger = client.create(ensemble=3, write_quorum=3, ack_quorum=3, password=b"secret")
        ledger.append_many(payload(ledger.ledger_id, each) for each in range(entries))
        ledger.close()
        return client.metadata(ledger.ledger_id)


def ensemble(uri: str, ledger_id: int) -> tuple[str, ...]:
    with BlockingClient(uri) as client:
        return client.metadata(ledger_id).ensemble_for(0)


def findings(folder: Path) -> list[tuple[object, ...]]:
    rows = ds.dataset(folder, partitioning="hive").to_table().to_pylist()
    names = ("ledger_id", "first_entry", "last_entry", "bookie", "verdict")
    return [tuple(row[name] for name in names) for row in rows]


def test_a_flipped_bit_is_found_healed_and_gone(
    spark: SparkSession, bookies: ServeCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ledger = write(bookies.uri)
    hurt = ledger.ensemble_for(0)[1]
    assert bookies.bookies[hurt].stop() == 0
    flip_bit(bookies.bookies[hurt], payload(ledger.ledger_id, 117))
    bookies.start([hurt])

    common = ("--metadata", bookies.uri, "--recheck", "0")
    light = run_job(capfd, "audit", *common)
    assert (light.code, light.row["damaged"], light.row["bytes"]) == (0, 0, 0), light.output
    assert "audit: 0 of 1 ledgers" in light.errors, "how much there is to do is said before any of it is done"
    deep = run_job(capfd, "audit", *common, "--digests", "--report", str(tmp_path / "report"))
    assert (deep.code, deep.row["damaged"], deep.row["missing"]) == (2, 1, 0), deep.errors
    assert deep.row["bytes"] > 3 * ledger.length
    assert findings(tmp_path / "report") == [(ledger.ledger_id, 117, 117, hurt, "DAMAGED")]
    assert bookies.bookies[hurt].logged("a read found damage"), "the bookie itself looks at what it reads"

    recover = ("recover", "--metadata", bookies.uri, "--findings", str(tmp_path / "report"))
    dry = run_job(capfd, *recover, "--dry-run")
    assert (dry.code, dry.row["planned"], dry.row["bytes"]) == (2, 1, 0)
    assert ensemble(bookies.uri, ledger.ledger_id) == ledger.ensemble_for(0), "a dry run changes nothing"
    healed = run_job(capfd, *recover, "--verify", "digests")
    assert (healed.code, healed.row["recovered"], healed.row["entries"]) == (0, 1, ENTRIES), healed.output
    assert "recover: 0 of 1 ledgers" in healed.errors
    assert hurt not in ensemble(bookies.uri, ledger.ledger_id)

    again = run_job(capfd, "audit", *common, "--digests")
    assert (again.code, again.row["damaged"], again.row["entries"]) == (0, 0, 3 * ENTRIES), again.output
    assert run_job(capfd, *recover).row["nothing_to_do"] == 1


def test_a_bookie_that_is_down_is_not_missing_anything(
    spark: SparkSession, bookies: ServeCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    ledger = write(bookies.uri)
    silent = ledger.ensemble_for(0)[0]
    only = ("--metadata", bookies.uri, "--recheck", "0", "--ledgers", str(ledger.ledger_id), "--mark")
    with bookies.paused([silent]):
        hangs = run_job(capfd, "audit", *only, "--option", "client.readTimeout=1")
    assert (hangs.code, hangs.row["missing"], hangs.row["damaged"], hangs.row["lost"]) == (2, 0, 0, 0), hangs.output
    assert hangs.row["unreachable"] == 1
    with BlockingClient(bookies.uri) as client:
        mark = client.run(lambda each: each.metadata_service.under_replication.read(ledger.ledger_id))
    assert mark is None


def test_missing_copies_are_marked_and_filled_again(
    spark: SparkSession, bookies: ServeCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ledger = write(bookies.uri)
    hurt = without_its_copies(bookies, ledger)
    only = ("--metadata", bookies.uri, "--recheck", "0", "--ledgers", str(ledger.ledger_id))
    dry = run_job(capfd, "audit", *only, "--mark", "--dry-run")
    assert (dry.code, dry.row["missing"]) == (2, 1), dry.output
    assert marked(bookies.uri, ledger.ledger_id) is None
    found = run_job(capfd, "audit", *only, "--mark", "--report", str(tmp_path))
    assert findings(tmp_path) == [(ledger.ledger_id, 0, ENTRIES - 1, hurt, "MISSING")]
    assert (found.row["marked"], marked(bookies.uri, ledger.ledger_id)) == (1, (hurt,))

    healed = run_job(capfd, "recover", "--metadata", bookies.uri, "--findings", str(tmp_path))
    assert (healed.code, healed.row["recovered"]) == (0, 1), healed.output
    assert hurt in ensemble(bookies.uri, ledger.ledger_id), "it is writable, so it was filled again"
    assert marked(bookies.uri, ledger.ledger_id) is None
    assert run_job(capfd, "audit", *only, "--digests").code == 0


def without_its_copies(bookies: ServeCluster, ledger: LedgerMetadata) -> str:
    """Have the metadata name a bookie that holds nothing of the ledger, as one does whose disk was exchanged."""
    before = ledger.ensemble_for(0)
    (other,) = set(bookies.bookies) - set(before)

    async def exchange(client: Client) -> None:
        stored = await client.stored_metadata(ledger.ledger_id)
        changed = stored.value.with_ensemble(0, (*before[:2], other))
        await client.metadata_service.ledgers.write(changed, stored.identity)

    with BlockingClient(bookies.uri) as client:
        client.run(exchange)
    return other


@pytest.mark.slow
def test_a_recovery_that_was_killed_is_gone_on_with(
    spark: SparkSession, bookies: ServeCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ledgers = [write(bookies.uri, 1000) for _ in range(6)]
    leaving = ledgers[0].ensemble_for(0)[0]
    before = sum(leaving in ensemble(bookies.uri, ledger.ledger_id) for ledger in ledgers)
    ids = ",".join(str(ledger.ledger_id) for ledger in ledgers)
    recover = ("recover", "--metadata", bookies.uri, "--bookies", leaving, "--ledgers", ids)
    slowly = ("--max-bytes-per-second", "200k", "--master", "local[1]")
    process = start_job(tmp_path, "pyspark_bookie.jobs", *recover, *slowly)
    try:
        with BlockingClient(bookies.uri) as client:
            until_true(lambda: locks(client) or process.poll() is not None, PATIENCE_S)
        assert process.poll() is None, process.communicate()
    finally:
        end_group(process)
    assert sum(leaving in ensemble(bookies.uri, ledger.ledger_id) for ledger in ledgers) > 0, "it was in the middle"

    ran = run_job(capfd, *recover)
    assert (ran.code, ran.row["recovered"] + ran.row["nothing_to_do"]) == (0, ran.row["ledgers"]), ran.output
    assert 0 < ran.row["ledgers"] <= before
    assert not any(leaving in ensemble(bookies.uri, ledger.ledger_id) for ledger in ledgers)
    with BlockingClient(bookies.uri) as client:
        assert locks(client) == set()
    audit = run_job(capfd, "audit", "--metadata", bookies.uri, "--recheck", "0", "--ledgers", ids, "--digests")
    assert (audit.code, audit.row["entries"]) == (0, 6 * 3 * 1000), audit.output


def locks(client: BlockingClient) -> set[int]:
    return set(client.run(lambda each: each.metadata_service.under_replication.locks()))


def end_group(process: subprocess.Popen[str]) -> None:
    """The job, its Java and its workers, as a machine that fails."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)


def marked(uri: str, ledger_id: int) -> tuple[str, ...] | None:
    with BlockingClient(uri) as client:
        mark = client.run(lambda each: each.metadata_service.under_replication.read(ledger_id))
    return None if mark is None else mark.replicas
