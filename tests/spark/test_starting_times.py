"""Queries that begin at a time, and what their progress says they are behind."""

from __future__ import annotations

import json
import time

import pytest

from tests.spark.ledgers import load, numbered, write_ledger
from tests.spark.streams import append, copy, manifest, offset_of, payloads


def test_a_query_begins_at_a_time_and_goes_on_from_its_checkpoint(spark, uri, client, tmp_path):
    append(client, "dated", numbered(10))
    time.sleep(0.002)  # times are milliseconds
    append(client, "dated", numbered(25)[10:])
    since = manifest(client, "dated").ledgers[1].closed_ms
    given = {"stream": "dated", "minOffsetsPerTrigger": 1, "maxOffsetsPerTrigger": 6}
    query = copy(spark, uri, "dated-copy", tmp_path / "c", startingTimestamp=since, **given)
    assert offset_of(tmp_path / "c", 0)["from"]["dated"]["n"] == 10
    told = [json.loads(each.sources[0].latestOffset)["behind"] for each in query.recentProgress if each.numInputRows]
    assert [each["entries"] for each in told] == [9, 3, 0]
    assert told[0]["streams"] == {"dated": 9}
    append(client, "dated", numbered(30)[25:])
    later = {"startingTimestamp": 1 << 50, "startingOffsetsByTimestampStrategy": "latest"}
    copy(spark, uri, "dated-copy", tmp_path / "c", **given, **later)
    assert payloads(client, "dated-copy") == numbered(30)[10:], "a start counts for a new query alone"
    with pytest.raises(Exception, match=r"\[BOOKIE_OPTION\] option startingTimestamp=\d+: dated"):
        copy(spark, uri, "dated-copy", tmp_path / "d", stream="dated", startingTimestamp=1 << 50)


def test_a_ledger_has_the_time_of_its_creation(spark, uri, client):
    ledger_id = write_ledger(client, numbered(5))
    created = client.metadata(ledger_id).ctime
    assert load(spark, uri, ledgers=ledger_id, startingTimestamp=created).count() == 5
    with pytest.raises(Exception, match=r"ledger \d+ .*created"):
        load(spark, uri, ledgers=ledger_id, startingTimestamp=created + 1).count()
