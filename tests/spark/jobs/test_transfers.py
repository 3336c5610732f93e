"""`restore`, `copy`, `export` and `import` on real Spark and real bookies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookie_client import BlockingClient
from bookie_client.streams import PublishedLedger, Streams
from bookie_protocol.errors import NoSuchStream, PodkeeperError
from tests.support.frames import v2_code, v2_read
from tests.support.job_ledgers import awkward_payloads, read_ledger, write_ledger
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_cluster import ServeCluster
from tests.support.serve_process import SyncClient
from tests.support.spark_jobs import run_job
from tests.support.until import until_true

NO_LEDGER = 1


@pytest.fixture(scope="module")
def other_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A second cluster, of one bookie."""
    metadata = MetadataProcess(tmp_path_factory.mktemp("other-metadata"))
    metadata.start()
    made = ServeCluster(tmp_path_factory.mktemp("other-bookies"), metadata.uri())
    try:
        made.add(1)
        yield made.uri
    finally:
        made.stop()
        metadata.stop()


def secret(folder: Path) -> str:
    """A file with the password of `write_ledger`."""
    path = folder / "secret"
    path.write_bytes(b"secret\n")
    return str(path)


def made(output: str) -> dict[int, int]:
    """Source and target ids, as a run told them."""
    rows = [line.split() for line in output.splitlines() if " WRITTEN " in line]
    return {int(row[0]): int(row[-1]) for row in rows}


