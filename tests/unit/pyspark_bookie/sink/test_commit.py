"""What the driver's half of the sink does, without Spark and without a cluster."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace

import pytest
from pyspark.sql.types import BinaryType, StructType

from bookie_client.streams import START, Streams
from bookie_client.streams.manifest import Manifest
from bookie_client.streams.model import STREAM_KEY, PublishedLedger, StreamLedger, StreamSettings
from bookie_client.streams.publishing import PublishResult
from bookie_protocol.errors import (
    BadRequest,
    MetadataUnavailable,
    NoSuchStream,
    NotEnoughBookies,
    StreamTransactionConflict,
)
from bookie_protocol.versioned import UNSTORED
from pyspark_bookie.common.access import AccessOptions
from pyspark_bookie.common.errors import PodkeeperSparkError
from pyspark_bookie.common.options import parse
from pyspark_bookie.sink import commit, writers
from pyspark_bookie.sink.commit import (
    METADATA_UNAVAILABLE,
    IdsFile,
    clean_up,
    publish,
    told_if_away,
    warn_of_tiny_ledgers,
)
from pyspark_bookie.sink.options import SinkOptions
from pyspark_bookie.sink.writers import BatchWriter, StreamingWriter
from pyspark_bookie.sink.writing import Batch, Written
from tests.support.ledger_shelf import LedgerShelf

URI = {"metadataServiceUri": "zk://nowhere/ledgers", "stream": "s"}
OPTIONS = parse(URI, SinkOptions)


def batch(*sizes):
    ledgers = tuple(PublishedLedger(7 + place, 3, nbytes, 99) for place, nbytes in enumerate(sizes))
    return Batch("q", ledgers, 3 * len(sizes), 5)


def test_a_batch_of_nobody_is_not_published_and_not_passed_over(monkeypatch):
    monkeypatch.setattr(writers, "ensure_stream", lambda _: None)
    monkeypatch.setattr(writers, "publish", lambda *_, **__: pytest.fail("nothing can be published"))
    raw = {"metadataServiceUri": "zk://nowhere/ledgers", "stream": "s", "checkpointLocation": "/c"}
    writer = StreamingWriter(raw, StructType().add("value", BinaryType()), False)
    writer.commit([], 3)
    writer.commit([None, Written(0, 0, None, None, (), 0, 0)], 3)
    with pytest.raises(PodkeeperSparkError, match="nothing"):
        writer.commit([Written(0, 0, None, None, (PublishedLedger(1, 2, 3),), 2, 5)], 3)


def test_a_metadata_service_that_is_away_is_for_tasks_and_commit_to_tell(monkeypatch):
    """If `abort` failed, too, Spark would show neither error. A task gets the writer as it was pickled."""
    answers = [MetadataUnavailable("no answer"), listing(7), NoSuchStream("no stream s")]
    client = AnsweringClient(*answers)
    monkeypatch.setattr(SinkOptions, "client", lambda _: client)
    raw = {**URI, "createStream": "false"}
    writer = StreamingWriter(raw, StructType().add("value", BinaryType()), False)
    told = r"\[BOOKIE_METADATA_UNAVAILABLE\] stream s: .*checkpoint"
    with pytest.raises(PodkeeperSparkError, match=told):
        pickle.loads(pickle.dumps(writer)).write(iter(()))
    message = Written(0, 0, "q", 3, tuple(PublishedLedger(each, 2, 3) for each in (7, 8)), 4, 5)
    with pytest.raises(PodkeeperSparkError, match=told):
        writer.commit([message], 3)
    writer.abort([message], 3)
    assert client.deleted == [8], "not what the stream lists"
    with pytest.raises(PodkeeperSparkError, match="NO_SUCH_STREAM"):
        StreamingWriter(raw, StructType().add("value", BinaryType()), False)


@pytest.mark.parametrize(
    ("txn", "then"),
    [
        ({}, r"\(table=streams\)"),
        ({"txnAppId": "etl", "txnVersion": "1"}, "txnVersion, "),
    ],
)
def test_a_batch_write_tells_what_to_do_when_the_service_is_back(monkeypatch, txn, then):
    monkeypatch.setattr(SinkOptions, "client", lambda _: AnsweringClient(listing()))
    writer = BatchWriter({**URI, **txn}, StructType().add("value", BinaryType()), False)
    monkeypatch.setattr(SinkOptions, "client", lambda _: AnsweringClient(MetadataUnavailable("no answer")))
    with pytest.raises(PodkeeperSparkError, match=f"stream s: .*answer; .*{then}"):
        writer.commit([Written(0, 0, None, None, (PublishedLedger(7, 2, 3),), 2, 5)])


SCHEMA = StructType().add("value", BinaryType())
PER_PARTITION = {"metadataServiceUri": "zk://nowhere/ledgers", "writeMode": "ledgerPerPartition"}


@pytest.mark.parametrize(
    ("kind", "raw", "overwrite", "why"),
    [
        (BatchWriter, PER_PARTITION, True, "writeMode=ledgerPerPartition"),
        (StreamingWriter, PER_PARTITION, False, "streaming"),
        (StreamingWriter, {**URI, "txnAppId": "etl", "txnVersion": "1"}, False, "txnAppId"),
    ],
)
def test_what_would_not_be_written_once_is_refused_before_anything_is_asked(monkeypatch, kind, raw, overwrite, why):
    monkeypatch.setattr(SinkOptions, "client", lambda _: pytest.fail("no client is needed"))
    with pytest.raises(PodkeeperSparkError, match=rf"\[BOOKIE_OPTION\] .*{re.escape(why)}"):
        kind(raw, SCHEMA, overwrite)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_commit_replaces_what_the_stream_has_if_that_is_overwritten(monkeypatch, overwrite):
    noted = []
    monkeypatch.setattr(writers, "ensure_stream", lambda _: None)
    monkeypatch.setattr(writers, "publish", lambda *_, replace: noted.append(replace))
    message = Written(0, 0, "q", 3, (PublishedLedger(7, 2, 3),), 2, 5)
    BatchWriter(URI, SCHEMA, overwrite).commit([message])
    StreamingWriter(URI, SCHEMA, overwrite).commit([message], 3)
    assert noted == [overwrite, overwrite]


class AnsweringClient:
    """Answers calls of `run` with what it is given, and notes which ledgers are deleted."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.deleted = []

    def run(self, _):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def delete(self, ledger_id):
        self.deleted.append(ledger_id)


