"""The writer's handle: bulk appends, giving up, closing, and which failures replace a bookie.

A writer reads its own entries, also where re-replication has put them.
"""

from __future__ import annotations

import asyncio

import pytest

from bookie_client import Client
from bookie_client.placement.random_choice import RandomPlacement
from bookie_client.writing.ensemble_change import IMMEDIATE_CHANGES
from bookie_protocol.errors import (
    BadRequest,
    BadVersion,
    BookieReadOnly,
    BookieUnavailable,
    CouldNotTell,
    LedgerClosed,
    LedgerStateUnknown,
    MetadataUnavailable,
    MetadataVersionConflict,
    NoSuchLedger,
    QuorumLost,
    StorageFault,
    TooManyRequests,
)
from bookie_protocol.ledger_metadata.model import LedgerState
from tests.support.until import until


def hold(cluster):
    for server in cluster.servers.values():
        server.hold = True


def release(cluster):
    for server in cluster.servers.values():
        server.release()


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


# --- bulk appends -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2), (1, 1, 1)])
async def test_one_future_for_many_entries(three, version, quorums):
    ensemble, write, ack = quorums
    written = [b"%d" % i * (i % 50) for i in range(600)]
    async with three.client(protocol_version=version, write_window_entries=100) as client:
        async with client.create(ensemble=ensemble, write_quorum=write, ack_quorum=ack) as ledger:
            first = await ledger.submit_many(written[:200])
            alone = await ledger.submit(written[200])
            rest = await ledger.submit_many(iter(written[201:]))
            assert await first == list(range(200))
            assert await alone == 200
            assert await rest == list(range(201, 600))
            assert await (await ledger.submit_many([])) == []
        async with client.open(ledger.ledger_id) as reader:
            assert [e.payload async for e in reader.entries()] == written
    for position, bookie in enumerate(three.stored(0).ensembles[0]):
        assert three.held_at(bookie, 0) == {e for e in range(600) if (position - e) % ensemble < write}


async def test_two_bulk_appends_at_a_time_share_the_window_and_lose_nothing(three):
    async with three.client(write_window_entries=50) as client, client.create(write_quorum=3) as ledger:
        a, b = await asyncio.gather(ledger.append_many([b"a"] * 300), ledger.append_many([b"b"] * 300))
        assert sorted(a + b) == list(range(600))
        assert a == sorted(a)
        entries = await ledger.read(0, 599)
        assert {e.entry_id for e in entries if e.payload == b"a"} == set(a)


async def test_payloads_that_break_off_leave_no_entry_without_an_end(three):
    def payloads():
        yield b"one"
        yield b"two"
        raise RuntimeError("the source broke")

    async with three.client() as client, client.create(write_quorum=3) as ledger:
        with pytest.raises(RuntimeError, match="broke"):
            await ledger.append_many(payloads())
        with pytest.raises(TypeError):
            await ledger.append_many([b"three", "text"])
        with pytest.raises(TypeError):
            await ledger.append(7)
        await ledger.flush()
        assert ledger.last_add_confirmed == 2


async def test_an_entry_too_large_in_a_bulk_append_is_refused_and_the_others_go_on(three):
    async with three.client(max_frame_size=4096) as client, client.create(write_quorum=3) as ledger:
        with pytest.raises(BadRequest, match="split it"):
            await ledger.append_many([b"fits", bytes(5000), b"never sent"])
        await ledger.flush()
        assert ledger.last_add_confirmed == 0


async def test_a_bulk_append_fails_with_what_ended_the_handle(three):
    async with three.client(write_window_entries=10) as client:
        ledger = await client.create(write_quorum=3, ack_quorum=3)
        three.bookie("b2").fail_adds = StorageFault
        with pytest.raises(QuorumLost, match="entry 0 on"):
            await ledger.append_many([b"x"] * 100)
        await ledger.close()


async def test_an_append_that_is_refused_gives_its_room_in_the_window_back(three):
    async with three.client() as client:
        ledger = await client.create()
        await ledger.append_many([b"stored"] * 10)
        await ledger.close()
        with pytest.raises(LedgerClosed):
            await ledger.append_many([b"late"] * 10)
        with pytest.raises(LedgerClosed):
            await ledger.append(b"late")
        assert (ledger._pipeline._window.entries, ledger._pipeline._window.nbytes) == (0, 0)
        assert ledger.last_add_pushed == 9


async def test_a_bulk_append_without_some_bookie_goes_to_the_others(three):
    async with three.client() as client, client.create(write_quorum=3, ack_quorum=2) as ledger:
        await three.servers["b3"].stop()
        await ledger.append_many([b"x"] * 9)
        await until(lambda: ledger._state.late_failures or ledger.degraded)
        await ledger.append(b"x")
        await until(lambda: list(ledger.degraded.values()) == ["b3"])
        assert await ledger.append_many([b"x"] * 2000) == list(range(10, 2010))
        assert three.held_at("b1", 0) == three.held_at("b2", 0) == set(range(2010))


