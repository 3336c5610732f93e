"""What `abort` may delete while nobody knows whether the commit still comes through."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from bookie_client.streams import PublishedLedger, Streams
from bookie_client.streams.publishing import published
from bookie_client.streams.store import ManifestStore, StoredStream
from bookie_protocol.errors import MetadataUnavailable, MetadataVersionConflict
from bookie_protocol.metadata_service.records import STREAM
from pyspark_bookie.common.options import parse
from pyspark_bookie.sink.commit import clean_up
from pyspark_bookie.sink.options import SinkOptions
from tests.support.memory_records import MemoryRecords

OPTIONS = parse({"metadataServiceUri": "zk://nowhere/ledgers", "stream": "s"}, SinkOptions)
LEDGERS = [PublishedLedger(7, 3, 10), PublishedLedger(8, 3, 10)]


class Client:
    """The streams of a metadata service in memory."""

    def __init__(self) -> None:
        self.records = MemoryRecords()
        self.service = SimpleNamespace(records=self.records.of)
        self.deleted: list[int] = []

    def run(self, call):
        return asyncio.run(call(SimpleNamespace(metadata_service=self.service)))

    def delete(self, ledger_id):
        self.deleted.append(ledger_id)

    def begun(self) -> StoredStream:
        """The stream as a commit has read it that is about to write."""
        return self.run(lambda each: ManifestStore(each.metadata_service).read("s"))

    def end(self, begun: StoredStream) -> None:
        """The write of that commit arrives."""
        changed = published(begun.manifest, LEDGERS, None, replacing=False, now_ms=1)
        assert changed is not None
        self.run(lambda each: ManifestStore(each.metadata_service).replace(begun, changed))


@pytest.fixture
def client(monkeypatch):
    made = Client()
    monkeypatch.setattr(SinkOptions, "client", lambda _: made)
    made.run(lambda each: Streams(each).create("s"))
    return made


def test_a_commit_that_arrives_late_lists_nothing_that_was_deleted(client):
    """Its answer did not come in time, so Spark has called `abort`."""
    begun = client.begun()
    clean_up(OPTIONS, LEDGERS)
    assert client.deleted == [7, 8]
    with pytest.raises(MetadataVersionConflict):
        client.end(begun)
    assert client.begun().manifest.ledgers == ()


def test_a_commit_that_arrives_meanwhile_keeps_its_ledgers(client):
    begun, other = client.begun(), Client()
    other.records.stored = dict(client.records.stored)
    other.end(begun)
    arriving = other.records.stored[STREAM, "s"]

    def arrive(_):
        client.records.before = lambda _: None
        client.records.stored[STREAM, "s"] = arriving

    client.records.before = arrive
    clean_up(OPTIONS, LEDGERS)
    assert client.deleted == []
    assert [each.ledger_id for each in client.begun().manifest.ledgers] == [7, 8]


def test_what_an_overwrite_has_retired_is_the_streams(client):
    client.end(client.begun())
    client.run(lambda each: Streams(each).publish("s", [], replace=True))
    clean_up(OPTIONS, [*LEDGERS, PublishedLedger(9, 3, 10)])
    assert client.deleted == [9]


def test_one_that_cannot_be_deleted_keeps_no_other_from_it(client, monkeypatch):
    """Spark has an error to tell already, and the job `orphans` finds what stays."""

    def delete(ledger_id):
        client.deleted.append(ledger_id)
        raise MetadataUnavailable("no answer")

    monkeypatch.setattr(client, "delete", delete)
    clean_up(OPTIONS, LEDGERS)
    assert client.deleted == [7, 8]
