"""Handles whose entry ids the caller chooses."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.writing.advanced import HeldEntry, ReorderBuffer
from bookie_protocol.entry import read_header
from bookie_protocol.errors import BadRequest, CouldNotTell, DuplicateEntry, LedgerClosed, LedgerFenced, QuorumLost
from tests.support.until import until


class Entry:
    """Stands for a waiter where nobody waits."""


def entry(body=b"x"):
    return HeldEntry(body, Entry())


@given(st.permutations(range(12)))
def test_any_order_of_calls_leaves_in_the_order_of_ids(order):
    buffer = ReorderBuffer(7, 100, 1000)
    sent = []
    for entry_id in order:
        buffer.claim(entry_id)
        if entry_id == buffer.next:
            buffer.sent(entry_id)
            sent.append(entry_id)
            for ready, _ in buffer.ready():
                buffer.sent(ready)
                sent.append(ready)
        else:
            buffer.hold(entry_id, entry())
        assert sent == list(range(len(sent)))
    assert sent == list(range(12))
    assert len(buffer) == 0


def test_an_id_is_taken_once():
    buffer = ReorderBuffer(7, 10, 100)
    buffer.claim(0)
    with pytest.raises(DuplicateEntry, match="ledger 7: entry 0 "):
        buffer.claim(0)
    buffer.sent(0)
    with pytest.raises(DuplicateEntry):
        buffer.claim(0)
    buffer.claim(5)
    buffer.hold(5, entry())
    with pytest.raises(DuplicateEntry):
        buffer.claim(5)
    with pytest.raises(BadRequest, match="negative"):
        buffer.claim(-1)


def test_an_id_that_was_given_back_can_be_taken_again():
    buffer = ReorderBuffer(7, 10, 100)
    buffer.claim(3)
    buffer.release(3)
    buffer.claim(3)


def test_what_waits_behind_a_gap_is_bounded_in_entries_and_bytes():
    buffer = ReorderBuffer(7, 2, 10)
    assert buffer.has_room(50)  # alone, an entry of any size
    for entry_id, body in ((1, b"12345"), (2, b"1")):
        buffer.claim(entry_id)
        assert buffer.has_room(len(body))
        buffer.hold(entry_id, entry(body))
    assert not buffer.has_room(1)
    buffer.claim(0)
    buffer.sent(0)
    assert [ready for ready, _ in _take(buffer)] == [1, 2]
    buffer.claim(4)
    buffer.hold(4, entry(b"123456"))
    assert not buffer.has_room(5)
    assert buffer.has_room(4)


def _take(buffer):
    taken = []
    for ready in buffer.ready():
        buffer.sent(ready[0])
        taken.append(ready)
    return taken


def test_what_is_left_at_the_end_comes_out_in_order():
    buffer = ReorderBuffer(7, 10, 100)
    for entry_id in (9, 4, 6):
        buffer.claim(entry_id)
        buffer.hold(entry_id, entry())
    assert [entry_id for entry_id, _ in buffer.drain()] == [4, 6, 9]
    assert len(buffer) == 0
    assert buffer.has_room(100)


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_entries_given_in_any_order_are_acknowledged_and_stored_in_order(three, version):
    order = list(range(200))
    Random(5).shuffle(order)
    acknowledged = []
    async with three.client(protocol_version=version) as client:
        async with client.create_advanced(ledger_id=77, write_quorum=3) as ledger:
            for entry_id in order:
                future = await ledger.submit(entry_id, b"%d" % entry_id)
                future.add_done_callback(lambda f: acknowledged.append(f.result()))
            await ledger.flush()
            await settle()
            assert acknowledged == list(range(200))
            assert (ledger.last_add_confirmed, ledger.last_add_pushed) == (199, 199)
        stored = three.stored(77)
        assert (stored.last_entry_id, stored.length) == (199, sum(len(str(i)) for i in range(200)))
        async with client.open(77) as reader:
            entries = [entry async for entry in reader.entries()]
    assert [entry.payload for entry in entries] == [b"%d" % i for i in range(200)]
    assert [entry.length for entry in entries] == [sum(len(str(j)) for j in range(i + 1)) for i in range(200)]


async def test_the_header_of_an_entry_that_came_early_names_what_is_before_it(three):
    async with three.client() as client, client.create_advanced(write_quorum=3, ack_quorum=3) as ledger:
        late = await ledger.submit(1, b"22")
        await ledger.append(0, b"1")
        assert await late == 1
        header = read_header(three.bookie("b1").ledgers[0].entries[1])
        assert (header.entry_id, header.length) == (1, 3)


async def test_a_gap_holds_back_what_is_behind_it(three):
    async with three.client() as client, client.create_advanced(write_quorum=3) as ledger:
        behind = [await ledger.submit(i, b"x") for i in (2, 1, 4)]
        await settle()
        assert not any(future.done() for future in behind)
        assert (ledger.pending, ledger.last_add_pushed) == (3, -1)
        await ledger.append(0, b"x")
        assert [await future for future in behind[:2]] == [2, 1]
        assert not behind[2].done()
        await ledger.append(3, b"x")
        assert await behind[2] == 4


async def test_what_cannot_be_sent_when_its_gap_closes_is_told_to_its_own_caller_and_may_come_again(three, monkeypatch):
    async with three.client() as client, client.create_advanced(write_quorum=3) as ledger:
        behind = [await ledger.submit(i, b"%d" % i) for i in (1, 2)]

        def refuse(body, waiter):
            monkeypatch.undo()
            raise CouldNotTell("not now")

        monkeypatch.setattr(ledger._pipeline.intake, "submit_overdrawn", refuse)
        assert await ledger.append(0, b"0") == 0
        with pytest.raises(CouldNotTell, match=r"\bnow\b"):
            await behind[0]
        await settle()
        assert not behind[1].done()
        assert await ledger.append(1, b"1") == 1
        assert await behind[1] == 2
        assert [e.payload for e in await ledger.read(0, 2)] == [b"0", b"1", b"2"]


async def test_an_id_given_twice_is_refused_wherever_the_first_one_is(three):
    async with three.client() as client, client.create_advanced(write_quorum=3) as ledger:
        await ledger.append(0, b"first")
        await ledger.submit(5, b"held")
        for entry_id in (0, 5):
            with pytest.raises(DuplicateEntry, match=f"ledger 0: entry {entry_id} "):
                await ledger.append(entry_id, b"second")
        with pytest.raises(BadRequest, match="negative"):
            await ledger.append(-1, b"x")
        assert [e.payload for e in await ledger.read(0, 0)] == [b"first"]
        for entry_id in range(1, 5):
            await ledger.append(entry_id, b"x")


async def test_an_id_waiting_for_room_is_taken_too_and_comes_back_when_it_gives_up(three):
    for server in three.servers.values():
        server.hold = True
    async with three.client(write_window_entries=1) as client, client.create_advanced(write_quorum=3) as ledger:
        first = await ledger.submit(0, b"fills the window")
        waiting = asyncio.create_task(ledger.append(1, b"waits"))
        await settle()
        with pytest.raises(DuplicateEntry):
            await ledger.append(1, b"again")
        waiting.cancel()
        await asyncio.wait([waiting])
        again = asyncio.create_task(ledger.append(1, b"again"))
        await settle()
        for server in three.servers.values():
            server.release()
        assert (await first, await again) == (0, 1)


async def test_what_waits_behind_a_gap_is_bounded_and_the_missing_entry_passes(three):
    async with three.client(write_window_entries=4) as client, client.create_advanced(write_quorum=3) as ledger:
        order = list(range(60, 0, -1))
        tasks = [asyncio.create_task(ledger.append(i, b"x" * i)) for i in order]
        await settle()
        assert ledger.pending == 60
        assert len(ledger._order._held) == 4
        assert await ledger.append(0, b"") == 0
        assert await asyncio.gather(*tasks) == order


@pytest.mark.parametrize("seed", range(3))
async def test_many_tasks_in_any_order_with_little_room_all_end(three, seed):
    random = Random(seed)
    order = list(range(150))
    random.shuffle(order)
    given_up = set(random.sample(range(150), 20))
    async with three.client(write_window_entries=7) as client, client.create_advanced(write_quorum=3) as ledger:
        tasks = {i: asyncio.create_task(ledger.append(i, b"x" * (i % 9))) for i in order}
        for i in given_up:
            tasks[i].cancel()
        await asyncio.wait([tasks[i] for i in given_up])
        missing = [i for i in sorted(given_up) if i > ledger.last_add_pushed]
        for i in missing:
            try:
                assert await ledger.append(i, b"x" * (i % 9)) == i
            except DuplicateEntry:
                continue  # it was held when its caller gave up, and goes on
        assert [await tasks[i] for i in order if i not in given_up] == [i for i in order if i not in given_up]
        await ledger.flush()
        assert ledger.last_add_confirmed == 149


async def test_closing_fails_what_is_behind_a_gap_and_keeps_the_rest(three):
    async with three.client(write_window_entries=2) as client:
        ledger = await client.create_advanced(write_quorum=3)
        sent = await ledger.submit(0, b"x")
        held = [await ledger.submit(i, b"x") for i in (3, 2)]
        blocked = asyncio.create_task(ledger.append(9, b"x"))
        await settle()
        await ledger.close()
        assert await sent == 0
        for future in held:
            with pytest.raises(LedgerClosed, match=r"\bsent\b"):
                await future
        with pytest.raises(LedgerClosed):
            await blocked
        with pytest.raises(LedgerClosed):
            await ledger.append(1, b"late")
        assert (three.stored(0).last_entry_id, three.stored(0).length) == (0, 1)


async def test_a_failed_handle_fails_everything_once_and_in_order(three):
    for server in three.servers.values():
        server.hold = True
    async with three.client() as client:
        ledger = await client.create_advanced(write_quorum=3, ack_quorum=3)
        futures = [await ledger.submit(i, b"x") for i in (7, 0, 1, 5)]
        ends = []
        for entry_id, future in zip((7, 0, 1, 5), futures, strict=True):
            future.add_done_callback(lambda f, i=entry_id: ends.append((i, type(f.exception()))))
        await until(lambda: all(server.held == 2 for server in three.servers.values()))
        await three.servers["b1"].stop()
        with pytest.raises(QuorumLost, match="entry 7 "):
            await futures[0]
        await settle()
        assert ends == [(i, QuorumLost) for i in (0, 1, 5, 7)]
        for server in three.servers.values():
            server.release()
        await ledger.close()


async def test_a_fenced_ledger_ends_an_advanced_handle_too(three):
    async with three.client() as client:
        ledger = await client.create_advanced(write_quorum=3, ack_quorum=3)
        await ledger.append(0, b"x")
        for name in three.servers:
            three.bookie(name).ledgers[0].fenced = True
        with pytest.raises(LedgerFenced):
            await ledger.append(1, b"x")
        with pytest.raises(LedgerClosed, match="failed"):
            await ledger.append(2, b"x")
        await ledger.close()


async def test_who_gets_room_behind_a_gap_in_the_turn_in_which_the_handle_closes_is_refused(three):
    async with three.client(write_window_entries=1) as client:
        ledger = await client.create_advanced(write_quorum=3)
        held = await ledger.submit(1, b"x")
        waiting = asyncio.create_task(ledger.append(3, b"x"))
        await settle()
        closing = asyncio.create_task(ledger.close())
        await asyncio.sleep(0)  # it has begun, and refuses nobody yet
        missing = await ledger.submit(0, b"x")
        async with asyncio.timeout(5):
            with pytest.raises(LedgerClosed):
                await waiting
            await closing
        assert (await missing, await held, ledger.pending) == (0, 1, 0)