# --- giving up ----------------------------------------------------------------------------------------------


async def test_an_append_that_timed_out_may_be_in_the_ledger(three):
    hold(three)
    async with three.client() as client, client.create(write_quorum=3) as ledger:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await ledger.append(b"nobody waits any more")
        release(three)
        assert await ledger.append(b"next") == 1
        assert (await ledger.read(0, 0))[0].payload == b"nobody waits any more"


async def test_an_append_that_gives_up_waiting_for_room_was_never_sent(three):
    hold(three)
    async with three.client(write_window_entries=1) as client, client.create(write_quorum=3) as ledger:
        first = await ledger.submit(b"fills the window")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await ledger.append(b"taken back")
        release(three)
        await first
        assert ledger.last_add_pushed == 0
        assert await ledger.append(b"next") == 1


async def test_a_cancelled_bulk_append_leaves_what_was_sent(three):
    hold(three)
    async with three.client(write_window_entries=10) as client, client.create(write_quorum=3) as ledger:
        task = asyncio.create_task(ledger.append_many([b"x"] * 100))
        await until(lambda: all(server.held == 10 for server in three.servers.values()))
        task.cancel()
        await asyncio.wait([task])
        release(three)
        await ledger.flush()
        assert (ledger.last_add_confirmed, ledger.last_add_pushed) == (9, 9)


# --- closing ------------------------------------------------------------------------------------------------


async def test_closing_is_done_once_whoever_calls_and_however_often(three):
    async with three.client() as client:
        ledger = await client.create(write_quorum=3)
        await ledger.submit(b"x")
        await asyncio.gather(*(ledger.close() for _ in range(5)))
        await ledger.close()
        assert three.metadata.ledgers.writes == 1
        assert (ledger.is_closed, three.stored(0).last_entry_id) == (True, 0)


async def test_a_cancelled_close_goes_on_and_the_next_one_gets_its_result(three):
    hold(three)
    async with three.client() as client:
        ledger = await client.create(write_quorum=3)
        await ledger.submit(b"x")
        closing = asyncio.create_task(ledger.close())
        await settle()
        closing.cancel()
        await asyncio.wait([closing])
        with pytest.raises(LedgerClosed, match="handle"):
            await ledger.append(b"late")
        release(three)
        await ledger.close()
        assert three.stored(0).last_entry_id == 0


async def test_an_error_of_closing_is_told_to_every_caller(three):
    async with three.client() as client:
        ledger = await client.create()
        three.metadata.ledgers.unavailable = True
        for _ in range(2):
            with pytest.raises(MetadataUnavailable):
                await ledger.close()
        assert not ledger.is_closed
        assert three.stored(0).state is LedgerState.OPEN


async def closed_in_an_outage(three, client):
    """A writer of one entry whose `close` met a metadata service that does not answer."""
    ledger = await client.create(write_quorum=3)
    await ledger.append(b"four")
    store = three.metadata.ledgers
    store.unavailable = True
    await asyncio.gather(*(ledger.close() for _ in range(2)), return_exceptions=True)
    assert store.writes == 1
    with pytest.raises(MetadataUnavailable):
        await ledger.close()
    assert store.writes == 2
    store.unavailable = False
    return ledger


async def test_a_ledger_that_an_outage_left_open_is_closed_by_the_next_call(three):
    async with three.client() as client:
        ledger = await closed_in_an_outage(three, client)
        with pytest.raises(LedgerClosed):
            await ledger.append(b"late")
        await asyncio.gather(*(ledger.close() for _ in range(3)))
        await ledger.close()
        assert three.metadata.ledgers.writes == 3
        assert ledger.is_closed
        assert (three.stored(0).state, three.stored(0).last_entry_id) == (LedgerState.CLOSED, 0)
        assert three.stored(0).length == 4


async def test_closing_again_finds_that_the_end_was_stored(three):
    async with three.client() as client:
        ledger = await closed_in_an_outage(three, client)
        store = three.metadata.ledgers
        await store.write(three.stored(0).closed(0, 4), store.stored[0].identity)
        version = store.stored[0].version
        await ledger.close()
        assert ledger.is_closed
        assert store.stored[0].version == version


async def test_closing_again_leaves_the_end_that_a_recovery_stored(three):
    async with three.client() as client:
        ledger = await closed_in_an_outage(three, client)
        store = three.metadata.ledgers
        await store.write(three.stored(0).closed(1, 9), store.stored[0].identity)
        for _ in range(2):
            with pytest.raises(MetadataVersionConflict, match=r"entry 1 \(9 bytes\)"):
                await ledger.close()
        assert three.stored(0).last_entry_id == 1
        assert not ledger.is_closed


