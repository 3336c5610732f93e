"""From a request to its handler, and the reply back onto the wire.

Invariants
- Every request ends: after the operation's time-out with 504, a stream after `STREAM_S`.
- At most `ADMIN_CALLS` requests of the admin API are under way; more are 503 at once. Probes and metrics do not count.
  A quarter of these places is for operators and admins: no number of viewers keeps an operator out.
- A body is read before its request takes a place: within `BODY_S`, and `BODIES` at a time.
- Whatever is raised becomes one line: what the caller did wrong is 4xx, a fault 503; 500 is a bug, and is logged. Paths
  of Podkeeper's own answer it as a problem (`bookie_protocol.admin_api.bodies`), Apache's as a text.
- At most `PAGE_CALLS` pages for people (`Group.CONSOLE`) are under way, which take no places of the admin API. All that
  they answer has the headers of the console; they alone ask a browser for a password, and only where no third
  party can read it.
- A caller that lacks the role in the table is refused (`server.access`). Every operation whose role may change
  something is recorded in the audit trail, and so is every refusal.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager
from http import HTTPStatus
from typing import Any, Final

import structlog
from aiohttp import web

from bookie_pod.audit import Act, Audit, audited, request_id
from bookie_pod.logs import FewLines
from bookie_pod.roles import CHANGES, NOBODY, Caller, Role
from bookie_pod.server.access import (
    BEARER,
    CREDENTIALS,
    Access,
    Shown,
    may_show_password,
    of_browser,
    one_of,
)
from bookie_pod.server.http.api.call import JSON_TYPE, TEXT_TYPE, Call, Json, JsonMembers, Reply, Text
from bookie_pod.server.http.api.context import KEPT, Context
from bookie_pod.server.http.api.rendering import INDENT, Renderer, jackson, quoted
from bookie_pod.server.http.api.table import METHODS, Group, Operation, Resource
from bookie_protocol.admin_api.bodies import PROBLEM_TYPE, plain, problem_of
from bookie_protocol.aside import Slices
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
from bookie_protocol.local_requests import EMBEDDED, is_embedded
from bookie_protocol.shown import one_line
from bookie_protocol.web_console.frame import CONTENT_TYPE as PAGE_TYPE
from bookie_protocol.web_console.frame import error_page
from bookie_protocol.web_console.frame import headers as page_headers

_log = structlog.get_logger(__name__)

ADMIN_CALLS: Final = 16
PAGE_CALLS: Final = 8
BODIES: Final = 64
"""Bodies of requests that are read at a time."""
ACCEPT_CHARS: Final = 1_000
"""Characters of the header `Accept` that count."""
BODY_S: Final = 10.0
"""Seconds within which the body of a request has to come."""
STREAM_S: Final = 600.0
_PIECE_BYTES: Final = 64 * 1024
_NOT_FOUND: Final = "<html><body><h1>Resource not found</h1></body></html>"
_NOT_HERE: Final = (
    "a browser shows its token over https or to its own machine alone: a listener on the way could read it. Set"
    " httpServerTlsEnable=true, or open the page through a tunnel, such as kubectl port-forward"
)
_FAILED: Final = "Internal Server Error"
_REQUEST_ID: Final = "X-Request-Id"
_TRACE_PARENT: Final = "traceparent"
_WITH_ROLE: Final = frozenset({Group.ADMIN, Group.CONSOLE})
_LOGIN: Final = 'Basic realm="Podkeeper", charset="UTF-8"'
_TOKEN: Final = web.RequestKey("token", str)
"""Key of a request for a page: the token that was shown."""
_TOLD: Final = frozenset({403, 409, 503})
"""The statuses whose text may be put into the audit trail; others may repeat what was sent, and with it a secret."""
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

    def __init__(self, context: Context, access: Access, audit: Audit, *, guarded: frozenset[Group]) -> None:
        """`guarded`: groups of which nothing is open."""
        self._context = context
        self._access = access
        self._audit = audit
        self._guarded = guarded
        self._calls: dict[str, int] = {}
        """Places that are taken, by their kind."""
        self._renderers = {runs_cluster: Renderer() for runs_cluster in (False, True)}
        """The texts for operators and admins do not wait for large ones for viewers."""
        self._faults = FewLines(_log)

    def add_to(self, app: web.Application, resources: Iterable[Resource]) -> None:
        """Register every path with all methods."""
        for resource in resources:
            handler = self._handler(resource)
            for method in dict.fromkeys((*METHODS, *(each.route.method for each in resource.operations))):
                app.router.add_route(method, resource.path, handler)

    def _handler(self, resource: Resource) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._guard(resource, request)

        async def handle_page(request: web.Request) -> web.StreamResponse:
            answer = await self._guard(resource, request)
            answer.headers.update(page_headers())
            return answer

        return handle_page if resource.group is Group.CONSOLE else handle

    async def _guard(self, resource: Resource, request: web.Request) -> web.StreamResponse:
        operation = resource.operation(request.method)
        role = operation.role if operation is not None else None
        if role is None and (resource.group in _WITH_ROLE or resource.group in self._guarded):
            role = Role.VIEWER
        if role is None:
            return await self._admitted(resource, operation, request, NOBODY)
        shown = _shown_by(request)
        request_name = request_id(request.headers.get(_REQUEST_ID), request.headers.get(_TRACE_PARENT))
        what = f"{request.method} {resource.path}"
        if resource.group is Group.CONSOLE and request.method == "GET":
            if is_embedded(shown.header):
                stranger = Caller("a stranger", shown.address, frozenset(), is_known=False)
                self._audit.refused(stranger, EMBEDDED, what, request_name)
                return _named(_failure(resource, 403, EMBEDDED), request_name)
            shown = of_browser(shown)
        caller = await self._access.caller(shown)
        refusal = self._access.refusal(caller, role)
        if refusal is not None:
            self._audit.refused(caller, role, what, request_name)
            return _named(self._refusal(resource, caller, refusal, shown), request_name)
        if resource.group is Group.CONSOLE and self._access.has_tokens:
            request[_TOKEN] = (shown.header(CREDENTIALS) or "")[len(BEARER) :].strip()
        if operation is None or role not in CHANGES:
            return await self._admitted(resource, operation, request, caller)
        with self._audit.act(caller, role, what, request_name) as act:
            answer = await self._admitted(resource, operation, request, caller, act)
        return answer if answer.prepared else _named(answer, request_name)

    def _refusal(self, resource: Resource, caller: Caller, refusal: str, shown: Shown) -> web.Response:
        if caller.is_known or not self._access.has_tokens:
            return _failure(resource, 403, refusal)
        if resource.group is not Group.CONSOLE:
            answer = _failure(resource, 401, refusal)
            answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        if not may_show_password(shown):
            return _failure(resource, 403, _NOT_HERE)
        answer = _failure(resource, 401, "a token is needed: any user name, and the token as the password")
        answer.headers["WWW-Authenticate"] = _LOGIN
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
        if resource.group not in _WITH_ROLE:
            return await self._serve(resource, operation, request, caller)
        if not self._context.is_serving and not resource.always:
            reason = self._context.status.unready_reason() or "the bookie starts or stops"
            return _ended(_failure(resource, 503, f"the bookie does not serve: {reason}"), act)
        most = PAGE_CALLS if resource.group is Group.CONSOLE else ADMIN_CALLS
        try:
            if operation.route.body is not None:
                with self._place("bodies", BODIES, caller):
                    async with asyncio.timeout(BODY_S):
                        await request.read()
            with self._place(resource.group.value, most, caller):
                return _ended(await self._serve(resource, operation, request, caller), act)
        except TooManyRequests as error:
            return _ended(_failure(resource, 503, str(error)), act)
        except TimeoutError:
            return _ended(_failure(resource, 408, f"the body did not come within {BODY_S:g} s"), act)

    @contextmanager
    def _place(self, kind: str, most: int, caller: Caller) -> Iterator[None]:
        """Have a place of this kind. Raises `TooManyRequests`."""
        taken = self._calls.get(kind, 0)
        if taken >= (most if caller.runs_cluster else most - most // KEPT):
            raise TooManyRequests(f"{taken} requests are under way; try again later")
        self._calls[kind] = taken + 1
        try:
            yield
        finally:
            self._calls[kind] -= 1

    async def _serve(
        self, resource: Resource, operation: Operation, request: web.Request, caller: Caller
    ) -> web.StreamResponse:
        renderer = self._renderers[caller.runs_cluster]
        try:
            async with asyncio.timeout(operation.timeout_s):
                reply = await self._reply(resource, operation, request, caller)
                if not isinstance(reply, JsonMembers):
                    return await self._whole(resource, reply, renderer)
                first = await _first(reply)
            return await self._stream(request, first, reply, renderer)
        except TimeoutError:
            return _failure(resource, 504, f"no result within {operation.timeout_s:g} s")
        except PodkeeperError as error:
            status = next(status for kind, status in _STATUS if isinstance(error, kind))
            return _failure(resource, status, one_line(error), error)
        except (web.HTTPException, ConnectionError):
            raise
        except Exception as error:
            self._faults.error("HTTP request failed", path=request.path, reason=str(error), exc_info=error)
            return _failure(resource, 500, _FAILED)

    async def _reply(self, resource: Resource, operation: Operation, request: web.Request, caller: Caller) -> Reply:
        # Of several values of one name the first counts, as in the reference.
        given = {name: request.query.getall(name)[0] for name in request.query}
        if resource.group is Group.CONSOLE:
            given = {name: value for name, value in given.items() if value}  # a form sends its empty fields, too
        query = operation.asked(given)
        if isinstance(query, Text):
            return query
        audited(**plain(query))
        body = await request.read() if operation.route.body is not None else b""  # which has come already
        accept = ",".join(request.headers.getall("Accept", ()))[:ACCEPT_CHARS]
        call = Call(request.method, query, body, caller, request.get(_TOKEN), accept)
        return await operation.handler(self._context, call)

    async def _whole(self, resource: Resource, reply: Text | Json, renderer: Renderer) -> web.Response:
        if isinstance(reply, Json):
            return web.Response(text=await renderer.text(reply.value, spaced=reply.spaced), content_type=JSON_TYPE)
        if resource.group in _WITH_ROLE and reply.status >= 400:
            return _failure(resource, reply.status, reply.body)
        return _text(reply)

    async def _stream(
        self, request: web.Request, first: tuple[str, Any] | None, reply: JsonMembers, renderer: Renderer
    ) -> web.StreamResponse:
        """Send an object member by member. A fault in the middle ends the connection: the text is no JSON then."""
        if first is None:
            return web.Response(text="{ }", content_type=JSON_TYPE)
        response = web.StreamResponse(headers={"Content-Type": f"{JSON_TYPE}; charset=utf-8"})
        await response.prepare(request)
        try:
            async with (
                asyncio.timeout(STREAM_S),
                aclosing(reply.members),
                aclosing(_pieces(first, reply, renderer)) as pieces,
            ):
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
    address = str(peer[0]) if isinstance(peer, tuple) else "?"
    is_encrypted = transport is not None and transport.get_extra_info("sslcontext") is not None
    return Shown(address, lambda name: one_of(name, request.headers.getall(name, [])), subject, is_encrypted)


def _named(answer: web.StreamResponse, request: str) -> web.StreamResponse:
    answer.headers[_REQUEST_ID] = request
    return answer


def _ended(answer: web.StreamResponse, act: Act | None) -> web.StreamResponse:
    """Record the result of a change by its answer. A stream that has begun was allowed, and that is recorded."""
    if act is not None and answer.status >= 400:
        told = act.refused if answer.status == 403 else act.failed
        text = f": {answer.line}" if answer.status in _TOLD and isinstance(answer, _Failure) else ""
        told(f"HTTP {answer.status}{text}")
    return answer


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
    if resource.group is Group.CONSOLE:
        return _Failure(line, status, error_page(status, line), PAGE_TYPE.partition(";")[0])
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


async def _pieces(first: tuple[str, Any], reply: JsonMembers, renderer: Renderer) -> AsyncGenerator[bytes, None]:
    pending = ["{\n" + await _member(renderer, *first)]
    nbytes, slices = 0, Slices()
    async for name, value in reply.members:
        text = ",\n" + await _member(renderer, name, value)
        pending.append(text)
        await slices.took(1)
        nbytes += len(text)
        if nbytes >= _PIECE_BYTES:
            yield "".join(pending).encode()
            pending, nbytes = [], 0
    yield ("".join(pending) + "\n}").encode()


async def _member(renderer: Renderer, name: str, value: Any) -> str:
    return f"{INDENT}{quoted(name)} : {await renderer.text(value, indent=INDENT)}"
