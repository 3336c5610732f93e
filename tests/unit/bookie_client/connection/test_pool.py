"""Connections and the pool over real sockets: pipelining, time-outs, back-off, close."""

import asyncio
from dataclasses import replace

import pytest

from bookie_client.connection import network
from bookie_client.connection.network import AddressBook
from bookie_client.connection.operations import BookieOperations
from bookie_protocol.errors import (
    BadVersion,
    BookieTimeout,
    BookieUnavailable,
    ConnectionLost,
    MetadataDamaged,
    MetadataNotFound,
    MetadataUnavailable,
    NoSuchLedger,
    ProtocolViolation,
    StorageFault,
)
from bookie_protocol.versioned import LedgerLife
from tests.support.until import until
from tests.unit.bookie_client.connection.pooled import FAST, Rig


@pytest.fixture(params=[3, 2], ids=["v3", "v2"])
async def rig(request):
    rig = Rig(protocol_version=request.param)
    await rig.server.start()
    yield rig
    await rig.pool.close()
    await rig.server.stop()


async def test_requests_share_one_connection_and_none_is_answered_inside_its_send(rig):
    probes = [rig.add(i) for i in range(100)]
    assert all(probe.times == 0 for probe in probes)
    assert [await probe.ended for probe in probes] == [b""] * 100
    assert rig.server.accepted == 1
    assert rig.digest.verify(await rig.read(42).ended, 1, 42) == b"hello"


async def test_answers_find_their_requests_in_any_order(rig):
    rig.server.shuffle_answers = True
    for i in range(20):
        rig.add(i)
    reads = [rig.read(i) for i in range(20)]
    for i, read in enumerate(reads):
        assert rig.digest.verify(await read.ended, 1, i) == b"hello"


async def test_a_refusal_names_bookie_code_and_request(rig):
    error = await rig.read(0, ledger_id=9).ended
    assert isinstance(error, NoSuchLedger)
    what, _, identity = str(error).partition(" (")
    assert what == "bookie b answered ENOLEDGER to the probe"
    txn, _, origin = identity.rstrip(")").rpartition("from ")
    assert txn == ("txn 1, " if rig.pool.dialect.version == 3 else "")
    assert origin.startswith("127.0.0.1:")


async def test_a_request_without_an_answer_ends_by_time_out_and_its_late_answer_is_dropped(rig):
    rig.server.hold = True
    probe = rig.add(0)
    error = await probe.ended
    assert isinstance(error, BookieUnavailable)
    assert "did not answer the probe in time" in str(error)
    rig.server.release()
    assert await rig.add(1).ended == b""
    assert probe.times == 1


async def test_a_lost_connection_fails_what_is_under_way_and_the_next_request_connects_again(rig):
    rig.server.hold = True
    probes = [rig.add(i) for i in range(10)]
    await until(lambda: rig.server.held == 10)
    await rig.server.stop()
    for probe in probes:
        assert isinstance(await probe.ended, BookieUnavailable)
    rig.server.hold = False
    await rig.server.start()
    await asyncio.sleep(FAST["reconnect_delay"])
    assert await rig.add(0).ended == b""
    assert all(probe.times == 1 for probe in probes)


async def test_a_connection_that_is_cut_fails_no_later_request_unless_it_was_a_young_one(rig, monkeypatch):
    """A proxy may cut the connections to all replicas at once: who reads from them then finds one that answers."""
    monkeypatch.setattr(rig.pool, "options", replace(rig.pool.options, reconnect_delay=60.0))
    loop = asyncio.get_running_loop()
    for number in range(2):
        assert await rig.add(number).ended == b""
        monkeypatch.setattr(loop, "time", lambda now=loop.time, added=61.0: now() + added)
        await _cut(rig)
    assert await rig.add(2).ended == b""
    assert rig.server.accepted == 3
    await _cut(rig)
    assert "connection lost" in str(await rig.add(3).ended)
    assert rig.server.accepted == 3


async def _cut(rig):
    (connection,) = rig.server.connections
    connection.abort()
    await until(lambda: not rig.pool.channel("b").is_connected)
    assert rig.pool.down() == {"b"}


