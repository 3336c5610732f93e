"""Readers of ledgers that are not closed: the LAC, new segments, closing, deletion, unconfirmed reads."""

import asyncio

import pytest

from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import (
    BadRequest,
    BookieUnavailable,
    CouldNotTell,
    NoSuchEntry,
    NoSuchLedger,
    StorageFault,
    Unauthorized,
)
from bookie_protocol.ledger_metadata.model import LedgerState
from tests.support.until import until
from tests.unit.bookie_client.conftest import tasks_of_handles
from tests.unit.bookie_client.recovery.crashed import ABC, LEDGER, crashed, length_of, payload


@pytest.mark.parametrize("digest", list(DigestType))
async def test_an_open_ledger_is_read_up_to_its_confirmed_end(three, version, digest):
    async with three.client(protocol_version=version) as client:
        writer = await client.create(write_quorum=3, ack_quorum=3, password=b"pw", digest=digest)
        for i in range(5):
            await writer.append(payload(i))
        async with client.open(writer.ledger_id, password=b"pw") as reader:
            assert (reader.is_closed, reader.last_add_confirmed, reader.length) == (False, 3, 0)
            assert [e.payload async for e in reader.entries()] == [payload(i) for i in range(4)]
            with pytest.raises(BadRequest, match="confirmed, 3"):
                await reader.read(0, 4)
            await writer.append(payload(5))
            assert await reader.read_last_add_confirmed() == 4
            assert len(await reader.read(0, 4)) == 5
            await writer.append(payload(6))
            assert await reader.try_read_last_add_confirmed() == 5
            assert await writer.append(payload(7)) == 7
        await writer.close()
    assert not any(three.bookie(b).ledgers[0].fenced for b in ABC)


async def test_a_new_ledger_that_nobody_knows(three, version):
    async with three.client(protocol_version=version) as client, client.create() as writer:
        reader = await client.open(writer.ledger_id)
        assert reader.last_add_confirmed == -1
        assert [e async for e in reader.entries()] == []
        await reader.close()


async def test_a_wrong_password_is_refused(three):
    async with three.client() as client, client.create(password=b"pw") as writer:
        with pytest.raises(Unauthorized):
            await client.open(writer.ledger_id, password=b"no")


async def test_an_explicit_lac_is_heard(three):
    async with three.client() as client, client.create(write_quorum=3, password=b"pw") as writer:
        for i in range(3):
            await writer.append(payload(i))
        async with client.open(writer.ledger_id, password=b"pw") as reader:
            assert reader.last_add_confirmed == 1
            packet = digest_manager(DigestType.CRC32C, b"pw").encode_lac(writer.ledger_id, 2)
            await until(lambda: all(0 in three.bookie(name).ledgers for name in ABC))
            for name in ABC[:2]:
                three.bookie(name).write_lac(three.bookie(name).ledgers[0].key, writer.ledger_id, packet)
            assert await reader.read_last_add_confirmed() == 2
            assert len(await reader.read(0, 2)) == 3


async def test_a_damaged_last_entry_tells_no_lac(cluster, version):
    ledger = await crashed(cluster)
    ledger.put_all(*range(6))
    async with cluster.client(protocol_version=version) as client, client.open(LEDGER, password=b"pw") as reader:
        assert reader.last_add_confirmed == 4
        cluster.bookie("b1").damage(LEDGER, 5)
        ledger.put(6, "b2")
        assert await reader.read_last_add_confirmed() == 5


async def test_a_damaged_explicit_lac_counts_for_nothing(three):
    async with three.client() as client, client.create(write_quorum=3, password=b"pw") as writer:
        for i in range(3):
            await writer.append(payload(i))
        packet = bytearray(digest_manager(DigestType.CRC32C, b"pw").encode_lac(writer.ledger_id, 2))
        packet[15] ^= 64
        await until(lambda: all(0 in three.bookie(name).ledgers for name in ABC))
        for name in ABC:
            three.bookie(name).ledgers[0].explicit_lac = bytes(packet)
        async with client.open(writer.ledger_id, password=b"pw") as reader:
            assert reader.last_add_confirmed == 1


@pytest.mark.parametrize(
    ("quorums", "dead", "works"),
    [
        ((3, 3, 2), 1, True),
        ((3, 3, 2), 2, False),
        ((3, 3, 3), 2, True),
        ((3, 2, 2), 1, True),
        ((3, 2, 1), 1, False),
    ],
)
async def test_opening_needs_the_bookies_that_recovery_needs(cluster, version, quorums, dead, works):
    ledger = await crashed(cluster, quorums)
    ledger.put_all(*range(6))
    for name in ABC[:dead]:
        await cluster.servers[name].stop()
    async with cluster.client(protocol_version=version) as client:
        if works:
            async with client.open(LEDGER, password=b"pw") as reader:
                assert 3 <= reader.last_add_confirmed <= 4
        else:
            left = []
            for _ in range(2):
                with pytest.raises(BookieUnavailable, match="few"):
                    await client.open(LEDGER, password=b"pw")
                left.append(tasks_of_handles())
            assert left[1] <= left[0]
    assert ledger.stored.state is LedgerState.OPEN


