"""Tailing: while a ledger is written, across failures and segments, to its end.

Whom the follower of the LAC asks, and when, is in `test_followed`.
"""

import asyncio
from contextlib import aclosing
from itertools import count

import pytest

from bookie_client.reading import followed
from bookie_protocol.errors import (
    BadRequest,
    BadVersion,
    BookieReadOnly,
    BookieUnavailable,
    DigestMismatch,
    LedgerClosed,
    NoSuchLedger,
    StorageFault,
    TooManyRequests,
)
from tests.support.until import until
from tests.unit.bookie_client.conftest import tasks_of_handles
from tests.unit.bookie_client.recovery.crashed import ABC, LEDGER, crashed, payload


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(followed, "FIRST_PATIENCE", 0.1)
    monkeypatch.setattr(followed, "MAX_PATIENCE", 0.3)
    monkeypatch.setattr(followed, "MAX_PAUSE", 0.05)


def collect(reader, start=0):
    """A tail in the background; the list fills while it runs."""
    found = []

    async def run():
        async for entry in reader.tail(start):
            found.append(entry)  # noqa: PERF401 - the list is looked at while it grows

    return found, asyncio.create_task(run())


def ids(found):
    return [entry.entry_id for entry in found]


async def test_entries_come_as_they_are_confirmed_and_the_tail_ends_with_the_ledger(three, version):
    async with three.client(protocol_version=version) as client:
        writer = await client.create(write_quorum=3, ack_quorum=2, password=b"pw")
        async with client.open(writer.ledger_id, password=b"pw") as reader:
            found, tail = collect(reader)
            for i in range(30):
                await writer.append(payload(i))
                if i % 10 == 9:
                    await until(lambda i=i: len(found) == i)
            assert not tail.done()
            await writer.close()
            await tail
            assert [e.payload for e in found] == [payload(i) for i in range(30)]


@pytest.mark.parametrize(
    ("quorums", "version"),
    [((3, 3, 2), 3), ((3, 3, 2), 2), ((3, 2, 2), 3), ((5, 3, 2), 2), ((5, 2, 1), 3), ((4, 1, 1), 3), ((4, 1, 1), 2)],
)
async def test_striped_ledgers(cluster, version, quorums):
    for i in range(quorums[0]):
        await cluster.add_bookie(f"b{i}")
    sizes = dict(zip(("ensemble", "write_quorum", "ack_quorum"), quorums, strict=True))
    async with cluster.client(protocol_version=version) as client:
        writer = await client.create(**sizes)
        async with client.open(writer.ledger_id) as reader:
            found, tail = collect(reader)
            for i in range(20):
                await writer.append(payload(i))
                # Each one is known as soon as the next one is stored, whichever bookies hold it.
                await until(lambda i=i: len(found) >= i)
            await writer.close()
            await tail
            assert ids(found) == list(range(20))


async def test_a_fast_writer(three, version):
    async with three.client(protocol_version=version) as client:
        writer = await client.create(write_quorum=3, ack_quorum=2)
        async with client.open(writer.ledger_id) as reader:
            found, tail = collect(reader)
            for _ in range(5):
                await writer.append_many([payload(i) for i in range(300)])
            await writer.close()
            await tail
            assert ids(found) == list(range(1500))


async def test_long_polls_bring_the_entry_along(three):
    async with three.client() as client:
        writer = await client.create(write_quorum=3, ack_quorum=3)
        await writer.append(payload(0))
        await writer.append(payload(1))
        async with client.open(writer.ledger_id) as reader:
            found, tail = collect(reader)
            await until(lambda: len(found) == 1)
            await until(lambda: any(three.bookie(b).lac_waiters.get(0) for b in ABC))
            reads = sum(three.bookie(b).reads for b in ABC)
            for i in range(2, 12):
                await writer.append(payload(i))
                await until(lambda i=i: len(found) == i)
            assert sum(three.bookie(b).reads for b in ABC) == reads
            await writer.close()
            await tail
            assert ids(found) == list(range(12))


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2)])
async def test_no_bookie_has_more_than_one_long_poll_and_two_tails_share_them(cluster, quorums):
    for name in ABC:
        await cluster.add_bookie(name)
    sizes = dict(zip(("ensemble", "write_quorum", "ack_quorum"), quorums, strict=True))
    async with cluster.client() as client:
        writer = await client.create(**sizes)
        async with client.open(writer.ledger_id) as reader:
            one, first = collect(reader)
            two, second = collect(reader, 5)
            for i in range(60):
                await writer.append(payload(i))
                assert all(len(cluster.bookie(b).lac_waiters.get(0, ())) <= 1 for b in ABC)
                await asyncio.sleep(0.001)
            await writer.close()
            await asyncio.gather(first, second)
            assert (ids(one), ids(two)) == (list(range(60)), list(range(5, 60)))


