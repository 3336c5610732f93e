"""To whom the client of the admin API shows a token, and what it tells of answers that say no."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from bookie_protocol.admin_api.bodies import NOTHING, PROBLEM_TYPE, Route
from bookie_protocol.admin_api.client import AdminClient, Place
from bookie_protocol.admin_api.trust import Trust, named
from bookie_protocol.errors import (
    BookieUnavailable,
    CouldNotTell,
    NotThere,
    PodkeeperError,
    ProtocolViolation,
    Unauthorized,
)

ROUTE = Route("GET", "/x", NOTHING)
TRUSTED = ssl.create_default_context()
TRUSTS_ANYBODY = ssl.create_default_context()
TRUSTS_ANYBODY.check_hostname = False
TRUSTS_ANYBODY.verify_mode = ssl.CERT_NONE


@pytest.mark.parametrize(
    ("url", "tls", "in_plain", "may"),
    [
        ("http://bookie-1:8000", None, False, False),
        ("http://10.0.0.7:8000", None, False, False),
        ("http://10.0.0.7:8000", None, True, True),
        ("http://127.0.0.1.example.org:8000", None, False, False),
        ("http://127.0.0.1@example.org:8000", None, False, False),
        ("http://localhost:8000", None, False, True),
        ("http://[::1]:8000", None, False, True),
        ("http://[::1", None, True, False),
        ("https://bookie-1:8000", None, False, True),
        ("https://bookie-1:8000", TRUSTED, False, True),
        ("https://bookie-1:8000", TRUSTS_ANYBODY, False, False),
    ],
)
def test_a_server_that_the_configuration_names_gets_a_token_where_nobody_else_can_read_it(
    url: str, tls: ssl.SSLContext | None, in_plain: bool, may: bool
) -> None:
    assert Place("it", url, tls, trust=named(url, in_plain=in_plain)).may_see_token is may


@pytest.mark.parametrize(
    ("url", "tls", "trust", "may"),
    [
        ("http://localhost:8000", None, None, False),  # a place that says nothing of trust
        ("https://bookie-1:8000", TRUSTED, None, False),
        ("https://bookie-1:8000", None, Trust(), False),
        ("https://bookie-1:8000", TRUSTED, Trust(), False),
        ("https://bookie-1:8000", TRUSTED, Trust(authorities=TRUSTED), True),
        ("https://bookie-1:8000", None, Trust(authorities=TRUSTED), False),
        ("https://bookie-1:8000", TRUSTS_ANYBODY, Trust(authorities=TRUSTS_ANYBODY), False),
        ("http://bookie-1:8000", TRUSTED, Trust(authorities=TRUSTED), False),
        ("http://127.0.0.1:8000", None, Trust(authorities=TRUSTED), False),
        ("http://127.0.0.1:8000", None, Trust(own_machine=True), True),
        ("http://bookie-1:8000", None, Trust(own_machine=True), False),
        ("http://10.0.0.8:8000", None, Trust(("http://10.0.0.7:8000",), in_plain=True), False),
        ("http://[::1", None, Trust(own_machine=True), False),
    ],
)
def test_a_server_that_a_registration_names_gets_a_token_only_if_the_configuration_trusts_it(
    url: str, tls: ssl.SSLContext | None, trust: Trust | None, may: bool
) -> None:
    place = Place("it", url, tls, trust=trust)
    assert (place.may_see_token, place.is_stranger) == (may, not may)


async def test_a_token_that_is_kept_is_not_sent_and_who_demands_it_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.Response(status=401 if seen[-1] is None else 200)

    async with served(answer) as here:
        async with aiohttp.ClientSession() as session:
            client = AdminClient(session, "a-secret")
            await client.fetch(here, ROUTE)
            monkeypatch.setattr("bookie_protocol.admin_api.trust.is_loopback", lambda host: False)
            for at in (here, replace(here, trust=None)):
                with pytest.raises(Unauthorized, match="token") as caught:
                    await client.fetch(at, ROUTE)
                assert "a-secret" not in str(caught.value)
        assert seen == ["Bearer a-secret", None, None]


@pytest.mark.parametrize("kind", [PROBLEM_TYPE, "text/plain"])
async def test_what_a_stranger_says_is_one_short_line_that_does_nothing_to_a_terminal(kind: str) -> None:
    said = "no\n\x1b]0;title\x07" + "x" * 1_000_000

    async def answer(request: web.Request) -> web.Response:
        text = json.dumps({"detail": said}) if kind == PROBLEM_TYPE else said
        return web.Response(status=404, content_type=kind, text=text)

    async with served(answer) as here, aiohttp.ClientSession() as session:
        with pytest.raises(NotThere) as caught:
            await AdminClient(session).fetch(here, ROUTE)
    told = str(caught.value)
    assert (told.isprintable(), told.startswith("no "), len(told) < 5_000) == (True, True, True)


@pytest.mark.parametrize("status", [200, 404, 500])
async def test_the_text_of_a_stranger_is_not_repeated(status: int) -> None:
    """Else a registration makes this process read out any server that it reaches."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text="inside-of-another-server")

    async with served(answer) as here, aiohttp.ClientSession() as session:
        with pytest.raises(PodkeeperError) as caught:
            await AdminClient(session).ask(replace(here, trust=None), Route("GET", "/x", dict[str, int]))
    assert "inside" not in str(caught.value)


