"""What a client may take before it is known."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs

from bookie_pod.audit import Audit
from bookie_pod.metrics.registry import Registry
from bookie_pod.server import tls
from bookie_pod.server.tcp import strangers
from bookie_pod.server.tcp.strangers import (
    FRAME_BYTES,
    FRAMES,
    GROWN_SHARE,
    IDLE_BYTES,
    LARGE_BYTES,
    SECONDS,
    SMALL_BYTES,
)
from bookie_pod.server.tls_reads import PART, WINDOW
from bookie_protocol.auth.shared_token import PLUGIN_NAME, SharedTokens, TokenAuth
from bookie_protocol.auth.watched_file import CHECK_S
from bookie_protocol.errors import ProtocolViolation, V2Code, V3Status
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v2
from bookie_protocol.wire.auth import AuthMessage, Peer
from tests.support.auth import TwoTokens
from tests.support.frames import entry, v2_add, v2_code, v2_read, v3_add, v3_auth, v3_start_tls, v3_status
from tests.support.production import production
from tests.support.server_rig import PaperTls, ServerRig
from tests.support.until import until


@pytest.fixture
async def guarded(rig: ServerRig) -> ServerRig:
    """With authentication."""
    rig.clients.auth = TwoTokens()
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
    assert guarded.clients.refusals == FRAMES
    assert [line["event"] for line in logs] == ["requests are refused", "connection closed"]  # each told once
    assert guarded.storage.ledger(1) is None


@pytest.mark.parametrize("first", [b"", token(b"hello")], ids=["at once", "in version 2"])
async def test_a_frame_is_too_long_before_it_has_come(guarded: ServerRig, first: bytes) -> None:
    conn, transport = guarded.connect()
    conn.data_received(first)
    await guarded.settle()
    conn.data_received(struct.pack(">I", FRAME_BYTES + 1) + v2_add(entry(1, 0))[4:])
    assert transport.closing
    assert conn.wire.share.held == 0


async def test_a_frame_behind_a_step_that_did_not_authenticate_is_too_long_for_a_stranger(guarded: ServerRig) -> None:
    """While the step was under way nobody knew whether it would be a stranger's."""
    conn, transport = guarded.connect()
    conn.data_received(token(b"hello") + struct.pack(">I", FRAME_BYTES + 1) + v2_add(entry(1, 0))[4:])
    await guarded.settle(lambda: transport.closing)
    assert transport.closing
    assert conn.wire.share.held == 0


@pytest.mark.parametrize("size", [FRAME_BYTES - 4 - 24 - 32, FRAME_BYTES])
async def test_a_long_frame_that_came_at_once(guarded: ServerRig, size: int) -> None:
    conn, transport = guarded.connect()
    conn.data_received(v2_add(entry(1, 0, bytes(size))))
    await guarded.settle()
    assert transport.closing == (size == FRAME_BYTES)
    assert [v2_code(each) for each in transport.frames] == ([] if size == FRAME_BYTES else [V2Code.EUA])


def test_how_long_a_strangers_frame_may_be() -> None:
    strangers.check_frame(FRAME_BYTES)
    with pytest.raises(ProtocolViolation, match=f"{FRAME_BYTES + 1} bytes .*authentication"):
        strangers.check_frame(FRAME_BYTES + 1)


async def test_who_is_known_has_the_limits_of_everybody(guarded: ServerRig) -> None:
    conn, transport = guarded.connect()
    conn.data_received(token(b"hello"))
    await guarded.settle()
    assert len(guarded.clients.strangers) == 1
    conn.data_received(token(b"secret") + v2_add(entry(1, 0, bytes(2 * FRAME_BYTES))))
    await guarded.settle(lambda: guarded.journal.waiting)
    guarded.journal.acknowledge()
    conn.data_received(v2_read(9, 9) * (FRAMES + 1))
    await guarded.settle(lambda: len(transport.frames) == FRAMES + 4)
    assert v2_code(transport.frames[2]) == 0
    assert len(guarded.clients.strangers) == 0
    guarded.clients.strangers.look(time.perf_counter() + 2 * SECONDS, 0.0)
    assert not transport.closing


async def test_whoever_does_not_become_known_goes(guarded: ServerRig) -> None:
    look, now = guarded.clients.strangers.look, time.perf_counter()
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
    assert guarded.clients.strangers.sent_away == 2


