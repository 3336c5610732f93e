"""Create, append, close, open and read against model bookies, in both wire versions.

The cluster's switch over quarantine.
"""

from __future__ import annotations

import asyncio

import pytest

from bookie_client.client import follow_health_check
from bookie_client.connection.health import BookieHealth
from bookie_client.options import ClientOptions
from bookie_client.placement.inputs import PlacementInputs
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import (
    BadRequest,
    BookieTimeout,
    LedgerClosed,
    MetadataExists,
    NoSuchLedger,
    NotEnoughBookies,
    StorageFault,
    Unauthorized,
)
from bookie_protocol.ledger_metadata.model import LedgerState
from tests.support.memory_metadata import MemoryCluster
from tests.support.until import until
from tests.unit.bookie_client.conftest import payloads


@pytest.mark.parametrize("digest", list(DigestType))
async def test_what_was_written_is_read_back(three, version, digest):
    written = payloads(200)
    async with three.client(protocol_version=version) as client:
        async with client.create(
            ensemble=3, write_quorum=2, ack_quorum=2, password=b"pw", digest=digest, metadata={"app": b"x"}
        ) as ledger:
            assert await ledger.append_many(written) == list(range(200))
            assert ledger.last_add_confirmed == 199
            assert [e.payload for e in await ledger.read(0, 9)] == written[:10]
        stored = three.stored(ledger.ledger_id)
        assert (stored.state, stored.last_entry_id, stored.length) == (LedgerState.CLOSED, 199, 200 * 96)
        assert stored.custom_metadata == {"app": b"x"}
        async with client.open(ledger.ledger_id, password=b"pw") as reader:
            entries = [entry async for entry in reader.entries()]
            assert [e.payload for e in entries] == written
            assert [e.entry_id for e in entries] == list(range(200))
            assert [e.length for e in entries] == [96 * (i + 1) for i in range(200)]
            assert sum(reader.served_by.values()) == 200
            assert {e.payload for e in await reader.read(198, 199)} == set(written[198:])
    for position, bookie in enumerate(stored.ensembles[0]):
        assert three.held_at(bookie, 0) == {e for e in range(200) if (position - e) % 3 < 2}


async def test_the_lac_is_piggy_backed_on_the_next_entry(three, version):
    async with three.client(protocol_version=version) as client, client.create() as ledger:
        for payload in payloads(5):
            await ledger.append(payload)
    ledgers = [three.bookie(b).ledgers[0] for b in three.servers]
    assert max(ledger.lac for ledger in ledgers) == 3


async def test_an_empty_ledger_and_empty_entries(three):
    async with three.client() as client:
        async with client.create() as ledger:
            pass
        assert three.stored(ledger.ledger_id).last_entry_id == -1
        async with client.open(ledger.ledger_id) as reader:
            assert [e async for e in reader.entries()] == []
            with pytest.raises(BadRequest, match="confirmed"):
                await reader.read(0, 0)
        async with client.create() as ledger:
            assert await ledger.append(b"") == 0
        async with client.open(ledger.ledger_id) as reader:
            assert [e.payload for e in await reader.read(0, 0)] == [b""]


async def test_answers_in_any_order_are_acknowledged_in_order(three, version):
    for server in three.servers.values():
        server.shuffle_answers = True
        server.hold = True
    async with three.client(protocol_version=version) as client, client.create(write_quorum=3) as ledger:
        order = []
        futures = [await ledger.submit(p) for p in payloads(50)]
        for future in futures:
            future.add_done_callback(lambda f: order.append(f.result()))
        await until(lambda: sum(server.held for server in three.servers.values()) == 150)
        for server in three.servers.values():
            server.release()
        await ledger.flush()
        await asyncio.sleep(0)
        assert order == list(range(50))


async def test_the_window_bounds_what_is_pending(three):
    for server in three.servers.values():
        server.hold = True
    async with three.client(write_window_entries=10) as client, client.create() as ledger:
        blocked = asyncio.create_task(ledger.append_many(payloads(100)))
        await until(lambda: sum(server.held for server in three.servers.values()) == 20)
        assert ledger.pending == 10
        assert not blocked.done()
        for server in three.servers.values():
            server.release()
        assert await blocked == list(range(100))


async def test_an_entry_that_fits_no_frame_is_refused_and_nothing_is_lost(three, version):
    async with three.client(protocol_version=version, max_frame_size=4096) as client, client.create() as ledger:
        with pytest.raises(BadRequest, match="split it"):
            await ledger.append(bytes(4096))
        assert await ledger.append(bytes(3900)) == 0


async def test_refusals_of_create_and_open(three):
    async with three.client() as client:
        with pytest.raises(NotEnoughBookies, match=r"needs 4 .* 3"):
            await client.create(ensemble=4)
        with pytest.raises(BadRequest):
            client.create(ensemble=2, write_quorum=3)
        with pytest.raises(NoSuchLedger):
            await client.open(99)
        async with client.create(password=b"right", ledger_id=5) as ledger:
            with pytest.raises(MetadataExists):
                await client.create(ledger_id=5)
        with pytest.raises(Unauthorized):
            await client.open(5, password=b"wrong")
        with pytest.raises(LedgerClosed):
            await ledger.append(b"late")


