"""Recovery against writers that go on, other recoverers, bookies that fail in the middle, and its own death."""

import asyncio
from contextlib import suppress
from random import Random

import pytest

from bookie_client.connection.operations import BookieOperations
from bookie_client.recovery.recovery import FIRST_WINDOW, Rewriter
from bookie_protocol.errors import (
    BookieReadOnly,
    LedgerClosed,
    LedgerFenced,
    MetadataUnavailable,
    MetadataVersionConflict,
    RecoveryFailed,
    StorageFault,
)
from bookie_protocol.ledger_metadata.model import LedgerState
from tests.support.until import until
from tests.unit.bookie_client.conftest import tasks_of_handles
from tests.unit.bookie_client.recovery.crashed import ABC, LEDGER, contents, crashed, length_of, payload


async def long_tail(cluster, quorums=(3, 3, 2), spares=0, tail=100, copies=1):
    """10 confirmed entries, and many that only some bookies of their write sets hold."""
    ledger = await crashed(cluster, quorums, spares=spares)
    ledger.put_all(*range(10))
    for entry_id in range(10, 10 + tail):
        ledger.put(entry_id, *ledger.metadata.bookies_for(entry_id)[:copies], lac=8)
    return ledger


# --- much to recover ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quorums", "version"), [((3, 3, 2), 3), ((3, 3, 2), 2), ((3, 2, 2), 2), ((5, 3, 2), 3), ((4, 2, 1), 2)]
)
async def test_a_long_tail_in_a_bounded_window(cluster, version, quorums):
    ledger = await long_tail(cluster, quorums)
    before = cluster.bookie("b1").reads
    async with cluster.client(protocol_version=version, recovery_window_entries=20) as client:
        await client.recover(LEDGER, password=b"pw")
        ledger.check(109)
        assert await contents(client) == [payload(i) for i in range(110)]
    assert before == 0


@pytest.fixture
def rewriters(monkeypatch):
    """Those of all recoveries, in order."""
    made, init = [], Rewriter.__init__

    def noting(self, *arguments):
        made.append(self)
        init(self, *arguments)

    monkeypatch.setattr(Rewriter, "__init__", noting)
    return made


@pytest.mark.parametrize(
    ("window", "most"),
    [
        ({"recovery_window_entries": 8}, 8),
        ({"recovery_window_entries": 1}, 1),
        ({"recovery_window_bytes": 2 * len(payload(107))}, 2),
        ({"recovery_window_bytes": 1}, 1),
    ],
    ids=["entries", "one entry", "bytes", "entries larger than the window"],
)
async def test_no_more_than_the_window_is_read_ahead_of_what_is_stored_again(cluster, rewriters, window, most):
    ledger = await long_tail(cluster)
    ahead = []
    for name in ABC:
        bookie = cluster.bookie(name)

        def counting(ledger_id, entry_id, fence_key=None, read=bookie.read):
            # The first ones are asked for before any size is known.
            if entry_id >= 10 + FIRST_WINDOW:
                ahead.append(entry_id - rewriters[0].lac)
            return read(ledger_id, entry_id, fence_key)

        bookie.read = counting
    async with cluster.client(**window) as client:
        await client.recover(LEDGER, password=b"pw")
    ledger.check(109)
    assert min(2, most) <= max(ahead) <= most


# --- bookies that fail ----------------------------------------------------------------------------------------


async def test_a_bookie_that_dies_meanwhile_is_replaced_and_the_segment_stored_with_the_end(cluster, version):
    ledger = await long_tail(cluster, spares=1)
    bookie = cluster.bookie("b2")
    bookie.fail_adds = BookieReadOnly
    async with cluster.client(protocol_version=version) as client:
        await client.recover(LEDGER, password=b"pw")
        ledger.check(109)
        assert ledger.stored.first_entry_ids[1] >= 9
        assert ledger.stored.last_ensemble == ("b1", "s0", "b3")
        assert await contents(client) == [payload(i) for i in range(110)]
    assert ledger.states == ["OPEN", "IN_RECOVERY", "CLOSED"]
    assert list(cluster.metadata.ledgers.history[1].ensembles) == [0]


