"""`offload` on real Spark and real bookies."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from bookie_client import BlockingClient
from bookie_client.streams import Manifest, PublishedLedger, StreamPosition, Streams
from bookie_protocol.errors import NoSuchLedger
from tests.support.job_ledgers import awkward_payloads, read_ledger, write_ledger
from tests.support.spark_jobs import run_job


def in_archive(folder: Path) -> dict[int, list[bytes]]:
    """All ledgers, read as one partitioned table."""
    table = ds.dataset(folder / "data", partitioning="hive").to_table()
    found: dict[int, list[bytes]] = {}
    for row in table.sort_by([("ledger_id", "ascending"), ("entry_id", "ascending")]).to_pylist():
        there = found.setdefault(row["ledger_id"], [])
        assert row["entry_id"] == len(there)
        assert row["length"] == len(row["value"])
        there.append(row["value"])
    return found


def test_parquet_equals_the_ledgers_byte_for_byte(
    spark: SparkSession, client: BlockingClient, uri: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    payloads = awkward_payloads()
    several = [write_ledger(client, [b"%d/%d" % (n, m) for m in range(10)]) for n in range(20)]
    large, empty, unwritten = write_ledger(client, payloads), write_ledger(client, []), client.create(write_quorum=3)
    ids = ",".join(map(str, [*several, large, empty, unwritten.ledger_id, 999_999_999]))
    archive = tmp_path / "archive"
    common = ("offload", "--metadata", uri, "--ledgers", ids, "--target", str(archive))

    dry = run_job(capfd, *common, "--dry-run")
    assert (dry.code, dry.row["pending"], dry.row["offloaded"], dry.row["missing"]) == (2, 21, 0, 1)
    assert "WOULD_OFFLOAD" in dry.output
    assert not archive.exists()
    assert not client.run(lambda inner: inner.metadata_service.records("offload").names()) & set(ids.split(","))

    ran = run_job(capfd, *common, "--result", str(tmp_path / "row.json"))
    assert ran.code == 2, ran.errors  # of the ledger that does not exist
    assert json.loads((tmp_path / "row.json").read_text()) == ran.row
    counters = ("selected", "offloaded", "empty", "not_closed", "missing", "failed", "entries")
    assert [ran.row[name] for name in counters] == [23, 21, 1, 1, 1, 0, 200 + len(payloads)]
    assert "offload: " in ran.errors
    expected = {ledger_id: [b"%d/%d" % (n, m) for m in range(10)] for n, ledger_id in enumerate(several)}
    assert in_archive(archive) == {**expected, large: payloads}
    assert list(archive.rglob("_tmp/*")) == []

    again = run_job(capfd, *common)
    assert (again.row["offloaded"], again.row["already_there"]) == (0, 21)
    frame = spark.read.parquet(f"{archive}/data").where(f"ledger_id = {large}").orderBy("entry_id")
    assert [bytes(row[0]) for row in frame.select("value").collect()] == payloads
    unwritten.close()


def test_ledgers_go_after_the_lag(
    spark: SparkSession, client: BlockingClient, uri: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ledger_id = write_ledger(client, [b"one", b"two"])
    common = ("offload", "--metadata", uri, "--ledgers", str(ledger_id), "--target", str(tmp_path / "archive"))
    first = run_job(capfd, *common, "--delete-after", "1h")
    assert (first.row["offloaded"], first.row["deleted"], first.row["waiting_for_deletion"]) == (1, 0, 1)
    assert client.metadata(ledger_id).length == 6
    dry = run_job(capfd, *common, "--delete-after", "0", "--dry-run")
    assert "WOULD_DELETE" in dry.output
    assert client.metadata(ledger_id).length == 6
    second = run_job(capfd, *common, "--delete-after", "0")
    assert (second.code, second.row["deleted"]) == (0, 1)
    with pytest.raises(NoSuchLedger):
        client.metadata(ledger_id)
    third = run_job(capfd, *common, "--delete-after", "0")
    assert (third.code, third.row["deleted"]) == (0, 0)
    assert in_archive(tmp_path / "archive") == {ledger_id: [b"one", b"two"]}


def publish(client: BlockingClient, name: str, payloads: list[bytes]) -> int:
    """A further ledger of a stream, as its writers make them."""
    ledger_id = write_ledger(client, payloads, **{"podkeeper/stream": name.encode()})
    ledger = PublishedLedger(ledger_id, len(payloads), sum(map(len, payloads)))
    client.run(lambda each: Streams(each).publish(name, [ledger]))
    return ledger_id


def manifest(client: BlockingClient, name: str) -> Manifest:
    return client.run(lambda each: Streams(each).manifest(name))


def test_a_stream_is_archived_and_cut_behind_what_may_go(
    spark: SparkSession, client: BlockingClient, uri: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its oldest ledgers go by a truncation, which a cursor holds up; another stream's stay out of it."""
    for name in ("cut-when-archived", "left-alone"):
        client.run(lambda each, name=name: Streams(each).create(name))
    *old, last = [publish(client, "cut-when-archived", [b"%d/%d" % (n, m) for m in range(3)]) for n in range(4)]
    other = publish(client, "left-alone", [b"other"])
    client.run(lambda each: Streams(each).move_cursor("cut-when-archived", "reader", StreamPosition(old[1], 0)))
    common = ("offload", "--metadata", uri, "--target", str(tmp_path / "archive"), "--stream", "cut-when-archived")
    common = (*common, "--where", f"ledger_id < {last}", "--delete-after", "0")

    held = run_job(capfd, *common)
    assert (held.row["selected"], held.row["offloaded"], held.row["deleted"]) == (3, 3, 0), held.output
    assert held.output.count("a stream lists it") == 3
    assert "cursor" in held.errors
    assert [ledger.ledger_id for ledger in manifest(client, "cut-when-archived").ledgers] == [*old, last]

    client.run(lambda each: Streams(each).move_cursor("cut-when-archived", "reader", StreamPosition(last, 1)))
    dry = run_job(capfd, *common, "--dry-run")
    assert (dry.output.count("WOULD_DELETE"), dry.row["deleted"]) == (3, 0)
    assert [ledger.ledger_id for ledger in manifest(client, "cut-when-archived").ledgers] == [*old, last]

    ran = run_job(capfd, *common)
    assert (ran.code, ran.row["deleted"]) == (0, 3), ran.output
    left = manifest(client, "cut-when-archived")
    assert [ledger.ledger_id for ledger in left.ledgers] == [last]
    assert left.earliest == StreamPosition(last, 0), "readers are told, and meet no hole"
    for ledger_id in old:
        with pytest.raises(NoSuchLedger):
            client.metadata(ledger_id)
    assert read_ledger(client, last) == [b"3/%d" % m for m in range(3)]
    assert in_archive(tmp_path / "archive") == {
        each: [b"%d/%d" % (n, m) for m in range(3)] for n, each in enumerate(old)
    }
    assert [ledger.ledger_id for ledger in manifest(client, "left-alone").ledgers] == [other]

    check = ("replication-check", "--metadata", uri, "--placement", "zone-aware")
    assert run_job(capfd, *check, "--stream", "cut-when-archived", "--stream", "left-alone").row["ledgers"] == 2
    nowhere = run_job(capfd, *check, "--stream", "nowhere")
    assert (nowhere.code, nowhere.row["status"]) == (1, "error")
    assert "nowhere" in nowhere.row["error"]


