"""Authentication and TLS of one connection.

Invariants
- While an authentication step or a TLS handshake is under way the connection reads nothing more, so that what follows
  is judged by the outcome. Handshakes begin in turns (`HandshakeTurns`).
- With `tlsRequired` no client is authenticated before the handshake, whatever a plug-in says.
- A plug-in that refuses a login ends the connection; a plug-in name that is not served is answered as the version
  wants. One that cannot tell, because its files cannot be used just now, ends it without an answer: a refusal would end
  writers.
- A client whose certificate a plug-in refused is never authenticated, and gets that answer to each request: it would
  take a connection that ends for a bookie that does not work, and ask the next one.
- Nothing that came before the handshake is served after it, or answered: an attacker that can write into a plain
  connection could else put requests in front of those of an authenticated client, and answers in their place. So before
  START_TLS a client may log in, and be refused, and no more.
- Until it is known, and during each step, the client is one of the `Strangers`, with their limits.

Threads: event loop only.

Source: docs/internals/wire-protocol.md, sections 5 and 6.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from bookie_pod.server.tcp.clients import Clients
from bookie_pod.server.tcp.connection_stalls import Stall
from bookie_pod.server.tcp.strangers import FRAMES, check_frame
from bookie_pod.server.tcp.wire import Wire
from bookie_pod.server.tls import RenewedTls
from bookie_pod.server.tls_reads import Told, shake_hands
from bookie_protocol.errors import InvalidConfiguration, ProtocolViolation, Unauthorized, V3Status
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v2
from bookie_protocol.wire.auth import AuthMessage, Peer, ServerAuthentication, from_protobuf, to_protobuf
from bookie_protocol.wire.framing import LENGTH
from bookie_protocol.wire.v2 import CURRENT_VERSION
from bookie_protocol.wire.v3 import encode_frame, header_copied, new_response

NO_LOGIN: Final = AuthMessage("", b"")
"""Stands for a login that names no plug-in."""


class Session:
    """The identity of the client of one connection, and all else that its frames are served with."""

    def __init__(self, wire: Wire, clients: Clients, protocol: asyncio.Protocol) -> None:
        """`protocol` gets what comes."""
        self.wire = wire
        self.handlers = clients.handlers
        self._clients = clients
        self._context = clients.context
        self._protocol = protocol
        self._authentication = ServerAuthentication(clients.auth, Peer(wire.peer))
        self._refused = False
        self._shut_out = False
        """Its certificate was refused."""
        self._lacks_tls = clients.context.config.tls.required
        self._frames = 0
        """The number of frames that came before the client was authenticated."""
        self._opening_bytes = 0
        """The bytes of frames that may precede TLS."""
        self._task: asyncio.Task[None] | None = None
        wire.authenticated = self._is_authenticated

    @property
    def _is_authenticated(self) -> bool:
        return self._authentication.authenticated and not self._lacks_tls and not self._shut_out

    def came(self) -> None:
        """The client is there, and its address is known."""
        self._authentication.peer = Peer(self.wire.peer)
        if not self._is_authenticated:
            self._clients.strangers.came(self.wire)

    def early(self, length: int) -> None:
        """A frame of so many bytes came before the client was authenticated. Raises ProtocolViolation if that is one
        too many, or too long."""
        check_frame(length)
        self._frames += 1
        if self._frames > FRAMES:
            raise ProtocolViolation(f"more than {FRAMES} frames before authentication")

    def opens(self, length: int) -> None:
        """Note a frame of so many bytes that may precede TLS: it is answered before the next one is read."""
        self._opening_bytes += LENGTH.size + length

    def refused(self) -> None:
        """A request came before the client was authenticated, and was answered so."""
        self._clients.refusals += 1
        if not self._refused:
            self._refused = True
            needs = "TLS (tlsRequired)" if self._lacks_tls else "authentication"
            if self._shut_out:
                needs = "another certificate"
            context = self._context
            self.wire.keep_out("a request", f"it needs {needs}")
            context.complaints.warning(
                "requests are refused", peer=self.wire.peer, needs=needs, refused_so_far=self._clients.refusals
            )

    def cancel(self) -> None:
        """The connection is gone."""
        self._clients.strangers.gone(self.wire)
        self._clients.encrypted.gone(self.wire)
        self._protocol = asyncio.Protocol()  # which takes nothing; the other one would be a cycle
        if self._task is not None:
            self._task.cancel()

    # --- authentication -------------------------------------------------------------------------------------

    def auth_v2(self, frame: v2.AuthFrame) -> None:
        """Serve a v2 AUTH frame. Raises ProtocolViolation for a plug-in that is not served."""
        if self._shut_out or not self._authentication.accepts(frame.message):
            raise ProtocolViolation(f"authentication plug-in {frame.message.shown_name} is not served here")
        # A bookie without authentication answers in its own version, whatever the request's was.
        version = CURRENT_VERSION if self._is_authenticated else frame.version
        self._start(self._log_in(frame.message, lambda answer: v2.encode_auth(answer, version), b""))

    def auth_v3(self, request: pb.Request) -> None:
        """Serve a v3 AUTH request."""
        refusal = encode_frame(header_copied(request, V3Status.EUA))
        try:
            message = from_protobuf(request.authRequest)
        except ProtocolViolation:  # there is none, or its plug-in is not text
            message = NO_LOGIN
        if not self._is_authenticated and (self._shut_out or not self._authentication.accepts(message)):
            self.wire.send(refusal)
            return

        def encode(answer: AuthMessage) -> bytes:
            response = header_copied(request, V3Status.EOK)
            response.authResponse.CopyFrom(to_protobuf(answer))
            return encode_frame(response)

        self._start(self._log_in(message, encode, refusal))

    async def _log_in(self, message: AuthMessage, encode: Callable[[AuthMessage], bytes], refusal: bytes) -> None:
        """`refusal`: what is sent to who is refused; empty: nothing, as version 2 has no such answer."""
        try:
            answer = await self._authentication.answer(message)
        except Unauthorized as error:
            self.wire.keep_out("a login", str(error))
            if refusal:
                self.wire.send(refusal)
            self.wire.close(ProtocolViolation(f"authentication refused: {error}"))
            return
        except InvalidConfiguration as error:  # no word against this client, which may try again or elsewhere
            self.wire.close(ProtocolViolation(f"all connections are refused: {error}"))
            return
        if answer is not None:
            self.wire.send(encode(answer))

    # --- TLS ------------------------------------------------------------------------------------------------

    def start_tls(self, request: pb.Request) -> None:
        """Answer in plain text, then upgrade.

        EBADREQ if this bookie has no TLS, or if the connection has it already: each layer of it costs memory that is in
        no account.
        """
        if self._clients.tls is None or self.wire.is_encrypted:
            self.wire.send(encode_frame(header_copied(request, V3Status.EBADREQ)))
            return
        self._start(self._upgrade(self._clients.tls, request))

    async def _upgrade(self, tls: RenewedTls, request: pb.Request) -> None:
        async with self._clients.handshakes.one(self.wire.address):
            secured = await self._secured(tls.context(), request)
        if secured is not None:
            await self._established(secured, request)

    async def _secured(self, context: ssl.SSLContext, request: pb.Request) -> asyncio.Transport | None:
        """None: the connection is gone."""
        wire = self.wire
        response = new_response(request, V3Status.EOK)
        response.startTLSResponse.SetInParent()
        wire.send(encode_frame(response))  # not before: then the client begins
        plain = wire.flush_now()
        if plain is None:
            return None
        if wire.received != self._opening_bytes:
            raise ProtocolViolation("requests in plain text before START_TLS, or bytes behind it")
        self._clients.strangers.encrypts(wire)  # first: a stranger makes way for a stranger
        self._clients.encrypted.came(wire)
        try:
            secured = await shake_hands(plain, self._protocol, context, self._told(), self._clients.handshakes.steps)
        except (OSError, ssl.SSLError) as error:
            if isinstance(error, ssl.SSLError):
                self.wire.keep_out("a TLS handshake", str(error))
            wire.close(ProtocolViolation(f"TLS handshake failed: {error}"))
            # A transport whose handshake failed does not tell its protocol that it is gone.
            self._protocol.connection_lost(error)
            return None
        if secured is None:
            self._protocol.connection_lost(None)
            return None
        return secured

    def _told(self) -> Told:
        wire, encrypted = self.wire, self._clients.encrypted

        def wasteful() -> None:
            wire.close(ProtocolViolation("TLS without data"))
            wire.drop()  # at once: what comes until the client takes note would cost as much

        return Told(lambda: wire.received, lambda: encrypted.may_grow(wire), wasteful)

    async def _established(self, secured: asyncio.Transport, request: pb.Request) -> None:
        wire = self.wire
        self._lacks_tls = False
        wire.secured(secured)
        shown = secured.get_extra_info("ssl_object")
        peer = Peer(wire.peer)
        if shown is not None:
            verified = shown.getpeercert() or {}  # empty if it was not verified
            peer = Peer(wire.peer, shown.getpeercert(binary_form=True), verified.get("subject", ()))
        try:
            await self._authentication.tls_established(peer)
        except Unauthorized as error:
            self.wire.keep_out("a certificate", str(error))
            self._shut_out = True
            wire.send(encode_frame(header_copied(request, V3Status.EIO)))

    # --- one step at a time -----------------------------------------------------------------------------------

    def _start(self, step: object) -> None:
        assert asyncio.iscoroutine(step)
        self.wire.stall(Stall.HANDSHAKE)
        self._clients.strangers.came(self.wire)
        self._task = self._context.loop.create_task(step)
        self._task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ProtocolViolation):
            self.wire.close(error)
        elif error is not None:
            self._context.complaints.error("authentication step failed", peer=self.wire.peer, exc_info=error)
            self.wire.close(ProtocolViolation("authentication step failed"))
        self.wire.authenticated = self._is_authenticated
        if self._is_authenticated:
            self._clients.strangers.gone(self.wire)
        self.wire.unstall(Stall.HANDSHAKE)
