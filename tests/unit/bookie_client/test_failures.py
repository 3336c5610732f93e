"""Bookies that die, hang, refuse or damage entries while a ledger is written and read."""

import asyncio

import pytest

from bookie_client.writing import writer
from bookie_client.writing.ensemble_change import find_spares
from bookie_protocol.errors import (
    BookieReadOnly,
    DigestMismatch,
    LedgerClosed,
    LedgerFenced,
    MetadataVersionConflict,
    NoSuchEntry,
    QuorumLost,
    StorageFault,
    Unauthorized,
)
from bookie_protocol.ledger_metadata.model import LedgerState
from tests.support.until import until
from tests.unit.bookie_client.conftest import payloads


async def check(client, three, ledger_id, written):
    async with client.open(ledger_id) as reader:
        assert [e.payload async for e in reader.entries()] == written
        return reader


# A failed connection is not tried again for as long as a test runs: adds fail at once, before others can complete
# them, so it is known which add replaces the bookie.
NO_RECONNECT = {"reconnect_delay": 60, "max_reconnect_delay": 60}


async def stop_bookie(client, three, bookie, ledger):
    """Once it has all entries, so that no attempt to connect to it is under way."""
    await until(lambda: ledger.last_add_confirmed in three.held_at(bookie, ledger.ledger_id))
    await three.servers[bookie].stop()
    await until(lambda: not client.context.pool.channel(bookie, ledger.ledger_id).is_connected)


async def append_two(ledger):
    """The second append acts upon the failure of a bookie that the first one did not need."""
    await ledger.append(b"one")
    await until(lambda: ledger._state.late_failures or ledger.degraded)
    await ledger.append(b"two")
    await until(lambda: ledger.degraded)


async def test_a_killed_bookie_is_replaced_by_a_spare(three, version):
    await three.add_bookie("b4")
    written = payloads(300)
    async with three.client(protocol_version=version, **NO_RECONNECT) as client:
        async with client.create(ensemble=3, write_quorum=3, ack_quorum=2) as ledger:
            first = ledger.metadata.last_ensemble
            await ledger.append_many(written[:100])
            victim = first[1]
            three.metadata.bookies.drop(victim)
            await stop_bookie(client, three, victim, ledger)
            await ledger.append_many(written[100:])
            assert ledger.ensemble_changes == 1
            spare = next(b for b in three.servers if b not in first)
            await until(lambda: 299 in three.held_at(spare, 0))
        stored = three.stored(ledger.ledger_id)
        starts = list(stored.ensembles)
        assert len(starts) == 2
        assert 90 <= starts[1] <= 101
        assert stored.ensembles[starts[1]] == tuple(spare if b == victim else b for b in first)
        assert three.held_at(spare, 0) == set(range(starts[1], 300))
        await check(client, three, ledger.ledger_id, written)


async def test_without_a_spare_writing_goes_on_with_the_ack_quorum(three, version):
    written = payloads(300)
    async with three.client(protocol_version=version, **NO_RECONNECT) as client:
        async with client.create(ensemble=3, write_quorum=3, ack_quorum=2) as ledger:
            await ledger.append_many(written[:100])
            victim = ledger.metadata.last_ensemble[0]
            await stop_bookie(client, three, victim, ledger)
            await ledger.append_many(written[100:])
            assert list(ledger.degraded.values()) == [victim]
            assert ledger.failure is None
        assert list(three.stored(0).ensembles) == [0]
        reader = await check(client, three, 0, written)
        assert victim not in reader.served_by


async def test_a_spare_that_appears_later_takes_the_degraded_position(three):
    async with three.client() as client, client.create(write_quorum=3) as ledger:
        victim = ledger.metadata.last_ensemble[2]
        await three.servers[victim].stop()
        await append_two(ledger)
        assert ledger.degraded == {2: victim}
        await three.add_bookie("b4")
        await until(lambda: not ledger.degraded)
        await ledger.append(b"three")
        assert ledger.metadata.last_ensemble[2] == "b4"
        assert list(ledger.metadata.ensembles) == [0, 2]
        await until(lambda: three.held_at("b4", 0) == {2})


async def test_a_bookie_that_returns_gets_entries_again(three):
    async with three.client() as client, client.create(write_quorum=3) as ledger:
        victim = ledger.metadata.last_ensemble[2]
        server = three.servers[victim]
        await server.stop()
        await append_two(ledger)
        await server.start()
        await until(lambda: not ledger.degraded)
        for _ in range(10):
            await ledger.append(b"more")
        await until(lambda: 11 in three.held_at(victim, 0))


