"""Replicas that are undamaged and differ."""

from __future__ import annotations

import asyncio

import pytest

from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import LedgerStateUnknown, TooManyRequests
from pyspark_bookie.jobs.replicas import compare as comparing
from pyspark_bookie.jobs.replicas.compare import Doubt, compare, differing
from pyspark_bookie.jobs.replicas.deep import ScanLimits
from pyspark_bookie.jobs.replicas.findings import Verdict
from pyspark_bookie.jobs.replicas.inspection import BlockSum, InspectionOptions, Inspector
from tests.support.until import until
from tests.unit.bookie_client.replication.cluster import PASSWORD, noted_pauses, payload, written

OPTIONS = InspectionOptions(digests=True, checksums=True)


async def doubts_of(client, ledger_id):
    inspection = await Inspector(client, OPTIONS, ScanLimits(ReplicationThrottle())).inspect(ledger_id)
    assert inspection.findings == []
    return differing(inspection.blocks)


async def compared(client, doubts):
    return await compare(client, doubts, OPTIONS, ReplicationThrottle())


def put(model, ledger_id, entry_id, content, *, lac=0, length=1, digest=DigestType.CRC32C):
    """Store an undamaged entry in the place of the one that is there."""
    entry = digest_manager(digest, PASSWORD).encode(ledger_id, entry_id, lac, length, content)
    model.ledgers[ledger_id].entries[entry_id] = entry


def length_at(entry_id):
    return sum(len(payload(each)) for each in range(entry_id + 1))


@pytest.mark.parametrize("digest", list(DigestType))
async def test_the_odd_one_of_three_is_named(models, digest):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 1200, digest=digest)
        assert await doubts_of(client, ledger_id) == []
        for entry_id in (1100, 1101, 1150):
            put(models.model("b"), ledger_id, entry_id, b"another", digest=digest)
        doubts = await doubts_of(client, ledger_id)
        assert doubts == [Doubt(ledger_id, 0, 1, 0)]
        found = await compared(client, doubts)
        assert [(each.bookie, each.verdict, each.first_entry, each.last_entry) for each in found] == [
            ("b", Verdict.DIVERGENT, 1100, 1101),
            ("b", Verdict.DIVERGENT, 1150, 1150),
        ]


async def test_of_two_nobody_is_accused(models):
    async with models.of(*"ab") as client:
        ledger_id = await written(client, 20, ensemble=2, write_quorum=2)
        put(models.model("a"), ledger_id, 7, b"another")
        (found,) = await compared(client, await doubts_of(client, ledger_id))
        assert (found.verdict, found.bookie, found.first_entry) == (Verdict.UNKNOWN, "", 7)
        assert "none is in the majority" in found.detail
        assert not found.verdict.is_copy_lost


async def test_other_headers_alone_are_no_difference(models):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 20)
        put(models.model("c"), ledger_id, 19, payload(19), lac=17, length=length_at(19))
        doubts = await doubts_of(client, ledger_id)
        assert len(doubts) == 1, "as recovery leaves it"
        assert await compared(client, doubts) == []


@pytest.mark.parametrize("striped", [False, True])
async def test_a_replica_that_is_busy_for_a_while_is_compared_all_the_same(models, monkeypatch, striped):
    monkeypatch.setattr(comparing, "BUSY_SECONDS", 0.01)
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 60, ensemble=4, write_quorum=3 if striped else 4, ack_quorum=2)
        bookie = (await client.metadata(ledger_id)).ensemble_for(0)[1]
        put(models.model(bookie), ledger_id, 17, b"another")
        doubts = await doubts_of(client, ledger_id)
        model = models.model(bookie)
        model.fail_reads, before = TooManyRequests, model.batch_reads + model.reads
        comparison = asyncio.create_task(compared(client, doubts))
        await until(lambda: model.batch_reads + model.reads > before)
        model.fail_reads = None
        (found,) = await comparison
        assert (found.bookie, found.verdict, found.first_entry) == (bookie, Verdict.DIVERGENT, 17)


@pytest.mark.parametrize("error", [TooManyRequests, LedgerStateUnknown])
async def test_a_doubt_about_a_replica_that_cannot_be_read_again_stays(models, monkeypatch, error):
    slept = noted_pauses(monkeypatch, comparing)
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 60)
        put(models.model("b"), ledger_id, 17, b"another")
        doubts = await doubts_of(client, ledger_id)
        models.model("b").fail_reads = error
        (found,) = await compared(client, doubts)
        assert (found.bookie, found.verdict) == ("b", Verdict.UNREACHABLE)
        assert (found.first_entry, found.last_entry, found.entries) == (0, 59, 60)
    assert slept == ([2**each for each in range(comparing.BUSY_TRIES - 1)] if error is TooManyRequests else [])


async def test_striped_copies_are_compared_place_by_place(models):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 60, ensemble=4, write_quorum=3, ack_quorum=2)
        position = 1
        bookie = (await client.metadata(ledger_id)).ensemble_for(0)[position]
        put(models.model(bookie), ledger_id, 17, b"another")
        doubts = await doubts_of(client, ledger_id)
        assert doubts == [Doubt(ledger_id, 0, 0, 17 % 4)]
        (found,) = await compared(client, doubts)
        assert (found.bookie, found.position, found.first_entry, found.entries) == (bookie, position, 17, 1)


def test_replicas_that_are_not_complete_do_not_take_part():
    def block(bookie, entries, checksum):
        return BlockSum(1, 0, 3, 0, bookie, 0, entries, checksum)

    assert differing([block("a", 10, 5), block("b", 9, 6), block("c", 10, 5)]) == []
    assert differing([block("a", 10, 5), block("b", 9, 6), block("c", 10, 7)]) == [Doubt(1, 0, 3, 0)]
    assert differing([]) == []
