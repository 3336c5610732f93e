"""Logins and TLS handshakes of one connection: who is served afterwards, what is answered, and what ends with it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from bookie_pod.audit import Audit
from bookie_pod.metrics.registry import Registry
from bookie_pod.server.tcp.authentication import CertificateRoles
from bookie_pod.server.tcp.connection import Connection
from bookie_pod.server.tcp.connection_stalls import Stall
from bookie_pod.server.tcp.replies import code_of, status_of
from bookie_pod.server.tcp.requests import Reply
from bookie_protocol.errors import LedgerStateUnknown, NoSuchEntry, Unauthorized, V2Code, V3Status
from bookie_protocol.wire import v2
from bookie_protocol.wire.auth import AUTH_DISABLED, AuthMessage, Peer, Subject
from tests.support.auth import TwoTokens
from tests.support.frames import (
    OTHER_KEY,
    entry,
    v2_add,
    v2_batch,
    v2_code,
    v2_fence,
    v2_read,
    v3_add,
    v3_answer,
    v3_auth,
    v3_poll,
    v3_read,
    v3_read_lac,
    v3_start_tls,
    v3_status,
)
from tests.support.server_rig import PaperTransport, ServerRig, answers


def trail_of(rig: ServerRig, folder: Path) -> Callable[[], list[dict[str, str]]]:
    """What the audit trail says from now on."""
    path = folder / "audit.log"
    rig.context.audit = Audit("bookie", Registry(), str(path))
    return lambda: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Encrypted(PaperTransport):
    """TLS over a transport, by a client that showed a certificate with this subject; None: it showed none."""

    def __init__(self, plain: PaperTransport, subject: Subject | None) -> None:
        super().__init__()
        self.plain = plain
        self.subject = subject

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "ssl_object" else super().get_extra_info(name, default)

    def getpeercert(self, *, binary_form: bool = False) -> object:
        if self.subject is None:
            return None
        return b"DER" if binary_form else {"subject": self.subject}


def with_tls(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch, outcome: Callable[[PaperTransport], object]
) -> list[tuple[Connection, object, bool]]:
    """Handshakes have this outcome, which may raise; whose they were, with which context, and as a server."""
    begun: list[tuple[Connection, object, bool]] = []

    async def handshake(
        plain: PaperTransport, conn: Connection, context: object, *, server_side: bool, ssl_handshake_timeout: None
    ) -> object:
        begun.append((conn, context, server_side))
        return outcome(plain)

    monkeypatch.setattr(rig.context.loop, "start_tls", handshake)
    rig.clients.tls = SimpleNamespace(context=lambda: "a context")  # type: ignore[assignment]
    return begun


def unit(name: str) -> Subject:
    return ((("organizationalUnitName", name),),)


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        (unit("0:broker"), ""),
        (unit("0:stranger"), "the role 'stranger' of 192.0.2.1:40000 is not one of authorizedRoles"),
        (unit("sales"), "192.0.2.1:40000 has no role in its certificate: its subject needs an OU such as 0:ROLE"),
        (None, "192.0.2.1:40000 has no role in its certificate: its subject needs an OU such as 0:ROLE"),
    ],
    ids=["one of the roles", "another role", "no role", "no certificate"],
)
async def test_a_role_in_the_certificate_decides_who_is_served(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, subject: Subject | None, reason: str
) -> None:
    """Whoever is refused hears so, now and with every request, and has no other way in."""
    rig.clients.auth = CertificateRoles(("broker",))
    trail = trail_of(rig, tmp_path)
    made: list[Encrypted] = []
    begun = with_tls(rig, monkeypatch, lambda plain: made.append(Encrypted(plain, subject)) or made[0])
    conn, plain = rig.connect()
    conn.data_received(v3_start_tls())
    await rig.settle(lambda: made and not conn.wire.stalled)
    (secured,) = made
    assert begun == [(conn, "a context", True)]
    assert (secured.plain, [v3_status(frame) for frame in plain.frames]) == (plain, [V3Status.EOK])
    assert v3_answer(plain.frames[0]).HasField("startTLSResponse")
    if not reason:
        assert len(rig.clients.strangers) == 0
        conn.data_received(v3_add(entry(1, 0)) + v3_start_tls())
        codes = [v3_status(frame) for frame in await answers(rig, secured, 2)]
        assert sorted(codes) == [V3Status.EOK, V3Status.EBADREQ]  # there is one layer of TLS
        assert trail() == []
        return
    assert len(rig.clients.strangers) == 1
    login = AuthMessage(rig.clients.auth.plugin_name, b"")
    with capture_logs() as logs:
        conn.data_received(v3_add(entry(1, 0)) + v3_auth(login) + v2_add(entry(1, 0)))
    statuses = [v3_status(frame) for frame in secured.frames[:3]]
    assert statuses == [V3Status.EIO, V3Status.EUA, V3Status.EUA]
    assert v2_code(secured.frames[3]) == V2Code.EUA
    assert [(line["event"], line["needs"]) for line in logs] == [("requests are refused", "another certificate")]
    assert [(line["what"], line["reason"]) for line in trail()] == [
        ("a certificate", reason),
        ("a request", "it needs another certificate"),
    ]
    conn.data_received(v2.encode_auth(login))
    assert secured.closing


async def test_a_login_says_nothing_where_the_certificate_decides() -> None:
    provider = CertificateRoles(("broker",))
    assert await provider.new_exchange(Peer("somebody")).process(b"broker") == (None, False)


@pytest.mark.parametrize(
    "error", [ssl.SSLError(1, "no shared cipher"), ConnectionResetError("gone"), None], ids=["wrong", "gone", "over"]
)
async def test_a_handshake_that_fails_leaves_no_connection(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: OSError | None
) -> None:
    """What the client said that was wrong is in the audit trail, a client that went away is not."""
    trail = trail_of(rig, tmp_path)

    def fails(plain: PaperTransport) -> None:
        if error is not None:
            raise error

    with_tls(rig, monkeypatch, fails)
    conn, transport = rig.connect()
    with capture_logs() as logs:
        conn.data_received(v3_start_tls())
        await rig.settle(lambda: conn.wire.closed)
    assert rig.clients.connections == {}
    assert (len(rig.clients.encrypted), rig.clients.encrypted.nbytes) == (0, 0)
    assert transport.closing == (error is not None)
    assert [line["reason"] for line in logs] == ([f"TLS handshake failed: {error}"] if error is not None else [])
    assert [line["what"] for line in trail()] == (["a TLS handshake"] if isinstance(error, ssl.SSLError) else [])


async def test_what_comes_behind_a_handshakes_request_ends_the_connection(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = with_tls(rig, monkeypatch, lambda plain: plain)
    conn, transport = rig.connect()
    with capture_logs() as logs:
        conn.data_received(v3_start_tls() + v3_add(entry(1, 0)))
        await rig.settle(lambda: transport.closing)
    assert [line["reason"] for line in logs] == ["requests in plain text before START_TLS, or bytes behind it"]
    assert (begun, rig.storage.cached(1, 0)) == ([], None)


@pytest.mark.parametrize(
    "before",
    [
        v3_add(entry(1, 1)),
        v3_add(entry(2, 0)) * 3,
        v3_read(1, 0),
        v3_poll(1, 0),
        v3_read_lac(1),
        v3_auth(AuthMessage("sasl", b"")) + v3_read(1, 0),
    ],
    ids=["an add", "new adds", "a read", "a long poll", "a read of the LAC", "a read behind a login"],
)
async def test_requests_in_plain_text_are_not_answered_over_tls(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch, before: bytes
) -> None:
    """An attacker in the middle could make the client take them for answers to its own."""
    begun = with_tls(rig, monkeypatch, lambda plain: plain)
    writer, written = rig.connect()
    writer.data_received(v3_add(entry(1, 0)))
    await answers(rig, written, 1)
    conn, transport = rig.connect()
    with capture_logs() as logs:
        conn.data_received(before + v3_start_tls())
        await rig.settle(lambda: transport.closing)
    assert [line["log_level"] for line in logs] == ["warning"]
    assert begun == []
    seen = len(transport.frames)
    rig.journal.acknowledge()
    await rig.settle()
    assert len(transport.frames) == seen
    conn.connection_lost(None)
    assert rig.context.memory.total == 0


async def test_a_client_that_was_refused_may_begin_tls(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it may have logged in: clients of Apache BookKeeper do so first."""
    rig.clients.auth = CertificateRoles(("broker",))
    made: list[Encrypted] = []
    with_tls(rig, monkeypatch, lambda plain: made.append(Encrypted(plain, unit("0:broker"))) or made[0])
    conn, plain = rig.connect()
    login = AuthMessage(rig.clients.auth.plugin_name, b"")
    conn.data_received(v3_add(entry(1, 0)) + v3_auth(login) + v3_start_tls())
    await rig.settle(lambda: conn.wire.authenticated)
    statuses = [v3_status(frame) for frame in plain.frames]
    assert (statuses[0], statuses[-1]) == (V3Status.EUA, V3Status.EOK)
    conn.data_received(v3_add(entry(1, 0)))
    assert [v3_status(frame) for frame in await answers(rig, made[0], 1)] == [V3Status.EOK]


