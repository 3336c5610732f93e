"""The collector of cycles runs now and then: what requests leave for it is held until then, and counted nowhere."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest

from bookie_pod.server.tls_reads import shake_hands
from bookie_protocol.errors import NoSuchEntry
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v2, v3
from tests.support.frames import (
    entry,
    v2_batch,
    v2_read,
    v3_add,
    v3_fence,
    v3_force,
    v3_list,
    v3_poll,
    v3_read,
    v3_read_lac,
    v3_start_tls,
    v3_write_lac,
)
from tests.support.server_rig import ServerRig


def _bookie_info() -> bytes:
    request = v3.new_request(pb.GET_BOOKIE_INFO, 1)
    request.getBookieInfoRequest.requested = 3
    body = request.SerializeToString()
    return len(body).to_bytes(4) + body


REQUESTS: Final = {
    "info": _bookie_info(),
    "batch to the end": v2_batch(1, 0, 0, 5000),
    "batch of nothing": v2_batch(1, 7, 0, 5000),
    "stepped batch of nothing": v2.encode_batch_read_request(1, 7, 1, 0, 5000, step=2),
    "read": v2_read(1, 0),
    "no such entry": v2_read(1, 7),
    "last entry": v2_read(1, -1),
    "no such ledger": v2_read(9, 0),
    "read of version 3": v3_read(1, 0),
    "add": v3_add(entry(2, 0)),
    "fence": v3_fence(3),
    "force": v3_force(1),
    "list": v3_list(1),
    "poll that is answered at once": v3_poll(1, -1, 10),
    "poll whose time is up": v3_poll(1, 7, 1),
    "poll whose client goes": v3_poll(1, 7, 60_000),
    "LAC": v3_read_lac(1),
    "TLS": v3_start_tls(),
    "explicit LAC": v3_write_lac(1, 0),
}


async def test_no_request_leaves_anything() -> None:
    rig = ServerRig()
    writer, _ = rig.connect()
    writer.data_received(v3_add(entry(1, 0)))
    rig.journal.acknowledge()
    rig.storage.flush()
    left = {}
    gc.collect()
    gc.freeze()  # so that a collection looks at little
    gc.disable()
    try:
        for name, frame in REQUESTS.items():
            conn, _ = rig.connect()
            conn.data_received(frame * 2)  # what is made once
            await _served(rig)
            gc.collect()
            conn.data_received(frame * 20)
            await _served(rig)
            conn.connection_lost(None)
            await _served(rig)
            left[name] = gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
        rig.close()
    assert not any(left.values()), left


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("received", [b"", v3_add(entry(1, 0)), v3_add(entry(1, 0))[:20], v2_read(1, 0)])
async def test_no_connection_leaves_anything(received: bytes, is_full: bool) -> None:
    """Thousands that come and go would be one long turn of the event loop for the collector."""
    rig = ServerRig()

    async def come_and_go() -> None:
        conn, _ = rig.connect()
        rig.journal.full = is_full  # adds are parked
        rig.admission.refresh()
        if received:
            conn.data_received(received)
        await _served(rig)
        conn.connection_lost(None)
        rig.journal.batches.clear()

    await come_and_go()  # what is made once
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            await come_and_go()
            await _served(rig)
        assert gc.collect() == 0
    finally:
        gc.enable()
        rig.close()


async def test_a_handshake_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start_tls(*arguments: Any, **options: Any) -> None:
        await asyncio.sleep(0)
        raise ConnectionResetError

    transport: Any = SimpleNamespace(is_closing=lambda: False, get_protocol=lambda: None)
    none: Any = None

    async def fails() -> None:
        with pytest.raises(ConnectionResetError):
            await shake_hands(transport, none, none, none, none)

    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "get_running_loop", lambda: SimpleNamespace(start_tls=start_tls))
        await fails()  # what is made once
        gc.collect()
        gc.disable()
        try:
            await fails()
            assert gc.collect() == 0
        finally:
            gc.enable()


async def _served(rig: ServerRig) -> None:
    await asyncio.sleep(0.005)  # the time of a poll
    rig.journal.acknowledge()
    await rig.settle()


def _raise() -> None:
    raise NoSuchEntry("none")


@pytest.mark.parametrize("work", [lambda: bytearray(9), _raise], ids=["result", "error"])
async def test_a_lane_that_waits_keeps_nothing_of_what_it_did(work: Callable[[], Any]) -> None:
    rig = ServerRig()
    results: list[Any] = []
    rig.lanes.run(1, work, lambda result, error: results.append(error or result))
    await rig.settle(lambda: results)
    async with asyncio.timeout(5):
        while len(gc.get_referrers(*results)) > 1:  # noqa: ASYNC110 - the thread comes to its end when it does
            await asyncio.sleep(0.001)
    rig.close()