@pytest.mark.parametrize("more", [0.0, 0.001])
async def test_how_long_a_stranger_may_stay(guarded: ServerRig, more: float) -> None:
    conn, transport = guarded.connect()
    guarded.clients.strangers._since[conn.wire] = 100.0
    guarded.clients.strangers.look(100.0 + SECONDS + more, 0.0)
    assert transport.aborted == bool(more)


async def test_of_too_many_the_oldest_goes(guarded: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "MOST", 3)
    known, _ = guarded.connect()
    known.data_received(token(b"hello") + token(b"secret"))
    await guarded.settle()
    transports = [guarded.connect()[1] for _ in range(5)]
    assert [each.aborted for each in transports] == [True, True, False, False, False]
    assert known.wire.authenticated
    assert not known.wire.closed
    assert len(guarded.clients.strangers) == 3


async def test_of_too_many_handshakes_that_do_not_end_the_oldest_goes(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "MOST_ENCRYPTED", 2)
    under_way = 0

    async def never(*arguments: object, **more: object) -> None:
        nonlocal under_way
        under_way += 1
        await asyncio.Event().wait()

    monkeypatch.setattr(rig.context.loop, "start_tls", never)
    rig.clients.tls = SimpleNamespace(context=lambda: None)  # type: ignore[assignment]
    connections = [rig.connect() for _ in range(4)]
    for begun, (conn, _) in enumerate(connections, 1):
        conn.data_received(v3_start_tls())
        await until(lambda begun=begun: under_way == begun)  # type: ignore[misc]
    assert [transport.aborted for _, transport in connections] == [True, True, False, False]
    assert rig.clients.strangers.sent_away == 2
    for conn, _ in connections:
        conn.connection_lost(None)
    await asyncio.sleep(0)
    assert not rig.clients.strangers._encrypted


