"""The port: taken before the bookie serves, looked after while it does, drained when it stops."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import AsyncIterator

import pytest

from bookie_pod.server.tcp import listener as module
from bookie_pod.server.tcp.listener import TcpListener
from bookie_protocol.errors import ServerStartFailed
from tests.support.frames import entry, v2_add, v2_code
from tests.support.server_rig import ServerRig
from tests.support.until import until

HOST = "127.0.0.1"


@pytest.fixture
async def listener() -> AsyncIterator[TcpListener]:
    made = TcpListener(asyncio.get_running_loop(), HOST, 0)
    await made.bind()
    yield made
    made.drop()
    if made._timer is not None:
        made._timer.cancel()


async def test_a_port_that_is_in_use_is_told_as_that(listener: TcpListener) -> None:
    second = TcpListener(asyncio.get_running_loop(), HOST, listener.port)
    with pytest.raises(ServerStartFailed, match=f"use: {HOST}:{listener.port} \\(bookiePort\\)"):
        await second.bind()
    second.drop()
    await second.stop(0)  # of what was never there nothing ends


@pytest.mark.parametrize(("host", "shown"), [("192.0.2.1", "192.0.2.1"), (None, "\\*")])
async def test_a_port_that_cannot_be_had_is_told_with_its_keys(
    monkeypatch: pytest.MonkeyPatch, host: str | None, shown: str
) -> None:
    loop = asyncio.get_running_loop()

    async def fails(*arguments: object, **options: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(loop, "create_server", fails)
    says = f" on {shown}:81 \\(bookiePort, listeningInterface\\): Permission"
    with pytest.raises(ServerStartFailed, match=says):
        await TcpListener(loop, host, 81).bind()


async def test_who_comes_before_the_bookie_serves_is_dropped_and_served_later(
    rig: ServerRig, listener: TcpListener
) -> None:
    reader, writer = await asyncio.open_connection(HOST, listener.port)
    with pytest.raises((EOFError, ConnectionError)):
        await reader.readexactly(1)
    writer.close()
    listener.serve(rig.clients)
    reader, writer = await asyncio.open_connection(HOST, listener.port)
    writer.write(v2_add(entry(1, 0)))
    await until(lambda: rig.journal.waiting)
    rig.journal.acknowledge()
    frame = await reader.readexactly(28)
    assert v2_code(frame) == 0
    listener.drop()
    with pytest.raises((EOFError, ConnectionError)):
        await reader.readexactly(1)
    writer.close()
    await until(lambda: not rig.clients.connections)
    assert not rig.clients.accepting


async def test_connections_are_looked_at_until_the_bookie_stops(
    rig: ServerRig, listener: TcpListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    monkeypatch.setattr(rig.clients, "look", lambda: looks.append(time.monotonic()))
    listener.serve(rig.clients)
    assert len(looks) == 1
    await until(lambda: len(looks) > 2)
    await listener.stop(0)
    assert listener._timer is not None
    assert listener._timer.cancelled()


@pytest.mark.parametrize("answered", [True, False])
async def test_a_bookie_that_stops_lets_what_is_under_way_be_answered_for_a_while(
    rig: ServerRig, listener: TcpListener, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    monkeypatch.setattr(module, "DRAIN_POLL_S", 0)
    listener.serve(rig.clients)
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(1, 0)))
    stopping = asyncio.ensure_future(listener.stop(60 if answered else 0.001))
    await asyncio.sleep(0)
    assert (transport.reading, rig.clients.accepting, stopping.done()) == (False, False, False)
    late, lates_transport = rig.connect()
    assert lates_transport.aborted
    if answered:
        await asyncio.sleep(0)
        assert not transport.closing
        rig.journal.acknowledge()
    await stopping
    assert (transport.closing, transport.aborted, len(transport.frames)) == (True, False, int(answered))
    late.connection_lost(None)
