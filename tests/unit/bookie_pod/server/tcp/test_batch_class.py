"""Reads of the traffic class `batch`: their lanes, how they give way, and that nobody waits for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from bookie_pod.server.tcp.read_lanes import BURST_S, LOOK_S, PATIENCE_S, REST_FACTOR, REST_MAX_S, BatchPace, ReadLanes
from bookie_protocol.traffic_class import BATCH_CONTEXT, is_batch
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v2, v3_encode
from bookie_protocol.wire.v2 import Flag
from bookie_protocol.wire.v3 import encode_frame
from tests.support.frames import (
    KEY,
    entry,
    v2_add,
    v2_batch,
    v2_code,
    v2_entries,
    v2_entry,
    v2_read,
    v3_add,
    v3_answer,
    v3_poll,
    v3_read,
    v3_status,
)
from tests.support.server_rig import ServerRig
from tests.support.storage_engine import put
from tests.support.until import until


def marked_batch(ledger_id: int, first: int, count: int, flags: int = Flag.BATCH_CLASS) -> bytes:
    key = KEY if flags & Flag.DO_FENCING else b""
    return v2.encode_batch_read_request(ledger_id, first, 1, count, 1 << 20, flags, key)


def marked_v3(ledger_id: int, entry_id: int, *, txn: int = 1, flags: int = 0) -> bytes:
    return v3_encode.read_request(txn, ledger_id, entry_id, v3_encode.BATCH_CLASS | flags)


def marked_poll(ledger_id: int, previous: int) -> bytes:
    request = pb.Request.FromString(v3_poll(ledger_id, previous)[4:] + BATCH_CONTEXT)
    assert is_batch(request)
    return encode_frame(request)


class BatchRig(ServerRig):
    """With lanes of the class."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pressed = False
        self.pace = BatchPace(lambda: self.pressed)
        self.batch_lanes = ReadLanes("read-batch", 1, 3, asyncio.get_running_loop(), None, self.pace)
        self.reads._batch_class_lanes, self.reads.batch_pace = self.batch_lanes, self.pace
        self.gates: list[threading.Event] = []

    def hold_batch_lane(self) -> threading.Event:
        gate = threading.Event()
        self.gates.append(gate)
        self.batch_lanes.run(1, gate.wait, lambda result, error: None)
        return gate

    def close(self) -> None:
        for gate in self.gates:
            gate.set()
        self.batch_lanes.stop()
        super().close()


@pytest.fixture
async def rig() -> AsyncIterator[BatchRig]:
    made = BatchRig()
    made.storage.set_master_key(1, KEY)
    put(made.storage, *(entry(1, n) for n in range(20)))
    yield made
    made.close()


# --- which lane ---------------------------------------------------------------------------------------------


async def test_behind_a_blocked_lane_of_the_class_all_others_go_on(rig: BatchRig) -> None:
    """Memory holds every entry: even so marked reads wait for their lane, in both dialects."""
    two, three = rig.connect(), rig.connect()
    gate = rig.hold_batch_lane()
    two[0].data_received(v2_read(1, 2, Flag.BATCH_CLASS) + marked_batch(1, 0, 5))
    await rig.settle()
    assert (two[1].frames, rig.batch_lanes.pending) == ([], 3)
    # The same client and others: reads, batch reads, adds.
    two[0].data_received(v2_read(1, 3) + v2_batch(1, 4, 2) + v2_add(entry(1, 20)))
    three[0].data_received(v3_add(entry(1, 21), txn=5) + v3_read(1, 7, txn=6))
    await rig.settle(lambda: len(two[1].frames) == 2)
    rig.journal.acknowledge()
    await rig.settle(lambda: len(two[1].frames) == 3 and len(three[1].frames) == 2)
    assert v2_entry(two[1].frames[0]) == entry(1, 3)
    assert v2_entries(two[1].frames[1]) == [entry(1, 4), entry(1, 5)]
    assert rig.batch_lanes.pending == 3
    gate.set()
    await rig.settle(lambda: len(two[1].frames) == 5)
    assert v2_entry(two[1].frames[3]) == entry(1, 2)
    assert v2_entries(two[1].frames[4]) == [entry(1, n) for n in range(5)]
    assert (rig.pace.entries, rig.pace.nbytes) == (6, 6 * len(entry(1, 0)))


