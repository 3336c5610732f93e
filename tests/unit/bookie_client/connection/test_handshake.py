"""The handshake with peers that do not play along."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from bookie_client.options import TlsOptions
from bookie_protocol.auth.shared_token import TokenAuth
from bookie_protocol.auth.watched_file import CHECK_S
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import BookieUnavailable, ProtocolViolation, Unauthorized, V3Status
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v3
from bookie_protocol.wire.auth import AUTH_DISABLED, AuthMessage, to_protobuf
from tests.support.auth import TwoTokensClient
from tests.support.client_operations import operations_on

TLS = {"tls": TlsOptions(check_hostname=False)}
AUTH = {"auth": TwoTokensClient()}


def answer(request, status=V3Status.EOK, message=None):
    response = v3.header_copied(request, status)
    if message is not None:
        response.authResponse.CopyFrom(to_protobuf(message))
    return v3.encode_frame(response)


@asynccontextmanager
async def peer(script):
    """A bookie that answers the n-th frame with what the n-th step makes of it; None: hangs up."""
    served = []

    async def serve(reader, writer):
        try:
            for step in script:
                length = int.from_bytes(await reader.readexactly(4))
                request = v3.parse_request(await reader.readexactly(length))
                served.append(request)
                reply = step(request)
                if reply is None:
                    break
                writer.write(reply)
            else:
                await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], served
    finally:
        server.close()
        await server.wait_closed()


async def failure(script, options, **more):
    """What the first request fails with, and what the peer was asked."""
    async with (
        peer(script) as (port, served),
        operations_on({"b": port}, **{"connect_timeout": 2.0, **options, **more}) as ask,
    ):
        with pytest.raises((BookieUnavailable, Unauthorized, ProtocolViolation)) as caught:
            await ask.read_entry("b", 1, LAST_ENTRY)
    assert all(request.header.operation in (pb.START_TLS, pb.AUTH) for request in served)
    assert "bookie b" in str(caught.value)
    return caught.value


async def test_a_login_that_cannot_be_read_is_no_refusal_of_the_bookie(tmp_path):
    """A writer gives its ledger up for a refusal; its other bookies are as they were."""
    file, now = tmp_path / "token", [0.0]
    file.write_text("a token that is long enough")
    auth = TokenAuth(str(file), clock=lambda: now[0])
    file.unlink()
    now[0] += CHECK_S
    error = await failure([], {"auth": auth})
    assert isinstance(error, BookieUnavailable)
    assert f"this client cannot log in: token file={file}: No such file" in str(error)


@pytest.mark.parametrize("options", [TLS, AUTH], ids=["tls", "auth"])
async def test_a_peer_that_hangs_up(options):
    error = await failure([lambda request: None], options)
    assert isinstance(error, BookieUnavailable)
    assert "closed the connection during the handshake" in str(error)


@pytest.mark.parametrize("options", [TLS, AUTH], ids=["tls", "auth"])
async def test_a_peer_that_says_nothing(options):
    error = await failure([lambda request: b""], options, connect_timeout=0.1)
    assert isinstance(error, BookieUnavailable)
    assert "no connection in 0.1 s" in str(error)


@pytest.mark.parametrize("options", [TLS, AUTH], ids=["tls", "auth"])
@pytest.mark.parametrize(
    "noise", [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x05hello", b"HTTP/1.1 400 Bad Request\r\n\r\n"]
)
async def test_a_peer_that_talks_nonsense(options, noise):
    assert isinstance(await failure([lambda request: noise], options), ProtocolViolation)


async def test_plain_text_behind_the_answer_to_start_tls():
    error = await failure([lambda request: answer(request) + b"\0\0\0\x05hello"], TLS)
    assert isinstance(error, ProtocolViolation)
    assert "plain text" in str(error)


async def test_a_peer_that_breaks_off_the_tls_handshake():
    steps = [lambda request: answer(request) + b""]
    async with peer(steps) as (port, _), operations_on({"b": port}, **TLS, connect_timeout=0.2) as ask:
        with pytest.raises(BookieUnavailable):
            await ask.read_entry("b", 1, 0)


async def test_a_refusal_names_the_bookies_status():
    error = await failure([lambda request: answer(request, V3Status.EUA)], AUTH)
    assert isinstance(error, Unauthorized)
    assert "answered EUA to the authentication" in str(error)


async def test_another_plug_in_on_the_other_side():
    error = await failure([lambda request: answer(request, message=AuthMessage("sasl", b"x"))], AUTH)
    assert isinstance(error, Unauthorized)
    assert "'sasl'" in str(error)
    assert "'TestAuth'" in str(error)


async def test_a_token_that_the_own_plug_in_refuses():
    error = await failure([lambda request: answer(request, message=AuthMessage("TestAuth", b"boo"))], AUTH)
    assert isinstance(error, Unauthorized)
    assert "the bookie said b'boo'" in str(error)


async def test_an_answer_without_a_token():
    error = await failure([answer], AUTH)
    assert isinstance(error, ProtocolViolation)
    assert "holds no token" in str(error)


async def test_a_peer_that_speaks_before_it_is_asked():
    steps = [lambda request: 2 * answer(request, message=AuthMessage(AUTH_DISABLED, b""))]
    error = await failure(steps, AUTH)
    assert isinstance(error, BookieUnavailable)
    assert "refused this client after the handshake" in str(error)


async def test_every_request_that_waited_fails_alike():
    async with peer([lambda request: answer(request, V3Status.EUA)]) as (port, served):
        async with operations_on({"b": port}, **AUTH) as ask:
            reads = [ask.read_entry("b", 1, e) for e in range(10)]
            errors = await asyncio.gather(*reads, return_exceptions=True)
        assert {type(error) for error in errors} == {Unauthorized}
        assert len(served) == 1


async def test_closing_during_the_handshake():
    async with peer([lambda request: b""]) as (port, served), operations_on({"b": port}, **AUTH) as ask:
        read = asyncio.create_task(ask.read_entry("b", 1, 0))
        while not served:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.002)
        await ask.pool.close()
        with pytest.raises(BookieUnavailable, match="closed"):
            await read


async def test_a_plug_in_that_breaks():
    class Broken(TwoTokensClient):
        def new_exchange(self, peer):
            raise ZeroDivisionError("no credentials here")

    error = await failure([], {"auth": Broken()})
    assert isinstance(error, Unauthorized)
    assert "plug-in failed: no credentials here" in str(error)
