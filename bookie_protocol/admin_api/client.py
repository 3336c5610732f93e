"""A client of the admin API of bookies, also of Apache's as far as they have it.

Invariants
- What a pod answers is of the type that the path promises, or an error of the one taxonomy: `BadRequest`, `Refused`,
  `Unauthorized`, `NotThere` (it understood); `BookieUnavailable` (no answer; `BookieTimeout`: not in time), `NoTls`,
  `ProtocolViolation` (not ours), and `CouldNotTell` for any other fault. The text of a pod is passed on unchanged,
  unless the pod is a stranger and the text no problem; content that is not of the API is never repeated. All other
  messages begin with the name of the place. Each is one short line, without the token and other headers.
- A bookie answers for itself: redirects are not followed.
- A token is sent only to a server that the configuration names (`trust.is_trusted_at`), and only where no third party
  can read it: over TLS, or to this machine. Elsewhere it is not sent, and the error for a server that demands it says
  why.
- An answer takes at most `max_bytes` of memory.

Threads: `AdminClient` belongs to one event loop; `BlockingAdmin` may be asked by any thread that runs none.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import aiohttp
import msgspec

from bookie_protocol.addresses import resolving
from bookie_protocol.admin_api.bodies import NOTHING, PROBLEM_TYPE, Body, Problem, Query, Route, decode, error_of, plain
from bookie_protocol.admin_api.trust import Trust, is_known_at, is_trusted_at
from bookie_protocol.errors import (
    BadRequest,
    BookieTimeout,
    BookieUnavailable,
    CouldNotTell,
    NoTls,
    NotThere,
    PodkeeperError,
    ProtocolViolation,
    Refused,
    Unauthorized,
)
from bookie_protocol.shown import one_line, shown_uri

T = TypeVar("T")
Sent = Body | Mapping[str, Any] | None
TIMEOUT_S: Final = 30.0
MAX_BYTES: Final = 64 * 1024 * 1024
_MAX_WORDS: Final = 500
_KINDS: Final[Mapping[int, type[PodkeeperError]]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Unauthorized,
    404: NotThere,
    409: Refused,
    413: BadRequest,
}


@dataclass(frozen=True, slots=True)
class Place:
    """The address of one admin API. `name`: its name in errors. `server_name`: the name in its certificate, if
    that is not the URL's host."""

    name: str
    url: str
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    trust: Trust | None = None
    """It names the servers that are the installation's own. None: another party than the bookie may have given the
    URL."""

    @property
    def is_stranger(self) -> bool:
        """Return True if nothing proves who answers: a token is not sent, and texts are not repeated."""
        return not is_known_at(self.url, self.tls, self.trust)

    @property
    def may_see_token(self) -> bool:
        """Return True if a token may be sent."""
        return is_trusted_at(self.url, self.tls, self.trust)

    @property
    def shown(self) -> str:
        """The name, which may be a stranger's, as messages have it."""
        return one_line(shown_uri(self.name) if "://" in self.name else self.name, _MAX_WORDS)


