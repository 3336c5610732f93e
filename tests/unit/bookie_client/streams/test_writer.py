"""Appending to a stream: roll-over, failures of ledgers, take-over."""

import asyncio
from dataclasses import replace

import pytest

from bookie_client.streams import Streams, StreamSettings, rolling
from bookie_protocol.errors import (
    BadRequest,
    BookieReadOnly,
    LedgerClosed,
    MetadataUnavailable,
    NoSuchStream,
    NotEnoughBookies,
    QuorumLost,
    StorageFault,
    StreamFenced,
    StreamInUse,
)
from tests.support.until import until
from tests.unit.bookie_client.streams.conftest import SETTINGS, read_all


async def ledgers_of(streams):
    return [(ledger.ledger_id, ledger.entries) for ledger in (await streams.manifest("s")).ledgers]


async def test_positions_go_on_and_the_end_is_recorded(streams):
    async with streams.writer("s") as writer:
        first = await writer.append(b"a")
        rest = await writer.append_many([b"b", b"c"])
        open_ledger = (await streams.manifest("s")).open_ledger
        assert open_ledger is not None
        assert open_ledger.ledger_id == writer.ledger_id == first.ledger_id
    assert [str(each) for each in [first, *rest]] == ["0:0", "0:1", "0:2"]
    manifest = await streams.manifest("s")
    assert [(each.entries, each.nbytes) for each in manifest.ledgers] == [(3, 3)]
    assert manifest.writer is None
    assert await read_all(streams) == [b"a", b"b", b"c"]


