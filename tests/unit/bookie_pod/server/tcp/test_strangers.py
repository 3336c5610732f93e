"""What a client may take before it is known."""

from __future__ import annotations

import struct
import time

import pytest
from structlog.testing import capture_logs

from bookie_pod.server.tcp import strangers
from bookie_pod.server.tcp.context import TcpOptions
from bookie_pod.server.tcp.strangers import FRAME_BYTES, FRAMES, SECONDS
from bookie_protocol.errors import V2Code, V3Status
from bookie_protocol.wire import v2
from bookie_protocol.wire.auth import AuthMessage
from tests.support.auth import TwoTokens
from tests.support.frames import entry, v2_add, v2_code, v2_read, v3_add, v3_status
from tests.support.server_rig import ServerRig


@pytest.fixture
async def guarded(rig: ServerRig) -> ServerRig:
    """With authentication."""
    rig.context.auth = TwoTokens()
    return rig


def token(payload: bytes) -> bytes:
    return v2.encode_auth(AuthMessage("TestAuth", payload))


@pytest.mark.parametrize("version", [2, 3])
async def test_too_many_frames_end_the_connection_once_all_before_are_answered(
    guarded: ServerRig, version: int
) -> None:
    conn, transport = guarded.connect()
    add = (v2_add if version == 2 else v3_add)(entry(1, 0))
    sent = 0
    with capture_logs() as logs:
        while not transport.closing:
            conn.data_received(add * 100)
            sent += 100
            await guarded.settle()
    assert sent == FRAMES + 100
    refused = {v2_code(each) if version == 2 else v3_status(each) for each in transport.frames}
    assert (len(transport.frames), refused) == (FRAMES, {V2Code.EUA if version == 2 else V3Status.EUA})
    assert guarded.context.refusals == FRAMES
    assert [line["event"] for line in logs] == ["requests are refused", "connection closed"]  # each told once
    assert guarded.storage.ledger(1) is None


@pytest.mark.parametrize("first", [b"", token(b"hello")], ids=["at once", "in version 2"])
async def test_a_frame_is_too_long_before_it_has_come(guarded: ServerRig, first: bytes) -> None:
    conn, transport = guarded.connect()
    conn.data_received(first)
    await guarded.settle()
    conn.data_received(struct.pack(">I", FRAME_BYTES + 1) + v2_add(entry(1, 0))[4:])
    assert transport.closing
    assert conn.share.held == 0


@pytest.mark.parametrize("size", [FRAME_BYTES - 4 - 24 - 32, FRAME_BYTES])
async def test_a_long_frame_that_came_at_once(guarded: ServerRig, size: int) -> None:
    conn, transport = guarded.connect()
    conn.data_received(v2_add(entry(1, 0, bytes(size))))
    await guarded.settle()
    assert transport.closing == (size == FRAME_BYTES)
    assert [v2_code(each) for each in transport.frames] == ([] if size == FRAME_BYTES else [V2Code.EUA])


async def test_who_is_known_has_the_limits_of_everybody(guarded: ServerRig) -> None:
    conn, transport = guarded.connect()
    conn.data_received(token(b"hello"))
    await guarded.settle()
    assert len(guarded.context.strangers) == 1
    conn.data_received(token(b"secret") + v2_add(entry(1, 0, bytes(2 * FRAME_BYTES))))
    await guarded.settle(lambda: guarded.journal.waiting)
    guarded.journal.acknowledge()
    conn.data_received(v2_read(9, 9) * (FRAMES + 1))
    await guarded.settle(lambda: len(transport.frames) == FRAMES + 4)
    assert v2_code(transport.frames[2]) == 0
    assert len(guarded.context.strangers) == 0
    guarded.context.strangers.look(time.perf_counter() + 2 * SECONDS, 0.0)
    assert not transport.closing


async def test_whoever_does_not_become_known_goes(guarded: ServerRig) -> None:
    look, now = guarded.context.strangers.look, time.perf_counter()
    _, silent = guarded.connect()
    talker, talking = guarded.connect()
    look(now + SECONDS - 1, 0.0)
    assert not silent.closing
    talker.data_received(token(b"hello"))
    await guarded.settle()
    look(now + SECONDS + 60, 100.0)  # while this process slept nobody could become known
    assert (silent.closing, talking.closing) == (False, False)
    look(now + SECONDS + 101, 0.0)
    assert (silent.aborted, talking.aborted) == (True, True)  # talking does not help
    assert guarded.context.strangers.sent_away == 2


async def test_of_too_many_the_oldest_goes(guarded: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "MOST", 3)
    known, _ = guarded.connect()
    known.data_received(token(b"hello") + token(b"secret"))
    await guarded.settle()
    transports = [guarded.connect()[1] for _ in range(5)]
    assert [each.aborted for each in transports] == [True, True, False, False, False]
    assert known.authenticated
    assert not known.closed
    assert len(guarded.context.strangers) == 3


async def test_who_is_gone_is_forgotten(guarded: ServerRig) -> None:
    conn, _ = guarded.connect()
    conn.connection_lost(None)
    assert len(guarded.context.strangers) == 0


async def test_where_nothing_is_demanded_nobody_is_a_stranger() -> None:
    for tls_required in (False, True):
        rig = ServerRig(options=TcpOptions(tls_required=tls_required))
        rig.connect()
        assert len(rig.context.strangers) == tls_required
        rig.close()
