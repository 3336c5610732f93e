"""Access to the gRPC server: the roles that calls need, and the bound of connections without calls.

Invariants
- Each service of the node names the role of each of its calls; a call without a role is refused. The health service's
  are open to everyone: they say nothing that a probe must not know. Reflection needs the role of a viewer.
- A call is judged when it begins; a stream that runs goes on when its token is taken away.
- Calls that change something are recorded in the audit trail where the server has one, and so is every refusal.

gRPC bounds all connections together, and ends none because its calls are refused, or because it asks for nothing but
the health, so strangers could hold them all. Connections without an accepted call count as those of strangers. The
server closes them after too long, and the oldest ones when there are too many, so there is always room for the next
client. They are found among the sockets of the process (`bookie_pod.callers`). Where it has many of them a look takes a
while, so a thread looks, and the next look comes the later.

Event loop only.
"""

from __future__ import annotations

import asyncio
import time
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import grpc
from cryptography import x509
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from bookie_pod.audit import Asked, Audit, asking, request_id
from bookie_pod.callers import Address, address_of, connections, shut_down
from bookie_pod.roles import CHANGES, Role
from bookie_pod.server.access import Access, Shown, one_of
from bookie_pod.server.grpc.receiving import REQUEST_ID, Behaviour, end_call, leaving_no_cycle
from bookie_protocol.trace_context import TRACE_PARENT, TRACE_STATE
from bookie_protocol.wire.auth import Subject

if TYPE_CHECKING:
    from bookie_pod.telemetry.otlp import Tracer

_PUBLIC: Final = f"/{health.SERVICE_NAME}/"
_REFLECTION: Final = f"/{reflection.SERVICE_NAME}/"
_NAMES: Final = {
    x509.NameOID.COMMON_NAME: "commonName",
    x509.NameOID.ORGANIZATIONAL_UNIT_NAME: "organizationalUnitName",
}
_TRACE_CONTEXT: Final = (TRACE_PARENT, TRACE_STATE)
LOOK_S: Final = 1.0
CROWDED_LOOK_S: Final = 0.1
"""Seconds after a look that had to close connections: strangers may fill the port until the next one."""
_REST: Final = 100
"""Between two looks there is so many times what one took."""
_CROWDED_REST: Final = 10


