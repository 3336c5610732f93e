"""Ledgers that streams list and that do not exist: archived ones are counted, others are told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bookie_client.streams import PublishedLedger, StreamPosition, Streams, StreamSettings
from bookie_client.streams.model import STREAM_KEY
from bookie_protocol.archive import KIND, OffloadRecord, OffloadState
from pyspark_bookie.archive.files import Files
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs.framework.result import JobExit
from pyspark_bookie.jobs.offload.cleaning import OffloadStore
from pyspark_bookie.jobs.offload.deletion import Deleter, DeletionFate, DeletionSettings
from pyspark_bookie.jobs.replicas.absent import Absent, absent
from pyspark_bookie.jobs.replicas.findings import Verdict
from tests.support.ledger_shelf import LedgerShelf
from tests.support.offload_rig import offloader
from tests.unit.pyspark_bookie.jobs.rig import DriverContext, drive

PAYLOADS = [b"first", b"last"]
LISTED = (3, 1, 2)


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"file://{tmp_path}/archive"


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[LedgerShelf]:
    """A stream of ledgers 3, 1 and 2."""
    with LedgerShelf(tmp_path) as made:
        made.run(lambda client: Streams(client).create("orders", StreamSettings()))
        for ledger_id in LISTED:
            made.put(ledger_id, PAYLOADS, custom={STREAM_KEY: b"orders"})
        made.run(lambda client: Streams(client).publish("orders", [PublishedLedger(each, 2, 9) for each in LISTED]))
        yield made


def offload(shelf: LedgerShelf, target: str, ledger_id: int) -> OffloadRecord:
    """Out of the bookies and still in its stream."""
    offloader(shelf, target).offload(ledger_id)
    settings = DeletionSettings(target, 0.0, keep_listed=True)
    deleter = Deleter(shelf, Files(target, "--target"), settings, Throttle(None))
    assert deleter.delete(ledger_id) is DeletionFate.DELETED
    stored = OffloadStore(shelf).read(ledger_id)
    assert stored is not None
    return stored.value


def lose(shelf: LedgerShelf, ledger_id: int) -> None:
    shelf.run(lambda client: client.metadata_service.ledgers.delete(ledger_id))


def told(shelf: LedgerShelf, *ledger_ids: int) -> Absent:
    return shelf.run(lambda client: absent(client, ("orders", "no-such-stream"), ledger_ids))


def verdicts(found: Absent) -> dict[int, Verdict]:
    return {each.ledger_id: each.verdict for each in found.findings}


def test_what_offload_took_is_archived_and_what_else_is_gone_is_told(shelf: LedgerShelf, target: str) -> None:
    offload(shelf, target, 3)
    lose(shelf, 1)
    found = told(shelf, 3, 1, 77)
    assert (found.archives, verdicts(found)) == ({3: target}, {1: Verdict.NO_SUCH_LEDGER})
    assert "stream orders lists it with 2 entries, and no archive has it" in found.findings[0].detail


@pytest.mark.parametrize("state", list(OffloadState))
def test_only_a_record_that_says_so_excuses(shelf: LedgerShelf, target: str, state: OffloadState) -> None:
    """A run that died between deletion and record leaves COMPLETE."""
    record = replace(offload(shelf, target, 3), state=state)
    store = OffloadStore(shelf)
    stored = store.read(3)
    assert stored is not None
    store.update(stored, record)
    found = told(shelf, 3)
    excused = state in (OffloadState.COMPLETE, OffloadState.BK_DELETED)
    assert (set(found.archives), verdicts(found)) == (({3}, {}) if excused else (set(), {3: Verdict.NO_SUCH_LEDGER}))


def test_an_archived_ledger_of_another_length_is_not_the_one(shelf: LedgerShelf, target: str) -> None:
    record = offload(shelf, target, 3)
    assert record.counts is not None
    store = OffloadStore(shelf)
    stored = store.read(3)
    assert stored is not None
    store.update(stored, replace(record, counts=replace(record.counts, entries=1)))
    found = told(shelf, 3)
    assert (found.archives, verdicts(found)) == ({}, {3: Verdict.NO_SUCH_LEDGER})
    assert f"the archive {target} has of this id has 1 entries" in found.findings[0].detail


def test_what_cannot_be_told_is_not_excused(shelf: LedgerShelf, target: str) -> None:
    offload(shelf, target, 3)
    shelf.run(lambda client: client.metadata_service.records(KIND).overwrite("3", b"{}"))
    found = told(shelf, 3)
    assert (found.archives, verdicts(found)) == ({}, {3: Verdict.UNKNOWN})


def test_a_second_look_at_stream_and_ledger(shelf: LedgerShelf) -> None:
    """One was truncated since, with its ledger; one is there again, as after `restore --keep-ids`."""
    shelf.run(lambda client: Streams(client).truncate("orders", StreamPosition(1, 0)))
    found = told(shelf, 3, 2)
    assert (found.archives, verdicts(found)) == ({}, {2: Verdict.UNKNOWN})


@pytest.mark.parametrize("name", ["audit", "scrub", "replication-check"])
def test_jobs_count_what_is_archived_and_name_the_archive(
    shelf: LedgerShelf, target: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--bookies", "b") if name == "replication-check" else ()

    def run() -> tuple[object, object, JobExit]:
        result = drive(DriverContext(shelf, name, "--stream", "orders", *more))
        return result.counters["archived"], result.counters["no_such_ledger"], result.exit

    assert run() == (0, 0, JobExit.OK)
    offload(shelf, target, 3)
    offload(shelf, target, 1)
    assert run() == (2, 0, JobExit.OK)
    assert f"{name}: 2 ledgers were not inspected: they are in the archive {target} alone\n" in capsys.readouterr().err
    lose(shelf, 2)
    assert run() == (2, 1, JobExit.FINDINGS)