async def test_a_bookie_that_never_answers_is_replaced_after_the_time_out(three, version):
    await three.add_bookie("b4")
    async with three.client(protocol_version=version) as client:
        async with client.create(write_quorum=3, ack_quorum=3) as ledger:
            silent = ledger.metadata.last_ensemble[0]
            three.servers[silent].silent = True
            await ledger.append_many(payloads(20))
            assert silent not in ledger.metadata.last_ensemble
        await check(client, three, 0, payloads(20))


async def test_two_bookies_lost_without_spares_fail_every_pending_append_once_and_in_order(three):
    for server in three.servers.values():
        server.hold = True
    async with three.client() as client:
        ledger = await client.create(write_quorum=3, ack_quorum=2)
        futures = [await ledger.submit(p) for p in payloads(20)]
        order = []
        for i, future in enumerate(futures):
            future.add_done_callback(lambda f, i=i: order.append((i, type(f.exception()))))
        a, b, _ = ledger.metadata.last_ensemble
        await until(lambda: sum(server.held for server in three.servers.values()) == 60)
        await three.servers[a].stop()
        await three.servers[b].stop()
        with pytest.raises(QuorumLost) as raised:
            await futures[7]
        assert "ledger 0, entry 7 on" in str(raised.value)
        assert a in str(raised.value)
        await asyncio.sleep(0)
        assert order == [(i, QuorumLost) for i in range(20)]
        with pytest.raises(LedgerClosed):
            await ledger.append(b"more")
        with pytest.raises(QuorumLost):
            await ledger.flush()
        await ledger.close()
        assert (three.stored(0).state, three.stored(0).last_entry_id) == (LedgerState.CLOSED, -1)


@pytest.mark.parametrize(("own", "raised"), [(None, QuorumLost), (KeyError("own"), KeyError)])
async def test_the_context_manager_does_not_hide_a_failed_append(three, own, raised):
    async with three.client() as client:
        with pytest.raises(raised):
            async with client.create(write_quorum=3, ack_quorum=3) as ledger:
                await three.servers[ledger.metadata.last_ensemble[0]].stop()
                await ledger.submit(b"nobody waits for this one")
                if own is not None:
                    raise own
        assert three.stored(0).is_closed


async def test_a_fenced_ledger_ends_the_writer(three, version):
    async with three.client(protocol_version=version) as client:
        ledger = await client.create(write_quorum=3, ack_quorum=3)
        await ledger.append(b"one")
        for bookie in three.servers:
            three.bookie(bookie).ledgers[0].fenced = True
        with pytest.raises(LedgerFenced):
            await ledger.append(b"two")
        await ledger.close()
        assert three.stored(0).last_entry_id == 0


async def test_another_password_at_the_bookie_ends_the_writer(three, version):
    async with three.client(protocol_version=version) as client:
        ledger = await client.create(write_quorum=3, ack_quorum=3)
        await ledger.append(b"one")
        three.bookie("b2").ledgers[0].key = b"other"
        with pytest.raises(Unauthorized):
            await ledger.append(b"two")
        await ledger.close()


async def test_an_ensemble_change_meets_a_recovery(three):
    await three.add_bookie("b4")
    async with three.client() as client:
        ledger = await client.create(write_quorum=3, ack_quorum=3)
        await ledger.append(b"one")
        store = three.metadata.ledgers
        await store.write(three.stored(0).in_recovery(), store.stored[0].identity)
        three.bookie(ledger.metadata.last_ensemble[0]).fail_adds = StorageFault
        futures = [await ledger.submit(b"x") for _ in range(5)]
        with pytest.raises(LedgerFenced):
            await ledger.flush()
        assert {type(f.exception()) for f in futures if f.exception()} == {LedgerFenced}
        before = len(store.history)
        await ledger.close()
        assert len(store.history) == before + 1


async def test_a_change_that_ends_after_the_ledger_failed_tells_nothing_of_going_on(three, monkeypatch, caplog):
    caplog.set_level("INFO")
    reached, gate = asyncio.Event(), asyncio.Event()

    async def held(*args):
        reached.set()
        await gate.wait()
        return await find_spares(*args)

    async with three.client(**NO_RECONNECT) as client:
        ledger = await client.create(write_quorum=3, ack_quorum=2)
        victim = ledger.metadata.last_ensemble[1]
        three.metadata.bookies.drop(victim)
        three.bookie(victim).fail_adds = StorageFault
        await append_two(ledger)
        assert caplog.text.count("no spare bookie") == 1
        monkeypatch.setattr(writer, "find_spares", held)
        await three.add_bookie("b4")
        await reached.wait()
        for bookie in {*ledger.metadata.last_ensemble} - {victim}:
            three.bookie(bookie).ledgers[0].fenced = True
        with pytest.raises(LedgerFenced):
            await ledger.append(b"three")
        assert ledger.degraded
        gate.set()
        await until(lambda: not any("ensemble change" in task.get_name() for task in asyncio.all_tasks()))
        assert caplog.text.count("no spare bookie") == 1
        await ledger.close()