async def test_a_ledger_holds_no_more_entries_than_the_limit(streams):
    await streams.configure("s", StreamSettings(**SETTINGS, max_ledger_entries=10))
    async with streams.writer("s") as writer:
        positions = await writer.append_many(b"%d" % i for i in range(35))
        for i in range(35, 40):
            positions.append(await writer.append(b"%d" % i))
    assert await ledgers_of(streams) == [(0, 10), (1, 10), (2, 10), (3, 10)]
    assert [(each.ledger_id, each.entry_id) for each in positions] == [(i // 10, i % 10) for i in range(40)]
    assert await read_all(streams) == [b"%d" % i for i in range(40)]


async def test_what_goes_together_is_cut_where_the_ledger_is_full(streams):
    await streams.configure("s", StreamSettings(**SETTINGS, max_ledger_entries=30, max_ledger_bytes=100))
    async with streams.writer("s") as writer:
        await writer.append(b"x" * 10)
        positions = await writer.append_many([b"%d" % (i % 10) * (5 if i % 2 else 1) for i in range(200)])
    manifest = await streams.manifest("s")
    assert [manifest.ordinal(each) for each in positions] == list(range(1, 201))
    assert all(ledger.entries <= 30 and ledger.nbytes <= 100 for ledger in manifest.ledgers)
    assert all(ledger.entries == 30 or ledger.nbytes > 95 for ledger in manifest.ledgers[:-1])
    assert [len(each) for each in await read_all(streams)][1:] == [5 if i % 2 else 1 for i in range(200)]


async def test_rolls_over_by_bytes(streams):
    await streams.configure("s", StreamSettings(**SETTINGS, max_ledger_bytes=100))
    async with streams.writer("s") as writer:
        for _ in range(10):
            await writer.append(b"x" * 30)
        await writer.append(b"x" * 250)  # larger than the limit: a ledger of its own
        await writer.append(b"y")
    assert [ledger.nbytes for ledger in (await streams.manifest("s")).ledgers] == [90, 90, 90, 30, 250, 1]


async def test_rolls_over_by_age_without_another_append(streams):
    await streams.configure("s", StreamSettings(**SETTINGS, max_ledger_seconds=0.05))
    async with streams.writer("s") as writer:
        await writer.append(b"x")
        async for manifest in streams.watch("s"):
            if len(manifest.ledgers) == 2:
                break
        first = writer.ledger_id
        # an empty ledger does not age
        await asyncio.sleep(0.15)
        assert writer.ledger_id == first
    assert await ledgers_of(streams) == [(0, 1)]


async def test_no_limit_counts_before_the_minimum_age(streams):
    await streams.configure(
        "s", StreamSettings(**{**SETTINGS, "min_ledger_seconds": 60.0}, max_ledger_entries=2, max_ledger_bytes=2)
    )
    async with streams.writer("s") as writer:
        await writer.append_many([b"x"] * 20)
    assert await ledgers_of(streams) == [(0, 20)]


async def test_roll_over_by_hand_keeps_its_place(streams):
    async with streams.writer("s") as writer:
        before = [await writer.submit(b"x") for _ in range(5)]
        rolled = asyncio.create_task(writer.roll_over())
        await asyncio.sleep(0)
        after = await writer.submit(b"y")
        await rolled
        await writer.roll_over()
        await writer.roll_over()  # the second one finds it empty
        assert {(await each).ledger_id for each in before} == {0}
        assert (await after).ledger_id == 1
    assert await ledgers_of(streams) == [(0, 5), (1, 1)]


async def test_an_empty_ledger_leaves_no_trace(streams, three):
    async with streams.writer("s"):
        pass
    assert await ledgers_of(streams) == []
    assert three.metadata.ledgers.stored == {}
    assert await streams.retired("s") == frozenset()


async def test_an_empty_ledger_that_cannot_be_deleted_fails_no_close(streams, three, monkeypatch):
    async def delete(*_arguments, **_options):
        raise MetadataUnavailable("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(three.metadata.ledgers, "delete", delete)
        async with streams.writer("s"):
            pass
    assert await streams.retired("s") == {0}
    assert await streams.apply_retention("s") == (0,)
    assert three.metadata.ledgers.stored == {}


async def test_an_entry_that_fits_no_frame_is_refused_alone(three, clock):
    async with three.client(max_frame_size=1000) as client:
        streams = Streams(client, clock=clock)
        await streams.create("s", StreamSettings(**SETTINGS))
        async with streams.writer("s") as writer:
            with pytest.raises(BadRequest, match="split it"):
                await writer.append(b"x" * 1000)
            await writer.append(b"x" * 500)


# --- failures of ledgers --------------------------------------------------------------------------------------


async def test_appends_that_failed_go_to_the_next_ledger_in_order(streams, three):
    payloads = [b"%d" % i for i in range(300)]
    async with streams.writer("s") as writer:
        futures = [await writer.submit(each) for each in payloads[:100]]
        await writer.flush()
        for name in ("b1", "b2"):
            three.bookie(name).fail_adds = StorageFault  # no spare: the ack quorum is lost
        futures += [await writer.submit(each) for each in payloads[100:200]]
        rest = asyncio.create_task(writer.append_many(payloads[200:]))
        await until(lambda: writer.ledger_id > 0)
        for name in ("b1", "b2"):
            three.bookie(name).fail_adds = None
        positions = [await each for each in futures] + await rest
    assert await read_all(streams) == payloads
    manifest = await streams.manifest("s")
    assert [manifest.ordinal(each) for each in positions] == list(range(300))
    assert manifest.ledgers[0].entries == 100


async def test_entries_that_recovery_found_are_not_sent_again(streams, three, client, clock):
    """Somebody recovers the open ledger, as auto-recovery does, while entries are stored and not yet acknowledged."""
    async with (
        three.client(add_timeout=1.5, read_timeout=30.0) as impatient,
        Streams(impatient, password=b"secret", clock=clock).writer("s") as writer,
    ):
        await writer.append(b"first")
        servers = list(three.servers.values())
        for server in servers:
            server.silent = True
        pending = [await writer.submit(b"%d" % i) for i in range(10)]
        await until(lambda: all(len(three.held_at(name, 0)) == 11 for name in three.servers))
        for server in servers:
            server.silent = False
        await client.recover(0, password=b"secret")
        positions = [await each for each in pending]
        assert {each.ledger_id for each in positions} == {0}
        behind = await writer.append(b"last")
        assert behind.ledger_id > 0
    assert await read_all(streams) == [b"first", *(b"%d" % i for i in range(10)), b"last"]


async def test_gives_up_after_patience_and_tells_why(streams, three):
    with pytest.raises(QuorumLost, match="EREADONLY"):
        async with streams.writer("s", patience=0.3) as writer:
            await writer.append(b"kept")
            for name in three.servers:
                three.bookie(name).fail_adds = BookieReadOnly
            with pytest.raises(QuorumLost):
                await writer.append(b"lost")
            with pytest.raises(QuorumLost):
                await writer.append(b"refused")
            assert writer.pending == 0
    for name in three.servers:
        three.bookie(name).fail_adds = None
    assert await ledgers_of(streams) == [(0, 1)]
    assert await read_all(streams) == [b"kept"]


async def test_too_few_bookies_at_the_start_leave_nothing(streams, three):
    three.metadata.bookies.drop("b1")
    with pytest.raises(NotEnoughBookies):
        async with streams.writer("s"):
            pass
    manifest = await streams.manifest("s")
    assert (manifest.writer, manifest.ledgers) == (None, ())


async def test_appends_wait_for_bookies_to_come_back(streams, three):
    async with streams.writer("s") as writer:
        await writer.append(b"a")
        await three.servers["b1"].stop()
        await three.servers["b2"].stop()
        waiting = asyncio.create_task(writer.append(b"b"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await three.servers["b1"].start()
        await three.servers["b2"].start()
        await waiting
    assert await read_all(streams) == [b"a", b"b"]


# --- other writers --------------------------------------------------------------------------------------------


async def test_a_take_over_fences_and_keeps_what_was_acknowledged(streams, three, clock):
    old = streams.writer("s")
    await old.start()
    await old.append_many(b"old %d" % i for i in range(10))
    async with three.client() as other_client:
        others = Streams(other_client, password=b"secret", clock=clock)
        async with others.writer("s") as new:
            await new.append(b"new")
            with pytest.raises(StreamFenced):
                await old.append(b"too late")
            with pytest.raises(StreamFenced):
                await old.submit(b"too late")
            await old.close()
        assert await read_all(others) == [*(b"old %d" % i for i in range(10)), b"new"]


async def test_a_writer_that_was_fenced_while_it_rolls_over_stops(streams, three, clock):
    old = streams.writer("s")
    await old.start()
    await old.append(b"old")
    async with streams.writer("s") as new:
        with pytest.raises(StreamFenced):
            await old.roll_over()
        await new.append(b"new")
    await old.close()
    assert await read_all(streams) == [b"old", b"new"]
    assert len(three.metadata.ledgers.stored) == 2


async def test_an_empty_ledger_of_a_dead_writer_is_dropped_and_its_position_stays_good(streams, clock):
    dead = streams.writer("s")
    await dead.start()
    place = await streams.end("s")
    naive = replace(place, ledger_id=dead.ledger_id, entry_id=0)
    async with streams.writer("s") as writer:
        await writer.append(b"x")
    await dead.close()
    assert await read_all(streams, start=place) == [b"x"]
    assert await read_all(streams, start=naive) == [b"x"]


async def test_a_writer_that_may_not_take_over_is_refused(streams):
    async with streams.writer("s") as writer:
        await writer.append(b"x")
        with pytest.raises(StreamInUse, match="ledger 0 open"):
            await streams.writer("s", take_over=False).start()
        await writer.append(b"y")
    async with streams.writer("s", take_over=False) as writer:
        await writer.append(b"z")
    assert await read_all(streams) == [b"x", b"y", b"z"]


async def test_a_deleted_stream_ends_its_writer(streams):
    writer = streams.writer("s")
    await writer.start()
    await writer.append(b"x")
    with pytest.raises(StreamInUse, match="seal"):
        await streams.delete("s")
    await streams.delete("s", force=True)
    with pytest.raises(NoSuchStream):
        await writer.append(b"y")
    await writer.close()


# --- the handle -----------------------------------------------------------------------------------------------


async def test_a_closed_writer_takes_nothing(streams):
    writer = streams.writer("s")
    with pytest.raises(RuntimeError, match="started"):
        await writer.append(b"x")
    await writer.start()
    pending = await writer.submit(b"x")
    await writer.close()
    await writer.close()
    assert pending.result().entry_id == 0
    with pytest.raises(LedgerClosed):
        await writer.append(b"y")
    with pytest.raises(LedgerClosed):
        await writer.append_many([b"y"])


async def test_the_client_ends_while_a_writer_is_open(three, clock):
    client = three.client()
    await client.start()
    streams = Streams(client, clock=clock)
    await streams.create("s", StreamSettings(**SETTINGS))
    writer = streams.writer("s")
    await writer.start()
    await writer.append(b"x")
    for server in three.servers.values():
        server.silent = True
    pending = await writer.submit(b"y")
    await client.close()
    with pytest.raises(LedgerClosed, match="client"):
        await pending
    with pytest.raises(LedgerClosed):
        await writer.append(b"z")
    await writer.close()  # there is nothing left to do


async def test_an_answer_that_comes_after_the_writer_gave_up_is_nobodys(streams, three):
    """The client was closed under it, or it ran out of patience: what was sent has failed."""
    loop = asyncio.get_running_loop()
    heard = []
    loop.set_exception_handler(lambda _loop, context: heard.append(context))
    writer = streams.writer("s")
    await writer.start()
    for server in three.servers.values():
        server.hold = True
    pending = await writer.submit(b"x")
    await until(lambda: writer._appends.sent)
    writer._failed(LedgerClosed("enough"))
    with pytest.raises(LedgerClosed, match="enough"):
        await pending
    for server in three.servers.values():
        server.release()
    await writer.close()
    assert heard == []


async def test_the_window_bounds_what_waits_and_keeps_the_order(three, clock):
    async with three.client(write_window_entries=4) as client:
        streams = Streams(client, clock=clock)
        await streams.create("s", StreamSettings(**SETTINGS))
        async with streams.writer("s") as writer:
            for server in three.servers.values():
                server.hold = True
            tasks = [asyncio.create_task(writer.append(b"%d" % i)) for i in range(20)]
            await until(lambda: writer.pending == 4)
            for _ in range(20):
                await asyncio.sleep(0)
            assert writer.pending == 4
            tasks[10].cancel()
            for server in three.servers.values():
                server.release()
            await asyncio.wait(tasks)
        assert await read_all(streams) == [b"%d" % i for i in range(20) if i != 10]


async def test_entries_before_a_bad_payload_go_on(streams):
    def payloads():
        yield b"a"
        yield b"b"
        raise ValueError("no more")

    async with streams.writer("s") as writer:
        with pytest.raises(ValueError, match="no more"):
            await writer.append_many(payloads())
        await writer.append(b"c")
    assert await read_all(streams) == [b"a", b"b", b"c"]


async def test_ledgers_tell_whose_they_are(streams, three):
    async with streams.writer("s") as writer:
        await writer.append(b"x")
        token = writer.token
    assert three.stored(0).custom_metadata == {
        "application": b"podkeeper-stream",
        "podkeeper/stream": b"s",
        "podkeeper/writer": token.encode(),
    }


async def test_retention_is_applied_while_nothing_is_appended(streams, three, clock, monkeypatch):
    monkeypatch.setattr(rolling, "SWEEP_SECONDS", 0.01)
    await streams.configure("s", StreamSettings(**SETTINGS, retention_seconds=60.0))
    async with streams.writer("s") as writer:
        await writer.append(b"a")
        await writer.roll_over()
        await writer.append(b"b")
        clock.now += 60

        await until(lambda: 0 not in three.metadata.ledgers.stored)
        await writer.append(b"c")
    assert await read_all(streams) == [b"b", b"c"]
