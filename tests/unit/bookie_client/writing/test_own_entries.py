"""A writer reads its own entries, also where re-replication has put them."""

from __future__ import annotations

import pytest

from bookie_protocol.errors import BadRequest, BookieUnavailable, MetadataUnavailable, StorageFault

BEFORE, AFTER = 4, 2


def payload(entry_id: int) -> bytes:
    return b"entry %d" % entry_id


@pytest.fixture
async def moved(cluster):
    """A writer with a segment on b1 and b2 and one on b3 and b4, behind whose back the first moved to b5 and b6; b1 and
    b2 are gone for good."""
    for name in ("b1", "b2"):
        await cluster.add_bookie(name)
    async with cluster.client(reorder_reads=False) as client:
        ledger = await client.create(ensemble=2, write_quorum=2, ack_quorum=2)
        for entry_id in range(BEFORE):
            await ledger.append(payload(entry_id))
        for name in ("b3", "b4"):
            await cluster.add_bookie(name)
        for name in ("b1", "b2"):
            cluster.bookie(name).fail_adds = StorageFault
            cluster.metadata.bookies.drop(name)
        for entry_id in range(BEFORE, BEFORE + AFTER):
            await ledger.append(payload(entry_id))
        assert ledger.metadata.ensembles[0] == cluster.stored(0).ensembles[0]
        assert set(ledger.metadata.ensembles[BEFORE]) == {"b3", "b4"}
        for source, target in (("b1", "b5"), ("b2", "b6")):
            await cluster.add_bookie(target)
            cluster.bookie(target).ledgers[0] = cluster.bookie(source).ledgers[0]
            await cluster.servers[source].stop()
        store = cluster.metadata.ledgers
        await store.write(cluster.stored(0).with_ensemble(0, ("b5", "b6")), store.stored[0].version)
        yield cluster, ledger


async def test_copies_that_were_moved_are_read_where_they_are_now(moved):
    cluster, ledger = moved
    last = BEFORE + AFTER - 1
    assert [e.payload for e in await ledger.read(0, last)] == [payload(i) for i in range(last + 1)]
    assert ledger.metadata.ensembles[0] != ("b5", "b6")  # what this writer stored
    await ledger.append(payload(last + 1))
    await ledger.close()
    assert cluster.stored(0).ensembles[0] == ("b5", "b6")
    assert (cluster.stored(0).is_closed, cluster.stored(0).last_entry_id) == (True, last + 1)


async def test_iterating_too(moved):
    _, ledger = moved
    assert [e.payload async for e in ledger.entries(1)] == [payload(i) for i in range(1, BEFORE + AFTER)]
    assert [e.payload async for e in ledger.entries(0, 2)] == [payload(i) for i in range(3)]
    with pytest.raises(BadRequest, match="above the last add confirmed"):
        ledger.entries(0, BEFORE + AFTER)
    await ledger.close()
    assert [e.payload for e in await ledger.read(0, 1)] == [payload(0), payload(1)]


async def test_without_news_the_read_fails_as_it_did(moved):
    cluster, ledger = moved
    await ledger.read(0, 0)
    for name in ("b5", "b6"):
        await cluster.servers[name].stop()
    with pytest.raises(BookieUnavailable):
        await ledger.read(0, 0)


async def test_a_metadata_service_that_is_away_has_no_news(moved, monkeypatch):
    cluster, ledger = moved

    async def away(*_):
        raise MetadataUnavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(cluster.metadata.ledgers, "read", away)
        with pytest.raises(BookieUnavailable):
            await ledger.read(0, 0)
    assert [e.payload for e in await ledger.read(0, 0)] == [payload(0)]