async def test_so_it_does_though_it_has_ended_its_handshake(
    guarded: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And then says nothing more, or has a certificate that is refused; who logs in is in nobody's way."""
    monkeypatch.setattr(strangers, "MOST_ENCRYPTED", 2)

    async def at_once(plain: object, *arguments: object, **more: object) -> object:
        return plain

    monkeypatch.setattr(guarded.context.loop, "start_tls", at_once)
    guarded.clients.tls = SimpleNamespace(context=lambda: None)  # type: ignore[assignment]
    connections = [guarded.connect() for _ in range(5)]
    for place, (conn, _) in enumerate(connections):
        conn.data_received(v3_start_tls())
        await guarded.settle()
        if place == 0:
            for payload in (b"hello", b"secret"):
                conn.data_received(token(payload))
                await guarded.settle()
            assert conn.wire.authenticated
    assert [transport.aborted for _, transport in connections] == [False, True, True, False, False]
    for conn, _ in connections:
        conn.connection_lost(None)
    assert not guarded.clients.strangers._encrypted


class Handshakes:
    """In the place of the loop's `start_tls`: as many as are under way end when `end` is called."""

    def __init__(self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.under_way: dict[Any, asyncio.Future[None]] = {}
        self.begun: list[Any] = []
        self._loop = rig.context.loop
        monkeypatch.setattr(rig.context.loop, "start_tls", self._begin)
        rig.clients.tls = SimpleNamespace(context=lambda: None)  # type: ignore[assignment]
        rig.context.config = production(required=True)

    async def _begin(self, plain: Any, conn: Any, *arguments: object, **more: object) -> object:
        self.under_way[conn] = self._loop.create_future()
        self.begun.append(conn)
        plain.protocol = PaperTls()
        try:
            await self.under_way[conn]
        finally:
            del self.under_way[conn]
        return plain

    def end(self) -> None:
        for each in self.under_way.values():
            each.set_result(None)


async def test_however_many_begin_handshakes_at_once_all_of_them_get_in(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who came first do not make way for the others before they could end."""
    monkeypatch.setattr(strangers, "MOST_ENCRYPTED", 2 * tls.UNDER_WAY)
    handshakes = Handshakes(rig, monkeypatch)
    friends = [rig.connect() for _ in range(8 * tls.UNDER_WAY)]
    for conn, _ in friends:
        conn.data_received(v3_start_tls())
    while not all(conn.wire.authenticated for conn, _ in friends):
        await until(lambda: handshakes.under_way)
        assert len(handshakes.under_way) <= tls.UNDER_WAY
        handshakes.end()
        await rig.settle()
        assert not any(transport.closing for _, transport in friends)
    assert rig.clients.strangers.sent_away == 0
    assert len(rig.clients.strangers) == 0


@pytest.mark.parametrize("memory_mb", [1, 16, 48, 64, 1024])
async def test_so_it_is_however_little_memory_clients_may_take(monkeypatch: pytest.MonkeyPatch, memory_mb: int) -> None:
    """Few of them may have TLS then, and fewer are under way at a time."""
    rig = ServerRig(memory_bytes=memory_mb << 20)
    handshakes = Handshakes(rig, monkeypatch)
    friends = [rig.connect() for _ in range(3 * tls.UNDER_WAY)]
    for conn, _ in friends:
        conn.data_received(v3_start_tls())
    begun = 0
    while begun < len(friends):
        await until(lambda: handshakes.under_way)
        begun += len(handshakes.under_way)
        handshakes.end()
        await rig.settle()
    assert rig.clients.strangers.sent_away == 0
    assert len(rig.clients.strangers) == 0
    rig.close()


async def test_what_was_not_taken_before_a_handshake_holds_up_nothing_after_it(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large answers to earlier requests: their transport has another owner when they are taken."""
    handshakes = Handshakes(rig, monkeypatch)
    conn, transport = rig.connect()
    conn.data_received(v3_start_tls())
    conn.pause_writing()
    await until(lambda: handshakes.under_way)
    handshakes.end()
    await until(lambda: conn.wire.authenticated)
    before = len(transport.frames)
    conn.data_received(v2_read(1, 1))
    await rig.settle(lambda: len(transport.frames) > before)
    conn.connection_lost(None)


async def test_who_does_not_go_on_holds_up_nobody_for_longer_than_a_moment(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "PATIENCE_S", 0.01)
    handshakes = Handshakes(rig, monkeypatch)
    silent = [rig.connect() for _ in range(tls.UNDER_WAY)]
    friend, _ = rig.connect()
    for conn in (*(conn for conn, _ in silent), friend):
        conn.data_received(v3_start_tls())
    await until(lambda: friend in handshakes.under_way)
    assert not any(transport.closing for _, transport in silent)


async def test_whoever_has_many_connections_waits_for_himself(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "UNDER_WAY", 2)
    handshakes = Handshakes(rig, monkeypatch)
    crowd = [rig.connect()[0] for _ in range(20)]
    friend, transport = rig.connect()
    friend.wire.peer = "192.0.2.2:40000"
    for conn in (*crowd, friend):
        conn.data_received(v3_start_tls())
    await until(lambda: len(handshakes.under_way) == 2)
    crowd[0].connection_lost(None)
    await until(lambda: len(handshakes.begun) == 3)
    assert friend not in handshakes.begun, "the next of those who came first"
    crowd[1].connection_lost(None)
    await until(lambda: len(handshakes.begun) == 4)
    assert handshakes.begun[3] is friend
    assert not transport.closing
    for conn in (*crowd, friend):
        conn.connection_lost(None)
    await until(lambda: not handshakes.under_way)


async def test_of_too_many_with_tls_those_go_that_have_sent_nothing_for_longest(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of those who are known: each has buffers that nobody counts."""
    handshakes = Handshakes(rig, monkeypatch)
    rig.clients.encrypted.limit = 32 * IDLE_BYTES
    friends = [rig.connect() for _ in range(33)]
    for place, (conn, _) in enumerate(friends):
        conn.data_received(v3_start_tls())
        await until(lambda: handshakes.under_way)
        handshakes.end()
        await until(lambda conn=conn: conn.wire.authenticated)  # type: ignore[misc]
        if place == 31:
            friends[0][0].data_received(v2_read(1, 1))
    assert [place for place, (_, transport) in enumerate(friends) if transport.closing] == [1, 2, 3]
    assert len(rig.clients.encrypted) == 30
    friends[5][0].connection_lost(None)
    assert len(rig.clients.encrypted) == 29


async def test_connections_with_tls_may_receive_more_at_a_time_as_long_as_nobody_makes_way_for_it(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    handshakes = Handshakes(rig, monkeypatch)
    encrypted = rig.clients.encrypted
    encrypted.limit = 2 * GROWN_SHARE * LARGE_BYTES
    friends = [rig.connect() for _ in range(6)]
    for conn, transport in friends:
        conn.data_received(v3_start_tls())
        await until(lambda: handshakes.under_way)
        handshakes.end()
        await until(lambda conn=conn: conn.wire.authenticated)  # type: ignore[misc]
        assert transport.read_limit == PART
    assert encrypted.nbytes == len(friends) * IDLE_BYTES
    assert [encrypted.may_grow(conn.wire) for conn, _ in friends[:3]] == [True, True, False]
    assert encrypted.nbytes == 2 * LARGE_BYTES + SMALL_BYTES + 3 * IDLE_BYTES
    friends[0][0].connection_lost(None)
    more = [rig.connect() for _ in range(22)]
    for conn, _ in more:
        encrypted.came(conn.wire)
    nbytes = encrypted.nbytes
    assert not encrypted.may_grow(friends[3][0].wire), "there would be too little for all others"
    assert encrypted.nbytes == nbytes + SMALL_BYTES - IDLE_BYTES
    assert encrypted.sent_away == 0
    for conn, _ in (*friends, *more):
        conn.connection_lost(None)
    assert not encrypted.may_grow(friends[3][0].wire), "it is gone"
    assert encrypted.nbytes == 0


async def test_tls_without_data_ends_the_connection_at_once(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    handshakes = Handshakes(rig, monkeypatch)
    conn, transport = rig.connect()
    conn.data_received(v3_start_tls())
    await until(lambda: handshakes.under_way)
    handshakes.end()
    await until(lambda: conn.wire.authenticated)
    conn.data_received(v2_read(1, 1) * 1000)
    transport.protocol.buffer_updated(WINDOW)
    assert not transport.closing
    transport.protocol.buffer_updated(WINDOW)
    assert transport.aborted
    conn.connection_lost(None)


async def test_who_has_come_last_makes_no_way_for_itself(rig: ServerRig) -> None:
    encrypted = rig.clients.encrypted
    encrypted.limit = 16 * IDLE_BYTES
    friends = [rig.connect() for _ in range(17)]
    friends[0][0].wire.received_at = friends[16][0].wire.received_at = 0.0  # they have sent nothing for longest
    for conn, _ in friends:
        encrypted.came(conn.wire)
    assert [place for place, (_, transport) in enumerate(friends) if transport.aborted] == [0, 1]
    assert encrypted.sent_away == 2
    assert encrypted.nbytes == encrypted.limit - IDLE_BYTES


async def test_strangers_make_way_for_each_other_and_not_for_who_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls, "PATIENCE_S", 0.001)
    rig = ServerRig(memory_bytes=1)
    handshakes = Handshakes(rig, monkeypatch)
    strangers = rig.clients.strangers.most_encrypted
    room = rig.clients.encrypted.limit - strangers * IDLE_BYTES
    friends = [rig.connect() for _ in range(room // LARGE_BYTES)]
    for conn, _ in friends:
        conn.data_received(v3_start_tls())
        await until(lambda: handshakes.under_way)
        handshakes.end()
        await until(lambda conn=conn: conn.wire.authenticated)  # type: ignore[misc]
        rig.clients.encrypted.may_grow(conn.wire)
    crowd = [rig.connect()[0] for _ in range(4 * strangers)]
    for conn in crowd:
        conn.data_received(v3_start_tls())
    await until(lambda: len(handshakes.begun) == len(friends) + len(crowd))
    assert not any(transport.closing for _, transport in friends)
    for conn in crowd:
        conn.connection_lost(None)
    await until(lambda: not handshakes.under_way)
    rig.close()


async def test_a_stranger_that_ended_its_handshake_makes_way_before_the_next_one_is_counted(
    guarded: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transport that is aborted tells its protocol only in a later turn of the loop."""
    handshakes = Handshakes(guarded, monkeypatch)
    guarded.clients.encrypted.limit = 2 * IDLE_BYTES
    guarded.clients.strangers = strangers.Strangers(1)

    async def with_tls() -> tuple[Any, Any]:
        conn, transport = guarded.connect()
        conn.data_received(v3_start_tls())
        await until(lambda: handshakes.under_way)
        handshakes.end()
        await until(lambda: conn.wire.is_encrypted and not conn.wire.stalled)
        return conn, transport

    friend, friends_transport = await with_tls()
    for each in (b"hello", b"secret"):
        friend.data_received(token(each))
        await guarded.settle()
    assert friend.wire.authenticated
    first, firsts_transport = await with_tls()
    second, seconds_transport = await with_tls()
    assert firsts_transport.closing
    assert not friends_transport.closing
    assert not seconds_transport.closing
    for conn in (first, second, friend):
        conn.connection_lost(None)
    assert guarded.clients.encrypted.nbytes == 0


async def test_a_step_of_somebody_who_has_been_counted_sends_nobody_away(
    guarded: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "MOST", 2)
    made = [guarded.connect() for _ in range(2)]
    for conn, _ in made:
        conn.data_received(token(b"hello"))
        await guarded.settle()
    assert [transport.closing for _, transport in made] == [False, False]
    assert guarded.clients.strangers.sent_away == 0
    made[0][0].data_received(token(b"secret"))
    await guarded.settle()
    assert made[0][0].wire.authenticated
    assert len(guarded.clients.strangers) == 1


async def test_what_a_stranger_writes_into_the_log_is_short(guarded: ServerRig) -> None:
    with capture_logs() as logs:
        for name in ("x" * 100_000, "\0" * 100_000):
            conn, transport = guarded.connect()
            conn.data_received(v2.encode_auth(AuthMessage(name, b"")))
            await guarded.settle()
            assert transport.closing
    assert max(len(str(line)) for line in logs) < 1000
    assert all("is not served here" in line["reason"] for line in logs)


async def test_a_plug_in_hears_where_the_client_is(rig: ServerRig) -> None:
    class Asks(TwoTokens):
        peers: ClassVar[list[str]] = []

        def new_exchange(self, peer: Peer) -> Any:
            self.peers.append(peer.address)
            return super().new_exchange(peer)

    rig.clients.auth = Asks()
    conn, _ = rig.connect()
    conn.data_received(token(b"hello") + token(b"secret"))
    await rig.settle()
    assert conn.wire.authenticated
    assert Asks.peers == ["192.0.2.1:40000"]


@pytest.mark.parametrize("version", [2, 3])
async def test_a_file_that_cannot_be_used_is_no_word_against_the_client(
    rig: ServerRig, tmp_path: Path, version: int
) -> None:
    """A writer whose login is refused gives its ledger up; one whose connection ends takes another bookie."""
    file = tmp_path / "tokens"
    file.write_text("a token that is long enough")
    now = 0.0
    rig.clients.auth = SharedTokens("authTokenFile", str(file), lambda: now)
    for broken in (False, True):
        conn, transport = rig.connect()
        client = TokenAuth(str(file)).new_exchange(Peer("bookie"))
        if broken:
            file.write_text("")
            now += CHECK_S
        for step in range(2):
            given = (await client.start() if not step else await client.process(nonce(transport.frames[0]))).token
            message = AuthMessage(PLUGIN_NAME, given or b"")
            conn.data_received(v2.encode_auth(message) if version == 2 else v3_auth(message))
            await rig.settle()
        assert (conn.wire.authenticated, transport.closing, len(transport.frames)) == (
            not broken,
            broken,
            1 + (not broken),
        )


def nonce(frame: bytes) -> bytes:
    if frame[4] == 0x0A:
        response = pb.Response.FromString(frame[4:])
        return response.authResponse.payload
    answer = v2.decode_response(frame[4:])
    assert isinstance(answer, v2.AuthFrame)
    return answer.message.payload


async def test_who_is_gone_is_forgotten(guarded: ServerRig) -> None:
    conn, _ = guarded.connect()
    conn.connection_lost(None)
    assert len(guarded.clients.strangers) == 0


async def test_where_nothing_is_demanded_nobody_is_a_stranger() -> None:
    for tls_required in (False, True):
        rig = ServerRig(production(required=tls_required))
        rig.connect()
        assert len(rig.clients.strangers) == tls_required
        rig.close()


@pytest.mark.parametrize("version", [2, 3])
async def test_whoever_is_refused_stands_in_the_audit_trail(guarded: ServerRig, version: int, tmp_path: Path) -> None:
    trail = tmp_path / "audit.log"
    guarded.context.audit = Audit("bookie", Registry(), str(trail))
    add = v2_add if version == 2 else v3_add
    conn, _ = guarded.connect()
    conn.data_received(add(entry(1, 0)) * 3)
    conn.data_received(token(b"wrong"))
    await guarded.settle()
    guarded.clients.auth = None
    known, _ = guarded.connect()
    known.data_received(add(entry(1, 0), key=b"1" * 20))
    await guarded.settle()
    known.data_received(add(entry(1, 1), key=b"2" * 20))
    await guarded.settle()
    found = [json.loads(each) for each in trail.read_text().splitlines()]
    assert [(each["what"], each["outcome"]) for each in found] == [
        *(("a request", "refused"), ("a login", "refused")),
        ("a ledger's password", "refused"),
    ]
    assert found[2]["reason"] == "ledger 1: the master key is not the one it was created with"
