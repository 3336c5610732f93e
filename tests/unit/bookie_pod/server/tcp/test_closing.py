"""What closes a connection, and what a lost one gives back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from bookie_pod.server.tcp import wire
from bookie_protocol.errors import ProtocolViolation
from tests.support.frames import KEY, entry, v2_add, v2_batch, v2_read, v3_add, v3_poll, v3_read
from tests.support.production import production
from tests.support.server_rig import ServerRig, answers


@pytest.mark.parametrize(
    "bad",
    [bytes(4), b"\xff\xff\xff\xff", b"\x00\x50\x28\x00" + bytes(64), b"\x00\x00\x00\x01x", v2_read(1, 0)[:-1] + b""],
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
    rig = ServerRig(production(max_frame_size_bytes=1024))
    conn, transport = rig.connect()
    conn.data_received(add(entry(1, 0)))
    conn.data_received(add(entry(1, 1, bytes(2000))))
    assert transport.closing
    assert rig.storage.cached(1, 1) is None
    rig.close()


@pytest.mark.parametrize("first", [4, 5, 12])
async def test_only_what_begins_as_version_3_may_be_longer_by_its_head(first: int) -> None:
    """However its first bytes come, and before anything tells what the client speaks."""
    rig = ServerRig(production(max_frame_size_bytes=1024))
    for frame, closes in ((v2_add(entry(1, 0, bytes(972))), True), (v3_add(entry(1, 0, bytes(960))), False)):
        assert len(frame) > 1024
        conn, transport = rig.connect()
        conn.data_received(frame[:first])
        conn.data_received(frame[first : first + 8])
        assert transport.closing == closes
    conn.data_received(frame[first + 8 :])
    await answers(rig, transport, 1)
    assert rig.storage.cached(1, 0) is not None
    rig.close()


async def test_a_fault_of_ours_closes_that_connection_only(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    conn, transport = rig.connect()
    other, other_transport = rig.connect()

    def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(rig.operations, "add", broken)
    conn.data_received(v2_add(entry(1, 0)))
    assert transport.closing
    monkeypatch.undo()
    other.data_received(v2_add(entry(1, 0)))
    await answers(rig, other_transport, 1)


async def test_connections_before_the_bookie_serves_are_dropped(rig: ServerRig) -> None:
    rig.clients.accepting = False
    _, transport = rig.connect()
    assert transport.aborted
    assert rig.clients.connections == {}


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
    assert rig.clients.connections == {}
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
    monkeypatch.setattr(wire, "LINGER_S", 0.01)
    conn, transport = rig.connect()
    conn.wire.close(ProtocolViolation("enough"))
    assert (transport.closing, transport.aborted) == (True, False)
    await asyncio.sleep(0.03)
    assert transport.aborted