class DemandRole(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """An interceptor that refuses calls with UNAUTHENTICATED or PERMISSION_DENIED.

    It comes before `GovernedCalls`, whose handlers it takes: those read the requests themselves.
    """

    def __init__(
        self,
        access: Access,
        audit: Audit,
        roles: Mapping[str, Role],
        audited: frozenset[Role] = CHANGES,
        let_in: Callable[[str], None] = lambda peer: None,
        tracer: Tracer | None = None,
    ) -> None:
        """`roles`: by a call's full name, as in `/package.Service/Call`.

        `audited`: calls that need one of these roles are recorded in the trail. `let_in` is called with the connection
        of each call that is not refused.
        """
        self._access = access
        self._audit = audit
        self._tracer = tracer
        self._roles = roles
        self._audited = audited
        self._let_in = let_in

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[grpc.RpcMethodHandler | None]], handler_call_details: Any
    ) -> grpc.RpcMethodHandler | None:
        """The service's handler, behind the question who asks."""
        method: str = handler_call_details.method
        handler = await continuation(handler_call_details)
        if handler is None or method.startswith(_PUBLIC):
            return handler
        role = Role.VIEWER if method.startswith(_REFLECTION) else self._roles.get(method)
        serve: Behaviour = handler.stream_stream or handler.stream_unary
        metadata = tuple(handler_call_details.invocation_metadata)

        @leaving_no_cycle
        async def judged(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> Any:
            header = _header(metadata)
            caller = await self._access.caller(Shown(_address(context.peer()), header, _subject(context)))
            request = request_id(header(REQUEST_ID), header(TRACE_PARENT))
            if role is None:
                await end_call(
                    context, grpc.StatusCode.PERMISSION_DENIED, "this call is not allowed: no role is defined for it"
                )
                return None
            refusal = self._access.refusal(caller, role)
            if refusal is not None:
                self._audit.refused(caller, role, method, request)
                unknown = not caller.is_known
                code = grpc.StatusCode.UNAUTHENTICATED if unknown else grpc.StatusCode.PERMISSION_DENIED
                await end_call(context, code, f"{refusal} (request {request})")
            self._let_in(context.peer())
            changes = self._audit.act(caller, role, method, request) if role in self._audited else nullcontext()
            tracer = self._tracer
            span = nullcontext() if tracer is None else tracer.call(method, request, _trace_context(header))
            with asking(Asked(self._audit, caller, method, request)), changes, span:
                return await serve(requests, context)

        made = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return made(judged, response_serializer=handler.response_serializer)


def _trace_context(header: Callable[[str], str | None]) -> dict[str, str]:
    return {name: value for name in _TRACE_CONTEXT if (value := header(name)) is not None}


def _address(peer: str) -> str:
    """The address in `ipv4:10.0.0.7:4711` or `ipv6:%5B::1%5D:4711`; what is none of these as it is, which is no
    address."""
    kind, _, rest = urllib.parse.unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else peer


def _header(metadata: tuple[tuple[str, Any], ...]) -> Callable[[str], str | None]:
    return lambda name: one_of(name, [value for key, value in metadata if key == name and isinstance(value, str)])


def _subject(context: grpc.aio.ServicerContext) -> Subject | None:
    shown = context.auth_context().get("x509_pem_cert")
    return _subject_of(bytes(shown[0])) if shown else None


@lru_cache(maxsize=256)
def _subject_of(pem: bytes) -> Subject | None:
    """Return the subject with roles and names; None if it cannot be read although TLS has accepted it."""
    try:
        subject = x509.load_pem_x509_certificate(pem).subject
    except ValueError:
        return None
    return tuple(((_NAMES[each.oid], str(each.value)),) for each in subject if each.oid in _NAMES)


class Strangers:
    """The unknown connections of one server: `most` of them at most, for at most `seconds` each."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._known: set[Address] = set()
        self._since: dict[Address, float] = {}
        """The unknown connections, in the order in which they were seen, with the time of that."""
        self.sent_away = 0

    @property
    def known(self) -> frozenset[Address]:
        """Connections of which a call was let in. Any thread."""
        return frozenset(self._known.copy())

    def let_in(self, peer: str) -> None:
        """A call of this connection, as gRPC calls it, was let in."""
        if (address := address_of(peer)) is not None:
            self._known.add(address)

    async def look(self, port: int) -> None:
        """Send those away whose time is over, or that are too many, of the connections to this port."""
        known = set(self._known)  # who is let in while the thread looks may have come after it did
        here = await asyncio.to_thread(lambda: dict(connections(port)))
        now = time.monotonic()
        self._known -= known - here.keys()
        since = {address: then for address, then in self._since.items() if address in here}
        since |= {address: now for address in here if address not in since}
        self._since = {address: then for address, then in since.items() if address not in self._known}
        too_many = len(self._since) - self._most
        for place, (address, then) in enumerate(self._since.items()):
            if place < too_many or now - then >= self._seconds:
                self.sent_away += 1
                shut_down(here[address], address)

    async def guard(self, port: int) -> None:
        """Look at the connections until cancelled."""
        while True:
            began, before = time.monotonic(), self.sent_away
            with suppress(OSError):  # no descriptor is left to look with
                await self.look(port)
            took, is_crowded = time.monotonic() - began, self.sent_away > before
            least, rest = (CROWDED_LOOK_S, _CROWDED_REST) if is_crowded else (LOOK_S, _REST)
            await asyncio.sleep(max(least, rest * took))