async def test_a_marked_read_of_version_3_waits_and_tells_the_lac_like_any_other(rig: BatchRig) -> None:
    conn, transport = rig.connect()
    gate = rig.hold_batch_lane()
    conn.data_received(marked_v3(1, 7, txn=3) + v3_read(1, 7, txn=4))
    await rig.settle(lambda: len(transport.frames) == 1)
    assert v3_answer(transport.frames[0]).header.txnId == 4
    gate.set()
    await rig.settle(lambda: len(transport.frames) == 2)
    plain, marked = map(v3_answer, transport.frames)
    assert (marked.header.txnId, marked.readResponse) == (3, plain.readResponse)


async def test_no_more_than_so_many_wait(rig: BatchRig) -> None:
    conn, transport = rig.connect()
    gate = rig.hold_batch_lane()
    conn.data_received(v2_read(1, 0, Flag.BATCH_CLASS) * 4)
    await until(lambda: len(transport.frames) == 2)
    assert [v2_code(frame) for frame in transport.frames] == [106, 106]
    gate.set()
    await rig.settle(lambda: len(transport.frames) == 4)


@pytest.mark.parametrize(
    ("frame", "status"),
    [
        (v2.encode_read_request(1, 2, Flag.BATCH_CLASS | Flag.HIGH_PRIORITY), v2_code),
        (v2.encode_read_request(1, 2, Flag.BATCH_CLASS | Flag.DO_FENCING | Flag.HIGH_PRIORITY, KEY), v2_code),
        (v2.encode_read_request(1, 2, Flag.BATCH_CLASS | Flag.DO_FENCING, KEY), v2_code),
        (marked_batch(1, 2, 1, Flag.BATCH_CLASS | Flag.DO_FENCING), v2_code),
        (marked_batch(1, 2, 1, Flag.BATCH_CLASS | Flag.HIGH_PRIORITY), v2_code),
        (marked_v3(1, 2, flags=v3_encode.HIGH_PRIORITY), v3_status),
        (v3_encode.read_request(1, 1, 2, v3_encode.BATCH_CLASS | v3_encode.FENCE, KEY), v3_status),
        (marked_poll(1, 3), v3_status),
    ],
)
async def test_what_somebody_waits_for_is_not_of_the_class(
    rig: BatchRig, frame: bytes, status: Callable[[bytes], int]
) -> None:
    conn, transport = rig.connect()
    gate = rig.hold_batch_lane()
    conn.data_received(frame)
    async with asyncio.timeout(10):
        while not transport.frames:
            rig.journal.acknowledge()
            await asyncio.sleep(0.001)
    assert status(transport.frames[0]) == 0
    gate.set()


async def test_without_lanes_of_its_own_the_class_shares_the_ordinary_ones() -> None:
    rig = ServerRig()
    rig.storage.set_master_key(1, KEY)
    put(rig.storage, entry(1, 0))
    conn, transport = rig.connect()
    gate = threading.Event()
    rig.lanes.run(1, gate.wait, lambda result, error: None)
    conn.data_received(v2_read(1, 0, Flag.BATCH_CLASS))
    assert rig.lanes.pending == 2
    gate.set()
    await rig.settle(lambda: len(transport.frames) == 1)
    assert v2_entry(transport.frames[0]) == entry(1, 0)
    assert (rig.reads.batch_pace.entries, rig.reads.batch_pace.yielded_s) == (1, 0.0)
    rig.close()


async def test_absence_is_told_as_always(rig: BatchRig) -> None:
    conn, transport = rig.connect()
    conn.data_received(v2_read(1, 77, Flag.BATCH_CLASS) + marked_batch(9, 0, 5) + v2_read(1, -1, Flag.BATCH_CLASS))
    await rig.settle(lambda: len(transport.frames) == 3)
    codes = sorted(v2_code(frame) for frame in transport.frames)
    assert codes == [0, 1, 2]  # the last entry; no such ledger; no such entry


# --- giving way ---------------------------------------------------------------------------------------------


class Clock:
    """Time that passes only in waits; also the event that ends them."""

    def __init__(self) -> None:
        self.now = 100.0
        self.stopped = False
        self.waits: list[float] = []
        self.on_wait: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.now += seconds
        self.on_wait()
        return self.stopped

    def is_set(self) -> bool:
        return self.stopped

    def set(self) -> None:
        self.stopped = True


class PaceRig:
    def __init__(self, bytes_per_second: int = 0) -> None:
        self.clock = Clock()
        self.pressed = False
        self.pace = BatchPace(lambda: self.pressed, bytes_per_second, clock=self.clock, stopped=self.clock)  # type: ignore[arg-type]

    def begins_after(self, given: float | None = None) -> float:
        """Seconds until a read may begin that was given at `given`, by default now."""
        began = self.clock.now
        given = began if given is None else given
        if self.pace.must_wait(given):
            self.pace.wait(given)
        return self.clock.now - began