async def test_without_a_spare_the_ack_quorum_has_to_do(cluster, version):
    ledger = await long_tail(cluster)
    cluster.bookie("b2").fail_adds = StorageFault
    async with cluster.client(protocol_version=version) as client:
        await client.recover(LEDGER, password=b"pw")
        ledger.check(109)
    assert list(ledger.stored.ensembles) == [0]


async def test_less_than_the_ack_quorum_fails_and_leaves_the_ledger_in_recovery(cluster):
    ledger = await long_tail(cluster)
    for name in ("b2", "b3"):
        cluster.bookie(name).fail_adds = StorageFault
    async with cluster.client() as client:
        with pytest.raises(RecoveryFailed, match="of 2 needed"):
            await client.recover(LEDGER, password=b"pw")
        assert ledger.stored.state is LedgerState.IN_RECOVERY
        for name in ("b2", "b3"):
            cluster.bookie(name).fail_adds = None
        await client.recover(LEDGER, password=b"pw")
        ledger.check(109)


async def test_the_segment_of_an_empty_last_ensemble_is_replaced_in_place(cluster):
    # All three must acknowledge, so the failure comes in time whichever bookie is the fastest.
    ledger = await crashed(cluster, (3, 3, 3), segments={0: ABC, 4: ("b1", "b2", "b4")}, spares=1)
    ledger.put_all(*range(4))
    ledger.put(4, "b2")
    cluster.bookie("b4").fail_adds = StorageFault
    async with cluster.client() as client:
        await client.recover(LEDGER, password=b"pw")
    ledger.check(4)
    assert list(ledger.stored.ensembles) == [0, 4]
    assert ledger.stored.last_ensemble in (("b1", "b2", "s0"), ("b1", "b2", "b3"))


async def test_a_segment_reached_behind_the_end_is_not_stored(cluster, rewriters, monkeypatch):
    """A spare appears when everything is stored again, and whether there is one more entry is still being asked."""
    ledger = await long_tail(cluster, tail=20, copies=2)
    await cluster.servers["b3"].stop()
    end, changed = 29, asyncio.Event()
    change, read_entry = Rewriter._change, BookieOperations.read_entry

    async def noting(self, failed, refusals):
        ensemble = await change(self, failed, refusals)
        if "s0" in ensemble:
            changed.set()
        return ensemble

    async def waiting(self, bookie, ledger_id, entry_id, **options):
        if entry_id == end + 1:
            await changed.wait()
        return await read_entry(self, bookie, ledger_id, entry_id, **options)

    monkeypatch.setattr(Rewriter, "_change", noting)
    monkeypatch.setattr(BookieOperations, "read_entry", waiting)
    async with cluster.client(recovery_window_entries=1) as client:
        recovering = asyncio.create_task(client.recover(LEDGER, password=b"pw"))
        await until(lambda: rewriters and rewriters[0].lac == end)
        await cluster.add_bookie("s0")
        async with asyncio.timeout(20):
            await recovering
    assert list(rewriters[0].segments) == [end + 1]
    ledger.check(end)
    assert list(ledger.stored.ensembles) == [0]


async def test_a_recovery_that_is_given_up_waits_for_no_silent_bookie(cluster, monkeypatch):
    await long_tail(cluster, tail=50)
    asked, read_entry = asyncio.Event(), BookieOperations.read_entry

    async def silent(self, bookie, ledger_id, entry_id, **options):
        if entry_id >= 20:
            asked.set()
            await asyncio.Event().wait()
        return await read_entry(self, bookie, ledger_id, entry_id, **options)

    monkeypatch.setattr(BookieOperations, "read_entry", silent)
    async with asyncio.timeout(10):
        async with cluster.client() as client:
            recovering = asyncio.create_task(client.recover(LEDGER, password=b"pw"))
            await asked.wait()
            recovering.cancel()
            await asyncio.wait([recovering])
    assert recovering.cancelled()


@pytest.mark.parametrize("victim", ABC)
async def test_any_one_bookie_may_die_anywhere(cluster, victim):
    ledger = await long_tail(cluster, spares=1, tail=100, copies=2)
    order = Random(victim).randrange(1, 60)
    bookie = cluster.bookie(victim)
    read = bookie.read

    def dying(*asked, **more):
        if bookie.reads == order:
            for connection in list(cluster.servers[victim].connections):
                connection.abort()
            bookie.fail_adds = bookie.fail_reads = StorageFault
        return read(*asked, **more)

    bookie.read = dying
    async with cluster.client() as client:
        await client.recover(LEDGER, password=b"pw")
        ledger.check(109)


