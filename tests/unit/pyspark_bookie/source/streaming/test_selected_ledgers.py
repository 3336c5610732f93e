"""The ledgers that a streaming query selects, as they grow, age, are closed and go."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bookie_client.reading.handle import LedgerReader
from bookie_protocol.errors import MetadataDamaged, StorageFault
from bookie_protocol.metadata_service.interface import Versioned
from pyspark_bookie.common.access import AccessOptions
from pyspark_bookie.common.errors import DATA_LOSS, PodkeeperSparkError
from pyspark_bookie.common.options import parse
from pyspark_bookie.source.options import StreamingOptions
from pyspark_bookie.source.streaming import open_tails
from pyspark_bookie.source.streaming.ledgers import SelectedLedgers
from tests.support.clock import Clock
from tests.unit.pyspark_bookie.source.reads import BlockingHere, write

THREE = {"ensemble": 3, "write_quorum": 3, "ack_quorum": 3}
BORN = 1_700_000_000
"""Ledger 0, in seconds since 1970; each further one a second later."""


def following(clock=None, **raw):
    wanted = parse({"metadataServiceUri": "memory://", "scope": "all", "settlingTime": "60s", **raw}, StreamingOptions)
    return SelectedLedgers(wanted, wall_clock=clock or Clock())


async def extents(tails, client, *, discover=False):
    """Of each ledger entries and bytes, whether it is closed, and whether it is settled."""
    found = (await tails._view_now(client, discover)).extents
    return {each.ledger_id: (each.entries, each.nbytes, each.is_closed, each.is_settled) for each in found}


@pytest.fixture
def dated(three, monkeypatch):
    """The metadata service tells when a ledger was created. The ids that it was asked for."""
    read, asked = three.metadata.ledgers.read, []

    async def reading(ledger_id, **more):
        asked.append(ledger_id)
        found = await read(ledger_id, **more)
        return Versioned(replace(found.value, ctime=1000 * (BORN + ledger_id)), found.identity)

    monkeypatch.setattr(three.metadata.ledgers, "read", reading)
    return asked


@pytest.fixture
def given_up(monkeypatch):
    """Ledgers whose handles were closed."""
    close, found = LedgerReader.close, []

    async def closing(self):
        found.append(self.metadata.ledger_id)
        await close(self)

    monkeypatch.setattr(LedgerReader, "close", closing)
    return found


@pytest.mark.parametrize("open_ledgers", ["lac", "skip"])
async def test_they_are_settled_when_none_below_them_can_appear(client, dated, open_ledgers):
    """Without another look for new ones; one that was deleted meanwhile is forgotten."""
    gone, closed = await write(client, [b"a"]), await write(client, [b"b"])
    clock = Clock()
    tails = following(clock, openLedgers=open_ledgers)
    async with client.create(**THREE) as ledger:
        clock.now = BORN + gone + 59.999
        young = {gone: (1, 1, True, False), closed: (1, 1, True, False), ledger.ledger_id: (0, 0, False, False)}
        assert await extents(tails, client, discover=True) == young
        await ledger.append(b"cc")
        await ledger.append(b"d")
        if open_ledgers == "lac":
            young[ledger.ledger_id] = (1, 2, False, False)
        await client.delete(gone)
        del young[gone]
        assert await extents(tails, client, discover=True) == young
        clock.now = BORN + ledger.ledger_id + 60
        settled = {each: (*what[:3], True) for each, what in young.items()}
        assert await extents(tails, client) == settled
    assert await extents(tails, client) == {**settled, ledger.ledger_id: (2, 3, True, True)}


async def test_handles_of_open_ones_outlive_neither_them_nor_their_client(client, three, given_up):
    tails = following()
    async with client.create(**THREE) as ledger:
        async with three.client() as other:
            await extents(tails, other, discover=True)
        given_up.clear()
        await ledger.append(b"a")
        await ledger.append(b"b")
        for _ in range(2):
            assert set((await extents(tails, client)).values()) == {(1, 1, False, True)}
        assert given_up == []
    assert set((await extents(tails, client)).values()) == {(2, 2, True, True)}
    assert given_up == [ledger.ledger_id]


async def test_an_open_one_is_opened_once_and_its_bytes_are_asked_for_when_it_grew(client, monkeypatch):
    tails, length, open_it, lengths, opened = following(), open_tails._length, client.open, [], []

    async def opening(ledger_id, **more):
        opened.append(ledger_id)
        return await open_it(ledger_id, **more)

    async def noting(reader, last):
        lengths.append(last)
        return await length(reader, last)

    monkeypatch.setattr(client, "open", opening)
    monkeypatch.setattr(open_tails, "_length", noting)
    async with client.create(**THREE) as ledger:
        await extents(tails, client, discover=True)
        await extents(tails, client)
        await ledger.append(b"a")
        await ledger.append(b"b")
        for _ in range(2):
            await extents(tails, client)
        assert (opened, lengths) == ([ledger.ledger_id], [0])


@pytest.mark.parametrize("open_ledgers", ["lac", "skip"])
async def test_an_open_one_that_is_deleted_is_left_out(client, three, open_ledgers):
    """So that a query which had read of it tells the loss; where another client has to open it, at once."""
    ledger_id = await write(client, [b"a"])
    tails = following(openLedgers=open_ledgers)
    ledger = await client.create(**THREE)
    assert set(await extents(tails, client, discover=True)) == {ledger_id, ledger.ledger_id}
    await client.delete(ledger.ledger_id)
    async with three.client() as other:
        assert set(await extents(tails, other)) == {ledger_id}


async def test_others_are_asked_about_once_while_they_exist(client, dated):
    """A ledger that takes the number of one that is gone may be selected."""
    other = await write(client, [b"a"], metadata={"owner": b"them"})
    tails = following(scope=None, ledgerPattern="owner=us")
    dated.clear()
    for _ in range(3):
        assert await extents(tails, client, discover=True) == {}
    assert dated == [other]
    await client.delete(other)
    assert await extents(tails, client, discover=True) == {}
    await write(client, [b"a"], metadata={"owner": b"us"}, ledger_id=other)
    assert set(await extents(tails, client, discover=True)) == {other}


async def test_one_whose_end_cannot_be_told_is_named(client, three):
    tails = following()
    async with client.create(**THREE) as ledger:
        await extents(tails, client, discover=True)
        for name in three.servers:
            three.bookie(name).fail_reads = StorageFault
        with pytest.raises(PodkeeperSparkError, match=rf"\[BOOKIE_STORAGE_FAULT\] ledger {ledger.ledger_id}: "):
            await extents(tails, client)


async def test_one_that_the_password_does_not_open_is_named(client, tmp_path, monkeypatch):
    ledger_id = await write(client, [b"a"])
    other = tmp_path / "password"
    other.write_text("another")
    tails = following(passwordFile=str(other))
    told = rf"\[BOOKIE_UNAUTHORIZED\] ledger {ledger_id}"
    with pytest.raises(PodkeeperSparkError, match=told):
        await extents(tails, client, discover=True)
    here = BlockingHere(client)
    monkeypatch.setattr(AccessOptions, "client", lambda self, **_: here)
    with pytest.raises(PodkeeperSparkError, match=told):
        await asyncio.to_thread(tails.snapshots, [ledger_id])


@pytest.mark.parametrize("strict", [True, False])
async def test_a_ledger_with_damaged_metadata_is_left_out_until_it_can_be_read(client, three, strict):
    good, bad = await write(client, [b"x"], **THREE), await write(client, [b"y"], **THREE)
    read, damaged = three.metadata.ledgers.read, {bad}

    async def reading(ledger_id, **more):
        if ledger_id in damaged:
            raise MetadataDamaged("it cannot be read")
        return await read(ledger_id, **more)

    three.metadata.ledgers.read = reading
    tails = following(failOnDataLoss=str(strict))
    if strict:
        with pytest.raises(PodkeeperSparkError) as told:
            await tails._view_now(client, True)
        assert told.value.code == DATA_LOSS
        return
    assert set(await extents(tails, client, discover=True)) == {good}
    damaged.clear()
    assert set(await extents(tails, client, discover=True)) == {good, bad}


async def test_an_open_ledger_whose_bookies_are_away_holds_up_no_other_one(client, three):
    tails = following()
    async with client.create(write_quorum=3, ack_quorum=2) as lone:
        for _ in range(3):
            await lone.append(b"x")
        assert (await extents(tails, client, discover=True))[lone.ledger_id][0] == 2
        for server in three.servers.values():
            server.hold = True
        assert (await extents(tails, client))[lone.ledger_id][0] == 2
        with pytest.raises(PodkeeperSparkError):
            await extents(following(), client, discover=True)
        for server in three.servers.values():
            server.release()
        await lone.append(b"x")
        async with asyncio.timeout(30):
            while (await extents(tails, client))[lone.ledger_id][0] < 3:
                pass
