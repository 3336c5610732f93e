"""Which ledgers `idsFile` tells of, and when."""

from __future__ import annotations

import json

import pytest

from bookie_client.streams import START
from bookie_client.streams.model import PublishedLedger
from bookie_client.streams.publishing import PublishResult
from pyspark_bookie.common.errors import PodkeeperSparkError
from pyspark_bookie.common.options import parse
from pyspark_bookie.sink.commit import IdsFile, publish
from pyspark_bookie.sink.messages import Batch
from pyspark_bookie.sink.options import SinkOptions

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


def test_of_a_batch_that_was_published_before_it_stays_as_it_is(monkeypatch, tmp_path):
    """What is at hand was deleted."""
    path = tmp_path / "ids.json"
    path.write_text("of the first time")
    repeated = Client(is_new=False, unlisted=(7, 8))
    published(monkeypatch, path, repeated)
    assert (path.read_text(), repeated.deleted) == ("of the first time", [7, 8])
    assert [each.name for each in tmp_path.iterdir()] == ["ids.json"]


@pytest.mark.parametrize("is_new", [True, False], ids=["at once", "found done after a lost answer"])
def test_of_what_the_stream_lists_it_tells(monkeypatch, tmp_path, is_new):
    published(monkeypatch, tmp_path / "ids.json", Client(is_new=is_new))
    assert json.loads((tmp_path / "ids.json").read_text()) == DOCUMENT


def test_nothing_is_published_where_it_cannot_be_written(monkeypatch, tmp_path):
    client = Client()
    with pytest.raises(PodkeeperSparkError, match=r"\[BOOKIE_OPTION\] option idsFile=.*: No such file or directory$"):
        published(monkeypatch, tmp_path / "nowhere" / "ids.json", client)
    assert client.published == 0
