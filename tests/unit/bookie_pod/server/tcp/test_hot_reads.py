"""Reads that come together are answered as if each had come alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.server.tcp import lane_reads
from bookie_pod.server.tcp.connection_stalls import COLD_BYTES, LARGE_PER_TURN
from bookie_pod.server.tcp.wire import AT_ONCE, READS_IN_FLIGHT_MAX, Wire
from bookie_pod.storage.entry_log.interface import Row
from bookie_protocol.errors import EntryDamaged
from bookie_protocol.wire.v2 import Flag
from tests.support.frames import (
    entry,
    v2_add,
    v2_batch,
    v2_code,
    v2_entry,
    v2_fence,
    v2_read,
    v3_add,
    v3_fence,
    v3_read,
    v3_read_lac,
)
from tests.support.production import production
from tests.support.server_rig import PaperTransport, ServerRig, SlowTransport, answers, slow
from tests.support.until import until

ON_DISK, IN_MEMORY, NOWHERE = range(3), range(3, 6), range(6, 9)
LEDGERS = (1, 2, 7, 9)
"""Two that are known, one that only the index knows, one that nobody does."""

READS = st.tuples(st.sampled_from(LEDGERS), st.integers(-1, 8))
V2_MADE: list[Callable[[tuple[int, int]], bytes]] = [
    lambda each: v2_read(*each),
    lambda each: v2_read(*each, Flag.HIGH_PRIORITY),
    lambda each: v2_batch(each[0], max(0, each[1]), 3),
    lambda each: v2_fence(2, 4),
]
V2 = st.one_of(*(READS.map(make) for make in V2_MADE))
V3: list[Callable[[int, tuple[int, int]], bytes]] = [
    lambda txn, each: v3_read(*each, txn=txn),
    lambda txn, each: v3_read(*each, txn=txn, priority=True),
    lambda txn, each: v3_fence(2, 4, txn=txn),
    lambda txn, each: v3_read_lac(each[0], txn=txn),
]


async def with_entries(add: Callable[[bytes], bytes] = v2_add, **options: Any) -> ServerRig:
    """Of each ledger some entries on disk and some in memory."""
    rig = ServerRig(read_cache_bytes=0, **options)
    conn, _ = rig.connect()
    for ids in (ON_DISK, IN_MEMORY):
        conn.data_received(b"".join(add(entry(ledger, each, lac=each - 1)) for ledger in (1, 2, 7) for each in ids))
        rig.journal.acknowledge()
        await rig.settle()
        if ids is ON_DISK:
            rig.storage.flush()
    rig.ledgers.states.pop(7)
    return rig


async def asked(rig: ServerRig, pieces: Sequence[bytes], *, alone: bool = False) -> list[bytes]:
    conn, transport = rig.connect()
    for piece in pieces:
        conn.data_received(piece)
        if alone:
            await rig.settle()
    await rig.settle(lambda: not rig.context.busy or not rig.journal.acknowledge())
    await rig.settle()
    frames = transport.frames
    rig.close()
    return frames


def split(data: bytes, places: list[int]) -> list[bytes]:
    ends = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(ends) if end > start]


@given(st.lists(V2, min_size=1, max_size=20), st.lists(st.integers(0, 5000), max_size=4))
def test_version_2(requests: list[bytes], places: list[int]) -> None:
    async def run() -> None:
        one_by_one = await asked(await with_entries(), requests, alone=True)
        together = await asked(await with_entries(), split(b"".join(requests), places))
        assert len(together) == len(requests)
        assert sorted(together) == sorted(one_by_one)

    asyncio.run(run())


@given(
    st.lists(st.tuples(st.sampled_from(V3), READS), min_size=1, max_size=20),
    st.lists(st.integers(0, 5000), max_size=4),
    st.booleans(),
)
def test_version_3(
    asks: list[tuple[Callable[..., bytes], tuple[int, int]]], places: list[int], read_only: bool
) -> None:
    requests = [make(1 + 90 * number, each) for number, (make, each) in enumerate(asks)]

    async def run() -> None:
        one_by_one = await asked(await with_entries(v3_add), requests, alone=True)
        rig = await with_entries(v3_add)
        rig.admission.set_mode(read_only=read_only, high_priority_writes=True)
        together = await asked(rig, split(b"".join(requests), places))
        assert sorted(together) == sorted(one_by_one)

    asyncio.run(run())


class Reluctant(SlowTransport):
    """Takes nothing until it is told to, and keeps what it took."""

    def write(self, data: bytes) -> None:
        PaperTransport.write(self, data)
        super().write(data)

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))


async def asked_slowly(rig: ServerRig, pieces: Sequence[bytes], takes: Sequence[bool]) -> list[bytes]:
    """As a client that takes its answers now and then, and whose requests stay in its socket while nobody reads it."""
    conn, transport = slow(rig, Reluctant())

    async def take() -> None:
        rig.journal.acknowledge()
        transport.take()
        await rig.settle()

    async with asyncio.timeout(30):
        for number, piece in enumerate(pieces):
            while not transport.reading:
                await take()
            conn.data_received(piece)
            await rig.settle()
            if takes[number % len(takes)]:
                await take()
        while conn.wire.stalled or rig.context.busy or transport.unsent:
            await take()
    frames = transport.frames
    rig.close()
    return frames


@given(
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 3), READS), min_size=1, max_size=20),
    st.lists(st.integers(0, 5000), max_size=4),
    st.lists(st.booleans(), min_size=1, max_size=4),
    st.integers(40, 400),
)
def test_a_slow_receiver_gets_the_same(
    newer: bool, asks: list[tuple[int, tuple[int, int]]], places: list[int], takes: list[bool], high: int
) -> None:
    if newer:
        requests = [V3[which](1 + 90 * number, each) for number, (which, each) in enumerate(asks)]
    else:
        requests = [V2_MADE[which](each) for which, each in asks]
    add = v3_add if newer else v2_add

    async def run() -> None:
        one_by_one = await asked(await with_entries(add), requests, alone=True)
        rig = await with_entries(
            add, config=production(write_buffer_low_water_mark_bytes=high // 2, write_buffer_high_water_mark_bytes=high)
        )
        slowly = await asked_slowly(rig, split(b"".join(requests), places), takes)
        assert sorted(slowly) == sorted(one_by_one)

    asyncio.run(run())


@pytest.mark.parametrize("read", [v2_read, v3_read])
async def test_split_at_every_byte(read: Callable[[int, int], bytes]) -> None:
    add = v2_add if read is v2_read else v3_add
    rig = await with_entries(add)
    requests = b"".join(read(ledger, each) for ledger in (1, 2) for each in (0, 3, 7))
    expected = None
    for place in range(1, len(requests)):
        conn, transport = rig.connect()
        conn.data_received(requests[:place])
        conn.data_received(requests[place:])
        await rig.settle()
        expected = expected or sorted(transport.frames)
        assert sorted(transport.frames) == expected
    assert len(expected or ()) == 6
    rig.close()


async def test_what_memory_has_is_answered_in_one_write_and_in_order() -> None:
    rig = await with_entries()
    conn, transport = rig.connect()
    asks = [(ledger, each) for each in (4, 3, 5, 4) for ledger in (2, 1)]
    conn.data_received(b"".join(v2_read(*each) for each in asks))
    await rig.settle()
    assert len(transport.writes) == 1
    assert [v2_entry(frame) for frame in transport.frames] == [
        entry(ledger, each, lac=each - 1) for ledger, each in asks
    ]
    rig.close()


@pytest.mark.parametrize("read", [v2_read, v3_read])
async def test_reads_go_together_also_where_nothing_is_added(
    read: Callable[[int, int], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await with_entries(v2_add if read is v2_read else v3_add)
    rig.admission.set_mode(read_only=True, high_priority_writes=False)
    counts = looked_up(rig, monkeypatch)
    conn, transport = rig.connect()
    conn.data_received(b"".join(read(1, each) for each in (3, 4, 5, 3)))
    assert counts == [4]
    await rig.settle()
    assert len(transport.frames) == 4
    rig.close()


async def test_a_damaged_entry_concerns_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await with_entries()
    logs = rig.storage.directories[0].logs
    read_run = logs.read_run

    def damaged(location: int, ledger_id: int, entry_id: int, *most: int) -> list[Row]:
        if entry_id == 1:
            raise EntryDamaged("bits have flipped")
        return read_run(location, ledger_id, entry_id, 0, 0)

    monkeypatch.setattr(logs, "read_run", damaged)
    conn, transport = rig.connect()
    conn.data_received(b"".join(v2_read(1, each) for each in range(8)))
    frames = {int.from_bytes(frame[20:28]): v2_code(frame) for frame in await answers(rig, transport, 8)}
    assert frames == {0: 0, 1: 101, 2: 0, 3: 0, 4: 0, 5: 0, 6: 2, 7: 2}
    rig.close()


async def test_where_a_read_takes_long_those_before_it_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await with_entries()
    monkeypatch.setattr("bookie_pod.server.tcp.lane_reads.LONG_S", 0.0)
    read_each, goes_on = rig.storage.read_each, threading.Event()

    def slowly(ledger_id: int, entry_ids: Sequence[int]) -> Iterator[bytes | Exception]:
        for entry_id, found in zip(entry_ids, read_each(ledger_id, entry_ids), strict=True):
            if entry_id == 2:
                assert goes_on.wait(10)
            yield found

    monkeypatch.setattr(rig.storage, "read_each", slowly)
    conn, transport = rig.connect()
    conn.data_received(b"".join(v2_read(1, each) for each in (0, 7, 2, 1)))
    await until(lambda: len(transport.frames) == 2)
    goes_on.set()
    codes = {int.from_bytes(frame[20:28]): v2_code(frame) for frame in await answers(rig, transport, 4)}
    assert codes == {0: 0, 7: 2, 2: 0, 1: 0}
    assert (rig.context.reads_in_progress.count, rig.context.memory.making) == (0, 0)
    rig.close()


async def test_no_more_is_under_way_than_one_connection_may_have() -> None:
    rig = await with_entries(reads_pending_max=0)
    conn, transport = rig.connect()
    goes_on = threading.Event()
    rig.lanes.run(1, goes_on.wait, lambda result, error: None)
    conn.data_received(v2_read(1, 7) * (2 * READS_IN_FLIGHT_MAX))
    assert rig.context.reads_in_progress.count == READS_IN_FLIGHT_MAX
    assert conn.wire.stalled
    goes_on.set()
    await rig.settle(lambda: len(transport.frames) == 2 * READS_IN_FLIGHT_MAX)
    assert {v2_code(frame) for frame in transport.frames} == {2}
    assert rig.context.reads_in_progress.count == 0
    rig.close()


async def test_what_the_lane_has_no_place_for_is_refused() -> None:
    rig = await with_entries(reads_pending_max=40)
    conn, transport = rig.connect()
    conn.data_received(v2_read(1, 0) + v2_read(1, 7) * 100)
    await rig.settle(lambda: len(transport.frames) == 101)
    codes = [v2_code(frame) for frame in transport.frames]
    assert (codes.count(106), codes.count(2), codes.count(0)) == (61, 39, 1)
    rig.close()


def looked_up(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many entries memory is asked for, each time."""
    counts: list[int] = []
    cached_each = rig.storage.cached_each

    def counting(ledger_id: int, entry_ids: Sequence[int]) -> list[bytes | None]:
        counts.append(len(entry_ids))
        return cached_each(ledger_id, entry_ids)

    monkeypatch.setattr(rig.storage, "cached_each", counting)
    return counts


