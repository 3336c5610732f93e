"""Jobs whose processes are killed at every state, each with a Spark of its own, and run again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bookie_client import BlockingClient
from bookie_client.streams import PublishedLedger, Streams
from bookie_protocol.archive import OffloadState
from pyspark_bookie.jobs.framework.places import placed_ledgers
from pyspark_bookie.jobs.offload.cleaning import OffloadStore
from pyspark_bookie.jobs.offload.machine import Fate
from tests.support.job_ledgers import read_ledger, write_ledger
from tests.support.offload_rig import archived, offloader
from tests.support.spark_jobs import start_job

SLOW = pytest.mark.slow
_SECONDS = 300
DYING, JOBS = "tests.support.dying_job", "pyspark_bookie.jobs"
PAYLOADS = [b"first", b"", b"x" * 100_000, b"last"]


def run(work: Path, module: str, *arguments: str) -> tuple[int, str]:
    """Exit code and standard output."""
    process = start_job(work, module, *arguments)
    try:
        output, errors = process.communicate(timeout=_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode in (0, -9), errors[-3000:]
    return process.returncode, output


@pytest.mark.timeout(3 * _SECONDS)
@pytest.mark.parametrize(
    "state",
    ["UPLOADED", *(pytest.param(each, marks=SLOW) for each in ("PREPARED", "VERIFIED", "COMPLETE"))],
)
def test_an_offload_is_resumed(client: BlockingClient, uri: str, tmp_path: Path, state: str) -> None:
    ledgers = [write_ledger(client, PAYLOADS) for _ in range(3)]
    target = f"file://{tmp_path}/archive"
    arguments = ("offload", "--metadata", uri, "--ledgers", ",".join(map(str, ledgers)), "--target", target)
    assert run(tmp_path, DYING, "offload", state, *arguments)[0] == -9
    code, output = run(tmp_path, JOBS, *arguments)
    row = json.loads(output.splitlines()[-1])
    assert (code, row["status"], row["complete"]) == (0, "ok", True)
    assert row["offloaded"] + row["already_there"] == 3
    # Several ledgers are under way at once: when one is complete, others may be half-way.
    assert row["already_there" if state == "COMPLETE" else "resumed"] > 0
    for ledger_id in ledgers:
        assert archived(target, ledger_id) == PAYLOADS
    assert [path for path in (tmp_path / "archive").rglob("_tmp/**/*") if path.is_file()] == []
    assert len(list((tmp_path / "archive").rglob("data/**/*.parquet"))) == 3


@SLOW
@pytest.mark.timeout(3 * _SECONDS)
def test_a_deletion_is_gone_on_with(client: BlockingClient, uri: str, tmp_path: Path) -> None:
    """A ledger is gone, and its record does not know it."""
    ledgers = [write_ledger(client, PAYLOADS) for _ in range(3)]
    target = f"file://{tmp_path}/archive"
    arguments = ("offload", "--metadata", uri, "--ledgers", ",".join(map(str, ledgers)), "--target", target)
    arguments += ("--delete-after", "0")
    assert run(tmp_path, DYING, "offload", "before-BK_DELETED", *arguments)[0] == -9
    gone = set(ledgers) - set(client.list())
    assert gone
    store = OffloadStore(client)
    assert {record.state for record in store.read_all(sorted(gone)).values()} == {OffloadState.COMPLETE}
    code, output = run(tmp_path, JOBS, *arguments)
    row = json.loads(output.splitlines()[-1])
    assert (code, row["complete"], row["deleted"], row["missing"]) == (0, True, 3, 0)
    assert {record.state for record in store.read_all(ledgers).values()} == {OffloadState.BK_DELETED}
    assert not set(ledgers) & set(client.list())
    for ledger_id in ledgers:
        assert archived(target, ledger_id) == PAYLOADS


@SLOW
@pytest.mark.timeout(3 * _SECONDS)
@pytest.mark.parametrize("state", ["WRITING", "COMPLETE"])
def test_a_copy_is_resumed(client: BlockingClient, uri: str, tmp_path: Path, state: str) -> None:
    owner = f"copied-{state}".encode()
    ledgers = {write_ledger(client, PAYLOADS, owner=owner) for _ in range(3)}
    arguments = ("copy", "--metadata", uri, "--to-metadata", uri, "--ledgers", ",".join(map(str, sorted(ledgers))))
    arguments += ("--name", f"copied-{state}")
    assert run(tmp_path, DYING, "transfer", state, *arguments)[0] == -9
    code, output = run(tmp_path, JOBS, *arguments)
    assert (code, json.loads(output.splitlines()[-1])["complete"]) == (0, True)
    made = {each for each in client.list() if client.metadata(each).custom_metadata.get("owner") == owner} - ledgers
    assert len(made) == 3
    assert all(read_ledger(client, each) == PAYLOADS for each in made)


@SLOW
@pytest.mark.timeout(3 * _SECONDS)
@pytest.mark.parametrize("state", ["COMPLETE", "WRITING"])
def test_a_stream_comes_back_whole_and_in_order(client: BlockingClient, uri: str, tmp_path: Path, state: str) -> None:
    """Of two archives, with ids that fall. The run that is killed has written a part."""
    stream, again = f"orders-{state}", f"again-{state}"
    payloads = {write_ledger(client, [b"%d/%d" % (n, each) for each in range(50)]): n for n in range(4)}
    ledgers = [PublishedLedger(each, 50, client.metadata(each).length) for each in sorted(payloads, reverse=True)]
    client.run(lambda inner: Streams(inner).create(stream))
    client.run(lambda inner: Streams(inner).publish(stream, ledgers))
    archives = [f"file://{tmp_path}/{name}" for name in ("b", "a")]
    for number, (ledger_id, listed) in enumerate(placed_ledgers(client, [stream], print).items()):
        fate, _ = offloader(client, archives[number % 2]).offload(ledger_id, listed)  # type: ignore[arg-type]
        assert fate is Fate.OFFLOADED
    client.run(lambda inner: Streams(inner).delete(stream))
    assert not set(payloads) & set(client.list())

    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    arguments = ("restore", "--metadata", uri, "--to-stream", again, "--new-password-file", str(secret))
    arguments += ("--source", archives[0], "--source", archives[1])
    assert run(tmp_path, DYING, "transfer", state, *arguments)[0] == -9
    code, output = run(tmp_path, JOBS, *arguments)
    row = json.loads(output.splitlines()[-1])
    assert (code, row["complete"], row["published"]) == (0, True, 4)
    there = client.run(lambda inner: Streams(inner).manifest(again)).ledgers
    assert [read_ledger(client, each.ledger_id) for each in there] == [
        [b"%d/%d" % (n, each) for each in range(50)] for n in (3, 2, 1, 0)
    ]
