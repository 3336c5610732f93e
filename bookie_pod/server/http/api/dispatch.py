"""From a request to its handler, and the reply back onto the wire.

Invariants
- Every request ends: after the operation's time-out with 504, a stream after `STREAM_S`.
- At most `ADMIN_CALLS` requests of the admin API are under way; more are 503 at once. Probes and metrics do not count.
- Whatever is raised becomes one line: what the caller did wrong is 4xx, a fault 503; 500 is a bug, and is logged. Paths
  of Podkeeper's own answer it as a problem (`bookie_protocol.admin_api.bodies`), Apache's as a text.
- Nothing is done for who lacks the role that the table names (`server.access`). Every operation that needs one which
  changes something stands in the audit trail, and so does every refusal.

JSON texts are laid out as the reference does, which people and scripts (grep, cut) have got used to. Most answers are
those of Jackson: two blanks of indent for objects, arrays in one line, a blank on both sides of the colon, control
characters in upper-case hex. Only `server_config` is Gson's, with the colon right behind the key.

Event loop only.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final

import structlog
from aiohttp import web

from bookie_pod.audit import Act, Audit, audited, request_id
from bookie_pod.roles import CHANGES, NOBODY, Caller, Role
from bookie_pod.server.access import Access, Shown
from bookie_pod.server.http.api.call import JSON_TYPE, TEXT_TYPE, Call, Json, JsonMembers, Reply, Text
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.table import METHODS, Group, Operation, Resource
from bookie_protocol.admin_api.bodies import PROBLEM_TYPE, plain, problem_of
from bookie_protocol.errors import (
    BadRequest,
    CouldNotTell,
    InvalidConfiguration,
    NotThere,
    PodkeeperError,
    StartupError,
    TooManyRequests,
    Unauthorized,
)
from bookie_protocol.shown import one_line

_ESCAPED: Final = re.compile(r'[\x00-\x1f"\\]')
_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
INDENT: Final = "  "


def jackson(value: Any, indent: str = "") -> str:
    """A JSON value of plain types."""
    return _laid_out(value, " : ", indent)


def gson(value: Mapping[str, Any]) -> str:
    """A JSON object of plain types."""
    return _laid_out(value, ": ", "")


def quoted(text: str) -> str:
    """A JSON string."""
    # Half of a pair of surrogates is no character; UTF-8 cannot hold it.
    clean = text.encode("utf-8", "replace").decode() if not text.isascii() else text
    return f'"{_ESCAPED.sub(lambda found: _escape(found.group()), clean)}"'


def _escape(character: str) -> str:
    return _SHORT.get(character) or f"\\u{ord(character):04X}"


def _laid_out(value: Any, colon: str, indent: str) -> str:
    if isinstance(value, str):
        return quoted(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        if not value:
            return "{ }"
        inner = indent + INDENT
        members = (f"{inner}{quoted(key)}{colon}{_laid_out(item, colon, inner)}" for key, item in value.items())
        return "{\n" + ",\n".join(members) + f"\n{indent}}}"
    if not value:
        return "[ ]"
    return "[ " + ", ".join(_laid_out(item, colon, indent) for item in value) + " ]"


_log = structlog.get_logger(__name__)

ADMIN_CALLS: Final = 16
STREAM_S: Final = 600.0
_PIECE_BYTES: Final = 64 * 1024
_NOT_FOUND: Final = "<html><body><h1>Resource not found</h1></body></html>"
_FAILED: Final = "Internal Server Error"
_REQUEST_ID: Final = "X-Request-Id"
_TOLD: Final = frozenset({403, 409, 503})
"""Statuses whose text may stand in the audit trail; others may repeat what was sent, and with it a secret."""
_STATUS: Final[tuple[tuple[type[PodkeeperError], int], ...]] = (
    (NotThere, 404),
    (BadRequest, 400),
    (InvalidConfiguration, 400),
    (Unauthorized, 403),
    (TooManyRequests, 503),
    (CouldNotTell, 503),
    (StartupError, 409),
    (PodkeeperError, 409),
)


class Dispatcher:
    """Registers resources and serves them."""

    def __init__(self, context: Context[Any], access: Access, audit: Audit, *, guarded: frozenset[Group]) -> None:
        """`guarded`: groups of which nothing is open."""
        self._context = context
        self._access = access
        self._audit = audit
        self._guarded = guarded
        self._admin_calls = 0

    def add_to(self, app: web.Application, resources: Iterable[Resource]) -> None:
        """Register every path with all methods."""
        for resource in resources:
            handler = self._handler(resource)
            for method in METHODS:
                app.router.add_route(method, resource.path, handler)

    def _handler(self, resource: Resource) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._guard(resource, request)

        return handle

    async def _guard(self, resource: Resource, request: web.Request) -> web.StreamResponse:
        operation = resource.operation(request.method)
        role = operation.role if operation is not None else None
        if role is None and (resource.group is Group.ADMIN or resource.group in self._guarded):
            role = Role.VIEWER
        if role is None:
            return await self._admitted(resource, operation, request, NOBODY)
        caller = await self._access.caller(_shown_by(request))
        request_name = request_id(request.headers.get(_REQUEST_ID))
        what = f"{request.method} {resource.path}"
        refusal = self._access.refusal(caller, role)
        if refusal is not None:
            self._audit.refused(caller, role, what, request_name)
            return _named(self._refusal(resource, caller, refusal), request_name)
        if operation is None or role not in CHANGES:
            return await self._admitted(resource, operation, request, caller)
        with self._audit.act(caller, role, what, request_name) as act:
            answer = await self._admitted(resource, operation, request, caller, act)
        return answer if answer.prepared else _named(answer, request_name)

    def _refusal(self, resource: Resource, caller: Caller, refusal: str) -> web.Response:
        if caller.is_known or not self._access.has_tokens:
            return _failure(resource, 403, refusal)
        answer = _failure(resource, 401, refusal)
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer

    async def _admitted(
        self,
        resource: Resource,
        operation: Operation | None,
        request: web.Request,
        caller: Caller,
        act: Act | None = None,
    ) -> web.StreamResponse:
        if operation is None:
            refusal = resource.refusal
            return _failure(resource, refusal.status, refusal.body.replace("{method}", request.method))
        if resource.group is not Group.ADMIN:
            return await self._serve(resource, operation, request, caller)
        if not self._context.is_serving and not resource.always:
            reason = self._context.status.unready_reason() or "the bookie starts or stops"
            return _ended(_failure(resource, 503, f"the bookie does not serve: {reason}"), act)
        if self._admin_calls >= ADMIN_CALLS:
            return _ended(_failure(resource, 503, f"{ADMIN_CALLS} requests are under way; try again later"), act)
        self._admin_calls += 1
        try:
            return _ended(await self._serve(resource, operation, request, caller), act)
        finally:
            self._admin_calls -= 1

    async def _serve(
        self, resource: Resource, operation: Operation, request: web.Request, caller: Caller
    ) -> web.StreamResponse:
        try:
            async with asyncio.timeout(operation.timeout_s):
                reply = await self._reply(operation, request, caller)
                if not isinstance(reply, JsonMembers):
                    return _whole(resource, reply)
                first = await _first(reply)
            return await _stream(request, first, reply)
        except TimeoutError:
            return _failure(resource, 504, f"no result within {operation.timeout_s:g} s")
        except PodkeeperError as error:
            status = next(status for kind, status in _STATUS if isinstance(error, kind))
            return _failure(resource, status, one_line(error), error)
        except (web.HTTPException, ConnectionError):
            raise
        except Exception as error:
            _log.exception("HTTP request failed", path=request.path, reason=str(error))
            return _failure(resource, 500, _FAILED)

    async def _reply(self, operation: Operation, request: web.Request, caller: Caller) -> Reply:
        # Of several values of one name the first counts, as in the reference.
        query = operation.asked({name: request.query.getall(name)[0] for name in request.query})
        if isinstance(query, Text):
            return query
        audited(**plain(query))
        body = await request.read() if operation.route.body is not None else b""
        return await operation.handler(self._context, Call(request.method, query, body, caller))


@web.middleware
async def plain_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """The router's own refusals in the reference's words."""
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return web.Response(text=_NOT_FOUND, status=404, content_type="text/html")
    except web.HTTPMethodNotAllowed as error:
        return web.Response(status=405, headers={"Allow": ",".join(sorted(error.allowed_methods))})


def _shown_by(request: web.Request) -> Shown:
    transport = request.transport
    peer = transport.get_extra_info("peername") if transport is not None else None
    certificate = transport.get_extra_info("peercert") if transport is not None else None
    subject = certificate.get("subject") if certificate else None
    return Shown(str(peer[0]) if isinstance(peer, tuple) else "?", request.headers.get, subject)


def _named(answer: web.StreamResponse, request: str) -> web.StreamResponse:
    answer.headers[_REQUEST_ID] = request
    return answer


def _ended(answer: web.StreamResponse, act: Act | None) -> web.StreamResponse:
    """What became of a change, by its answer. A stream that has begun was allowed, and that is told."""
    if act is not None and answer.status >= 400:
        told = act.refused if answer.status == 403 else act.failed
        text = f": {answer.line}" if answer.status in _TOLD and isinstance(answer, _Failure) else ""
        told(f"HTTP {answer.status}{text}")
    return answer


def _whole(resource: Resource, reply: Text | Json) -> web.Response:
    if isinstance(reply, Json):
        value = plain(reply.value)
        return web.Response(text=jackson(value) if reply.spaced else gson(value), content_type=JSON_TYPE)
    if resource.group is Group.ADMIN and reply.status >= 400:
        return _failure(resource, reply.status, reply.body)
    return _text(reply)


def _text(reply: Text) -> web.Response:
    if reply.content_type is not None:
        return web.Response(body=reply.body.encode(), status=reply.status, headers={"Content-Type": reply.content_type})
    return web.Response(text=reply.body, status=reply.status)


class _Failure(web.Response):
    """An error. `line`: what it says."""

    def __init__(self, line: str, status: int, text: str, content_type: str) -> None:
        super().__init__(text=text, status=status, content_type=content_type)
        self.line = line
        if status == 503:
            self.headers["Retry-After"] = "1"


def _failure(resource: Resource, status: int, line: str, error: PodkeeperError | None = None) -> web.Response:
    if not resource.is_own:
        return _Failure(line, status, line, TEXT_TYPE)
    problem = problem_of(status, HTTPStatus(status).phrase, line, error)
    return _Failure(line, status, jackson(plain(problem)), PROBLEM_TYPE)


async def _first(reply: JsonMembers) -> tuple[str, Any] | None:
    """The first member, before the answer begins: what goes wrong until then has a status of its own."""
    try:
        return await anext(reply.members, None)
    except BaseException:
        await reply.members.aclose()
        raise


async def _stream(request: web.Request, first: tuple[str, Any] | None, reply: JsonMembers) -> web.StreamResponse:
    """Send an object member by member. A fault in the middle ends the connection: the text is no JSON then."""
    if first is None:
        return web.Response(text="{ }", content_type=JSON_TYPE)
    response = web.StreamResponse(headers={"Content-Type": f"{JSON_TYPE}; charset=utf-8"})
    await response.prepare(request)
    try:
        async with asyncio.timeout(STREAM_S), aclosing(reply.members), aclosing(_pieces(first, reply)) as pieces:
            async for piece in pieces:
                await response.write(piece)
                await asyncio.sleep(0)  # a peer that reads fast must not keep the loop to itself
            await response.write_eof()
    except (PodkeeperError, TimeoutError) as error:
        _log.warning("HTTP answer broken off", path=request.path, reason=str(error) or "it took too long")
        request.protocol.force_close()
        if request.transport is not None:
            request.transport.abort()
    return response


async def _pieces(first: tuple[str, Any], reply: JsonMembers) -> AsyncGenerator[bytes, None]:
    pending = ["{\n" + _member(*first)]
    nbytes = 0
    async for name, value in reply.members:
        text = ",\n" + _member(name, value)
        pending.append(text)
        nbytes += len(text)
        if nbytes >= _PIECE_BYTES:
            yield "".join(pending).encode()
            pending, nbytes = [], 0
    yield ("".join(pending) + "\n}").encode()


def _member(name: str, value: Any) -> str:
    return f"{INDENT}{quoted(name)} : {jackson(plain(value), INDENT)}"