@pytest.mark.parametrize("error", [BadRequest, BadVersion])
async def test_a_bookie_without_long_polls_is_asked_plainly(three, monkeypatch, error):
    async with three.client() as client:
        writer = await client.create(write_quorum=3)

        async def long_poll(*args, **more):
            asked.append(args[0])
            raise error("what is that?")

        asked = []
        monkeypatch.setattr(client.context.operations, "long_poll", long_poll)
        async with client.open(writer.ledger_id) as reader:
            found, tail = collect(reader)
            for i in range(20):
                await writer.append(payload(i))
                await until(lambda i=i: len(found) == i)
            await writer.close()
            await tail
            assert len(asked) == len(set(asked))


async def test_starting_behind_the_end_waits_for_it(three, version):
    async with three.client(protocol_version=version) as client:
        writer = await client.create(write_quorum=3)
        async with client.open(writer.ledger_id) as reader:
            found, tail = collect(reader, 7)
            for i in range(10):
                await writer.append(payload(i))
            await writer.close()
            await tail
            assert ids(found) == [7, 8, 9]
            assert ids([e async for e in reader.tail(8)]) == [8, 9]
            assert [e async for e in reader.tail(100)] == []
            with pytest.raises(BadRequest):
                reader.tail(-1)


async def test_a_closed_ledger_is_read_to_its_end(three):
    async with three.client() as client:
        async with client.create() as writer:
            await writer.append_many([payload(i) for i in range(50)])
        async with client.open(writer.ledger_id) as reader:
            assert ids([e async for e in reader.tail()]) == list(range(50))


async def test_a_ledger_that_is_recovered_ends_the_tail_at_its_end(three, version):
    async with three.client(protocol_version=version) as client, three.client() as other:
        writer = await client.create(write_quorum=3, ack_quorum=3, password=b"pw")
        for i in range(6):
            await writer.append(payload(i))
        async with client.open(writer.ledger_id, password=b"pw") as reader:
            found, tail = collect(reader)
            await until(lambda: len(found) == 5)
            metadata = await other.recover(writer.ledger_id, password=b"pw")
            await tail
            assert ids(found) == list(range(metadata.last_entry_id + 1)) == list(range(6))


async def append_until_whole(writer, cluster, entries):
    """A failure that came late is dealt with at the next append: go on until an entry is on every bookie of the
    ensemble, so that all of them may be spared again."""
    while True:
        last = await writer.append(next(entries))
        held = [last in cluster.held_at(name, writer.ledger_id) for name in writer.metadata.last_ensemble]
        if all(held) and not writer.degraded and not writer._state.late_failures:
            return
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("fault", ["stop", "silent", "refuse", "cut"])
async def test_failing_bookies_are_passed_over(three, version, fault):
    entries = map(payload, count())
    async with three.client(protocol_version=version, long_poll_timeout=0.3) as client, three.client() as writing:
        writer = await writing.create(write_quorum=3, ack_quorum=2)
        async with client.open(writer.ledger_id) as reader:
            found, tail = collect(reader)
            for name in ABC[:1] if fault == "silent" else ABC:
                for _ in range(5):
                    await writer.append(next(entries))
                server = three.servers[name]
                if fault == "stop":
                    await server.stop()
                elif fault == "silent":
                    server.silent = True
                elif fault == "refuse":
                    server.bookie.fail_reads = TooManyRequests
                else:
                    for connection in list(server.connections):
                        connection.abort()
                last = await writer.append(next(entries))
                await until(lambda last=last: len(found) >= last - 1, 10)
                if fault == "stop":
                    await server.start()
                server.silent, server.bookie.fail_reads = False, None
                three.metadata.bookies.register_address(name, "127.0.0.1", server.port)
                async with asyncio.timeout(10):
                    await append_until_whole(writer, three, entries)
            last = await writer.append(next(entries))
            await writer.close()
            await tail
            assert [e.payload for e in found] == [payload(i) for i in range(last + 1)]