async def test_a_bookie_that_accepts_and_hangs_up_is_tried_once_per_delay(rig, monkeypatch):
    """As one does that refuses this client's certificate behind the handshake, or a proxy before a bookie that is down:
    a connection that is lost says no more for it than an attempt that fails."""
    accepted = 0

    async def hang_up(reader, writer):
        nonlocal accepted
        accepted += 1
        await reader.read(1)
        writer.transport.abort()

    monkeypatch.setattr(rig.pool, "options", replace(rig.pool.options, reconnect_delay=60.0))
    await rig.server.stop()
    server = await asyncio.start_server(hang_up, "127.0.0.1", rig.server.port)
    try:
        loop = asyncio.get_running_loop()
        for number in range(1, 4):
            for _ in range(5):
                assert isinstance(await rig.add().ended, BookieUnavailable)
            assert accepted == number
            monkeypatch.setattr(loop, "time", lambda now=loop.time, added=61.0: now() + added)
    finally:
        server.close()
        await server.wait_closed()


async def test_a_dead_bookie_is_tried_once_per_delay(rig):
    await rig.server.stop()
    first = rig.add(0)
    error = await first.ended
    assert "cannot connect" in str(error)
    assert rig.pool.down() == {"b"}
    for _ in range(50):
        assert isinstance(await rig.add(0).ended, BookieUnavailable)
    assert rig.resolved == 1


async def test_an_unregistered_bookie_is_down(rig):
    rig.error = MetadataNotFound("bookie b")
    assert "not registered" in str(await rig.add(0).ended)


