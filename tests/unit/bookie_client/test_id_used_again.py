"""A ledger is deleted and another one is made under its id: nothing that was begun on the first one reaches the second.

Versions begin again with each ledger, so both kinds of tests are needed: the second one has the version that the first
one had, or another one.
"""

from dataclasses import replace

import pytest

from bookie_client.metadata_update import update_metadata
from bookie_protocol.errors import (
    LedgerClosed,
    MetadataReplaced,
    MetadataVersionConflict,
    NoSuchLedger,
    StorageFault,
)
from bookie_protocol.ledger_metadata.model import LedgerState
from tests.unit.bookie_client.recovery.crashed import LEDGER, CrashedLedger

ID = 7
QUORUMS = {"ensemble": 2, "write_quorum": 2, "ack_quorum": 2, "password": b"pw", "ledger_id": ID}
same_or_other_version = pytest.mark.parametrize("changes", [0, 1], ids=["same version", "other version"])


def make_again(cluster, changes=0):
    """Another client's ledger of the same shape, open and without entries. Returns what is stored."""
    store = cluster.metadata.ledgers
    first = store.stored[ID].value
    second = replace(first, creation_token=first.creation_token + 1, custom_metadata={"owner": b"another"})
    stored = store.make(replace(second, state=LedgerState.OPEN, last_entry_id=-1, length=0))
    for _ in range(changes):
        stored = store.change(stored.value)
    return stored


@same_or_other_version
async def test_writer_of_the_first_ledger_does_not_close_the_second(three, changes):
    async with three.client() as client:
        first = await client.create(**QUORUMS)
        await first.append(b"first")
        second = make_again(three, changes)
        for _ in range(2):
            with pytest.raises(MetadataReplaced):
                await first.close()
        assert three.metadata.ledgers.stored[ID] == second
        assert not first.is_closed


@same_or_other_version
async def test_writer_of_the_first_ledger_does_not_change_the_ensemble_of_the_second(three, changes):
    async with three.client() as client:
        first = await client.create(**QUORUMS)
        await first.append(b"first")
        second = make_again(three, changes)
        three.bookie(first.metadata.last_ensemble[0]).fail_adds = StorageFault
        with pytest.raises(MetadataReplaced):
            await first.append(b"more")
        assert three.metadata.ledgers.stored[ID] == second


@same_or_other_version
async def test_recovery_of_the_first_ledger_does_not_close_the_second(three, changes):
    ledger = CrashedLedger(three, (3, 3, 2), {0: ("b1", "b2", "b3")})
    ledger.put_all(0, 1, 2)
    bookie, seconds = three.bookie("b1"), []
    read = bookie.read

    def make_again_first(*args, **more):
        if not seconds:
            seconds.append(make_again(three, changes + 1))
        return read(*args, **more)

    bookie.read = make_again_first
    async with three.client() as client:
        with pytest.raises(MetadataReplaced):
            await client.recover(LEDGER, password=b"pw")
    assert [three.metadata.ledgers.stored[ID]] == seconds


async def test_recovery_that_fails_does_not_take_the_end_of_the_second_ledger_for_its_own(three):
    ledger = CrashedLedger(three, (3, 3, 2), {0: ("b1", "b2", "b3")})
    ledger.put_all(0, 1, 2)
    for name in ("b1", "b2", "b3"):
        three.bookie(name).fail_reads = StorageFault
    bookie, seconds = three.bookie("b1"), []
    read = bookie.read

    def close_another_first(*args, **more):
        if not seconds:
            seconds.append(three.metadata.ledgers.change(make_again(three).value.closed(8, 80)))
        return read(*args, **more)

    bookie.read = close_another_first
    async with three.client() as client:
        with pytest.raises(MetadataReplaced):
            await client.recover(LEDGER, password=b"pw")


@same_or_other_version
async def test_update_of_the_first_ledger_is_refused(three, changes):
    async with three.client() as client:
        await client.create(**QUORUMS)
        store = three.metadata.ledgers
        held = await store.read(ID)
        second = make_again(three, changes)
        with pytest.raises(MetadataReplaced):
            await update_metadata(store, held, lambda m: not m.is_closed, lambda m: m.closed(3, 30))
        assert store.stored[ID] == second


async def test_update_that_lost_to_another_client_does_not_go_on_with_the_second_ledger(three):
    """The conflict is one of the first ledger; the second is made before the metadata are read again."""
    async with three.client() as client:
        await client.create(**QUORUMS)
        store = three.metadata.ledgers
        held = await store.read(ID)

        async def lose(*_, **__):
            make_again(three)
            raise MetadataVersionConflict("another client was faster")

        write, store.write = store.write, lose
        with pytest.raises(MetadataReplaced):
            await update_metadata(store, held, lambda m: not m.is_closed, lambda m: m.closed(3, 30))
        store.write = write
        assert three.stored(ID).state is LedgerState.OPEN


async def test_follower_of_the_first_ledger_is_told_that_it_was_deleted(three):
    async with three.client() as client:
        first = await client.create(**QUORUMS)
        await first.append(b"first")
        async with client.open(ID, password=b"pw") as reader:
            make_again(three, 5)
            with pytest.raises(NoSuchLedger):
                await reader._ledger.reach(10)
            assert reader.metadata.custom_metadata == {}


async def test_reads_of_the_first_ledger_do_not_go_by_the_metadata_of_the_second(three):
    async with three.client() as client:
        first = await client.create(**QUORUMS)
        await first.append(b"first")
        reader = client.open_stored(await client.stored_metadata(ID), password=b"pw")
        make_again(three, 5)
        assert not await reader._ledger.refresh()
        assert not await first._reader._refresh()
        with pytest.raises(LedgerClosed):
            await first._look()