async def test_list_and_delete(three):
    async with three.client() as client:
        for _ in range(3):
            async with client.create():
                pass
        assert [i async for i in client.list()] == [0, 1, 2]
        await client.delete(1)
        await client.delete(1)
        assert [i async for i in client.list()] == [0, 2]
    assert [server.accepted for server in three.servers.values()] == [0, 0, 0]  # no bookie is asked by any of these


async def test_a_client_that_is_not_open_says_so(three):
    with pytest.raises(RuntimeError, match="async"):
        await three.client().create()


async def test_closing_the_client_ends_writers_that_were_left_open(three):
    for server in three.servers.values():
        server.hold = True
    before = asyncio.all_tasks()
    client = three.client()
    await client.start()
    ledger = await client.create(write_quorum=3)
    futures = [await ledger.submit(p) for p in payloads(5)]
    await client.close()
    assert [type(future.exception()) for future in futures] == [LedgerClosed] * 5
    with pytest.raises(LedgerClosed, match="closed"):
        await ledger.append(b"more")
    assert not three.stored(ledger.ledger_id).is_closed
    assert asyncio.all_tasks() == before
    await client.close()


async def test_any_buffer_is_an_entry_and_its_bytes_count(three):
    wide = memoryview(bytes(range(64))).cast("Q")
    async with three.client() as client:
        async with client.create() as ledger:
            await ledger.append_many([bytearray(b"abc"), memoryview(b"defg"), wide])
        assert three.stored(ledger.ledger_id).length == 3 + 4 + 64
        reader = await client.open(ledger.ledger_id)
        assert [e.payload async for e in reader.entries()] == [b"abc", b"defg", bytes(range(64))]


async def test_a_start_that_is_cancelled_half_way_leaves_nothing_open(three, monkeypatch):
    client = three.client()
    reached = asyncio.Event()

    async def hang(*_):
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(PlacementInputs, "start", hang)
    before = asyncio.all_tasks()
    starting = asyncio.create_task(client.start())
    await reached.wait()
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    assert asyncio.all_tasks() <= before
    with pytest.raises(RuntimeError, match="open"):
        await client.metadata(0)


pytestmark = pytest.mark.asyncio


class Rig:
    """Follows the switch with a look every `interval` seconds."""

    def __init__(self, interval=30.0):
        self.cluster = MemoryCluster()
        self.health = BookieHealth(ClientOptions(quarantine_errors=2), asyncio.get_running_loop().time)
        self.well: set[str] = set()
        self.task = asyncio.create_task(follow_health_check(self.cluster, self.health, self.answers, interval))

    async def answers(self, bookie):
        return bookie in self.well

    def quarantine(self, bookie):
        for _ in range(2):
            self.health.record(bookie).refused(StorageFault, was_read=False)
        assert bookie in self.health.quarantined()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        self.task.cancel()
        await asyncio.wait([self.task])


async def test_nobody_is_asked_without_a_quarantine():
    async with Rig(interval=0.001) as rig:
        await asyncio.sleep(0.02)
        assert rig.cluster.looks == 0


async def test_what_is_quarantined_while_it_is_off_is_released_at_once():
    async with Rig() as rig:
        rig.cluster.health_check_enabled = False
        for bookie in ("a", "b", "a"):
            rig.quarantine(bookie)
            await until(lambda: rig.health.quarantined() == frozenset(), 5)
        assert rig.cluster.looks == 3


async def test_a_quarantine_ends_when_it_is_switched_off():
    async with Rig(interval=0.01) as rig:
        rig.quarantine("a")
        await until(lambda: rig.cluster.looks > 2, 5)
        assert rig.health.quarantined() == {"a"}
        rig.cluster.health_check_enabled = False
        await until(lambda: rig.health.quarantined() == frozenset(), 5)


async def test_a_quarantine_ends_when_the_bookie_answers_a_probe():
    async with Rig(interval=0.01) as rig:
        rig.quarantine("a")
        rig.quarantine("b")
        await until(lambda: rig.cluster.looks > 3, 5)
        assert rig.health.quarantined() == {"a", "b"}
        rig.well.add("b")
        await until(lambda: rig.health.quarantined() == {"a"}, 5)


async def test_another_quarantine_is_looked_at_at_once_and_each_is_told_once(caplog):
    async with Rig() as rig:
        rig.quarantine("a")
        await until(lambda: rig.cluster.looks == 1, 5)
        rig.quarantine("c")
        await until(lambda: rig.cluster.looks == 2, 5)
        told = [record.getMessage() for record in caplog.records if "kept out" in record.getMessage()]
        assert [text.partition("bookies=")[2] for text in told] == ["['a']", "['c']"]
        rig.cluster.health_check_enabled = False
        rig.quarantine("b")
        await until(lambda: rig.health.quarantined() == frozenset(), 5)


async def test_a_metadata_service_that_cannot_tell_changes_nothing():
    async with Rig(interval=0.01) as rig:
        rig.cluster.health_check_enabled = None
        rig.quarantine("a")
        await until(lambda: rig.cluster.looks > 3, 5)
        assert rig.health.quarantined() == {"a"}


async def test_a_client_follows_it_and_stops_when_it_closes(three):
    async with three.client(quarantine_errors=1) as client:
        three.metadata.cluster.health_check_enabled = False
        client.context.health.record("b1").refused(BookieTimeout, was_read=False)
        assert await client.quarantined_bookies() == {"b1"}
        await until(lambda: client.context.health.quarantined() == frozenset(), 5)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "health check"]