@pytest.mark.parametrize("fault", ["stop", "refuse"])
async def test_a_moment_without_any_bookie_does_not_end_a_tail(three, version, fault):
    """It waits until one can be reached again, also with an entry that it has to read."""
    async with three.client(protocol_version=version) as client:
        async with client.create(write_quorum=3, ack_quorum=3) as writer:
            for i in range(5):
                await writer.append(payload(i))
        reader = await client.open(writer.ledger_id)
        for server in three.servers.values():
            server.bookie.fail_reads = TooManyRequests
            if fault == "stop":
                await server.stop()
        failures = 0
        refresh = reader._ledger.refresh

        async def refresh_after_a_failure():
            nonlocal failures
            failures += 1
            return await refresh()

        reader._ledger.refresh = refresh_after_a_failure
        found, tail = collect(reader)
        await until(lambda: failures >= 3)
        assert not tail.done()
        server.bookie.fail_reads = None
        if fault == "stop":
            await server.start()
        await tail
        assert [e.payload for e in found] == [payload(i) for i in range(5)]


async def test_a_damaged_copy_does_not_end_a_tail_while_others_cannot_be_asked(three, version):
    async with three.client(protocol_version=version) as client:
        async with client.create(write_quorum=3, ack_quorum=3) as writer:
            for i in range(5):
                await writer.append(payload(i))
        for i in range(5):
            three.bookie("b1").damage(writer.ledger_id, i)
        for name in ("b2", "b3"):
            three.bookie(name).fail_reads = TooManyRequests
        reader = await client.open(writer.ledger_id)
        found, tail = collect(reader)
        await until(lambda: reader.damaged_at.get("b1", 0) >= 3 or tail.done())
        assert not tail.done()
        three.bookie("b3").fail_reads = None
        await tail
        assert [e.payload for e in found] == [payload(i) for i in range(5)]


async def test_damage_is_told_when_the_others_did_not_come_back_in_time(three):
    async with three.client(tail_patience=0.1) as client:
        async with client.create(write_quorum=3, ack_quorum=3) as writer:
            await writer.append(payload(0))
        three.bookie("b1").damage(writer.ledger_id, 0)
        for name in ("b2", "b3"):
            await three.servers[name].stop()
        _, tail = collect(await client.open(writer.ledger_id))
        with pytest.raises(DigestMismatch):
            await tail


@pytest.mark.parametrize("end", ["patience", "close"])
async def test_a_tail_does_not_wait_for_bookies_for_ever(three, end):
    async with three.client(tail_patience=0.1 if end == "patience" else 60) as client:
        async with client.create(write_quorum=3, ack_quorum=3) as writer:
            await writer.append(payload(0))
        reader = await client.open(writer.ledger_id)
        for server in three.servers.values():
            await server.stop()
        _, tail = collect(reader)
        if end == "close":
            await until(lambda: client.context.health.failed_lately() == set(ABC))
            await reader.close()
        with pytest.raises(LedgerClosed if end == "close" else BookieUnavailable):
            await tail