async def test_a_ledger_that_a_recovery_closed_at_the_same_end_is_closed_well(three):
    async with three.client() as client:
        ledger = await client.create(write_quorum=3)
        await ledger.append(b"four")
        store = three.metadata.ledgers
        await store.write(three.stored(0).closed(0, 4), store.stored[0].identity)
        await ledger.close()
        assert ledger.is_closed


# --- which failures replace a bookie ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [StorageFault, BookieReadOnly, TooManyRequests, NoSuchLedger, LedgerStateUnknown, BadVersion]
)
async def test_any_refusal_but_fencing_and_a_wrong_key_replaces_the_bookie(three, error):
    await three.add_bookie("b4")
    async with three.client() as client, client.create(write_quorum=3, ack_quorum=3) as ledger:
        await ledger.append(b"one")
        victim = ledger.metadata.last_ensemble[1]
        three.bookie(victim).fail_adds = error
        await ledger.append(b"two")
        assert victim not in ledger.metadata.last_ensemble
        assert list(ledger.metadata.ensembles) == [0, 1]
        assert ledger.ensemble_changes == 1


async def test_delayed_ensemble_change_waits_until_the_ack_quorum_is_at_stake(three):
    async with three.client(delay_ensemble_change=True) as client:
        async with client.create(write_quorum=3, ack_quorum=2) as ledger:
            await three.add_bookie("b4")
            first = ledger.metadata.last_ensemble
            three.bookie(first[0]).fail_adds = StorageFault
            await ledger.append_many([b"x"] * 20)
            assert (ledger.ensemble_changes, ledger.metadata.last_ensemble) == (0, first)
            three.bookie(first[1]).fail_adds = StorageFault
            await ledger.append_many([b"x"] * 20)
            assert ledger.ensemble_changes >= 1
            assert "b4" in ledger.metadata.last_ensemble
        assert three.stored(0).last_entry_id == 39


async def test_bookies_that_keep_failing_end_the_handle_at_the_limit(three):
    for i in range(4, 10):
        await three.add_bookie(f"b{i}")
    async with three.client(max_ensemble_changes=2) as client:
        ledger = await client.create(write_quorum=3, ack_quorum=3)
        for name in three.servers:
            three.bookie(name).fail_adds = StorageFault
        with pytest.raises(QuorumLost, match="2 ensemble"):
            await ledger.append(b"x")
        assert ledger.ensemble_changes == 2
        await ledger.close()


async def test_while_every_bookie_refuses_the_metadata_service_is_not_flooded(three):
    for i in range(4, 10):
        await three.add_bookie(f"b{i}")
    async with three.client(degraded_retry_interval=0.2) as client, client.create(write_quorum=3) as ledger:
        for name in three.servers:
            three.bookie(name).fail_adds = StorageFault
        pending = await ledger.submit(b"x")
        await until(lambda: three.metadata.ledgers.writes > IMMEDIATE_CHANGES)
        await asyncio.sleep(0.5)
        assert three.metadata.ledgers.writes < 20
        assert not pending.done()
        for name in three.servers:
            three.bookie(name).fail_adds = None
        assert await pending == 0
        assert await ledger.append(b"y") == 1


async def test_a_late_failure_is_acted_upon_by_the_next_append(three):
    async with three.client() as client, client.create(write_quorum=3, ack_quorum=2) as ledger:
        await three.add_bookie("b4")
        late = ledger.metadata.last_ensemble[2]
        three.servers[late].hold = True
        three.bookie(late).fail_adds = StorageFault
        await ledger.append(b"enough without it")
        three.servers[late].release()
        await until(lambda: ledger._state.late_failures)
        assert ledger.ensemble_changes == 0
        await ledger.append(b"next")
        await until(lambda: "b4" in ledger.metadata.last_ensemble)


@pytest.mark.parametrize(
    ("raised", "kind", "words"),
    [
        (ZeroDivisionError("a bug"), CouldNotTell, "ZeroDivisionError"),
        (MetadataUnavailable("no answer"), MetadataUnavailable, "no answer"),
    ],
    ids=["a defect", "an error"],
)
async def test_a_placement_policy_that_breaks_ends_the_handle_and_hangs_nobody(three, caplog, raised, kind, words):
    await three.add_bookie("b4")

    class Broken(RandomPlacement):
        def replacement(self, request):
            raise raised

    async with Client(three.metadata, placement=Broken()) as client:
        ledger = await client.create(write_quorum=3, ack_quorum=3)
        three.bookie(ledger.metadata.last_ensemble[0]).fail_adds = StorageFault
        with pytest.raises(kind, match=words):
            await ledger.append(b"x")
        await ledger.close()
    assert "background work failed" not in caplog.text


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
        await store.write(cluster.stored(0).with_ensemble(0, ("b5", "b6")), store.stored[0].identity)
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
    with pytest.raises(BadRequest, match="confirmed"):
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
