"""`bookie stream info` tells which ledgers stand in an archive, by the records that the job `offload` really writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bookie_client.streams import PublishedLedger, Streams, StreamSettings
from bookie_pod.cli.main import run
from bookie_protocol.archive import KIND, OffloadRecord, OffloadState
from pyspark_bookie.archive.files import Files
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs.offload.deletion import Deleter, DeletionFate, DeletionSettings
from tests.support.ledger_shelf import LedgerShelf
from tests.support.offload_rig import offloader, stop_after

Capture = pytest.CaptureFixture[str]
PAYLOADS = [b"first", b"last"]
LISTED = (3, 1, 4, 2)


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"file://{tmp_path}/archive"


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LedgerShelf:
    """In the cluster that commands are about; it has to be left before one runs."""
    monkeypatch.delenv("BOOKIE_CONF", raising=False)
    monkeypatch.setenv("BK_metadataServiceUri", f"file://{tmp_path}/metadata")
    return LedgerShelf(tmp_path)


def publish(shelf: LedgerShelf) -> None:
    """A stream of ledgers 3, 1, 4 and 2."""
    for ledger_id in LISTED:
        shelf.put(ledger_id, PAYLOADS)
    listed = [PublishedLedger(each, 2, 9) for each in LISTED]
    shelf.run(lambda client: Streams(client).create("orders", StreamSettings()))
    shelf.run(lambda client: Streams(client).publish("orders", listed))


def change(shelf: LedgerShelf, ledger_id: int, change: Callable[[bytes], bytes]) -> None:
    """Of the record of a ledger."""
    found = shelf.run(lambda client: client.metadata_service.records(KIND).read(str(ledger_id)))
    data = change(found.value)
    assert data != found.value
    shelf.run(lambda client: client.metadata_service.records(KIND).update(str(ledger_id), data, found.identity))


def told(capsys: Capture) -> dict[int, bool]:
    assert run(["stream", "info", "orders", "--json"]) == 0
    ledgers = json.loads(capsys.readouterr().out)["ledgers"]
    return {each["ledger_id"]: each["offloaded"] for each in ledgers}


def test_what_is_complete_in_the_archive_is_offloaded_whether_bookies_have_it_or_not(
    shelf: LedgerShelf, target: str, capsys: Capture
) -> None:
    settings = DeletionSettings(target, 0.0, keep_listed=True)
    with shelf:
        publish(shelf)
        for ledger_id in (1, 2):
            offloader(shelf, target).offload(ledger_id)
        deleter = Deleter(shelf, Files(target, "--target"), settings, Throttle(None))
        assert deleter.delete(2) is DeletionFate.DELETED
        stop_after(shelf, target, OffloadState.VERIFIED, ledger_id=4)
    assert told(capsys) == {3: False, 1: True, 4: False, 2: True}

    assert run(["stream", "info", "orders"]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()[-5:]
    assert heading.split()[-3:] == ["offloaded", "under", "replicated"]
    assert [row.split()[-2] for row in rows] == ["-", "yes", "-", "yes"]


def test_without_an_archive_nothing_is_offloaded(shelf: LedgerShelf, capsys: Capture) -> None:
    with shelf:
        publish(shelf)
    assert told(capsys) == dict.fromkeys(LISTED, False)


def test_what_has_another_number_of_entries_is_not_the_ledger_that_the_stream_lists(
    shelf: LedgerShelf, target: str, capsys: Capture
) -> None:
    def longer(data: bytes) -> bytes:
        record = OffloadRecord.decode(data)
        assert record.counts is not None
        return replace(record, counts=replace(record.counts, entries=3)).encode()

    with shelf:
        publish(shelf)
        offloader(shelf, target).offload(1)
        change(shelf, 1, longer)
    assert told(capsys)[1] is False


@pytest.mark.parametrize(
    ("member", "damaged", "cause"),
    [
        (b'"v": 1', b'"v": 2', "ledger 1: a record of kind offload cannot be read"),
        (b'"ledger_id": 1', b'"ledger_id": 2', "the record of kind offload of ledger 1 is that of ledger 2"),
        (b'"state"', b'"stale"', "ledger 1: a record of kind offload cannot be read"),
    ],
)
def test_a_record_that_cannot_be_read_is_not_taken_for_no_record(
    shelf: LedgerShelf, target: str, capsys: Capture, member: bytes, damaged: bytes, cause: str
) -> None:
    with shelf:
        publish(shelf)
        offloader(shelf, target).offload(1)
        change(shelf, 1, lambda data: data.replace(member, damaged, 1))
    assert run(["stream", "info", "orders", "--json"]) == 12
    printed = capsys.readouterr()
    assert printed.out == ""
    assert cause in printed.err