async def test_close_of_a_ledger_that_somebody_closed_at_another_end_is_told(three, caplog):
    """Unless the application has an error of its own, which goes first."""
    async with three.client() as client:
        ledger = await client.create()
        await ledger.append(b"one")
        store = three.metadata.ledgers
        await store.write(three.stored(0).closed(-1, 0), store.stored[0].identity)
        for _ in range(2):
            with pytest.raises(MetadataVersionConflict, match=r"closed .* entry -1"):
                async with ledger:
                    pass
        with pytest.raises(KeyError, match="own"):
            async with ledger:
                raise KeyError("the application's own")
        assert caplog.text.count("ledger could not be closed") == 1


async def test_a_lost_answer_of_the_metadata_service_changes_nothing(three):
    await three.add_bookie("b4")
    async with three.client() as client, client.create(write_quorum=3, ack_quorum=3) as ledger:
        three.metadata.ledgers.lose_next_answer = True
        three.bookie(ledger.metadata.last_ensemble[1]).fail_adds = BookieReadOnly
        await ledger.append_many(payloads(10))
        assert "b4" in (await client.metadata(0)).last_ensemble
        three.metadata.ledgers.lose_next_answer = True
    stored = three.stored(0)
    assert (stored.is_closed, stored.last_entry_id, len(stored.ensembles)) == (True, 9, 1)


async def test_a_damaged_replica_is_passed_over_and_reported(three, version):
    async with three.client(protocol_version=version) as client:
        async with client.create(write_quorum=3, ack_quorum=3) as ledger:
            await ledger.append_many(payloads(6))
        victim = ledger.metadata.bookies_for(3)[0]
        three.bookie(victim).damage(0, 3)
        async with client.open(0) as reader:
            assert [e.payload for e in await reader.read(0, 5)] == payloads(6)
            assert reader.damaged_at == {victim: 1}
        for bookie in three.servers:
            if bookie != victim:
                three.bookie(bookie).damage(0, 3)
        async with client.open(0) as reader:
            assert [e.payload for e in await reader.read(0, 2)] == payloads(3)
            with pytest.raises(DigestMismatch):
                await reader.read(0, 5)


async def test_no_such_entry_only_when_nobody_failed_otherwise(three, version):
    async with three.client(protocol_version=version) as client:
        async with client.create(write_quorum=3, ack_quorum=3) as ledger:
            await ledger.append_many(payloads(3))
        for bookie in three.servers:
            del three.bookie(bookie).ledgers[0].entries[1]
        async with client.open(0) as reader:
            with pytest.raises(NoSuchEntry):
                await reader.read(1, 1)
        three.bookie("b2").fail_reads = StorageFault
        async with client.open(0) as reader:
            with pytest.raises(StorageFault):
                await reader.read(1, 1)


async def test_reads_fall_over_from_dead_and_silent_bookies(three, version):
    async with three.client(protocol_version=version) as client:
        async with client.create(write_quorum=3, ack_quorum=3) as ledger:
            await ledger.append_many(payloads(100))
        await three.servers["b1"].stop()
        three.servers["b2"].silent = True
        async with client.open(0) as reader:
            assert [e.payload async for e in reader.entries()] == payloads(100)
            assert set(reader.served_by) == {"b3"}


async def test_a_spare_that_is_registered_and_dead_is_never_written_into_the_metadata(three):
    for name in ("b0-dead", "b00-dead"):
        dead = await three.add_bookie(name)
        await dead.stop()
    alive = ["b1", "b2", "b3"]
    for name in ("b0-dead", "b00-dead"):
        three.metadata.bookies.drop(name)
    async with three.client() as client, client.create(write_quorum=3, ack_quorum=2) as ledger:
        for name in ("b0-dead", "b00-dead"):
            three.metadata.bookies.register_address(name, "127.0.0.1", three.servers[name].port)
        victim = ledger.metadata.last_ensemble[0]
        await three.servers[victim].stop()
        await append_two(ledger)
        assert set(ledger.metadata.last_ensemble) == set(alive)
        assert three.metadata.ledgers.writes == 0
        await three.add_bookie("b9")
        await until(lambda: "b9" in ledger.metadata.last_ensemble)
        assert three.metadata.ledgers.writes == 1
        await ledger.append(b"on three again")


async def test_fencing_reads_reach_every_bookie_of_the_model(three, version):
    """The model's own promise, on which simulations of recovery will rely."""
    bookie = three.bookie("b1")
    with pytest.raises(Unauthorized):
        bookie.read(1, -1, b"")
    with pytest.raises(NoSuchEntry):
        bookie.read(1, -1, b"k" * 20)
    assert bookie.ledgers[1].fenced
    with pytest.raises(Unauthorized):
        bookie.read(1, -1, b"other")
