"""One connection to the HTTP server: what is read of it, what is refused, and what it keeps.

Invariants
- The head of a request is at most `MAX_HEAD_BYTES`, and a body `MAX_BODY_BYTES`. What is received and not dealt with
  counts in the process's `MemoryGovernor`: a request beyond that is refused, that of a connection's first one unparsed.
  An idle connection keeps nothing of its last request.
- Nothing is decompressed. The body of a request that was refused is not read to its end: its connection is closed.
- The parser gets small parts. What would cost much more than its bytes is refused after the first of them: bodies in
  chunks (411), what is not HTTP or names no path (400), more than `_MOST_WAITING` requests at once (503), and paths of
  more than `_MOST_SLASHES` slashes (404).
- An error that ends the task of a connection closes it. What a stranger sends that is no HTTP is a line in the log, of
  which there are few (see `FewLines`), and so is such an error.
- A closed connection is gone, also if the client does not take its answers; and what it does not take while it is open
  is bounded (`Untaken`).

Event loop only.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Final

import structlog
from aiohttp import ClientError, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawRequestMessage

from bookie_pod.client_memory import MemoryGovernor, Share
from bookie_pod.logs import FewLines
from bookie_pod.server.http.handshakes import Receiver
from bookie_pod.server.http.untaken import Untaken
from bookie_pod.server.tls_writes import hand_on_all
from bookie_protocol.shown import one_line

MAX_HEAD_BYTES: Final = 32 * 1024
"""Bytes of the head of a request; what browsers and proxies add, like cookies, is some 8 KB."""
MAX_BODY_BYTES: Final = 512 * 1024
"""The admin API takes so much, a few at a time. As many accepted losses as an operator tells (16,384 ids) fit."""
KEEPALIVE_S: Final = 30.0
LINGER_S: Final = 10.0
"""Seconds for a body that comes though its request was answered."""
TURNED_AWAY_S: Final = 1.0
"""Seconds for the answer to a refused connection; it goes at once unless earlier ones were not taken."""
_NEXT_TO_NOTHING: Final = 4096
"""Bytes that the kernel takes of data that will not be read."""
_REASON_CHARS: Final = 200
_HEAD_END: Final = b"\r\n\r\n"
_NO_BODY: Final = b"Content-Length: 0\r\nConnection: close\r\n\r\n"
BUSY: Final = b"HTTP/1.1 503 Service Unavailable\r\n" + _NO_BODY
_TOO_LONG: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\n" + _NO_BODY
_TOO_LARGE: Final = b"HTTP/1.1 413 Content Too Large\r\n" + _NO_BODY
_NO_LENGTH: Final = b"HTTP/1.1 411 Length Required\r\n" + _NO_BODY
_NOT_FOUND: Final = b"HTTP/1.1 404 Not Found\r\n" + _NO_BODY
_BAD: Final = b"HTTP/1.1 400 Bad Request\r\n" + _NO_BODY
_PARSED_AT_ONCE: Final = 1024
"""Bytes that are parsed before the requests in them are checked."""
_MOST_SLASHES: Final = 64
"""The number of slashes in a path: aiohttp looks for a route of the path up to each of them."""
_MOST_WAITING: Final = 2
"""The number of requests of a connection that may wait until those before them are answered. Hardly any client sends
one before it has the last answer."""

_log = structlog.get_logger(__name__)


class Connection(web.RequestHandler, Receiver):
    """Reads no more than it may. `received`: bytes of all that came."""

    __slots__ = ("_complaints", "_has_head", "_last", "_memory", "_received", "_share", "_untaken", "received")

    def __init__(self, server: web.Server, memory: MemoryGovernor, complaints: Complaints) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # as the runner's
            keepalive_timeout=KEEPALIVE_S,
            logger=complaints,  # type: ignore[arg-type]  # it has what is asked of a logger
            auto_decompress=False,
        )
        self._complaints = complaints
        self._memory = memory
        self._share: Share
        self._untaken: Untaken | None = None
        self._received = self.received = 0
        """Bytes of what is not dealt with, and of all that came."""
        self._has_head = False
        """The first request's has come to its end."""
        self._last = b""
        """The last bytes received, in which the end of the head may have begun."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._share = self._memory.share(self._cut_off)

    def eof_received(self) -> None:
        super().eof_received()
        hand_on_all(self.transport)

    def data_received(self, data: bytes) -> None:
        before = self._received
        self._received += len(data)
        self.received += len(data)
        if not self._has_head:
            end = (self._last + data[: MAX_HEAD_BYTES - before]).find(_HEAD_END)
            self._has_head = end >= 0
            self._last = (self._last + data)[1 - len(_HEAD_END) :]
        if not self._has_head and self._received > MAX_HEAD_BYTES:
            self._turn_away(_TOO_LONG, f"a head of more than {MAX_HEAD_BYTES} bytes")
        elif self._received > MAX_HEAD_BYTES + MAX_BODY_BYTES:
            self._refuse_body()
        else:
            self._share.hold(len(data))
            self._share.stuck_since = time.perf_counter()
            self._parse(data)
            self._share.relieve()

    def _parse(self, data: bytes) -> None:
        """Parse the data in small parts, and turn the client away at the first part that has something to refuse.

        aiohttp shows a request only when it has parsed all that it was given. For a body in tiny chunks, or for very
        many requests, that takes much more time and memory than their bytes. aiohttp itself answers what is not HTTP,
        but it goes on parsing, and each error stays in a cycle with its frames.
        """
        for begin in range(0, len(data), _PARSED_AT_ONCE):
            super().data_received(data[begin : begin + _PARSED_AT_ONCE])
            refusal = self._refusal()
            if refusal is not None:
                self._turn_away(*refusal)
                self._serve_no_more()
                break

    def _serve_no_more(self) -> None:
        """Serve none of the requests that wait. One that is being served goes on."""
        if self._current_request is None and self._task_handler is not None:
            self._task_handler.cancel()
        self._messages.clear()

    def _refusal(self) -> tuple[bytes, str] | None:
        """Return the answer and the reason if one of the waiting requests is not to be served. None: all are."""
        if len(self._messages) > _MOST_WAITING:
            return BUSY, f"more than {_MOST_WAITING} requests at once"
        for message, _ in self._messages:
            if not isinstance(message, RawRequestMessage):
                message.exc.__traceback__ = None  # its frames refer to the error
                return _BAD, one_line(f"{type(message.exc).__name__}: {message.message}", _REASON_CHARS)
            if not message.path.startswith("/"):  # aiohttp would take it for a URL, which can fail or take long
                return _BAD, one_line(f"its target is not a path: {message.path}", _REASON_CHARS)
            if message.path.partition("?")[0].count("/") > _MOST_SLASHES:
                return _NOT_FOUND, f"a path with more than {_MOST_SLASHES} slashes"
            if message.chunked:
                return _NO_LENGTH, "its body is in chunks"
        if self._message_tail:  # it would be parsed at once
            return _BAD, "data behind a request for another protocol"
        return None

    async def start(self) -> None:
        try:
            await super().start()
        except Exception as error:  # aiohttp catches those of handlers alone
            self._complaints.exception("the task of a connection", exc_info=error)
            self.force_close()
        if self.transport is not None and self.transport.get_write_buffer_size():
            self.transport.set_write_buffer_limits(0)  # its last answers have a time, too, however few they are

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Finish as aiohttp does, and let go of the bodies.

        aiohttp keeps request and answer until the next request comes: half a megabyte and more for each idle
        connection, which is in no account.
        """
        content = request.content
        is_refused = not content.is_eof() and (resp.status >= 400 or content.exception() is not None)
        if is_refused:
            resp.force_close()
        finished = await super().finish_response(request, resp, start_time)
        if isinstance(resp, web.Response):
            resp.body = None
        request._read_bytes = None
        if is_refused:
            content._read_nowait(-1)  # what is there already: it would be kept as long as the connection
            self._leave_unread()
            self.dealt_with()
            return finished
        try:
            async with asyncio.timeout(LINGER_S):
                await request.release()  # what is still to come, too
        except (OSError, web.PayloadAccessError, HttpProcessingError, ClientError):
            self.force_close()
        self.dealt_with()
        return finished

    def dealt_with(self) -> None:
        """Free the received bytes: they are being handled, or are not needed any more."""
        self._received = 0
        if self._untaken is None:
            self._share.stuck_since = None
        self._share.hold((0 if self._untaken is None else self._untaken.nbytes) - self._share.held)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._taken()
        self._share.end()

    def pause_writing(self) -> None:
        super().pause_writing()
        assert self.transport is not None
        self._untaken = Untaken(self.transport, self._share, self._give_up)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._taken()

    def _taken(self) -> None:
        if self._untaken is not None:
            self._untaken.end()
            self._untaken = None

    def _give_up(self) -> None:
        if self.transport is not None:
            self._complaints.refused(self.peername, "its answer is not taken")
            self.transport.abort()

    def force_close(self) -> None:
        """Close at once, even if the client has not taken its answers.

        aiohttp waits until they are taken, for ever if need be, and has lost sight of the connection, which keeps its
        place.
        """
        transport = self.transport
        super().force_close()
        if transport is not None:
            transport.abort()

    def _leave_unread(self) -> None:
        """Close the connection, once its client had time to take the answer: what it still sends would reset it."""
        self._force_close = True
        if self.transport is not None:
            self.transport.pause_reading()
            connection = self.transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _NEXT_TO_NOTHING)
            self._loop.call_later(TURNED_AWAY_S, self.transport.abort)

    def _refuse_body(self) -> None:
        """Answer that there is too much of it.

        The request that is being served fails if it is its body, so that the client gets one answer.
        """
        request = self._current_request
        if request is None or request.content.is_eof():
            self._turn_away(_TOO_LARGE, f"more than {MAX_BODY_BYTES} bytes")
        elif request.content.exception() is None:
            request.content.set_exception(web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, self._received))
            if self.transport is not None:
                self.transport.pause_reading()

    def _turn_away(self, answer: bytes, reason: str) -> None:
        transport = self.transport
        if transport is not None and not transport.is_closing():
            self._complaints.refused(self.peername, reason)
            if not self._request_in_progress:  # otherwise the client would take this for the answer to that request
                transport.write(answer)
            super().force_close()
            self._loop.call_later(TURNED_AWAY_S, transport.abort)

    def _cut_off(self) -> None:
        """There is not memory enough for all, and this client has done nothing for longest."""
        if self.transport is not None:
            self._complaints.refused(self.peername, "memory is short, and it makes no progress")
            self.transport.abort()


class Complaints:
    """The logger that aiohttp is given."""

    def __init__(self) -> None:
        self._lines = FewLines(_log)

    def debug(self, message: str, *args: object, **more: object) -> None:
        """Drop the message: debug messages are of no use here."""

    def refused(self, peer: object, reason: str) -> None:
        self._lines.warning("a request was refused", peer=peer, reason=reason)

    def exception(self, message: str, *args: object, exc_info: object = None, **more: object) -> None:
        if isinstance(exc_info, HttpProcessingError):
            reason = str(exc_info).splitlines()[0][:_REASON_CHARS]
            self._lines.warning(
                "a request was refused that is not valid HTTP", peer=args[0] if args else "?", reason=reason
            )
        else:
            self._lines.error("unexpected error in the HTTP server", where=message % args, exc_info=exc_info or True)

    warning = error = info = debug