def test_a_rate_is_kept(
    spark: SparkSession, client: BlockingClient, uri: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """By all tasks together, of what they read and of what they read back."""
    ledgers = [write_ledger(client, [b"x" * 100_000] * 10) for _ in range(4)]
    rate = 1_000_000
    common = ("offload", "--metadata", uri, "--target", str(tmp_path / "archive"), "--max-concurrent", "2")
    common = (*common, "--ledgers", ",".join(map(str, ledgers)), "--max-bytes-per-second", str(rate))
    began = time.monotonic()
    ran = run_job(capfd, *common)
    took = time.monotonic() - began
    assert (ran.row["offloaded"], ran.row["bytes"]) == (4, 4_000_000)
    assert took >= 2 * 4_000_000 / rate - 1, "but for the first second's worth, which may go at once"


def test_a_wrong_password_names_the_ledger(
    spark: SparkSession, client: BlockingClient, uri: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mine, other = write_ledger(client, [b"mine"], b"mine"), write_ledger(client, [b"other"], b"other")
    password = tmp_path / "password"
    password.write_bytes(b"mine\n")
    ran = run_job(
        capfd,
        *("offload", "--metadata", uri, "--ledgers", f"{mine},{other}", "--target", str(tmp_path / "archive")),
        *("--password-file", str(password), "--report", str(tmp_path / "report")),
    )
    assert (ran.code, ran.row["offloaded"], ran.row["failed"], ran.row["complete"]) == (2, 1, 1, False)
    [found] = pq.ParquetDataset(tmp_path / "report").read().to_pylist()
    assert (found["ledger_id"], found["what"]) == (other, "UNAUTHORIZED")
    assert f"ledger {other} has another password" in ran.output
    assert in_archive(tmp_path / "archive") == {mine: [b"mine"]}


def test_what_is_chosen(
    spark: SparkSession, client: BlockingClient, uri: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    small, big = write_ledger(client, [b"x"], owner=b"chosen"), write_ledger(client, [b"x" * 5000], owner=b"chosen")
    write_ledger(client, [b"x" * 5000], owner=b"not chosen")
    common = ("offload", "--metadata", uri, "--target", str(tmp_path / "archive"), "--dry-run")
    by_owner = run_job(capfd, *common, "--ledger-pattern", "owner=chosen")
    assert by_owner.row["pending"] == 2
    narrowed = run_job(capfd, *common, "--ledger-pattern", "owner=chosen", "--where", "bytes > 1000")
    assert (narrowed.row["pending"], str(big) in narrowed.output) == (1, True)
    young = run_job(capfd, *common, "--ledgers", f"{small}-{big}", "--older-than", "1h")
    assert young.row["selected"] == 0
    wrong = run_job(capfd, *common, "--all", "--where", "byts > 1000")
    assert wrong.code == 1
    assert "--where byts > 1000" in wrong.row["error"]
    assert "bytes long" in wrong.row["error"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--targt", "x"), "unknown argument --targt: did you mean --target?"),
        (("--target", "x"), "select ledgers by exactly one of"),
        (("--target", "x", "--all", "--stream", "s"), "select ledgers by exactly one of"),
        (("--target", "nosuchfs://x/y", "--all"), "--target nosuchfs://x/y"),
        (("--target", "x", "--all", "--option", "tls.cafil=x"), "did you mean tls.caFile?"),
        (("--target", "x", "--ledgers", "7-x"), "must be ledger ids and ranges of them"),
        (("--target", "x", "--ledger-pattern", "a=("), "is not a regular expression"),
    ],
)
def test_bad_arguments_are_one_line(
    spark: SparkSession, uri: str, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    ran = run_job(capfd, "offload", "--metadata", uri, *arguments)
    assert (ran.code, ran.row["status"]) == (1, "error")
    assert told in ran.row["error"]
    assert ran.errors == f"bookie: {ran.row['error']}\n"
