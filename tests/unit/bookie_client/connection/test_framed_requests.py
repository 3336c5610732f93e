"""Requests that wait in several connections at once, that share a key, and that are sent many at a time."""

import asyncio

import pytest

from bookie_client.connection.pool import ChannelPool
from bookie_client.options import ClientOptions
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import BookieTimeout, BookieUnavailable, StorageFault
from bookie_protocol.versioned import LedgerLife
from tests.support.model_bookie import ModelBookie, ModelBookieServer
from tests.support.until import until
from tests.unit.bookie_client.connection.requests import Add

FAST = {"add_timeout": 0.1, "read_timeout": 0.1, "reconnect_delay": 0.05, "connect_timeout": 1.0}


class Rig:
    def __init__(self, version):
        self.servers = {name: ModelBookieServer(ModelBookie(name)) for name in ("a", "b")}
        self.pool = ChannelPool(self.resolve, ClientOptions(protocol_version=version, **FAST))
        self.encode = self.pool.dialect.add_encoder(LedgerLife(1, 0), bytes(20))
        self.digest = digest_manager(DigestType.CRC32C, b"")
        self.transactions = 0

    async def resolve(self, bookie_id):
        return "127.0.0.1", self.servers[bookie_id].port

    def add(self, entry_id):
        self.transactions += 1
        return Add(*self.encode(self.transactions, entry_id, self.digest.encode(1, entry_id, -1, 5, b"hello")))

    def send(self, add, *bookies):
        for bookie in bookies:
            self.pool.channel(bookie).send_add(add.frame, add.key, add)

    def send_many(self, adds, bookie):
        self.pool.channel(bookie).send_adds(b"".join(add.frame for add in adds), adds)

    def stored(self, bookie):
        return set(self.servers[bookie].bookie.ledgers[1].entries)


@pytest.fixture(params=[3, 2], ids=["v3", "v2"])
async def rig(request):
    rig = Rig(request.param)
    for server in rig.servers.values():
        await server.start()
    yield rig
    await rig.pool.close()
    for server in rig.servers.values():
        await server.stop()


async def test_one_object_is_answered_once_by_each_bookie(rig):
    add = rig.add(0)
    rig.servers["b"].bookie.fail_adds = StorageFault
    rig.send(add, "a", "b")
    assert add.ends == []
    await until(lambda: len(add.ends) == 2)
    assert sorted(add.ends, key=str) == [("a", None), ("b", StorageFault)]


async def test_a_time_out_at_one_bookie_does_not_touch_the_other(rig):
    rig.servers["b"].silent = True
    add = rig.add(0)
    rig.send(add, "a", "b")
    await until(lambda: len(add.ends) == 2)
    assert add.ends == [("a", None), ("b", BookieTimeout)]


async def test_a_request_sent_again_on_a_connection_where_it_waits_ends_once(rig):
    rig.servers["a"].hold = True
    add = rig.add(0)
    rig.send(add, "a", "a")
    await until(lambda: rig.servers["a"].held == 2)
    rig.servers["a"].release()
    other = rig.add(1)
    rig.send(other, "a")
    await until(lambda: other.ends)
    assert add.ends == [("a", None)]


async def test_different_requests_for_one_entry_each_get_their_own_end_at_each_bookie(rig):
    """As when a writer and a recovery of the same client store the same entry."""
    first, second = rig.add(0), rig.add(0)
    for server in rig.servers.values():
        server.hold = True
    rig.send(first, "a", "b")
    rig.send(second, "a")
    await until(lambda: (rig.servers["a"].held, rig.servers["b"].held) == (2, 1))
    for server in rig.servers.values():
        server.release()
    await until(lambda: len(first.ends) == 2 and second.ends)
    assert (sorted(first.ends), second.ends) == ([("a", None), ("b", None)], [("a", None)])


async def test_different_requests_for_one_entry_are_given_up_one_by_one(rig):
    rig.servers["a"].silent = True
    adds = [rig.add(0) for _ in range(3)]
    for add in adds:
        rig.send(add, "a")
    await until(lambda: all(add.ends for add in adds))
    assert [add.ends for add in adds] == [[("a", BookieTimeout)]] * 3
    assert rig.pool.health.outstanding("a") == 0


async def test_many_adds_in_one_go(rig):
    for bookie in ("a", "b"):
        await rig.pool.channel(bookie).connect()
    adds = [rig.add(i) for i in range(200)]
    for bookie in ("a", "b"):
        rig.send_many(adds, bookie)
    assert all(add.ends == [] for add in adds)
    await until(lambda: all(len(add.ends) == 2 for add in adds))
    assert rig.stored("a") == rig.stored("b") == set(range(200))


async def test_many_adds_wait_for_the_connection(rig):
    adds = [rig.add(i) for i in range(50)]
    rig.send_many(adds, "a")
    await until(lambda: all(add.ends for add in adds))
    assert {end for add in adds for end in add.ends} == {("a", None)}
    assert rig.servers["a"].accepted == 1


async def test_many_adds_on_a_connection_that_is_closing_fail_and_not_inside_the_call(rig):
    channel = rig.pool.channel("a")
    await channel.connect()
    closing = asyncio.create_task(rig.pool.close())
    await asyncio.sleep(0)
    adds = [rig.add(i) for i in range(3)]
    rig.send_many(adds, "a")
    assert all(add.ends == [] for add in adds)
    await closing
    await until(lambda: all(add.ends for add in adds))
    assert all(issubclass(error, BookieUnavailable) for add in adds for _, error in add.ends)


async def test_an_entry_in_two_parts_makes_the_same_frame(rig):
    entry = rig.digest.encode(1, 7, -1, 5, b"hello")
    front = rig.digest.front(1, 7, -1, 5, b"hello")
    assert rig.encode(9, 7, front, b"hello") == rig.encode(9, 7, entry)