async def test_ensemble_changes_are_followed(three, version):
    for i in range(4, 8):
        await three.add_bookie(f"b{i}")
    async with three.client(protocol_version=version) as client:
        writer = await client.create(write_quorum=3, ack_quorum=2)
        async with client.open(writer.ledger_id) as reader:
            found, tail = collect(reader)
            for i in range(40):
                if i in (8, 16, 24, 32):
                    victim = writer.metadata.last_ensemble[i // 8 % 3]
                    three.bookie(victim).fail_adds = BookieReadOnly
                await writer.append(payload(i))
                await until(lambda i=i: len(found) >= i - 2)
            await writer.close()
            await tail
            assert ids(found) == list(range(40))
            assert len(reader.metadata.ensembles) >= 5


async def test_a_damaged_copy_that_comes_along_is_told_and_read_elsewhere(three, caplog):
    async with three.client() as client:
        writer = await client.create(write_quorum=3, ack_quorum=3)
        for i in range(3):
            await writer.append(payload(i))
        async with client.open(writer.ledger_id) as reader:
            found, tail = collect(reader)
            await until(lambda: len(found) == 2)
            rotten = writer.metadata.bookies_for(2)[1]
            three.bookie(rotten).damage(0, 2)
            await writer.append(payload(3))
            await until(lambda: len(found) == 3)
            await writer.close()
            await tail
            assert [e.payload for e in found] == [payload(i) for i in range(4)]
            assert reader.damaged_at.get(rotten, 0) >= 1
            assert client.context.damaged_replicas[rotten] == reader.damaged_at[rotten]
    told = [record.getMessage() for record in caplog.records if "damaged replica" in record.getMessage()]
    assert any(f"entry=2 bookie={rotten}" in line for line in told)


async def test_entries_that_come_along_count_as_served_by_their_bookies(three):
    async with three.client() as client:
        writer = await client.create(write_quorum=3, ack_quorum=3)
        async with client.open(writer.ledger_id) as reader:
            found, tail = collect(reader)
            for i in range(20):
                await writer.append(payload(i))
                await until(lambda i=i: len(found) >= i)
            await writer.close()
            await tail
            assert ids(found) == list(range(20))
            assert sum(reader.served_by.values()) == 20


async def test_nobody_answers_for_a_while(cluster):
    ledger = await crashed(cluster)
    ledger.put_all(*range(3))
    async with cluster.client() as client, client.open(LEDGER, password=b"pw") as reader:
        found, tail = collect(reader)
        await until(lambda: len(found) == 2)
        for name in ABC:
            cluster.bookie(name).fail_reads = StorageFault
            for waiter in list(cluster.bookie(name).lac_waiters.get(LEDGER, ())):
                waiter()
        await asyncio.sleep(0.2)
        assert not tail.done()
        for name in ABC:
            cluster.bookie(name).fail_reads = None
        ledger.put(3)
        await until(lambda: len(found) == 3, 10)
        tail.cancel()
        await asyncio.wait([tail])


async def test_entries_that_nobody_serves_raise_and_the_next_tail_goes_on(cluster):
    ledger = await crashed(cluster)
    ledger.put_all(*range(6))
    async with cluster.client() as client, client.open(LEDGER, password=b"pw") as reader:
        for name in ABC:
            cluster.bookie(name).damage(LEDGER, 3)
        found, tail = collect(reader)
        await asyncio.wait([tail])
        assert "entry 3 of ledger 7" in str(tail.exception())
        assert ids(found) == [0, 1, 2]
        found, tail = collect(reader, 4)
        await until(lambda: ids(found) == [4])
        tail.cancel()
        await asyncio.wait([tail])


async def test_a_deleted_ledger_ends_the_tail_with_its_error(three):
    async with three.client() as client:
        writer = await client.create(write_quorum=3)
        await writer.append(payload(0))
        async with client.open(writer.ledger_id) as reader:
            _, tail = collect(reader)
            await asyncio.sleep(0.02)
            await client.delete(writer.ledger_id)
            with pytest.raises(NoSuchLedger):
                await tail


async def test_closing_the_handle_or_the_client_ends_its_tails(three):
    client = three.client()
    await client.start()
    writer = await client.create(write_quorum=3)
    await writer.append(payload(0))
    reader = await client.open(writer.ledger_id)
    _, tail = collect(reader)
    await asyncio.sleep(0.02)
    await reader.close()
    with pytest.raises(LedgerClosed):
        await tail
    other = await client.open(writer.ledger_id)
    _, tail = collect(other)
    await asyncio.sleep(0.02)
    await client.close()
    with pytest.raises(LedgerClosed):
        await tail


@pytest.mark.parametrize("way", ["cancel", "break", "close"])
async def test_an_ended_tail_leaves_nothing_behind(three, version, way):
    async with three.client(protocol_version=version) as client:
        writer = await client.create(write_quorum=3)
        for i in range(3):
            await writer.append(payload(i))
        async with client.open(writer.ledger_id) as reader:
            before = tasks_of_handles()
            if way == "cancel":
                found, tail = collect(reader)
                await until(lambda: len(found) == 2)
                await asyncio.sleep(0.05)
                tail.cancel()
                await asyncio.wait([tail])
            else:
                async with aclosing(reader.tail()) as entries:
                    async for entry in entries:
                        if entry.entry_id == 1:
                            if way == "close":
                                with pytest.raises(TimeoutError):
                                    async with asyncio.timeout(0.05):
                                        await anext(entries)
                            break
            assert tasks_of_handles() <= before
        await writer.close()