@pytest.mark.parametrize(
    "read",
    [
        lambda each: v2_read(9, each),  # a ledger that nobody knows
        lambda each: v2_read(1, -1),
        lambda each: v2_read(1000 + each, 0),
        lambda each: v3_read(9, each),
        lambda each: v3_read(7, 8),  # one whose LAC nobody knows
        lambda each: v3_read(1000 + each, 0, priority=True),
    ],
)
async def test_reads_that_are_looked_at_one_by_one_give_others_their_turn(
    read: Callable[[int], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await with_entries(reads_pending_max=0)
    counts, count = looked_up(rig, monkeypatch), 4 * (LARGE_PER_TURN // COLD_BYTES)
    conn, transport = rig.connect()
    begun: list[int] = []
    started = Wire.read_started
    monkeypatch.setattr(Wire, "read_started", lambda self, most=0: begun.append(most) or started(self, most))
    conn.data_received(b"".join(read(each) for each in range(count)))
    assert len(begun) == LARGE_PER_TURN // COLD_BYTES + 1
    assert conn.wire.stalled
    await rig.settle(lambda: len(transport.frames) == count)
    assert sum(counts) <= 2 * count + AT_ONCE
    assert not conn.wire.stalled
    assert rig.context.reads_in_progress.count == 0
    rig.close()


@pytest.mark.parametrize("read", [v2_read, v3_read])
async def test_reads_that_have_to_wait_are_not_looked_up_again_and_again(
    read: Callable[[int, int], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    add = v2_add if read is v2_read else v3_add
    rig = await with_entries(add, config=production(max_reads_in_progress=1))
    counts, count = looked_up(rig, monkeypatch), 100
    conn, transport = rig.connect()
    conn.data_received(read(1, 8) * count)
    await rig.settle(lambda: len(transport.frames) == count)
    assert sum(counts) <= 4 * count
    rig.close()


async def test_reads_that_were_begun_end_whatever_befalls_another(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await with_entries()

    def broken(ledger_id: int) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(rig.ledgers, "for_read", broken)
    monkeypatch.setattr(rig.context.complaints, "error", lambda *text, **fields: None)
    conn, transport = rig.connect()
    conn.data_received(v2_read(1, 0) + v2_read(1, 1) + v2_read(7, 0))
    await rig.settle(lambda: transport.closing)
    await rig.settle(lambda: rig.context.reads_in_progress.count == 1)  # the one that broke
    rig.close()


KB = 1 << 10


@pytest.mark.parametrize("long", [0.0, 3600.0], ids=["slow disk", "fast disk"])
async def test_a_client_that_takes_nothing_gets_no_more_than_its_transport_holds(
    monkeypatch: pytest.MonkeyPatch, long: float
) -> None:
    """From memory: requests stay unread. From disk: what is not begun is put aside, in the middle of a piece too; and
    what a slow disk brings one by one counts once, so that nobody is cut off."""
    monkeypatch.setattr(lane_reads, "LONG_S", long)
    size, limit = 200 * KB, 2000 * KB
    rig = ServerRig(half_bytes=32_000 * KB, memory_bytes=limit, read_cache_bytes=0)
    writer, _ = rig.connect()
    writer.data_received(b"".join(v2_add(entry(1, each, bytes(size))) for each in range(64)))
    rig.journal.acknowledge()
    await rig.settle()
    for on_disk in (False, True):
        if on_disk:
            rig.storage.flush()
        conn, transport = slow(rig)
        conn.data_received(b"".join(v2_read(1, each % 64) for each in range(100)))
        await rig.settle()
        high = rig.context.options.write_buffer_high_water_mark_bytes
        assert transport.unsent < high + limit
        assert conn.wire.share.making + transport.unsent <= max(high, limit) + 2 * size + 64 * KB
        while transport.taken < 100 * size:
            assert not transport.aborted
            transport.take()
            await rig.settle()
        assert not conn.wire.stalled
        assert (rig.context.reads_in_progress.count, rig.context.memory.making) == (0, 0)
        conn.connection_lost(None)
    rig.close()
