"""Bookies that die under a reading query."""

from __future__ import annotations

import pytest

from bookie_client import BlockingClient
from tests.spark.ledgers import FULL, STRIPED, load, numbered, write_ledger


def test_a_dead_bookie_costs_no_entry_and_no_bookie_at_all_is_told(spark, mortal):
    with BlockingClient(mortal.uri) as client:
        whole, striped = (write_ledger(client, numbered(2000), **sizes) for sizes in (FULL, STRIPED))
    both = {"ledgers": f"{whole},{striped}", "client.readTimeout": "2"}
    frame = load(spark, mortal.uri, **both)
    assert frame.count() == 4000
    mortal.kill("bookie-2")
    assert frame.count() == 4000

    rows = load(spark, mortal.uri, **both, readMode="replica").select("_metadata.bookie", "_corrupt").collect()
    verdicts = {(row.bookie, (row["_corrupt"] or "GOOD").partition(":")[0]) for row in rows}
    assert verdicts == {("bookie-1", "GOOD"), ("bookie-2", "UNREACHABLE"), ("bookie-3", "GOOD")}
    assert len(rows) == 2000 * 3 + 2000 * 2

    mortal.kill("bookie-1", "bookie-3")
    for options in ({}, {"failOnDataLoss": "false"}):  # unreachable is not lost
        with pytest.raises(Exception, match=rf"\[BOOKIE_BOOKIE_\w+\] .*ledger ({whole}|{striped})"):
            load(spark, mortal.uri, **both, **options).count()