async def test_trying_is_content_with_one_answer(cluster, version):
    ledger = await crashed(cluster)
    ledger.put_all(*range(6))
    async with cluster.client(protocol_version=version) as client, client.open(LEDGER, password=b"pw") as reader:
        for name in ABC[:2]:
            await cluster.servers[name].stop()
        ledger.put(6)
        assert await reader.try_read_last_add_confirmed() == 5
        with pytest.raises(BookieUnavailable):
            await reader.read_last_add_confirmed()
        await cluster.servers["b3"].stop()
        with pytest.raises(CouldNotTell):
            await reader.try_read_last_add_confirmed()
        assert reader.last_add_confirmed == 5


async def test_trying_hears_every_bookie_before_it_says_that_there_is_no_news(cluster, version):
    ledger = await crashed(cluster, (3, 3, 3))
    ledger.put_all(*range(6))
    async with cluster.client(protocol_version=version) as client, client.open(LEDGER, password=b"pw") as reader:
        assert reader.last_add_confirmed == 4
        ledger.put(6, "b3")
        cluster.servers["b3"].hold = True
        trying = asyncio.create_task(reader.try_read_last_add_confirmed())
        await until(lambda: cluster.servers["b3"].held == 1)
        cluster.servers["b3"].release()
        assert await trying == 5


async def test_the_lac_never_goes_back(cluster):
    ledger = await crashed(cluster)
    ledger.put_all(*range(6))
    async with cluster.client() as client, client.open(LEDGER, password=b"pw") as reader:
        assert reader.last_add_confirmed == 4
        for name in ABC:
            for entry_id in range(2, 6):
                del cluster.bookie(name).ledgers[LEDGER].entries[entry_id]
        assert await reader.read_last_add_confirmed() == 4
        assert await reader.try_read_last_add_confirmed() == 4


async def test_reads_tell_the_lac_for_free(three):
    async with three.client() as client:
        writer = await client.create(write_quorum=3, ack_quorum=3)
        for i in range(5):
            await writer.append(payload(i))
        async with client.open(writer.ledger_id) as reader:
            for i in range(5, 8):
                await writer.append(payload(i))
            before = reader.last_add_confirmed
            await reader.read(0, 0)
            assert before < reader.last_add_confirmed == 6
        await writer.close()


async def test_an_empty_last_segment_confirms_what_is_in_front_of_it(cluster, version):
    ledger = await crashed(cluster, segments={0: ABC, 4: ("b4", "b5", "b6")})
    ledger.put_all(*range(4))
    async with cluster.client(protocol_version=version) as client, client.open(LEDGER, password=b"pw") as reader:
        assert reader.last_add_confirmed == 3
        assert len(await reader.read(0, 3)) == 4


async def test_a_ledger_in_recovery_can_be_read(cluster, version):
    ledger = await crashed(cluster, state=LedgerState.IN_RECOVERY)
    ledger.put_all(*range(4))
    async with cluster.client(protocol_version=version) as client, client.open(LEDGER, password=b"pw") as reader:
        assert (reader.is_closed, reader.last_add_confirmed) == (False, 2)
    assert ledger.states == ["IN_RECOVERY"]


async def test_new_segments_and_closing_are_followed(three):
    await three.add_bookie("b4")
    async with three.client() as client:
        writer = await client.create(write_quorum=3, ack_quorum=2, password=b"pw")
        for i in range(4):
            await writer.append(payload(i))
        async with client.open(writer.ledger_id, password=b"pw") as reader:
            victim = writer.metadata.last_ensemble[0]
            three.bookie(victim).fail_adds = StorageFault
            for i in range(4, 8):
                await writer.append(payload(i))
            await until(lambda: len(reader.metadata.ensembles) == 2)
            await writer.close()
            await until(lambda: reader.is_closed)
            assert (reader.last_add_confirmed, reader.length) == (7, length_of(7))
            reads = sum(three.bookie(b).reads for b in three.servers)
            assert await reader.read_last_add_confirmed() == 7
            assert sum(three.bookie(b).reads for b in three.servers) == reads
            assert [e.payload async for e in reader.entries()] == [payload(i) for i in range(8)]


async def test_entries_of_a_segment_that_the_reader_has_not_heard_of(cluster):
    """The LAC can be ahead of the watch: what the old ensemble denies is looked for where the store says."""
    ledger = await crashed(cluster, (2, 2, 2), segments={0: ("b1", "b2")}, spares=2)
    ledger.put_all(*range(4))
    async with cluster.client() as client, client.open(LEDGER, password=b"pw") as reader:
        store = cluster.metadata.ledgers
        stored = store.stored[LEDGER]
        store.change(stored.value.with_ensemble(4, ("s0", "s1")))
        ledger.metadata = store.stored[LEDGER].value
        ledger.put_all(4, 5)
        reader._ledger.heard(4)
        assert len(reader.metadata.ensembles) == 1
        assert [e.payload for e in await reader.read(2, 4)] == [payload(2), payload(3), payload(4)]
        assert len(reader.metadata.ensembles) == 2


