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
- Nothing that came before the handshake is served after it: an attacker that can write into a plain connection could
  else put requests in front of those of an authenticated client.
- Until it is known, and during each step, the client is one of the `Strangers`, with their limits.

Threads: event loop only.

Source: docs/internals/wire-protocol.md, sections 5 and 6.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from bookie_pod.server.tcp.connection_stalls import Stall
from bookie_pod.server.tcp.strangers import FRAMES, check_frame
from bookie_pod.server.tls_reads import Told, shake_hands
from bookie_protocol.errors import InvalidConfiguration, ProtocolViolation, Unauthorized, V3Status
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v2
from bookie_protocol.wire.auth import AuthMessage, Peer, ServerAuthentication, from_protobuf, to_protobuf
from bookie_protocol.wire.v2 import CURRENT_VERSION
from bookie_protocol.wire.v3 import encode_frame, header_copied, new_response

if TYPE_CHECKING:
    from bookie_pod.server.tcp.connection import Connection
    from bookie_pod.server.tls import RenewedTls


class ConnectionSecurity:
    """The identity of the client, and whether the bytes are encrypted."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._context = conn.context
        self._authentication = ServerAuthentication(conn.context.auth, Peer(conn.peer))
        self._refused = False
        self._shut_out = False
        """Its certificate was refused."""
        self._lacks_tls = conn.context.config.tls.required
        self.encrypted = False
        self._frames = 0
        """The number of frames that came before the client was authenticated."""
        self._task: asyncio.Task[None] | None = None

    @property
    def authenticated(self) -> bool:
        return self._authentication.authenticated and not self._lacks_tls and not self._shut_out

    def came(self) -> None:
        """The client is there, and its address is known."""
        self._authentication.peer = Peer(self._conn.peer)
        if not self.authenticated:
            self._context.strangers.came(self._conn)

    def early(self, length: int) -> None:
        """A frame of so many bytes came before the client was authenticated. Raises ProtocolViolation if that is one
        too many, or too long."""
        check_frame(length)
        self._frames += 1
        if self._frames > FRAMES:
            raise ProtocolViolation(f"more than {FRAMES} frames before authentication")

    def refused(self) -> None:
        """A request came before the client was authenticated, and was answered so."""
        self._context.refusals += 1
        if not self._refused:
            self._refused = True
            needs = "TLS (tlsRequired)" if self._lacks_tls else "authentication"
            if self._shut_out:
                needs = "another certificate"
            context = self._context
            self._keep_out("a request", f"it needs {needs}")
            context.complaints.warning(
                "requests are refused", peer=self._conn.peer, needs=needs, refused_so_far=context.refusals
            )

    def wrong_key(self, error: Unauthorized) -> None:
        """A request was answered so: it had another password than its ledger."""
        self._keep_out("a ledger's password", str(error))
        self._context.complaints.warning("a request had a wrong password", peer=self._conn.peer, reason=str(error))

    def _keep_out(self, what: str, reason: str) -> None:
        """Record a refusal in the audit trail."""
        self._context.audit.kept_out(self._address, what, reason)

    @property
    def _address(self) -> str:
        return self._conn.peer.rpartition(":")[0] or self._conn.peer

    def cancel(self) -> None:
        """The connection is gone."""
        self._context.strangers.gone(self._conn)
        self._context.encrypted.gone(self._conn)
        if self._task is not None:
            self._task.cancel()

    # --- authentication -------------------------------------------------------------------------------------

    def auth_v2(self, frame: v2.AuthFrame) -> None:
        """Serve a v2 AUTH frame. Raises ProtocolViolation for a plug-in that is not served."""
        if self._shut_out or not self._authentication.accepts(frame.message):
            raise ProtocolViolation(f"authentication plug-in {frame.message.shown_name} is not served here")
        # A bookie without authentication answers in its own version, whatever the request's was.
        version = CURRENT_VERSION if self.authenticated else frame.version
        self._start(self._log_in(frame.message, lambda answer: v2.encode_auth(answer, version), b""))

    def auth_v3(self, request: pb.Request) -> None:
        """Serve a v3 AUTH request."""
        refusal = encode_frame(header_copied(request, V3Status.EUA))
        if not self.authenticated:
            message = from_protobuf(request.authRequest) if request.HasField("authRequest") else None
            if message is None or self._shut_out or not self._authentication.accepts(message):
                self._conn.send(refusal)
                return

        def encode(answer: AuthMessage) -> bytes:
            response = header_copied(request, V3Status.EOK)
            response.authResponse.CopyFrom(to_protobuf(answer))
            return encode_frame(response)

        self._start(self._log_in(from_protobuf(request.authRequest), encode, refusal))

    async def _log_in(self, message: AuthMessage, encode: Callable[[AuthMessage], bytes], refusal: bytes) -> None:
        """`refusal`: what is sent to who is refused; empty: nothing, as version 2 has no such answer."""
        try:
            answer = await self._authentication.answer(message)
        except Unauthorized as error:
            self._keep_out("a login", str(error))
            if refusal:
                self._conn.send(refusal)
            self._conn.close(ProtocolViolation(f"authentication refused: {error}"))
            return
        except InvalidConfiguration as error:  # no word against this client, which may try again or elsewhere
            self._conn.close(ProtocolViolation(f"all connections are refused: {error}"))
            return
        if answer is not None:
            self._conn.send(encode(answer))

    # --- TLS ------------------------------------------------------------------------------------------------

    def start_tls(self, request: pb.Request) -> None:
        """Answer in plain text, then upgrade.

        EBADREQ if this bookie has no TLS, or if the connection has it already: each layer of it costs memory that is in
        no account.
        """
        if self._context.tls is None or self.encrypted:
            self._conn.send(encode_frame(header_copied(request, V3Status.EBADREQ)))
            return
        self._start(self._upgrade(self._context.tls, request))

    async def _upgrade(self, tls: RenewedTls, request: pb.Request) -> None:
        async with self._context.handshakes.one(self._address):
            secured = await self._secured(tls.context(), request)
        if secured is not None:
            await self._established(secured, request)

    async def _secured(self, context: ssl.SSLContext, request: pb.Request) -> asyncio.Transport | None:
        """None: the connection is gone."""
        conn = self._conn
        response = new_response(request, V3Status.EOK)
        response.startTLSResponse.SetInParent()
        conn.send(encode_frame(response))  # not before: then the client begins
        plain = conn.flush_now()
        if plain is None:
            return None
        if conn.has_unread_bytes:
            raise ProtocolViolation("bytes after START_TLS that are not part of the handshake")
        self._context.strangers.encrypts(conn)  # first: a stranger makes way for a stranger
        self._context.encrypted.came(conn)
        try:
            secured = await shake_hands(plain, conn, context, self._told())
        except (OSError, ssl.SSLError) as error:
            if isinstance(error, ssl.SSLError):
                self._keep_out("a TLS handshake", str(error))
            conn.close(ProtocolViolation(f"TLS handshake failed: {error}"))
            # A transport whose handshake failed does not tell its protocol that it is gone.
            conn.connection_lost(error)
            return None
        if secured is None:
            conn.connection_lost(None)
            return None
        return secured

    def _told(self) -> Told:
        conn, encrypted = self._conn, self._context.encrypted

        def wasteful() -> None:
            conn.close(ProtocolViolation("TLS without data"))
            conn.drop()  # at once: what comes until the client takes note would cost as much

        return Told(lambda: conn.received, lambda: encrypted.may_grow(conn), wasteful)

    async def _established(self, secured: asyncio.Transport, request: pb.Request) -> None:
        conn = self._conn
        self.encrypted, self._lacks_tls = True, False
        conn.secured(secured)
        shown = secured.get_extra_info("ssl_object")
        peer = Peer(conn.peer)
        if shown is not None:
            verified = shown.getpeercert() or {}  # empty if it was not verified
            peer = Peer(conn.peer, shown.getpeercert(binary_form=True), verified.get("subject", ()))
        try:
            await self._authentication.tls_established(peer)
        except Unauthorized as error:
            self._keep_out("a certificate", str(error))
            self._shut_out = True
            conn.send(encode_frame(header_copied(request, V3Status.EIO)))

    # --- one step at a time -----------------------------------------------------------------------------------

    def _start(self, step: object) -> None:
        assert asyncio.iscoroutine(step)
        self._conn.stall(Stall.HANDSHAKE)
        self._context.strangers.came(self._conn)
        self._task = self._context.loop.create_task(step)
        self._task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ProtocolViolation):
            self._conn.close(error)
        elif error is not None:
            self._context.complaints.error("authentication step failed", peer=self._conn.peer, exc_info=error)
            self._conn.close(ProtocolViolation("authentication step failed"))
        self._conn.authenticated = self.authenticated
        if self.authenticated:
            self._context.strangers.gone(self._conn)
        self._conn.unstall(Stall.HANDSHAKE)