class AdminClient:
    """A client of any number of places, over one session that the caller closes.

    `token`: sent to all of them. `connect_s`: seconds that a connection may take, whatever the time-out.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        token: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        connect_s: float | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._session = session
        self._token = token
        self._timeout_s = timeout_s
        self._connect_s = connect_s
        self._max_bytes = max_bytes

    async def ask(
        self,
        at: Place,
        route: Route[T],
        body: Sent = None,
        query: Query | None = None,
        *,
        timeout_s: float | None = None,
    ) -> T:
        """Return the answer of the place; None for routes without a typed answer."""
        content = await self.fetch(at, route, body, query, timeout_s=timeout_s)
        try:
            return decode(content if route.answer is not NOTHING else b"null", route.answer)
        except ProtocolViolation as error:
            raise ProtocolViolation(
                f"{at.shown}: {route.path} answers what is not of the admin API: {one_line(error, _MAX_WORDS)}"
            ) from error

    async def fetch(
        self,
        at: Place,
        route: Route[T],
        body: Sent = None,
        query: Query | None = None,
        *,
        timeout_s: float | None = None,
    ) -> bytes:
        """The answer as it came."""
        limit = timeout_s or self._timeout_s
        kept = bool(self._token) and not at.may_see_token
        headers = {"Authorization": f"Bearer {self._token}"} if self._token and not kept else {}
        parameters = {name: _text(value) for name, value in plain(query or Query()).items()}
        data = msgspec.json.encode(body) if body is not None else None
        try:
            with resolving():
                async with self._session.request(
                    route.method,
                    f"{at.url}{route.path}",
                    params=parameters,
                    headers=headers,
                    data=data,
                    timeout=aiohttp.ClientTimeout(total=limit, sock_connect=self._connect_s),
                    ssl=at.tls or True,
                    server_hostname=at.server_name,
                    allow_redirects=False,
                ) as answer:
                    content = await self._content(at, answer)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _unanswered(at, limit, error) from None  # which shows the headers of the request
        if answer.status == 200:
            return content
        if answer.status == 401 and kept and at.is_stranger:
            raise Unauthorized(
                f"{at.shown} demands a token, which is not sent, as nothing proves who answers at its published"
                f" address: {(at.trust or Trust()).remedy}"
            )
        if answer.status == 401 and kept:
            raise Unauthorized(
                f"{at.shown} demands a token, which is sent over https or to the same machine alone: a listener"
                " on the way could read it. Set httpServerTlsEnable=true there, or ask through a tunnel"
            )
        raise _refused(at, route, answer.status, answer.content_type, content)

    async def _content(self, at: Place, answer: aiohttp.ClientResponse) -> bytes:
        content = bytearray()
        async for piece in answer.content.iter_chunked(65536):
            content += piece
            if len(content) > self._max_bytes:
                raise ProtocolViolation(f"{at.shown} answers more than {self._max_bytes} bytes")
        return bytes(content)


class BlockingAdmin:
    """One place, for threads: each call has a connection of its own."""

    def __init__(self, at: Place, token: str | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self.at = at
        self._token = token
        self._timeout_s = timeout_s

    def ask(self, route: Route[T], body: Sent = None, query: Query | None = None) -> T:
        """Return the answer of the place, as `AdminClient.ask` does."""
        return asyncio.run(self._ask(route, body, query))

    def fetch(self, route: Route[T], *, max_bytes: int = MAX_BYTES) -> bytes:
        """Return the answer as it came, of at most so many bytes."""
        return asyncio.run(self._fetch(route, max_bytes))

    async def _ask(self, route: Route[T], body: Sent, query: Query | None) -> T:
        async with aiohttp.ClientSession() as session:
            return await AdminClient(session, self._token, timeout_s=self._timeout_s).ask(self.at, route, body, query)

    async def _fetch(self, route: Route[T], max_bytes: int) -> bytes:
        async with aiohttp.ClientSession() as session:
            client = AdminClient(session, self._token, timeout_s=self._timeout_s, max_bytes=max_bytes)
            return await client.fetch(self.at, route)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unanswered(at: Place, limit: float, error: Exception) -> PodkeeperError:
    if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
        return BookieTimeout(f"{at.shown} does not answer within {limit:g} s")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        reason = getattr(error.certificate_error, "verify_message", "") or str(error.certificate_error)
        reason = one_line(reason, _MAX_WORDS)
        return CouldNotTell(f"{at.shown}: its certificate is not trusted: {reason}; does it match the authorities?")
    if isinstance(error, aiohttp.ClientSSLError):
        reason = getattr(error.os_error, "reason", None) or str(error.os_error)
        return NoTls(f"{at.shown} does not speak TLS: {one_line(reason, _MAX_WORDS)}")
    if isinstance(error, aiohttp.ClientResponseError):
        return ProtocolViolation(f"{at.shown} does not speak HTTP: {one_line(error.message, _MAX_WORDS)}")
    if isinstance(error, aiohttp.ClientPayloadError):
        return ProtocolViolation(f"{at.shown} does not speak HTTP: {one_line(error, _MAX_WORDS)}")
    # The first contains the URL, with any login in it; the others have no URL at all.
    if isinstance(error, aiohttp.NonHttpUrlClientError | ValueError) and not isinstance(error, OSError):
        return ProtocolViolation(f"{at.shown} has no URL that can be asked")
    reason = str(error)
    if isinstance(error, aiohttp.ConnectionTimeoutError):  # aiohttp's words have the host, which may be a login
        reason = "no connection in time"
    elif isinstance(error, OSError) and error.errno is not None:  # so here
        reason = os.strerror(error.errno) if error.errno > 0 else error.strerror
    reason = reason or type(error).__name__
    return BookieUnavailable(f"{at.shown} cannot be reached: {one_line(reason, _MAX_WORDS)}")


def _refused(at: Place, route: Route[T], status: int, kind: str, content: bytes) -> PodkeeperError:
    words = one_line(content[:_MAX_WORDS].decode(errors="replace")) if not at.is_stranger else ""
    if kind == PROBLEM_TYPE:
        try:
            problem = decode(content, Problem)
        except ProtocolViolation:
            problem = Problem()
        problem = msgspec.structs.replace(problem, detail=one_line(problem.detail), refusal=one_line(problem.refusal))
        known = error_of(problem)
        if known is not None:
            return known
        words = problem.detail or words
    if status == 404 and words.startswith("<html>"):
        return NotThere(f"{at.shown} has no {route.path}")
    if status == 401:
        return Unauthorized(f"{at.shown} demands a token")
    return _KINDS.get(status, CouldNotTell)(words or f"{at.shown} answers {route.path} with status {status}")