def test_under_pressure_a_tenth_of_the_speed() -> None:
    rig = PaceRig()
    rig.pace.worked(0.02)
    assert rig.begins_after() == 0  # nobody waits
    rig.pressed = True
    rig.pace.worked(0.02)
    assert rig.begins_after() == pytest.approx(REST_FACTOR * 0.02, abs=LOOK_S)
    assert rig.pace.yielded_s == pytest.approx(REST_FACTOR * 0.02, abs=LOOK_S)
    assert rig.begins_after() == 0  # it has rested
    rig.pace.worked(5.0)
    assert rig.begins_after() == pytest.approx(REST_MAX_S, abs=LOOK_S)


def test_the_rest_ends_with_the_pressure() -> None:
    rig = PaceRig()
    rig.pressed = True
    rig.pace.worked(0.02)
    rig.clock.on_wait = lambda: setattr(rig, "pressed", len(rig.clock.waits) < 4)
    rig.clock.waits.clear()
    assert rig.begins_after() == pytest.approx(4 * LOOK_S)


def test_no_read_gives_way_for_longer_than_its_patience() -> None:
    """However long the pressure lasts and however slow the disk is."""
    rig = PaceRig()
    rig.pressed = True
    rig.pace.worked(5.0)
    now = rig.clock.now
    assert rig.begins_after(now - PATIENCE_S + 0.05) == pytest.approx(0.05, abs=LOOK_S)
    rig.pace.worked(5.0)
    assert rig.begins_after(rig.clock.now - PATIENCE_S) == 0


def test_the_limit_in_bytes_holds_for_everything() -> None:
    rig = PaceRig(bytes_per_second=1_000_000)
    rig.pace.has_read(10, 300_000)
    assert rig.begins_after(rig.clock.now - PATIENCE_S) == pytest.approx(0.3)
    rig.clock.now += 60
    began = rig.clock.now
    for _ in range(20):
        rig.begins_after()
        rig.pace.has_read(1, 100_000)
    # After a pause the burst comes at once, and one piece beside it.
    assert rig.clock.now - began == pytest.approx(20 * 0.1 - BURST_S - 0.1)
    assert rig.pace.limited_s == pytest.approx(0.3 + rig.clock.now - began)
    assert (rig.pace.entries, rig.pace.nbytes, rig.pace.yielded_s) == (30, 2_300_000, 0.0)


def test_without_a_limit_nothing_waits_for_bytes() -> None:
    rig = PaceRig()
    rig.pace.has_read(1, 1 << 40)
    assert rig.begins_after() == 0


def test_every_wait_ends_when_the_lanes_stop() -> None:
    rig = PaceRig(bytes_per_second=1)
    rig.pace.has_read(1, 1 << 30)
    rig.clock.on_wait = rig.pace.stop
    rig.pace.wait(rig.clock.now)
    assert len(rig.clock.waits) == 1
    assert not rig.pace.must_wait(rig.clock.now)


async def test_a_lane_that_gives_way_hands_over_what_it_has_done(
    rig: BatchRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first read is answered while the second one gives way."""
    monkeypatch.setattr("bookie_pod.server.tcp.read_lanes.SLICE_S", 60.0)
    conn, transport = rig.connect()
    done, over = threading.Event(), threading.Event()
    rig.pace.worked = lambda seconds: done.set()  # type: ignore[method-assign]
    rig.pace._rests = lambda given: done.is_set() and not over.is_set()  # type: ignore[method-assign]
    gate = rig.hold_batch_lane()
    conn.data_received(v2_read(1, 0, Flag.BATCH_CLASS))
    try:
        gate.set()
        await until(lambda: rig.batch_lanes.pending == 1)
        assert transport.frames == []
    finally:
        over.set()
    await rig.settle(lambda: len(transport.frames) == 1)
    assert rig.pace.yielded_s > 0


async def test_lanes_stop_while_they_give_way(rig: BatchRig) -> None:
    rig.pressed = True
    rig.pace.worked = lambda seconds: None  # type: ignore[method-assign]
    over = threading.Event()
    rig.pace._rests = lambda given: not over.is_set()  # type: ignore[method-assign]
    done = list[object]()
    rig.batch_lanes.run(1, lambda: "read", lambda result, error: done.append(result))
    try:
        async with asyncio.timeout(10):
            await asyncio.to_thread(rig.batch_lanes.stop)
        await until(lambda: done == ["read"])
    finally:
        over.set()