async def test_a_reader_of_a_closed_ledger_finds_copies_that_moved(cluster):
    ledger = await crashed(cluster, (2, 2, 2), segments={0: ("b1", "b2")}, spares=2)
    ledger.put_all(*range(4))
    async with cluster.client() as client, client.open(LEDGER, password=b"pw", recover=True) as reader:
        for name in ("s0", "s1"):
            for entry_id in range(4):
                cluster.bookie(name).add(ledger.key, ledger.entry(entry_id, entry_id - 1))
        store = cluster.metadata.ledgers
        await store.write(ledger.stored.with_ensemble(0, ("s0", "s1")), store.stored[LEDGER].identity)
        for name in ("b1", "b2"):
            await cluster.servers[name].stop()
        assert [e.payload async for e in reader.entries()] == [payload(i) for i in range(4)]


async def test_metadata_of_closed_ledgers_are_followed_on_demand(cluster):
    ledger = await crashed(cluster, (2, 2, 2), segments={0: ("b1", "b2")}, spares=2)
    ledger.put_all(*range(4))
    async with cluster.client(keep_metadata_updated=True) as client:
        reader = await client.open(LEDGER, password=b"pw", recover=True)
        store = cluster.metadata.ledgers
        await store.write(ledger.stored.with_ensemble(0, ("s0", "s1")), store.stored[LEDGER].identity)
        await until(lambda: reader.metadata.last_ensemble == ("s0", "s1"))
        await reader.close()


async def test_a_deleted_ledger(three):
    async with three.client() as client:
        writer = await client.create(write_quorum=3)
        for i in range(3):
            await writer.append(payload(i))
        async with client.open(writer.ledger_id) as reader:
            await client.delete(writer.ledger_id)
            await until(lambda: reader._ledger.is_deleted)
            assert len(await reader.read(0, 1)) == 2
            for name in ABC:
                three.bookie(name).fail_reads = StorageFault
            with pytest.raises(NoSuchLedger):
                await reader.read_last_add_confirmed()
        with pytest.raises(NoSuchLedger):
            await client.open(writer.ledger_id)


async def test_unconfirmed_entries(cluster, version):
    ledger = await crashed(cluster)
    ledger.put_all(*range(5))
    ledger.put(5, "b2", lac=4)
    async with cluster.client(protocol_version=version) as client:
        async with client.open(LEDGER, password=b"pw") as reader:
            assert [e.payload for e in await reader.read_unconfirmed(3, 5)] == [payload(i) for i in (3, 4, 5)]
            with pytest.raises(NoSuchEntry):
                await reader.read_unconfirmed(4, 6)
            with pytest.raises(BadRequest):
                await reader.read_unconfirmed(-1, 2)
        async with client.open(LEDGER, password=b"pw", recover=True) as reader:
            last = reader.last_add_confirmed
            with pytest.raises(BadRequest, match="confirmed"):
                await reader.read_unconfirmed(0, last + 1)


async def test_what_turns_out_to_lie_behind_the_end_is_no_part_of_the_ledger(cluster):
    """It is recovered, and ended in front of it, while it is read."""
    ledger = await crashed(cluster)
    ledger.put_all(*range(5))
    ledger.put(5, "b2", lac=4)
    async with cluster.client() as client, client.open(LEDGER, password=b"pw") as reader:
        read = reader._read

        async def while_it_is_recovered(*range_and_part, bound):
            found = await read(*range_and_part, bound=bound)
            cluster.bookie("b2").ledgers[LEDGER].entries.pop(5, None)
            await client.recover(LEDGER, password=b"pw")
            await until(lambda: reader.is_closed)
            return found

        reader._read = while_it_is_recovered
        with pytest.raises(BadRequest, match="confirmed, 4"):
            await reader.read_unconfirmed(3, 5)


async def test_nothing_is_left_behind(three):
    async with three.client() as client:
        writer = await client.create(write_quorum=3)
        await writer.append(b"one")
        before = tasks_of_handles()
        async with client.open(writer.ledger_id) as reader:
            assert tasks_of_handles() > before
        assert tasks_of_handles() <= before
        await reader.close()
        left_open = await client.open(writer.ledger_id)
        await writer.close()
    assert not left_open.is_closed or left_open.last_add_confirmed == 0


async def test_what_the_caller_was_told_of_an_open_ledger_can_be_read(three):
    """As a task of Spark, which has metadata and last add confirmed from the planner."""
    async with three.client() as client:
        writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=b"pw")
        await writer.append_many(b"%d" % number for number in range(6))
        stored = await three.metadata.ledgers.read(writer.ledger_id)
        reader = client.open_stored(stored, password=b"pw", last_add_confirmed=4)
        assert reader.last_add_confirmed == 4
        assert [each.payload for each in await reader.read(0, 4)] == [b"%d" % number for number in range(5)]