def listing(*ledger_ids):
    ledgers = tuple(StreamLedger(each, 3 * place, 3, 10, 1) for place, each in enumerate(ledger_ids))
    return Manifest("s", UNSTORED, 0, ledgers, StreamSettings())


@pytest.mark.parametrize(
    ("answers", "code", "deleted"),
    [
        ([NoSuchStream("no stream s"), NoSuchStream("no stream s")], "NO_SUCH_STREAM", [7]),
        ([BadRequest("these ledgers belong to it, or did: 7"), listing(3)], "BAD_REQUEST", [7]),
        ([BadRequest("these ledgers belong to it, or did: 7"), listing(3, 7)], "BAD_REQUEST", []),
        ([BadRequest("these ledgers belong to it, or did: 7"), MetadataUnavailable("no answer")], "BAD_REQUEST", []),
        ([StreamTransactionConflict("comes after batch 9"), listing()], "STREAM_TRANSACTION_CONFLICT", [7]),
        ([MetadataUnavailable("no answer")], "METADATA_UNAVAILABLE", []),
    ],
)
def test_copies_of_a_batch_that_is_refused_are_deleted(monkeypatch, answers, code, deleted):
    """Not while nobody knows what became of it or what the stream lists, and not what it lists."""
    client = AnsweringClient(*answers)
    monkeypatch.setattr(SinkOptions, "client", lambda _: client)
    copied = replace(batch(10), copied=(PublishedLedger(5, 3, 10),))
    with pytest.raises(PodkeeperSparkError, match=rf"\[BOOKIE_{code}\]"):
        publish(OPTIONS, copied, "q", 3, replace=False)
    assert (client.deleted, client.answers) == (deleted, [])
    client = AnsweringClient(answers[0])
    with pytest.raises(PodkeeperSparkError, match=rf"\[BOOKIE_{code}\]"):
        publish(OPTIONS, batch(10), "q", 3, replace=False)
    assert client.deleted == [], "of the tasks' own ledgers Spark tells abort"