def test_an_archive_becomes_ledgers_and_a_stream_again(
    spark: SparkSession, client: BlockingClient, uri: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    payloads = {write_ledger(client, each, owner=b"restored"): each for each in (awkward_payloads(), [b"a", b"b"])}
    ids = ",".join(map(str, payloads))
    archive = str(tmp_path / "archive")
    offloaded = run_job(
        capfd,
        *("offload", "--metadata", uri, "--ledgers", ids, "--target", archive, "--delete-after", "0"),
    )
    assert (offloaded.row["offloaded"], offloaded.row["deleted"]) == (2, 2)

    common = ("restore", "--metadata", uri, "--source", archive)
    dry = run_job(capfd, *common, "--keep-ids", "--dry-run")
    assert (dry.code, dry.row["pending"]) == (0, 2)
    first = next(iter(payloads))
    kept = (*common, "--keep-ids", "--ledgers", f"{first},999999999", "--name", "kept")
    refused = run_job(capfd, *kept)
    assert (refused.code, refused.row["failed"]) == (2, 1)
    assert f"bookies still have a ledger {first} of before: give its password" in refused.output
    assert first not in client.list()
    again = run_job(capfd, *kept, "--new-password-file", secret(tmp_path))
    assert (again.code, again.row["written"], again.row["missing"]) == (2, 1, 1)
    assert read_ledger(client, first) == payloads[first]
    assert client.metadata(first).custom_metadata["owner"] == b"restored"
    taken = run_job(capfd, *common, "--keep-ids", "--ledgers", str(first), "--name", "elsewhere")
    assert (taken.code, taken.row["id_exists"]) == (2, 1)

    password = tmp_path / "password"
    password.write_bytes(b"new")
    streamed = run_job(capfd, *common, "--to-stream", "restored", "--new-password-file", str(password))
    assert (streamed.code, streamed.row["written"], streamed.row["published"]) == (0, 2, 2), streamed.errors
    manifest = client.run(lambda inner: Streams(inner).manifest("restored"))
    assert [read_ledger(client, ledger.ledger_id, b"new") for ledger in manifest.ledgers] == list(payloads.values())
    repeated = run_job(capfd, *common, "--to-stream", "restored")
    assert (repeated.code, repeated.row["already_there"], repeated.row["published"]) == (0, 2, 2)
    assert client.run(lambda inner: Streams(inner).manifest("restored")).ledgers == manifest.ledgers


def test_a_ledger_that_a_recovery_has_closed_comes_back_after_its_collection(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As the first ledger of a stream after each take-over. Its writer, which has heard of nothing, adds nothing."""
    metadata = MetadataProcess(tmp_path / "metadata")
    metadata.start()
    made = ServeCluster(tmp_path / "bookies", metadata.uri(), {"gcWaitTime": "1000"})
    try:
        made.add(3)
        with BlockingClient(made.uri) as client, BlockingClient(made.uri) as late:
            write_ledger(client, [b"stays"])  # else the cluster lists nothing
            writer = late.create(ensemble=3, write_quorum=3, ack_quorum=2)
            payloads = [b"%d" % n for n in range(50)]
            writer.append_many(payloads)
            ledger_id = writer.ledger_id
            client.recover(ledger_id)
            archive = ("--metadata", made.uri, "--ledgers", str(ledger_id))
            offloaded = run_job(
                capfd, "offload", *archive, "--target", str(tmp_path / "archive"), "--delete-after", "0"
            )
            assert (offloaded.row["offloaded"], offloaded.row["deleted"]) == (1, 1)
            until_true(lambda: all(_has_forgotten(bookie.port, ledger_id) for bookie in made.bookies.values()), 30)
            restored = run_job(capfd, "restore", *archive, "--source", str(tmp_path / "archive"), "--keep-ids")
            assert (restored.code, restored.row["written"]) == (0, 1), restored.output
            assert read_ledger(client, ledger_id, b"") == payloads
            with pytest.raises(PodkeeperError):
                writer.append(b"late")
            assert read_ledger(client, ledger_id, b"") == payloads
    finally:
        made.stop()
        metadata.stop()


def _has_forgotten(port: int, ledger_id: int) -> bool:
    with SyncClient(port) as bookie:
        return v2_code(bookie.ask(v2_read(ledger_id, 0))) == NO_LEDGER


def test_ledgers_are_copied_to_another_cluster(
    spark: SparkSession,
    client: BlockingClient,
    uri: str,
    other_uri: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    payloads = {write_ledger(client, each, owner=b"copied"): each for each in (awkward_payloads(), [], [b"x"])}
    common = ("copy", "--metadata", uri, "--to-metadata", other_uri, "--ledger-pattern", "owner=copied")
    few = run_job(capfd, *common, "--keep-ids")
    assert (few.code, few.row["failed"]) == (2, 3)
    assert "NOT_ENOUGH_BOOKIES" in few.output
    quorums = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")
    kept = run_job(capfd, *common, *quorums, "--keep-ids")
    assert (kept.code, kept.row["written"], kept.row["complete"]) == (0, 3, True), kept.output
    new = run_job(capfd, *common, *quorums, "--name", "new-ids")
    assert (new.code, new.row["written"]) == (0, 3)
    assert sorted(made(new.output)) == sorted(payloads)
    with BlockingClient(other_uri) as other:
        for ledger_id, expected in payloads.items():
            assert read_ledger(other, ledger_id) == expected  # with the source's password
            assert read_ledger(other, made(new.output)[ledger_id]) == expected
            assert other.metadata(ledger_id).custom_metadata["owner"] == b"copied"
        other.delete(next(iter(payloads)))
    repeated = run_job(capfd, *common, *quorums, "--keep-ids")
    assert (repeated.row["written"], repeated.row["already_there"]) == (1, 2)


def test_a_stream_is_copied_whole_or_not_at_all(
    spark: SparkSession,
    client: BlockingClient,
    uri: str,
    other_uri: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    payloads = [[b"one"], [b"two"] * 2, [b"three"] * 3]
    ids = [write_ledger(client, each, owner=b"whole") for each in payloads]
    listed = [
        PublishedLedger(ledger_id, len(each), sum(map(len, each)))
        for ledger_id, each in zip(ids, payloads, strict=True)
    ]
    client.run(lambda inner: Streams(inner).create("whole"))
    client.run(lambda inner: Streams(inner).publish("whole", listed))
    archive = str(tmp_path / "archive")
    one = ("--metadata", uri, "--ledgers", str(ids[1]))
    taken = run_job(capfd, "offload", *one, "--target", archive, "--delete-after", "0", "--keep-listed")
    assert (taken.code, taken.row["deleted"]) == (0, 1), taken.output

    quorums = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")
    copy = (
        "copy",
        "--metadata",
        uri,
        "--to-metadata",
        other_uri,
        "--stream",
        "whole",
        "--to-stream",
        "whole",
        *quorums,
    )
    gap = run_job(capfd, *copy)
    assert (gap.code, gap.row["written"], gap.row["missing"], gap.row["published"]) == (2, 2, 1, None), gap.output
    assert "stream whole: nothing is added to it, because 1 of its ledgers are not there" in gap.errors
    remedy = f"restore --source file://{archive} --keep-ids --ledgers {ids[1]}"
    assert "ARCHIVED" in gap.output
    assert remedy in gap.output
    with BlockingClient(other_uri) as other, pytest.raises(NoSuchStream):
        other.run(lambda inner: Streams(inner).manifest("whole"))
    exported = run_job(capfd, "export", *one, "--target", str(tmp_path / "dumps"))
    assert (exported.code, exported.row["missing"]) == (2, 1)
    assert remedy in exported.output

    restored = run_job(capfd, *remedy.split(), "--metadata", uri, "--new-password-file", secret(tmp_path))
    assert (restored.code, restored.row["written"]) == (0, 1), restored.output
    whole = run_job(capfd, *copy)
    assert (whole.code, whole.row["written"], whole.row["already_there"], whole.row["published"]) == (0, 1, 2, 3)
    with BlockingClient(other_uri) as other:
        manifest = other.run(lambda inner: Streams(inner).manifest("whole"))
        assert [read_ledger(other, ledger.ledger_id) for ledger in manifest.ledgers] == payloads


def test_dumps_go_out_and_come_back(
    spark: SparkSession, client: BlockingClient, uri: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    payloads = {write_ledger(client, each, owner=b"dumped"): each for each in (awkward_payloads(), [], [b"x"])}
    folder = str(tmp_path / "dumps")
    export = ("export", "--metadata", uri, "--ledger-pattern", "owner=dumped", "--target", folder)
    assert run_job(capfd, *export, "--dry-run").row["pending"] == 3
    assert not (tmp_path / "dumps").exists()
    out = run_job(capfd, *export)
    assert (out.code, out.row["exported"], out.row["entries"]) == (0, 3, sum(map(len, payloads.values())))
    assert run_job(capfd, *export).row["already_there"] == 3
    for ledger_id in payloads:
        client.delete(ledger_id)

    back = ("import", "--metadata", uri, "--source", folder, "--keep-ids", "--new-password-file", secret(tmp_path))
    ran = run_job(capfd, *back)
    assert (ran.code, ran.row["written"]) == (0, 3), ran.output
    for ledger_id, expected in payloads.items():
        assert read_ledger(client, ledger_id) == expected
    [damaged] = [path for path in (tmp_path / "dumps").iterdir() if f"-{max(payloads)}." in path.name]
    damaged.write_bytes(damaged.read_bytes()[:-3])
    client.delete(max(payloads))
    broken = run_job(capfd, *back)
    assert (broken.code, broken.row["already_there"], broken.row["failed"]) == (2, 2, 1)
    assert "ENTRY_DAMAGED" in broken.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("restore", "--source", "x", "--keep-ids", "--to-stream", "s"),
            "--keep-ids and --to-stream exclude each other",
        ),
        (("restore", "--source", "x", "--name", "a/b"), "'a/b' is not a valid name of a transfer"),
        (("restore", "--source", "x", "--new-password-file", "/no/such"), "--new-password-file=/no/such"),
        (("copy", "--all"), "--to-metadata is missing"),
        (("import", "--sorce", "x"), "unknown argument --sorce: did you mean --source?"),
        (("export", "--all", "--target", "x", "--compression", "lz9"), "lz9"),
    ],
)
def test_bad_arguments_are_one_line(
    spark: SparkSession, uri: str, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    name, *others = arguments
    ran = run_job(capfd, name, "--metadata", uri, *others)
    assert (ran.code, ran.row["status"]) == (1, "error")
    assert told in ran.row["error"]
