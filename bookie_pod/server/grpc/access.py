"""Who may call: the roles that the calls of the gRPC server need; and who has a connection without calling.

Invariants
- Each service of the node names the role of each of its calls; one that is named nowhere is nobody's. The health
  service's are everybody's: they say nothing that a probe must not know. Reflection is a viewer's.
- A call is judged when it begins; a stream that runs goes on when its token is taken away.
- Calls that change something stand in the audit trail where the server has one, and so does every refusal.

gRPC bounds all connections together, and ends none because its calls are refused, or because it asks for nothing but
the health, so strangers could hold them all. Connections of which no call was let in yet are those of strangers, or of
who has not asked yet: those go that have been there for too long, and the oldest of more than there may be, so there is
always room for who comes next. They are found among the sockets of the process (`bookie_pod.callers`). Where it has
many of them a look takes a while, so a thread looks, and the next look comes the later.

Event loop only.
"""

from __future__ import annotations

import asyncio
import time
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

import grpc
from cryptography import x509
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from bookie_pod.audit import Asked, Audit, asking, request_id
from bookie_pod.callers import Address, address_of, connections, shut_down
from bookie_pod.roles import CHANGES, Role
from bookie_pod.server.access import Access, Shown
from bookie_pod.server.grpc.receiving import Behaviour, leaving_no_cycle
from bookie_protocol.wire.auth import Subject

_PUBLIC: Final = f"/{health.SERVICE_NAME}/"
_REFLECTION: Final = f"/{reflection.SERVICE_NAME}/"
_NAMES: Final = {
    x509.NameOID.COMMON_NAME: "commonName",
    x509.NameOID.ORGANIZATIONAL_UNIT_NAME: "organizationalUnitName",
}
_CREDENTIALS: Final = "authorization"
_REQUEST_ID: Final = "x-request-id"
LOOK_S: Final = 1.0
CROWDED_LOOK_S: Final = 0.1
"""After a look that had to send somebody away: strangers may fill the port until the next one."""
_REST: Final = 100
"""Between two looks there is so many times what one took."""
_CROWDED_REST: Final = 10


class DemandRole(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Refuses calls with UNAUTHENTICATED or PERMISSION_DENIED. It stands before `GovernedCalls`, whose handlers it
    takes: those read the requests themselves."""

    def __init__(
        self,
        access: Access,
        audit: Audit,
        roles: Mapping[str, Role],
        audited: frozenset[Role] = CHANGES,
        let_in: Callable[[str], None] = lambda peer: None,
    ) -> None:
        """`roles`: by a call's full name, as in `/package.Service/Call`. `audited`: calls that need one of these stand
        in the trail. `let_in` is told of the connection of each call that is not refused."""
        self._access = access
        self._audit = audit
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
            caller = await self._access.caller(Shown(_address(context.peer()), _header(metadata), _subject(context)))
            request = request_id(_header(metadata)(_REQUEST_ID))
            if role is None:
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, "this call is nobody's: no role is named for it")
                return None
            refusal = self._access.refusal(caller, role)
            if refusal is not None:
                self._audit.refused(caller, role, method, request)
                unknown = not caller.is_known
                code = grpc.StatusCode.UNAUTHENTICATED if unknown else grpc.StatusCode.PERMISSION_DENIED
                await context.abort(code, f"{refusal} (request {request})")
            self._let_in(context.peer())
            if role not in self._audited:
                with asking(Asked(self._audit, caller, method, request)):
                    return await serve(requests, context)
            with self._audit.act(caller, role, method, request):
                return await serve(requests, context)

        made = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return made(judged, response_serializer=handler.response_serializer)


def _address(peer: str) -> str:
    """The address in `ipv4:10.0.0.7:4711` or `ipv6:%5B::1%5D:4711`; what is none of these as it is, which is no
    address."""
    kind, _, rest = urllib.parse.unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else peer


def _header(metadata: tuple[tuple[str, Any], ...]) -> Callable[[str], str | None]:
    """The first one of a name; credentials that are given twice count as none: which of them is meant would be for the
    caller to choose."""

    def find(name: str) -> str | None:
        found = [value for key, value in metadata if key == name and isinstance(value, str)]
        return None if not found or (name == _CREDENTIALS and len(found) > 1) else found[0]

    return find


def _subject(context: grpc.aio.ServicerContext) -> Subject | None:
    shown = context.auth_context().get("x509_pem_cert")
    return _subject_of(bytes(shown[0])) if shown else None


@lru_cache(maxsize=256)
def _subject_of(pem: bytes) -> Subject:
    """What roles and names are read from. A certificate that cannot be read has neither: TLS has taken it."""
    try:
        subject = x509.load_pem_x509_certificate(pem).subject
    except ValueError:
        return ()
    return tuple(((_NAMES[each.oid], str(each.value)),) for each in subject if each.oid in _NAMES)


class Strangers:
    """Those of one server: so many at `most`, for so many `seconds` each."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._known: set[Address] = set()
        self._since: dict[Address, float] = {}
        """Those that are not known, in the order in which they were seen."""
        self.sent_away = 0

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
        """Until cancelled."""
        while True:
            began, before = time.monotonic(), self.sent_away
            with suppress(OSError):  # no descriptor is left to look with
                await self.look(port)
            took, is_crowded = time.monotonic() - began, self.sent_away > before
            least, rest = (CROWDED_LOOK_S, _CROWDED_REST) if is_crowded else (LOOK_S, _REST)
            await asyncio.sleep(max(least, rest * took))