@pytest.mark.parametrize("host", ["a..b", "x" * 70])
async def test_a_name_that_no_host_can_have_cannot_be_reached(host: str) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(BookieUnavailable, match=r"reached: .* name"):
            await AdminClient(session).fetch(Place("it", f"http://{host}:8000"), ROUTE)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"SSH-2.0-OpenSSH_9.6\x1b[2J\r\n\r\n", ProtocolViolation),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n", ProtocolViolation),
        (b"HTTP/1.1 200 OK\r\n" + b"".join(b"x-%d: %s\r\n" % (each, b"y" * 900) for each in range(90)), None),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\n\x1b[2J", ProtocolViolation),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 40\r\n\r\n\x1b[2J", ProtocolViolation),
    ],
    ids=["ssh", "a long header", "no end of the head", "not what is said", "cut"],
)
async def test_whatever_is_no_answer_is_one_short_line_without_the_token(
    answer: bytes, kind: type[PodkeeperError] | None
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with aiohttp.ClientSession() as session:
            with pytest.raises(kind or BookieUnavailable, match=r"HTTP|reached") as caught:
                await AdminClient(session, "a-secret").fetch(Place("it", url), ROUTE)
    told = str(caught.value)
    assert (told.isprintable(), len(told) < 1000, "a-secret" in told) == (True, True, False)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://h:99999",
        "http://user:s3cret@h:1",
        "http://user%3As3cret%40h:1",
        "ftp://user:s3cret@h:1",
        "ftp://h?s3cret",
        "nonsense",
        "http://",
    ],
)
async def test_what_is_no_url_is_told_in_one_line(url: str) -> None:
    """Bookies publish what they like."""
    async with aiohttp.ClientSession() as session:
        with pytest.raises(CouldNotTell) as caught:
            await AdminClient(session, "a-secret").fetch(Place(url, url, trust=named(url, in_plain=True)), ROUTE)
    assert "s3cret" not in str(caught.value)


async def test_a_name_that_leads_to_who_takes_no_connection_is_told_without_its_login() -> None:
    """Every name below a domain may have an address."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as waiting:
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        url = f"http://user%3As3cret%40h:{server.getsockname()[1]}"
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=_Here())) as session:
            with pytest.raises(BookieUnavailable, match="reached") as caught:
                await AdminClient(session, connect_s=0.05).fetch(Place(url, url), ROUTE)
    assert "s3cret" not in str(caught.value)


class _Here(AbstractResolver):
    """Every name is that of this machine."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [ResolveResult(hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=0, flags=0)]

    async def close(self) -> None:
        """Nothing is open."""


@asynccontextmanager
async def served(answer: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[Place]:
    application = web.Application()
    application.router.add_get("/x", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield Place("it", url, trust=named(url))
    finally:
        await runner.cleanup()
