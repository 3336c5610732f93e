"""One connection: frames cut anywhere, stalls, answers in one write, slow clients, what closes it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bookie_pod.server.tcp import connection
from bookie_pod.server.tcp.connection_stalls import Stall
from bookie_pod.server.tcp.context import TcpOptions
from bookie_protocol.errors import EntryDamaged, ProtocolViolation
from tests.support.frames import (
    KEY,
    NO_KEY,
    OTHER_KEY,
    entry,
    v2_add,
    v2_batch,
    v2_code,
    v2_fence,
    v2_read,
    v3_add,
    v3_fence,
    v3_force,
    v3_poll,
    v3_read,
    v3_read_lac,
    v3_status,
    v3_write_lac,
)
from tests.support.server_rig import HeldJournal, PaperTransport, ServerRig

V2_TALK = [
    *(v2_add(entry(1, entry_id)) for entry_id in range(4)),
    v2_read(1, 2),
    v2_add(entry(2, 0, b"")),
    v2_batch(1, 0, 4),
    v2_add(entry(1, 4), flags=6),
    v2_read(9, 0),
    v2_fence(3),
    v2_add(entry(3, 0)),
]
V3_TALK = [
    *(v3_add(entry(1, entry_id), txn=entry_id) for entry_id in range(4)),
    v3_read(1, 2, txn=10),
    v3_add(entry(2, 0, b""), txn=11),
    v3_add(entry(1, 4), recovery=True, txn=12),
    v3_add(entry(1, 5), sync=False, txn=13),
    v3_read(9, 0, txn=14),
    v3_fence(3, txn=15),
    v3_add(entry(3, 0), txn=16),
    v3_write_lac(1, 3, txn=17),
    v3_read_lac(1, txn=18),
    v3_force(1, txn=19),
    v3_poll(1, 0, 1, txn=20),
]


@pytest.fixture
async def rig() -> AsyncIterator[ServerRig]:
    made = ServerRig()
    yield made
    made.close()


async def answers(rig: ServerRig, transport: PaperTransport, count: int) -> list[bytes]:
    async with asyncio.timeout(10):
        while len(transport.frames) < count:
            rig.journal.acknowledge()
            await rig.settle()
    return transport.frames


async def talk(frames: list[bytes], cuts: list[int]) -> tuple[list[bytes], ServerRig]:
    """A conversation on a bookie of its own, cut at these positions; the answers, sorted."""
    rig = ServerRig()
    conn, transport = rig.connect()
    data = b"".join(frames)
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        conn.data_received(data[start:end])
        if start % 3 == 0:
            await asyncio.sleep(0)
    found = sorted(await answers(rig, transport, len(frames)))
    assert len(found) == len(frames)
    rig.close()
    return found, rig


@pytest.mark.parametrize("frames", [V2_TALK, V3_TALK], ids=["v2", "v3"])
async def test_frames_cut_at_every_byte_position(frames: list[bytes]) -> None:
    whole, _ = await talk(frames, [])
    size = sum(map(len, frames))
    for position in range(1, size):
        found, _ = await talk(frames, [position])
        assert found == whole, position


@pytest.mark.parametrize("frames", [V2_TALK, V3_TALK], ids=["v2", "v3"])
async def test_byte_by_byte(frames: list[bytes]) -> None:
    whole, _ = await talk(frames, [])
    found, _ = await talk(frames, list(range(1, sum(map(len, frames)))))
    assert found == whole


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_frames_cut_anywhere(data: st.DataObject) -> None:
    frames = data.draw(st.sampled_from([V2_TALK, V3_TALK]))
    size = sum(map(len, frames))
    cuts = sorted(data.draw(st.sets(st.integers(1, size - 1), max_size=12)))

    async def both() -> None:
        whole, _ = await talk(frames, [])
        found, _ = await talk(frames, cuts)
        assert found == whole

    asyncio.run(both())


async def test_a_large_frame_in_small_pieces_costs_no_more_than_its_length(rig: ServerRig) -> None:
    """Joining what has come so far for each piece would copy 5 MB 40,000 times."""
    conn, transport = rig.connect()
    frame = v2_add(entry(1, 0, bytes(5 * 1024 * 1024 - 600)))
    began = time.process_time()
    for start in range(0, len(frame), 128):
        conn.data_received(frame[start : start + 128])
    spent = time.process_time() - began
    assert [v2_code(f) for f in await answers(rig, transport, 1)] == [0]
    assert len(rig.storage.cached(1, 0) or b"") == len(frame) - 28
    assert spent < 5  # about 0.05; copying would take minutes


async def test_adds_of_one_read_are_one_batch_and_their_answers_one_write(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    conn.data_received(b"".join(v2_add(entry(1, entry_id)) for entry_id in range(100)))
    assert len(rig.journal.batches) == 1
    assert rig.journal.batches[0].entries == 100
    await rig.settle()
    assert transport.writes == []
    conn.data_received(v2_read(1, 5) + v2_read(1, 6))
    rig.journal.acknowledge()
    assert transport.writes == []
    await rig.settle()
    assert len(transport.writes) == 1
    assert len(transport.frames) == 102


async def test_large_answers_leave_before_the_turn_ends() -> None:
    rig = ServerRig(TcpOptions(write_high_water=10_000, write_low_water=5_000))
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(1, 0, bytes(4000))))
    rig.journal.acknowledge()
    for _ in range(8):
        conn.data_received(v2_read(1, 0))
    assert len(transport.writes) >= 2  # the loop has not turned yet
    await rig.settle()
    assert len(transport.frames) == 9
    rig.close()


# --- what came in one read stays in order ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("add", "special"),
    [
        (v2_add(entry(1, 0)), v2_fence(1)),
        (v3_add(entry(1, 0)), v3_fence(1)),
        (v3_add(entry(1, 0)), v3_write_lac(1, 0)),
        (v3_add(entry(1, 0)), v3_force(1)),
    ],
    ids=["v2 fence", "fence", "explicit LAC", "force"],
)
async def test_the_key_record_of_an_add_precedes_the_special_record_behind_it(
    rig: ServerRig, add: bytes, special: bytes
) -> None:
    """Replay skips the fence of a ledger whose key it has not met yet."""
    conn, transport = rig.connect()
    conn.data_received(add + special)
    kinds = [kind.name for kind, _ in rig.journal.records]
    assert kinds[:2] == ["KEY", "ENTRY"]
    assert rig.journal.batches[-1].is_force or kinds[2:] in (["FENCE"], ["EXPLICIT_LAC"])
    await answers(rig, transport, 2)


async def test_deferred_and_synced_adds_of_one_read_are_apart(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    conn.data_received(
        b"".join(v3_add(entry(1, entry_id), txn=entry_id, sync=entry_id % 2 == 0) for entry_id in range(4))
    )
    assert [(batch.sync, batch.entries) for batch in rig.journal.batches] == [(True, 1), (False, 1)] * 2
    conn.data_received(v3_add(entry(1, 4), sync=False, recovery=True))
    assert rig.journal.batches[-1].sync  # recovery adds ignore the flag
    await answers(rig, transport, 5)


async def test_an_add_without_a_key_does_not_pass_for_the_ledgers_owner(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(1, 0)))
    for key in (NO_KEY, OTHER_KEY):
        conn.data_received(v2_add(entry(1, 1), key))
    codes = sorted(v2_code(frame) for frame in await answers(rig, transport, 3))
    assert codes == [0, 102, 102]
    assert rig.storage.cached(1, 1) is None


async def test_hot_adds_are_refused_after_a_fence_from_elsewhere(rig: ServerRig) -> None:
    writer, written = rig.connect()
    writer.data_received(v2_add(entry(1, 0)) + v2_add(entry(1, 1)))
    fencer, fenced = rig.connect()
    fencer.data_received(v2_fence(1))
    writer.data_received(v2_add(entry(1, 2)) + v2_add(entry(1, 3), flags=6))
    await rig.settle()
    assert fenced.frames == []  # not durable yet
    assert [v2_code(frame) for frame in written.frames] == [104]
    await answers(rig, written, 4)
    assert len(await answers(rig, fenced, 1)) == 1
    assert rig.storage.cached(1, 2) is None


async def test_a_batch_of_many_ledgers(rig: ServerRig) -> None:
    journals = [HeldJournal(), HeldJournal(), HeldJournal()]
    rig = ServerRig(journals=journals, directories=2)
    conn, transport = rig.connect()
    talk = [v2_add(entry(ledger_id, entry_id)) for entry_id in range(3) for ledger_id in range(12)]
    conn.data_received(b"".join(talk))
    conn.data_received(b"".join(v2_add(entry(ledger_id, 3)) for ledger_id in range(12)))
    for index, journal in enumerate(journals):
        assert {ledger_id % 3 for _, ledger_id in journal.records} == {index}
        assert len(journal.batches) == 2
        journal.acknowledge()
    await rig.settle()
    assert len(transport.frames) == 48
    assert rig.admission.adds_in_progress == 0
    for ledger_id in range(12):
        assert list(rig.storage.entry_ids(ledger_id)) == [0, 1, 2, 3]
    rig.close()


# --- room ----------------------------------------------------------------------------------------------------


async def test_reads_are_answered_while_adds_wait() -> None:
    rig = ServerRig(half_bytes=4096)
    conn, transport = rig.connect()
    conn.data_received(v3_add(entry(1, 0, bytes(5000)), txn=1))
    rig.journal.acknowledge()
    conn.data_received(v3_add(entry(1, 1), txn=2) + v3_read(1, 0, txn=3) + v3_add(entry(1, 2), txn=4))
    await rig.settle(lambda: len(transport.frames) == 2)
    assert len(conn.parked or ()) == 2
    assert rig.flush_requests
    rig.storage.flush()
    assert len(conn.parked or ()) == 0
    await answers(rig, transport, 4)
    assert list(rig.storage.entry_ids(1)) == [0, 1, 2]
    # ... and after that adds are hot again: one batch for many.
    rig.journal.batches.clear()
    conn.data_received(b"".join(v3_add(entry(1, entry_id)) for entry_id in range(3, 9)))
    assert len(rig.journal.batches) == 1
    rig.close()


async def test_without_journaled_data_parked_adds_are_answered_once() -> None:
    """The journal answers at once then, which admits what waits in the middle of handing over a lane."""
    rig = ServerRig(TcpOptions(max_adds_in_progress=1), write_data=False)
    conn, transport = rig.connect()
    rig.admission.started(1)
    conn.data_received(b"".join(v2_add(entry(1, entry_id)) for entry_id in range(5)))
    assert len(conn.parked or ()) == 5
    rig.admission.finished(1)
    await rig.settle(lambda: len(transport.frames) >= 5)
    assert [int.from_bytes(frame[20:28]) for frame in transport.frames] == list(range(5))
    assert rig.admission.adds_in_progress == 0
    rig.close()


async def test_the_limit_on_adds_in_progress_holds_for_what_waited() -> None:
    rig = ServerRig(TcpOptions(max_adds_in_progress=2))
    conn, transport = rig.connect()
    conn.data_received(b"".join(v3_add(entry(ledger_id, 0), txn=ledger_id) for ledger_id in range(10)))
    highest = rig.admission.adds_in_progress
    assert highest == 2
    while len(transport.frames) < 10:
        rig.journal.acknowledge(1)
        highest = max(highest, rig.admission.adds_in_progress)
        await rig.settle()
    assert highest == 2
    assert rig.admission.adds_in_progress == 0
    rig.close()


async def test_the_limit_on_reads_in_progress() -> None:
    rig = ServerRig(TcpOptions(max_reads_in_progress=1))
    rig.storage.set_master_key(1, KEY)
    conn, transport = rig.connect()
    conn.data_received(v2_read(1, 0) * 20)
    assert rig.context.reads_in_progress.count == 1
    assert conn.stalled
    await rig.settle(lambda: len(transport.frames) == 20)
    assert {v2_code(frame) for frame in transport.frames} == {2}
    assert not conn.stalled
    assert transport.reading
    rig.close()


# --- stalls ---------------------------------------------------------------------------------------------------


async def test_stalls_are_independent(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    conn.stall(Stall.READS_LIMIT)
    conn.stall(Stall.SLOW_RECEIVER)
    assert not transport.reading
    conn.data_received(v2_add(entry(1, 0)))
    conn.unstall(Stall.READS_LIMIT)
    conn.unstall(Stall.ADDS_PARKED)  # never was
    await rig.settle()
    assert rig.journal.batches == []
    assert not transport.reading
    conn.unstall(Stall.SLOW_RECEIVER)
    await rig.settle()
    assert len(rig.journal.batches) == 1
    assert transport.reading


async def test_what_came_before_a_stall_ends_is_served_in_order(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    frames = b"".join(v2_add(entry(1, entry_id)) for entry_id in range(6))
    conn.data_received(frames[:100])
    conn.stall(Stall.SLOW_RECEIVER)
    for start in range(100, len(frames), 7):
        conn.data_received(frames[start : start + 7])
    conn.unstall(Stall.SLOW_RECEIVER)
    await answers(rig, transport, 6)
    assert list(rig.storage.entry_ids(1)) == list(range(6))


async def test_a_bad_length_while_stalled_closes_with_one_line(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    conn.stall(Stall.HANDSHAKE)
    conn.data_received(b"\xff\xff\xff\xff rubbish")
    assert transport.closing
    assert rig.context.connection_errors == 1


async def test_a_client_that_does_not_read_is_not_read_from(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    assert transport.limits == {"high": 512 * 1024, "low": 384 * 1024}
    conn.pause_writing()
    assert not transport.reading
    conn.resume_writing()
    await rig.settle()
    assert transport.reading


@pytest.mark.parametrize("close", [False, True])
async def test_a_client_that_does_not_read_for_long(close: bool) -> None:
    rig = ServerRig(TcpOptions(response_backpressure_timeout_ms=10, close_on_response_timeout=close))
    rig.storage.set_master_key(1, KEY)
    conn, transport = rig.connect()
    conn.pause_writing()
    await asyncio.sleep(0.03)
    assert transport.aborted == close
    conn.send(b"dropped")
    await rig.settle()
    if not close:
        assert transport.writes == []
        conn.resume_writing()
        conn.send(b"sent")
        await rig.settle()
        assert transport.writes == [b"sent"]
    rig.close()


async def test_a_stopping_bookie_takes_no_more_requests(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(1, 0)))
    conn.stop_reading()
    conn.data_received(v2_add(entry(1, 1)))
    assert await answers(rig, transport, 1)
    assert rig.storage.cached(1, 1) is None


# --- closing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [bytes(4), b"\xff\xff\xff\xff", b"\x00\x50\x00\x00" + bytes(64), b"\x00\x00\x00\x01x", v2_read(1, 0)[:-1] + b""],
    ids=["zero", "negative", "oversize", "one byte", "cut"],
)
async def test_bytes_that_are_no_frame(rig: ServerRig, bad: bytes) -> None:
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(1, 0)) + bad)
    cut = len(bad) == len(v2_read(1, 0)) - 1
    assert transport.closing != cut  # an incomplete frame is waited for
    assert len(rig.journal.batches) == 1  # what came before is served


@pytest.mark.parametrize("add", [v2_add, v3_add], ids=["v2", "v3"])
async def test_a_frame_above_the_limit_is_refused_even_if_it_came_whole(add: Callable[[bytes], bytes]) -> None:
    rig = ServerRig(TcpOptions(max_frame_bytes=1024))
    conn, transport = rig.connect()
    conn.data_received(add(entry(1, 0)))
    conn.data_received(add(entry(1, 1, bytes(2000))))
    assert transport.closing
    assert rig.storage.cached(1, 1) is None
    rig.close()


async def test_a_fault_of_ours_closes_that_connection_only(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    conn, transport = rig.connect()
    other, other_transport = rig.connect()

    def broken(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(rig.operations, "add", broken)
    conn.data_received(v2_add(entry(1, 0)))
    assert transport.closing
    monkeypatch.undo()
    other.data_received(v2_add(entry(1, 0)))
    await answers(rig, other_transport, 1)


async def test_connections_before_the_bookie_serves_are_dropped(rig: ServerRig) -> None:
    rig.context.accepting = False
    _, transport = rig.connect()
    assert transport.aborted
    assert rig.context.connections == set()


async def test_a_lost_connection_gives_everything_back() -> None:
    rig = ServerRig(half_bytes=4096)
    rig.storage.set_master_key(1, KEY)
    conn, transport = rig.connect()
    conn.data_received(v3_add(entry(1, 0, bytes(5000))) + v3_add(entry(1, 1)) + v3_poll(1, 50) + v3_read(1, 7))
    conn.connection_lost(ConnectionResetError())
    conn.connection_lost(None)
    await rig.settle()
    rig.journal.acknowledge()
    await rig.settle()
    assert rig.context.connections == set()
    assert rig.context.reads_in_progress.count == 0
    assert (rig.admission.parked_adds, rig.admission.adds_in_progress) == (0, 0)
    assert not rig.context.busy
    assert transport.writes == []
    rig.close()


async def test_reads_of_a_lost_connection_are_not_done(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.storage.set_master_key(1, KEY)
    looked: list[int] = []
    monkeypatch.setattr(rig.storage, "read", lambda ledger_id, entry_id: looked.append(entry_id))
    conn, _ = rig.connect()
    held = asyncio.Event()
    gate = threading.Event()
    rig.lanes.run(1, gate.wait, lambda result, error: held.set())
    conn.data_received(v2_read(1, 0) * 5 + v2_batch(1, 0) * 5)
    conn.connection_lost(None)
    gate.set()
    await rig.settle()
    assert looked == []
    assert rig.context.reads_in_progress.count == 0


async def test_a_closed_connection_whose_client_takes_nothing_is_cut_off(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LINGER_S", 0.01)
    conn, transport = rig.connect()
    conn.close(ProtocolViolation("enough"))
    assert (transport.closing, transport.aborted) == (True, False)
    await asyncio.sleep(0.03)
    assert transport.aborted


async def test_a_read_of_an_entry_does_not_depend_on_the_last_one(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer carries the LAC of the last entry; if that one is damaged, this one is served all the same."""
    rig.storage.set_master_key(1, KEY)
    rig.storage.active_entries(1)[3] = entry(1, 3)

    def damaged(ledger_id: int) -> int:
        raise EntryDamaged("bits have flipped")

    monkeypatch.setattr(rig.storage, "last_entry_id", damaged)
    conn, transport = rig.connect()
    conn.data_received(v3_read(1, 3))
    (frame,) = await answers(rig, transport, 1)
    assert v3_status(frame) == 0
    assert not rig.ledgers.states[1].lac_known


async def test_every_operation_is_observed_once(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        rig.context.metrics, "read_done", lambda kind, elapsed_ms, success: seen.append((kind, success)), raising=False
    )
    conn, transport = rig.connect()
    talk = [v3_add(entry(1, 0)), v3_write_lac(1, 0), v3_force(1), v3_read_lac(1), v3_read_lac(2), v3_fence(1)]
    conn.data_received(b"".join((*talk, v3_poll(1, 5, 1), v3_read(1, 9))))
    await answers(rig, transport, len(talk) + 2)
    assert sorted(seen) == [
        ("fence", True),
        ("force", True),
        ("long_poll", True),
        ("read", False),
        ("read_lac", False),
        ("read_lac", True),
        ("write_lac", True),
    ]
