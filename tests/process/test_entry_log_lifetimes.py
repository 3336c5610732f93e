"""When an entry log goes: at once, with a minor or a major compaction, or not before its last ledger is deleted; and
what an operator is told about it. The bookie is a process, ledgers are deleted through the client."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest

from bookie_client.blocking import BlockingClient
from bookie_protocol.errors import NoSuchLedger
from tests.support.collected_bookie import ENTRY, OVERHEAD, CollectedBookie, check, delete

pytestmark = pytest.mark.slow

AWAKE_S = 1.5
"""Seconds between the start and the stop of a bookie that restarts all the time."""


@pytest.fixture
def client(bookie: CollectedBookie) -> Iterator[BlockingClient]:
    with BlockingClient(bookie.uri) as made:
        yield made


def test_one_ledger_of_ten_keeps_a_log_until_minor_compaction(bookie: CollectedBookie, client: BlockingClient) -> None:
    name, ledger_ids = bookie.fill_log(client, [98] * 10)
    *dead, alive = ledger_ids
    before = bookie.details()
    delete(client, dead)
    done = bookie.collect()
    assert (done["ledgersDeleted"], done["logsDeleted"]) == (9, 0)
    why = bookie.why(name)
    assert why["usage"] == pytest.approx(0.1, abs=0.001)
    assert [each["ledgerId"] for each in why["owners"]] == [alive]
    assert "the next minor compaction takes it" in why["reason"]

    size, disk = bookie.logs()[name], sum(bookie.logs().values())
    done = bookie.collect(minor=True)
    assert (done["compaction"], done["logsCompacted"], done["errors"]) == ("minor", 1, [])
    assert name not in bookie.logs()
    live = 98 * (ENTRY + OVERHEAD)
    assert done["reclaimedBytes"] == size - live
    # On disk the copy has a header, a ledgers map and the end of a block beside its entries.
    assert disk - sum(bookie.logs().values()) == pytest.approx(size - live, abs=8192)
    after = bookie.details()
    assert after["minorCompactionCounter"] == before["minorCompactionCounter"] + 1
    assert after["majorCompactionCounter"] == before["majorCompactionCounter"]
    assert after["lastMinorCompactionTime"] > before["lastMinorCompactionTime"]
    assert bookie.metric("bookie_RECLAIMED_COMPACTION_SPACE_BYTES") == size - live
    assert bookie.metric("bookie_MINOR_COMPACTION_TOTAL") == 1
    check(client, alive, 98)
    bookie.stop()
    bookie.start()
    check(client, alive, 98)


def test_a_log_half_of_which_lives_waits_for_major_compaction(bookie: CollectedBookie, client: BlockingClient) -> None:
    name, (alive, dead) = bookie.fill_log(client, [490, 490])
    client.delete(dead)
    done = bookie.collect(minor=True)
    assert (done["compaction"], done["logsCompacted"], done["logsDeleted"]) == ("minor", 0, 0)
    assert bookie.why(name)["usage"] == pytest.approx(0.5)
    assert "the next major compaction takes it" in bookie.why(name)["reason"]
    (forecast,) = bookie.get("gc/forecast")
    assert forecast["minor"]["logs"] == 0
    assert forecast["major"]["logs"] == 1
    assert forecast["major"]["reclaimableBytes"] == forecast["major"]["rewrittenBytes"] == 490 * (ENTRY + OVERHEAD)

    done = bookie.collect(major=True)
    assert (done["compaction"], done["logsCompacted"], done["errors"]) == ("major", 1, [])
    assert name not in bookie.logs()
    assert bookie.details()["majorCompactionCounter"] == 1
    check(client, alive, 490)


def test_a_log_most_of_which_lives_stays_until_its_last_ledger_is_deleted(
    bookie: CollectedBookie, client: BlockingClient
) -> None:
    name, (alive, dead) = bookie.fill_log(client, [833, 147])
    client.delete(dead)
    for kind in ("minor", "major"):
        done = bookie.collect(**{kind: True})
        assert (done["compaction"], done["logsCompacted"], done["logsDeleted"]) == (kind, 0, 0)
    why = bookie.why(name)
    assert why["usage"] == pytest.approx(0.85)
    assert why["owners"] == [{"ledgerId": alive, "bytes": 833 * (ENTRY + OVERHEAD)}]
    assert "above every compaction threshold (80%); it goes when its ledgers are deleted" in why["reason"]
    check(client, alive, 833)

    size = bookie.logs()[name]
    client.delete(alive)
    done = bookie.collect()
    assert (done["logsDeleted"], done["logsCompacted"], done["compaction"]) == (1, 0, None)
    assert done["reclaimedBytes"] == size
    assert name not in bookie.logs()
    assert bookie.metric("bookie_RECLAIMED_DELETION_SPACE_BYTES") == size


def test_a_bookie_that_restarts_more_often_than_the_major_interval_compacts_all_the_same(
    bookie: CollectedBookie, client: BlockingClient
) -> None:
    name, (alive, dead) = bookie.fill_log(client, [490, 490])
    began = time.monotonic()
    bookie.stop()
    bookie.start()
    # What a life takes depends on the machine, and on what else it does.
    interval_s = max(9, math.ceil(4 * (time.monotonic() - began + AWAKE_S)))
    bookie.collect(major=True)  # the interval begins; all of the log lives yet
    assert bookie.details()["majorCompactionCounter"] == 1
    client.delete(dead)
    bookie.settings |= {
        "gcWaitTime": "100",
        "minorCompactionInterval": "4",
        "majorCompactionInterval": str(interval_s),
    }
    bookie.stop()
    lives = 0
    while name in bookie.logs():
        lives += 1
        began = time.monotonic()
        bookie.start()
        until = time.monotonic() + AWAKE_S
        while name in bookie.logs() and time.monotonic() < until:
            time.sleep(0.02)
        assert bookie.stop() == 0
        assert time.monotonic() - began < interval_s, "a life took four times as long as the one that was measured"
        assert lives < 20
    assert lives > 1, "compacted before it was due"
    bookie.start()
    assert bookie.details()["majorCompactionCounter"] == 2
    check(client, alive, 490)


def test_a_ledger_deleted_by_a_client_goes_from_the_metadata_at_once_and_from_the_disk_with_the_next_pass(
    bookie: CollectedBookie, client: BlockingClient
) -> None:
    name, (only,) = bookie.fill_log(client, [980])
    bookie.pause()
    client.delete(only)  # nobody asks the bookie
    with pytest.raises(NoSuchLedger):
        client.metadata(only)
    assert only not in set(client.list())
    bookie.resume()
    assert name in bookie.logs()
    before = sum(bookie.logs().values())
    done = bookie.collect()
    assert (done["ledgersDeleted"], done["logsDeleted"]) == (1, 1)
    assert before - sum(bookie.logs().values()) == done["reclaimedBytes"] >= 980 * (ENTRY + OVERHEAD)