# --- the metadata service -------------------------------------------------------------------------------------


async def test_lost_answers_of_the_metadata_service(cluster):
    ledger = await long_tail(cluster, tail=5)
    store = cluster.metadata.ledgers
    write, lost = store.write, []

    async def losing(metadata, version, *, session_id=None, timeout=None):
        store.lose_next_answer = True
        lost.append(metadata.state)
        return await write(metadata, version)

    store.write = losing
    async with cluster.client() as client:
        await client.recover(LEDGER, password=b"pw")
    ledger.check(14)
    assert lost == [LedgerState.IN_RECOVERY, LedgerState.CLOSED]
    assert ledger.states == ["OPEN", "IN_RECOVERY", "CLOSED"]


async def test_a_metadata_service_that_is_away_fences_nobody(cluster):
    ledger = await long_tail(cluster, tail=5)
    cluster.metadata.ledgers.unavailable = True
    async with cluster.client() as client:
        with pytest.raises(MetadataUnavailable):
            await client.recover(LEDGER, password=b"pw")
        assert not any(ledger.fenced(b) for b in ABC)
        cluster.metadata.ledgers.unavailable = False
        await client.recover(LEDGER, password=b"pw")
    ledger.check(14)


async def test_a_tail_that_somebody_changed_meanwhile_is_not_closed_by_what_the_old_one_said(cluster):
    ledger = await long_tail(cluster, spares=1, tail=5)
    store = cluster.metadata.ledgers
    bookie, read = cluster.bookie("b1"), cluster.bookie("b1").read

    def changing(*asked, **more):
        if list(ledger.stored.ensembles) == [0]:
            store.change(ledger.stored.with_ensemble(12, ("b1", "b2", "s0")))
        return read(*asked, **more)

    bookie.read = changing
    async with cluster.client() as client:
        with pytest.raises(MetadataVersionConflict, match="changed"):
            await client.recover(LEDGER, password=b"pw")
        assert ledger.stored.state is LedgerState.IN_RECOVERY
        recovered = await client.recover(LEDGER, password=b"pw")
        assert recovered.is_closed
        assert recovered == ledger.stored
        assert recovered.ensembles[12] == ("b1", "b2", "s0")


# --- several at once ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 5])
async def test_recoverers_at_once_come_to_one_end(cluster, version, count):
    ledger = await long_tail(cluster, spares=2, tail=50)
    cluster.bookie("b3").fail_adds = StorageFault
    clients = [cluster.client(protocol_version=version) for _ in range(count)]
    for client in clients:
        await client.start()
    found = await asyncio.gather(*(client.recover(LEDGER, password=b"pw") for client in clients))
    assert len({(metadata.last_entry_id, metadata.length) for metadata in found}) == 1
    assert all(metadata == found[0] for metadata in found)
    ledger.check(59)
    assert ledger.states == ["OPEN", "IN_RECOVERY", "CLOSED"]
    for client in clients:
        await client.close()


@pytest.mark.parametrize("seed", range(6))
async def test_a_recoverer_that_dies_anywhere_is_continued(cluster, seed):
    random = Random(seed)
    ledger = await long_tail(cluster, spares=1, tail=80)
    if seed % 2:
        cluster.bookie("b2").fail_adds = StorageFault
    for _ in range(3):
        client = cluster.client(recovery_window_entries=8)
        await client.start()
        work = asyncio.create_task(client.recover(LEDGER, password=b"pw"))
        await asyncio.sleep(random.random() * 0.03)
        before = tasks_of_handles() - {work}
        work.cancel()
        await asyncio.wait([work])
        await client.close()
        assert tasks_of_handles() <= before
    async with cluster.client() as client:
        await client.recover(LEDGER, password=b"pw")
        ledger.check(89)
        assert await contents(client) == [payload(i) for i in range(90)]