def test_a_checkpoint_that_was_set_back_is_told_with_the_ways_on(monkeypatch):
    monkeypatch.setattr(SinkOptions, "client", lambda _: AnsweringClient(StreamTransactionConflict("comes after 9")))
    told = "batch 3 of q, "
    with pytest.raises(PodkeeperSparkError, match=re.escape(told)):
        publish(OPTIONS, batch(10), "q", 3, replace=False)


def test_nothing_reported_is_nothing_to_clean_up(monkeypatch):
    """After a failed task there may be empty slots only."""
    monkeypatch.setattr(SinkOptions, "client", lambda _: pytest.fail("no client is needed"))
    clean_up(OPTIONS, [])


def test_tiny_ledgers_are_told_once_in_a_while(monkeypatch, caplog):
    monkeypatch.setattr(commit, "_warned", {})
    for _ in range(3):
        warn_of_tiny_ledgers(OPTIONS, batch(1_000, 3_000))
        warn_of_tiny_ledgers(OPTIONS, batch(20 << 20))
        warn_of_tiny_ledgers(OPTIONS, batch())
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        "stream s: this batch made ledgers (2) of 0.00 MiB on average"
    ]


def test_warnings_of_many_streams_are_forgotten_all_at_once(monkeypatch, caplog):
    monkeypatch.setattr(commit, "_warned", {})
    monkeypatch.setattr(commit, "MAX_WARNED", 2)
    for name in ("a", "b", "a", "c", "c", "a"):
        warn_of_tiny_ledgers(parse({**URI, "stream": name}, SinkOptions), batch(1_000))
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [f"stream {each}" for each in "abca"]
    assert len(commit._warned) == 2


def test_only_a_metadata_service_that_is_away_is_told_with_what_to_do():
    alone = parse({"metadataServiceUri": "zk://nowhere/ledgers", "writeMode": "ledgerPerPartition"}, SinkOptions)
    away, other = PodkeeperSparkError(METADATA_UNAVAILABLE, "no answer"), PodkeeperSparkError("OPTION", "no file")
    for options, error, told in (
        (OPTIONS, away, "stream s: no answer then"),
        (OPTIONS, other, None),
        (alone, away, None),
    ):
        with pytest.raises(PodkeeperSparkError) as raised, told_if_away(options, "then"):
            raise error
        assert (raised.value.message, raised.value.code) == (told or error.message, error.code)
        assert (raised.value is error) is (told is None)


def test_what_is_tiny_may_be_said(monkeypatch, caplog):
    monkeypatch.setattr(commit, "_warned", {})
    smaller = parse({**URI, "tinyLedgerBytes": "1k"}, SinkOptions)
    warn_of_tiny_ledgers(smaller, batch(1024, 1024))
    assert caplog.records == []
    warn_of_tiny_ledgers(smaller, batch(1024, 1023))
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("tiny", "sizes", "is_one"),
    [
        ("1k", (500, 600), True),
        ("1k", (1024, 1024), False),
        ("1k", (500,), False),
        ("1k", (1000,) * 5, False),
        ("2k", (1000,) * 5, True),
    ],
)
def test_only_small_batches_of_tiny_ledgers_become_one(monkeypatch, tiny, sizes, is_one):
    """All together they have at most four times as much as is tiny."""
    copy = Written(-1, 0, "q", 3, (PublishedLedger(99, 3, sum(sizes)),), 3, 5)
    monkeypatch.setattr(commit, "write_ledgers", lambda *_: copy)
    options = parse({**URI, "tinyLedgerBytes": tiny, "coalescePartitions": "true"}, SinkOptions)
    given = batch(*sizes)
    found = commit.coalesced(options, given, 3)
    assert (found.ledgers, found.copied) == ((copy.ledgers, given.ledgers) if is_one else (given.ledgers, ()))
    assert commit.coalesced(replace(options, coalesce_partitions=False), given, 3) is given


