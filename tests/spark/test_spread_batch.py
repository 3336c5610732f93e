"""Batch reads and writes where executors are Java processes of their own, and where they die."""

from __future__ import annotations

import json

import pytest

from tests.spark.ledgers import STRIPED, numbered, write_ledger
from tests.spark.streams import manifest, payloads
from tests.support.dying_query import EXECUTOR, PROCESS
from tests.support.spark_jobs import start_job
from tests.support.spread_batch import SpreadRun, spread

JOB_S = 300.0


@pytest.mark.timeout(600)
def test_a_cluster_reads_everything_and_writes_it_once_though_a_worker_dies(uri, tool, tmp_path):
    """The shortest part of the test below."""
    written = [numbered(300), [b"%d" % number for number in range(100)]]
    ids = [write_ledger(tool, written[0]), write_ledger(tool, written[1], **STRIPED)]
    run = SpreadRun(uri, ",".join(map(str, ids)), "spread-once", ("local-cluster[2,1,1024]",), (PROCESS,))
    (rows,) = spread(tmp_path / "run", run)
    assert sorted(rows) == _rows(ids, written)
    assert sorted(payloads(tool, "spread-once")) == sorted([*written[0], *written[1]])
    assert len(manifest(tool, "spread-once").ledgers) >= run.partitions


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_cluster_reads_what_one_process_reads_and_writes_it_once_though_tasks_and_executors_die(uri, tool, tmp_path):
    written = [numbered(3_000), [b"%d" % number for number in range(1_000)]]
    ids = [write_ledger(tool, written[0]), write_ledger(tool, written[1], **STRIPED)]
    masters = ("local[2]", "local-cluster[2,1,1024]")
    run = SpreadRun(uri, ",".join(map(str, ids)), "spread", masters, (PROCESS, EXECUTOR))
    local, spread_out = spread(tmp_path / "run", run)
    assert sorted(local) == sorted(spread_out)
    assert sorted(spread_out) == _rows(ids, written)
    assert sorted(payloads(tool, "spread")) == sorted([*written[0], *written[1]])
    listed = {ledger.ledger_id for ledger in manifest(tool, "spread").ledgers}
    assert len(listed) >= run.partitions
    made = {each for each in tool.list() if _stream_of(tool, each) == b"spread"}
    assert made > listed, "attempts that died left ledgers behind, which nobody sees"
    _orphans_are_found_and_removed(uri, tool, tmp_path, made, listed)


def _rows(ids, written):
    """What a read gives of these ledgers, sorted."""
    return sorted(
        [ledger_id, entry_id, payload.hex(), len(payload)]
        for ledger_id, entries in zip(ids, written, strict=True)
        for entry_id, payload in enumerate(entries)
    )


def _orphans_are_found_and_removed(uri, tool, work, made, listed):
    """Not while they are young, and not what the stream lists."""
    ids, left = ",".join(map(str, sorted(made))), len(made - listed)
    orphans = ("orphans", "--metadata", uri, "--ledgers", ids, "--kind", "sink-attempts")
    code, row = _job(work, *orphans, "--no-dry-run")
    assert (code, row["too_young"], row["found"], row["removed"]) == (0, left, 0, 0)
    code, row = _job(work, *orphans, "--older-than", "0")
    assert (code, row["found"], row["sink_attempts"], row["removed"]) == (2, left, left, 0)
    assert {each for each in tool.list() if _stream_of(tool, each) == b"spread"} == made
    code, row = _job(work, *orphans, "--older-than", "0", "--no-dry-run")
    assert (code, row["removed"]) == (0, left)
    assert {each for each in tool.list() if _stream_of(tool, each) == b"spread"} == listed


def _job(work, *arguments):
    """A job in a process of its own: exit code and result row."""
    process = start_job(work, "pyspark_bookie.jobs", *arguments)
    try:
        output, errors = process.communicate(timeout=JOB_S)
    finally:
        process.kill()
        process.wait()
    assert output, errors[-3000:]
    return process.returncode, json.loads(output.splitlines()[-1])


def _stream_of(client, ledger_id):
    return client.metadata(ledger_id).custom_metadata.get("podkeeper/stream")