# --- the old writer goes on -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
async def test_a_writer_that_goes_on_loses_nothing_that_it_saw_acknowledged(cluster, seed):
    random = Random(seed)
    quorums = [(3, 3, 2), (3, 2, 2), (3, 3, 3), (5, 3, 2), (4, 2, 1)][seed % 5]
    for i in range(quorums[0] + 1):
        server = await cluster.add_bookie(f"b{i}")
        server.shuffle_answers = random.random() < 0.5
    sizes = dict(zip(("ensemble", "write_quorum", "ack_quorum"), quorums, strict=True))
    version = random.choice([2, 3])
    async with cluster.client(protocol_version=version) as zombie, cluster.client() as one, cluster.client() as two:
        writer = await zombie.create(**sizes, password=b"pw", ledger_id=LEDGER)
        acknowledged = []

        async def write():
            for i in range(100_000):
                future = await writer.submit(payload(i))
                future.add_done_callback(lambda f: f.exception() or acknowledged.append(f.result()))
                if i % 7 == 0:
                    await asyncio.sleep(0)

        writing = asyncio.create_task(write())
        await asyncio.sleep(random.random() * 0.05)
        if random.random() < 0.5:
            cluster.bookie("b1").fail_adds = StorageFault
        await asyncio.sleep(random.random() * 0.02)
        recovering = [asyncio.create_task(client.recover(LEDGER, password=b"pw")) for client in (one, two)]
        with pytest.raises((LedgerFenced, LedgerClosed)):
            await writing
        ends = {(metadata.last_entry_id, metadata.length) for metadata in await asyncio.gather(*recovering)}
        await asyncio.sleep(0)
        assert len(ends) == 1
        stored = cluster.stored(LEDGER)
        last = stored.last_entry_id
        assert acknowledged == list(range(len(acknowledged)))
        assert last >= len(acknowledged) - 1
        assert stored.length == length_of(last)
        for entry_id in range(last + 1):
            held = [b for b in stored.bookies_for(entry_id) if entry_id in cluster.held_at(b, LEDGER)]
            assert len(held) >= quorums[2], entry_id
        assert await contents(one) == [payload(i) for i in range(last + 1)]
        with suppress(MetadataVersionConflict):
            await writer.close()
        assert cluster.stored(LEDGER) == stored


async def test_an_add_under_way_is_not_acknowledged_behind_the_decision_that_it_is_not_there(cluster):
    """The bookies are fenced by every read of the recovery, not by the first one alone: an add that waits in a
    bookie which the LAC vote did without must not complete once recovery has said "no such entry"."""
    ledger = await crashed(cluster, (3, 3, 2))
    async with cluster.client() as client:
        ledger.put_all(*range(3))
        await client.recover(LEDGER, password=b"pw")
        ledger.check(2)
        for name in ABC:
            if ledger.fenced(name):
                with pytest.raises(LedgerFenced):
                    ledger.put(3, name)
        assert sum(ledger.fenced(name) for name in ABC) >= 2


async def test_deferred_sync_recovers_what_the_bookies_kept(three):
    async with three.client() as client:
        writer = await client.create(write_quorum=3, deferred_sync=True, password=b"pw", ledger_id=LEDGER)
        for i in range(4):
            await writer.append(payload(i))
        await writer.force()
        for i in range(4, 8):
            await writer.append(payload(i))
        await until(lambda: all(len(three.held_at(b, LEDGER)) == 8 for b in three.servers))
    for name in ("b1", "b2"):
        three.bookie(name).crash()
    async with three.client() as client:
        metadata = await client.recover(LEDGER, password=b"pw")
        assert 3 <= metadata.last_entry_id <= 7
        assert await contents(client) == [payload(i) for i in range(metadata.last_entry_id + 1)]


async def test_an_advanced_ledger_with_a_gap_ends_in_front_of_it(three):
    async with three.client() as client:
        writer = await client.create_advanced(write_quorum=3, password=b"pw", ledger_id=LEDGER)
        futures = [await writer.submit(i, payload(i)) for i in (0, 1, 2, 4)]
        await asyncio.gather(*futures[:3])
    async with three.client() as client:
        assert (await client.recover(LEDGER, password=b"pw")).last_entry_id == 2
        assert await contents(client) == [payload(i) for i in range(3)]