# --- tiny ledgers as one ----------------------------------------------------------------------------------------


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A stream "s" and ledgers 1007 and 1008 of its sink."""
    with LedgerShelf(tmp_path) as made:
        monkeypatch.setattr(AccessOptions, "client", lambda self, **_: made)
        made.run(lambda client: Streams(client).create("s", StreamSettings(ensemble=1, write_quorum=1, ack_quorum=1)))
        for ledger_id in (1007, 1008):
            made.put(ledger_id, [b"%d/%d" % (ledger_id, n) for n in range(3)], custom={STREAM_KEY: b"s"}, password=b"")
        yield made


TINY = parse({**URI, "coalescePartitions": "true"}, SinkOptions)
GIVEN = Batch("q", tuple(PublishedLedger(each, 3, 18) for each in (1007, 1008)), 6, 5)


def test_a_stream_is_made_as_it_is_asked_for_and_stays_as_it_is(shelf):
    for name in ("s", "new"):
        BatchWriter({**URI, "stream": name, "deletionLag": "90s", "ensembleSize": "5"}, SCHEMA, False)
    found = [shelf.run(lambda client, name=name: Streams(client).settings(name)) for name in ("s", "new")]
    assert [(each.ensemble, each.deletion_lag_seconds) for each in found] == [
        (1, StreamSettings().deletion_lag_seconds),
        (5, 90),
    ]


def test_a_stream_that_somebody_else_makes_meanwhile_is_taken_as_it_is(shelf, monkeypatch):
    async def missing(self, name):
        raise NoSuchStream(name)

    with monkeypatch.context() as patched:
        patched.setattr(Streams, "settings", missing)
        BatchWriter({**URI, "ensembleSize": "5"}, SCHEMA, False)
    assert shelf.run(lambda client: Streams(client).settings("s")).ensemble == 1


@pytest.mark.parametrize(("app_id", "version"), [("q", None), (None, 3)])
def test_half_a_transaction_is_none(shelf, app_id, version):
    publish(OPTIONS, GIVEN, app_id, version, replace=False)
    found = shelf.run(lambda client: Streams(client).manifest("s"))
    assert ([each.ledger_id for each in found.ledgers], found.transactions) == ([1007, 1008], {})


def test_a_batch_of_tiny_ledgers_becomes_one_with_all_their_rows(shelf):
    made = commit.coalesced(TINY, GIVEN, 3)
    (copy,) = made.ledgers
    assert shelf.payloads(copy.ledger_id) == [*shelf.payloads(1007), *shelf.payloads(1008)]
    assert shelf.metadata(copy.ledger_id).custom_metadata["podkeeper/batch-id"] == b"3"
    assert (copy.entries, copy.nbytes, made.copied) == (6, 36, GIVEN.ledgers)


def test_a_commit_that_is_repeated_behind_its_copy_is_recognised(shelf):
    """Its messages name ledgers that the first time has copied and deleted."""
    publish(TINY, commit.coalesced(TINY, GIVEN, 3), "q", 3, replace=False)
    before = shelf.run(lambda client: Streams(client).manifest("s"))
    assert set(shelf.list()) == {ledger.ledger_id for ledger in before.ledgers}
    again = commit.coalesced(TINY, GIVEN, 3)
    assert again is GIVEN
    publish(TINY, again, "q", 3, replace=False)
    assert shelf.run(lambda client: Streams(client).manifest("s")) == before


def test_a_copy_that_fails_leaves_nothing_of_it(shelf, monkeypatch):
    close = shelf.close_ledger

    def fail(ledger_id):
        close(ledger_id)
        raise NotEnoughBookies("none is left")

    monkeypatch.setattr(shelf, "close_ledger", fail)
    with pytest.raises(PodkeeperSparkError, match="NOT_ENOUGH_BOOKIES"):
        commit.coalesced(TINY, GIVEN, 3)
    assert set(shelf.list()) == {1007, 1008}


BATCH = Batch("q", (PublishedLedger(7, 3, 10, 99), PublishedLedger(8, 3, 20, 99)), 6, 5)
DOCUMENT = {
    "rows": 6,
    "ledgers": [
        {"ledger_id": 7, "entries": 3, "bytes": 10, "crc32c": 99},
        {"ledger_id": 8, "entries": 3, "bytes": 20, "crc32c": 99},
    ],
}


class Client:
    """Publishes as it is told."""

    def __init__(self, *, is_new=True, unlisted=()):
        self.result = PublishResult((), is_new, unlisted, START, START)
        self.published = 0
        self.deleted = []

    def run(self, _):
        self.published += 1
        return self.result

    def delete(self, ledger_id):
        self.deleted.append(ledger_id)


def published(monkeypatch, path, client):
    monkeypatch.setattr(SinkOptions, "client", lambda _: client)
    raw = {"metadataServiceUri": "zk://nowhere/ledgers", "stream": "s", "idsFile": str(path)}
    publish(parse(raw, SinkOptions), BATCH, "q", 3, replace=False)


def test_it_is_there_wholly_or_not_at_all(tmp_path):
    path = tmp_path / "ids.json"
    prepared = IdsFile.prepared(str(path), BATCH)
    assert not path.exists()
    prepared.settle(is_published=True)
    assert json.loads(path.read_text()) == DOCUMENT
    assert [each.name for each in tmp_path.iterdir()] == ["ids.json"]
    IdsFile.prepared(None, BATCH).settle(is_published=True)


def test_it_tells_of_ledgers_that_stand_alone_which_are_published_nowhere(monkeypatch, tmp_path):
    client = Client()
    monkeypatch.setattr(SinkOptions, "client", lambda _: client)
    path = tmp_path / "ids.json"
    writer = BatchWriter({**PER_PARTITION, "idsFile": str(path)}, SCHEMA, False)
    message = Written(0, 0, None, None, BATCH.ledgers, BATCH.rows, BATCH.checksum)
    writer.commit([message, None])
    assert json.loads(path.read_text()) == DOCUMENT
    writer.abort([message, None])
    assert (client.published, client.deleted) == (0, [7, 8])


def test_of_a_batch_that_was_published_before_it_stays_as_it_is(monkeypatch, tmp_path, caplog):
    """What is at hand was deleted."""
    monkeypatch.setattr(commit, "_warned", {})
    path = tmp_path / "ids.json"
    path.write_text("of the first time")
    repeated = Client(is_new=False, unlisted=(7, 8))
    published(monkeypatch, path, repeated)
    assert (path.read_text(), repeated.deleted) == ("of the first time", [7, 8])
    assert caplog.records == [], "how small its ledgers are was told the first time"
    assert [each.name for each in tmp_path.iterdir()] == ["ids.json"]


@pytest.mark.parametrize("is_new", [True, False], ids=["at once", "found done after a lost answer"])
def test_of_what_the_stream_lists_it_tells(monkeypatch, tmp_path, is_new):
    published(monkeypatch, tmp_path / "ids.json", Client(is_new=is_new))
    assert json.loads((tmp_path / "ids.json").read_text()) == DOCUMENT


def test_nothing_is_published_where_it_cannot_be_written(monkeypatch, tmp_path):
    client = Client()
    with pytest.raises(PodkeeperSparkError, match=r"\[BOOKIE_OPTION\] option idsFile=.*: No such"):
        published(monkeypatch, tmp_path / "nowhere" / "ids.json", client)
    assert client.published == 0