async def test_no_handshake_begins_with_a_client_that_is_going(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = with_tls(rig, monkeypatch, lambda plain: plain)
    conn, transport = rig.connect()
    conn.data_received(v3_start_tls())
    transport.closing = True
    await rig.settle(lambda: not conn.wire.stalled)
    assert (begun, len(rig.clients.encrypted)) == ([], 0)


async def test_nothing_is_read_over_tls_before_the_plug_in_has_judged_the_certificate(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = asyncio.Event()

    class Slow(CertificateRoles):
        async def tls_established(self, peer: Peer) -> bool:
            await judged.wait()
            return await super().tls_established(peer)

    rig.clients.auth = Slow(("broker",))
    made: list[Encrypted] = []
    with_tls(rig, monkeypatch, lambda plain: made.append(Encrypted(plain, unit("0:broker"))) or made[0])
    conn, _ = rig.connect()
    conn.data_received(v3_start_tls())
    await rig.settle(lambda: conn.wire.is_encrypted)
    assert not made[0].reading
    judged.set()
    await rig.settle(lambda: not conn.wire.stalled)
    assert made[0].reading


async def test_a_bookie_that_stops_during_a_handshake_reads_nothing_over_tls(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Encrypted] = []

    def shaken(plain: PaperTransport) -> Encrypted:
        conn.wire.stall(Stall.STOPPING)
        made.append(Encrypted(plain, None))
        return made[0]

    with_tls(rig, monkeypatch, shaken)
    conn, _ = rig.connect()
    conn.data_received(v3_start_tls())
    await rig.settle(lambda: conn.wire.authenticated)
    assert not made[0].reading


async def test_a_certificates_plug_in_that_breaks_ends_the_connection(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(CertificateRoles):
        async def tls_established(self, peer: Peer) -> bool:
            raise ZeroDivisionError

    rig.clients.auth = Broken(())
    with_tls(rig, monkeypatch, lambda plain: plain)
    conn, transport = rig.connect()
    with capture_logs() as logs:
        conn.data_received(v3_start_tls())
        await rig.settle(lambda: transport.closing)
    assert [line["log_level"] for line in logs] == ["error", "warning"]
    assert {line["event"] for line in logs[:1]} | {line["reason"] for line in logs[1:]} == {
        "authentication step failed"
    }
    assert not conn.wire.authenticated


async def test_without_tls_no_handshake_begins(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    conn.data_received(v3_start_tls())
    assert [v3_status(frame) for frame in transport.frames] == [V3Status.EBADREQ]


@pytest.mark.parametrize(
    "message",
    [None, AuthMessage("Another", b"hello"), AuthMessage("TestAuth", b"guess")],
    ids=["no message", "another plug-in", "wrong"],
)
async def test_a_login_of_version_3_that_is_refused_is_answered(rig: ServerRig, message: AuthMessage | None) -> None:
    """What is no login, or is none for this bookie, may be followed by a better one; a wrong one ends it."""
    rig.clients.auth = TwoTokens()
    conn, transport = rig.connect()
    conn.data_received(v3_auth(message))
    await rig.settle(lambda: not conn.wire.stalled)
    assert [v3_status(frame) for frame in transport.frames] == [V3Status.EUA]
    assert transport.closing == (message is not None and message.payload == b"guess")
    if transport.closing:
        return
    for payload in (b"hello", b"secret"):
        conn.data_received(v3_auth(AuthMessage("TestAuth", payload)))
        await rig.settle(lambda: not conn.wire.stalled)
    told = [v3_answer(frame) for frame in transport.frames[1:]]
    assert [(answer.status, answer.authResponse.payload) for answer in told] == [(0, b"welcome?"), (0, b"ok")]
    assert conn.wire.authenticated


WHATEVER = AuthMessage("Whatever", b"hello")


def v3_auth_of_no_text() -> bytes:
    """A login whose plug-in has a name that is not UTF-8."""
    return v3_auth(WHATEVER).replace(b"Whatever", b"Whateve\xff")


@pytest.mark.parametrize(
    "login",
    [v3_auth(WHATEVER), v3_auth(None), v3_auth_of_no_text(), v2.encode_auth(WHATEVER, 1)],
    ids=["version 3", "no message", "no text", "version 2"],
)
async def test_where_nobody_has_to_log_in_every_login_is_answered_so(rig: ServerRig, login: bytes) -> None:
    conn, transport = rig.connect()
    conn.data_received(login)
    await rig.settle(lambda: transport.frames or transport.closing)
    (frame,) = transport.frames
    if login[4] == 0x0A:
        assert v3_answer(frame).authResponse.authPluginName == AUTH_DISABLED
    else:
        answer = v2.decode_response(frame[4:])
        assert isinstance(answer, v2.AuthFrame)
        assert (answer.version, answer.message.plugin_name) == (v2.CURRENT_VERSION, AUTH_DISABLED)


async def test_login_of_version_3_whose_plug_in_is_no_text_may_be_followed_by_a_better_one(rig: ServerRig) -> None:
    rig.clients.auth = TwoTokens()
    conn, transport = rig.connect()
    conn.data_received(v3_auth_of_no_text())
    assert ([v3_status(frame) for frame in transport.frames], transport.closing) == ([V3Status.EUA], False)


async def test_a_login_of_version_2_is_answered_in_the_version_it_came_in(rig: ServerRig) -> None:
    rig.clients.auth = TwoTokens()
    conn, transport = rig.connect()
    conn.data_received(v2.encode_auth(AuthMessage("TestAuth", b"hello"), 1))
    await rig.settle(lambda: transport.frames)
    answer = v2.decode_response(transport.frames[0][4:])
    assert (answer.version, conn.wire.authenticated) == (1, False)


async def test_a_batch_read_before_a_login_ends_the_connection(rig: ServerRig) -> None:
    rig.clients.auth = TwoTokens()
    conn, transport = rig.connect()
    with capture_logs() as logs:
        conn.data_received(v2_batch(1, 0))
    assert transport.closing
    assert [line["reason"] for line in logs] == ["batch read before authentication"]
    assert rig.clients.refusals == 0


async def test_who_goes_in_the_middle_of_a_step_ends_it(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []

    class Slow(TwoTokens):
        async def process(self, token: bytes) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        def new_exchange(self, peer: Peer) -> Any:
            return self

    rig.clients.auth = Slow()
    conn, _ = rig.connect()
    conn.data_received(v3_auth(AuthMessage("TestAuth", b"hello")))
    await rig.settle(lambda: conn.wire.stalled)
    conn.connection_lost(None)
    await rig.settle(lambda: ended)
    assert len(rig.clients.strangers) == 0


async def test_only_a_wrong_password_is_for_the_audit_trail(rig: ServerRig, tmp_path: Path) -> None:
    """Not whatever else is refused."""
    trail = trail_of(rig, tmp_path)
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(1, 0)) + v2_fence(1, 0) + v2_add(entry(1, 1)) + v2_read(9, 9))
    await answers(rig, transport, 4)
    assert trail() == []
    assert code_of(Unauthorized("a test")) == V2Code.EUA
    assert trail() == []
    with capture_logs() as logs:
        conn.data_received(v2_add(entry(1, 1), OTHER_KEY))
    assert [(line["what"], line["from"]) for line in trail()] == [("a ledger's password", "192.0.2.1")]
    assert [line["peer"] for line in logs] == [conn.wire.peer]  # the trail may be this log


async def test_an_error_of_ours_is_told_the_client_as_a_fault() -> None:
    with capture_logs() as logs:
        assert (code_of(ZeroDivisionError()), status_of(ZeroDivisionError())) == (V2Code.EIO, V3Status.EIO)
    assert [line["error"] for line in logs] == ["ZeroDivisionError()"] * 2
    with capture_logs() as logs:
        assert code_of(LedgerStateUnknown("limbo")) == V2Code.EIO
        assert status_of(LedgerStateUnknown("limbo")) == V3Status.EUNKNOWNLEDGERSTATE
        assert code_of(NoSuchEntry("none")) == V2Code.ENOENTRY
    assert logs == []


def test_a_reply_answers_its_own_operation_alone() -> None:
    reply = Reply()
    for foreign in (
        lambda: reply.error(ZeroDivisionError()),
        reply.added,
        lambda: reply.entry(b""),
        lambda: reply.batch([]),
        reply.lac_written,
        lambda: reply.lac_read(None, None, None),
        reply.forced,
        lambda: reply.bookie_info(1, 1),
        lambda: reply.entry_list(b""),
    ):
        with pytest.raises(TypeError, match="Reply"):
            foreign()


def test_a_reply_of_no_connection_waits_for_nobody() -> None:
    reply, gone_on = Reply(), []
    reply.postpone(lambda: gone_on.append(True), 1 << 40)
    assert (gone_on, reply.gone, reply.must_wait, reply.take(1 << 40)) == ([True], False, False, True)