async def test_a_bookie_that_is_not_ready_hangs_up_and_counts_as_unavailable(rig):
    async def hang_up(reader, writer):
        writer.close()

    await rig.server.stop()
    server = await asyncio.start_server(hang_up, "127.0.0.1", rig.server.port)
    try:
        assert isinstance(await rig.add(0).ended, BookieUnavailable)
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("noise", [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x05hello"])
async def test_bytes_that_are_no_answer_close_the_connection(rig, noise):
    async def babble(reader, writer):
        await reader.read(1)
        writer.write(noise)
        await reader.read()
        writer.close()

    await rig.server.stop()
    server = await asyncio.start_server(babble, "127.0.0.1", rig.server.port)
    try:
        error = await rig.add(0).ended
        assert isinstance(error, ProtocolViolation)
        assert "bookie b" in str(error)
    finally:
        server.close()
        await server.wait_closed()


async def test_close_sends_what_is_buffered_and_fails_what_is_open(rig):
    await rig.pool.channel("b").connect()
    probe = rig.add(0)
    await rig.pool.close()
    assert isinstance(await probe.ended, BookieUnavailable)
    assert probe.times == 1
    late = rig.add(1)
    assert "client is closed" in str(await late.ended)
    await until(lambda: 0 in rig.server.bookie.ledgers[1].entries)


# --- silence, shares, giving up -----------------------------------------------------------------------------


async def test_a_connection_on_which_nothing_is_heard_any_more_is_given_up(rig):
    """The host behind it may be gone without a word; only a new connection finds where the bookie is now."""
    await rig.add(0).ended
    (dead,) = rig.server.connections
    dead.data_received = lambda data: None
    outcomes = []
    while rig.server.accepted == 1:
        outcomes.append(await rig.add(1).ended)
        await asyncio.sleep(FAST["reconnect_delay"] / 2)
        assert len(outcomes) < 50
    assert all(isinstance(outcome, BookieUnavailable) for outcome in outcomes[:-1])
    assert sum(isinstance(outcome, BookieTimeout) for outcome in outcomes) >= 3


async def test_silent_connection_that_nothing_is_sent_on_is_given_up_and_its_bookie_counts_as_reachable_again(rig):
    await rig.add(0).ended
    (dead,) = rig.server.connections
    dead.data_received = lambda data: None
    assert isinstance(await rig.add(1).ended, BookieTimeout)
    health = rig.pool.health
    await until(lambda: health.failed_lately() == {"b"})
    await until(lambda: not rig.pool.channel("b").is_connected)
    assert health.record("b").stalled == set()
    assert await rig.add(2).ended == b""


async def test_a_slow_connection_that_still_answers_stays(rig):
    await rig.add(0).ended
    rig.server.hold = True
    for _ in range(6):
        assert isinstance(await rig.read(5).ended, BookieTimeout)
        rig.server.release()
        await asyncio.sleep(0.01)
        rig.server.hold = True
    assert rig.server.accepted == 1


async def test_time_outs_and_lost_connections_have_their_own_types(rig):
    rig.server.hold = True
    assert isinstance(await rig.read(0).ended, BookieTimeout)
    probe = rig.read(0)
    await until(lambda: rig.server.held == 2)
    await rig.server.stop()
    assert isinstance(await probe.ended, ConnectionLost)
    assert not isinstance(await rig.add(0).ended, ConnectionLost | BookieTimeout)


async def test_reads_are_measured_and_failures_recorded(rig):
    health = rig.pool.health
    await rig.add(0).ended
    assert health.expected_read_seconds("b") == 0.2
    for _ in range(20):
        await rig.read(0).ended
    assert 0 < health.expected_read_seconds("b") < 0.1
    assert health.slow() == frozenset()
    rig.server.bookie.fail_reads = StorageFault
    assert isinstance(await rig.read(0).ended, StorageFault)
    assert health.slow() == {"b"}


async def test_quarantine_by_what_the_bookie_answers():
    rig = Rig(quarantine_errors=10)
    await rig.server.start()
    try:
        rig.server.bookie.fail_adds = StorageFault
        for i in range(9):
            await rig.add(i).ended
        assert rig.pool.health.quarantined() == frozenset()
        await rig.add(9).ended
        assert rig.pool.health.quarantined() == {"b"}
    finally:
        await rig.pool.close()
        await rig.server.stop()


async def test_outstanding_requests_are_counted(rig):
    await rig.add(0).ended
    rig.server.hold = True
    probes = [rig.add(i) for i in range(1, 6)]
    assert rig.pool.health.outstanding("b") == 5
    rig.server.release()
    await asyncio.gather(*(probe.ended for probe in probes))
    assert rig.pool.health.outstanding("b") == 0


async def test_ledgers_share_the_channels_of_a_bookie():
    rig = Rig(channels_per_bookie=3)
    channels = [rig.pool.channel("b", ledger_id) for ledger_id in range(9)]
    assert len(set(channels)) == 3
    assert all(channels[i] is channels[i % 3] for i in range(9))
    assert rig.pool.channel("b", 0, 2) is not rig.pool.channel("b", 0, 3)
    assert rig.pool.channel("b", 0, apart=True) not in channels
    assert rig.pool.channel("b", 4, 3) is channels[4]
    await rig.pool.close()


async def test_what_was_given_up_while_it_waited_for_a_connection_is_not_sent(rig):
    operations = BookieOperations(rig.pool, iter(range(1, 100)))
    add = asyncio.create_task(
        operations.add_entry("b", LedgerLife(1, 0), 0, rig.digest.encode(1, 0, -1, 1, b"x"), bytes(20))
    )
    await asyncio.sleep(0)
    add.cancel()
    with pytest.raises(asyncio.CancelledError):
        await add
    await rig.add(1).ended
    assert set(rig.server.bookie.ledgers[1].entries) == {1}


async def test_a_bookie_that_hangs_up_on_batch_reads(rig):
    """Bookies before 4.17 do; the adds under way do not notice."""
    operations = BookieOperations(rig.pool, iter(range(1000, 2000)))
    await rig.add(0).ended
    (mine,) = rig.server.connections
    rig.server.bookie.knows_batch_reads = False
    with pytest.raises(BadVersion, match="batch"):
        await operations.batch_read("b", 1, 0, 10, 0)
    assert rig.server.connections == {mine}
    assert await rig.add(1).ended == b""
    assert rig.server.accepted == 2
    assert rig.pool.health.failed_lately() == frozenset()


async def test_a_connector_that_breaks_tells_those_who_wait():
    rig = Rig()

    async def broken(factory, host, port):
        raise ZeroDivisionError("no network here")

    rig.pool.connector = broken
    error = await rig.add(0).ended
    assert isinstance(error, BookieUnavailable)
    assert "no network here" in str(error)
    await rig.pool.close()


async def test_closing_cancels_nobody_who_waits_for_a_connection():
    rig = Rig()
    begun = asyncio.Event()

    async def silent(factory, host, port):
        begun.set()
        await asyncio.sleep(3600)

    rig.pool.connector = silent
    waiting = [asyncio.create_task(rig.pool.channel("b").connect()) for _ in range(2)]
    await begun.wait()
    given_up = asyncio.create_task(rig.pool.channel("b").connect())
    await asyncio.sleep(0)
    given_up.cancel()
    await rig.pool.close()
    for each in waiting:
        with pytest.raises(BookieUnavailable, match="closed"):
            await each
    with pytest.raises(asyncio.CancelledError):
        await given_up


class Registry:
    def __init__(self, **known):
        self.known = known
        self.error = None
        self.silent = False
        self.asked = []

    async def look_up(self, bookie):
        self.asked.append(bookie)
        if self.silent:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        answer = self.known.get(bookie) or MetadataNotFound(f"bookie {bookie}")
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_a_bookie_that_moved_is_found():
    registry = Registry(a=("host", 1))
    book = AddressBook(registry.look_up)
    assert await book.resolve("a") == ("host", 1)
    registry.known["a"] = ("elsewhere", 2)
    assert await book.resolve("a") == ("elsewhere", 2)


async def test_the_last_known_address_serves_while_nobody_can_tell(monkeypatch):
    monkeypatch.setattr(network, "LOOK_UP_SECONDS", 0.01)
    registry = Registry(a=("host", 1))
    book = AddressBook(registry.look_up)
    await book.resolve("a")
    registry.error = MetadataUnavailable("no answer")
    assert await book.resolve("a") == ("host", 1)
    with pytest.raises(MetadataUnavailable):
        await book.resolve("b")
    registry.error, registry.silent = None, True
    assert await book.resolve("a") == ("host", 1)


async def test_a_bookie_that_left_is_forgotten():
    registry = Registry(a=("host", 1))
    book = AddressBook(registry.look_up)
    await book.resolve("a")
    del registry.known["a"]
    with pytest.raises(MetadataNotFound):
        await book.resolve("a")
    registry.error = MetadataUnavailable("no answer")
    with pytest.raises(MetadataUnavailable):
        await book.resolve("a")


async def test_looking_ahead_survives_an_outage():
    registry = Registry(a=("host", 1), bad=MetadataDamaged("unreadable"), c=("host", 3))
    book = AddressBook(registry.look_up)
    members = {"a", "bad"}
    changed = asyncio.Event()

    async def wait(seconds):
        await changed.wait()
        changed.clear()

    book.start(lambda: frozenset(members), wait)
    await until(lambda: registry.asked == ["a", "bad"])
    members.add("c")
    changed.set()
    await until(lambda: registry.asked[-1] == "c")
    registry.error = MetadataUnavailable("no answer")
    members.add("d")
    members.add("e")
    changed.set()
    await until(lambda: registry.asked[-1] == "bad")
    assert await book.resolve("c") == ("host", 3)
    with pytest.raises(MetadataUnavailable):
        await book.resolve("d")
    await book.close()
    await book.close()


async def test_a_client_reaches_bookies_for_the_first_time_while_the_metadata_service_is_silent(three, monkeypatch):
    async with three.client() as client:
        context = client.context
        addresses = context.pool.addresses
        await until(lambda: addresses._known.keys() == {"b1", "b2", "b3"})

        async def silent(bookie_id, *, timeout=None):
            raise MetadataUnavailable("no answer")

        monkeypatch.setattr(three.metadata.bookies, "service_info", silent)
        for bookie in ("b1", "b2", "b3"):
            with pytest.raises(NoSuchLedger):
                await context.operations.read_entry(bookie, 1, 0)
