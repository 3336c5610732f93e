"""Authentication: messages, plug-in interfaces and the exchange of a connection (wire protocol, section 5).

A plug-in is known by its name on the wire, which both sides must share. The exchange is a loop: client
token, server token, and so on, until each side decides for itself that it is complete. A server that asks
for nothing answers every AUTH with plug-in name `AuthDisabledPlugin` and an empty payload; a client that
reads this name is authenticated.

Invariants
- `ServerAuthentication.authenticated` turns true once and never back.
- A plug-in refuses by raising Unauthorized; any other exception of a plug-in counts as a refusal too, but for
  InvalidConfiguration: it cannot tell, because of the files that it needs.

One exchange per connection, used from the connection's event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from google.protobuf.message import DecodeError

from bookie_protocol.errors import InvalidConfiguration, ProtocolViolation, Unauthorized
from bookie_protocol.wire import bookkeeper_pb2 as pb

AUTH_DISABLED: Final = "AuthDisabledPlugin"
"""Plug-in name of a side without authentication."""

NAME_SHOWN: Final = 100
"""Characters of a plug-in's name that messages show."""
Subject = tuple[tuple[tuple[str, str], ...], ...]
"""Whom a certificate names, as `ssl.SSLSocket.getpeercert` tells it."""


class AuthMessage(NamedTuple):
    """One token and the plug-in it is for."""

    plugin_name: str
    payload: bytes

    @property
    def shown_name(self) -> str:
        """The name as messages show it: the peer may have made it as long as a frame."""
        return repr(self.plugin_name[:NAME_SHOWN])


AUTH_DISABLED_ANSWER: Final = AuthMessage(AUTH_DISABLED, b"")
"""Answer to an AUTH request on a connection that is authenticated already."""


def decode_auth_message(data: bytes | bytearray | memoryview) -> AuthMessage:
    """Raises ProtocolViolation when `data` is no AuthMessage."""
    try:
        message = pb.AuthMessage.FromString(bytes(data))
    except DecodeError:
        raise ProtocolViolation("AUTH frame holds no AuthMessage: closing the connection") from None
    return from_protobuf(message)


def encode_auth_message(message: AuthMessage) -> bytes:
    """Return the serialized AuthMessage, as v2 AUTH frames carry it."""
    return to_protobuf(message).SerializeToString()


def from_protobuf(message: pb.AuthMessage) -> AuthMessage:
    """Read the sub-message of a v3 AUTH; raises ProtocolViolation when a field is missing or the name is no text."""
    if not message.IsInitialized():
        raise ProtocolViolation("AuthMessage lacks authPluginName or payload")
    name: str | bytes = message.authPluginName
    if isinstance(name, bytes):
        # The runtime hands out proto2 strings that are not UTF-8 as bytes.
        raise ProtocolViolation("authPluginName of an AuthMessage is not UTF-8")
    return AuthMessage(name, message.payload)


def to_protobuf(message: AuthMessage) -> pb.AuthMessage:
    """Make the sub-message of a v3 AUTH."""
    return pb.AuthMessage(authPluginName=message.plugin_name, payload=message.payload)


class Peer(NamedTuple):
    """The other end of a connection."""

    address: str
    certificate: bytes | None = None
    """DER form of the certificate that the peer showed in the TLS handshake."""
    subject: Subject = ()
    """Subject of that certificate, if it was verified."""


class AuthStep(NamedTuple):
    """The next step of a plug-in: a token to send (None: nothing), and whether its side is complete."""

    token: bytes | None
    complete: bool


class AuthExchange(Protocol):
    """One side of one connection's exchange. Every method raises Unauthorized to refuse the peer."""

    async def process(self, token: bytes) -> AuthStep:
        """Take the peer's token."""
        ...

    async def tls_established(self, peer: Peer) -> bool:
        """The connection was upgraded to TLS. True: the certificate alone completes the exchange."""
        ...


class ServerAuthExchange(AuthExchange, Protocol):
    """Server side of one exchange: the client speaks first."""


class ClientAuthExchange(AuthExchange, Protocol):
    """Client side of one exchange."""

    async def start(self) -> AuthStep:
        """Return the first token."""
        ...


class ServerAuthProvider(Protocol):
    """A server-side plug-in; one instance per process."""

    @property
    def plugin_name(self) -> str:
        """The name on the wire."""
        ...

    def new_exchange(self, peer: Peer) -> ServerAuthExchange:
        """Return a fresh exchange for a connection that was accepted."""
        ...


class ClientAuthProvider(Protocol):
    """A client-side plug-in; one instance per process."""

    @property
    def plugin_name(self) -> str:
        """The name on the wire."""
        ...

    def new_exchange(self, peer: Peer) -> ClientAuthExchange:
        """Return a fresh exchange for a connection that was opened."""
        ...


class OptionalLogin:
    """A login of which bookies may say that they ask for none, while a cluster is changed to logins. Without it, one
    that has a true `is_mutual`, because the bookie proves itself too, is refused by such a bookie's answer."""

    is_mutual = False

    def __init__(self, provider: ClientAuthProvider) -> None:
        self._provider = provider

    @property
    def plugin_name(self) -> str:
        return self._provider.plugin_name

    def new_exchange(self, peer: Peer) -> ClientAuthExchange:
        return self._provider.new_exchange(peer)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OptionalLogin) and other._provider == self._provider

    def __hash__(self) -> int:
        return hash(self._provider)


class ServerAuthentication:
    """Server side of a connection; without a provider it is authenticated at once."""

    def __init__(self, provider: ServerAuthProvider | None, peer: Peer) -> None:
        self._plugin_name = provider.plugin_name if provider else AUTH_DISABLED
        self._provider = provider
        self._exchange: ServerAuthExchange | None = None
        self.peer = peer
        """The peer; may be set until the client has sent something."""
        self.authenticated = provider is None

    def accepts(self, message: AuthMessage) -> bool:
        """True when the message is for this server's plug-in. v2: close the connection if not; v3: answer
        EUA."""
        return self.authenticated or message.plugin_name == self._plugin_name

    async def answer(self, message: AuthMessage) -> AuthMessage | None:
        """The message to send back, if any. Raises Unauthorized when the plug-in refuses, and InvalidConfiguration
        when it cannot tell."""
        if self.authenticated:
            return AUTH_DISABLED_ANSWER
        if message.plugin_name != self._plugin_name:
            raise Unauthorized(
                f"authentication plug-in {message.shown_name} is not served here: use {self._plugin_name}"
            )
        step = await _guarded(self._process, message.payload)
        self.authenticated = step.complete
        return None if step.token is None else AuthMessage(self._plugin_name, step.token)

    async def tls_established(self, peer: Peer) -> None:
        """The connection was upgraded to TLS. Raises Unauthorized when the plug-in refuses the
        certificate."""
        if self._provider is not None and await self._begun(self._provider).tls_established(peer):
            self.authenticated = True

    async def _process(self, token: bytes) -> AuthStep:
        assert self._provider is not None
        return await self._begun(self._provider).process(token)

    def _begun(self, provider: ServerAuthProvider) -> ServerAuthExchange:
        if self._exchange is None:
            self._exchange = provider.new_exchange(self.peer)
        return self._exchange


class ClientAuthentication:
    """Client side of a connection; without a provider it is authenticated at once and sends nothing."""

    def __init__(self, provider: ClientAuthProvider | None, peer: Peer) -> None:
        self._plugin_name = provider.plugin_name if provider else AUTH_DISABLED
        self._exchange = provider.new_exchange(peer) if provider else None
        self._is_mutual = getattr(provider, "is_mutual", False)
        self.authenticated = provider is None

    async def first(self) -> AuthMessage | None:
        """Return the first message to send; None when there is nothing to say."""
        if self._exchange is None or self.authenticated:
            return None
        return self._take(await self._exchange.start())

    async def answer(self, message: AuthMessage) -> AuthMessage | None:
        """Return the next message to send, if any. Raises Unauthorized when either side's plug-in does not fit."""
        if message.plugin_name == AUTH_DISABLED:
            if self._is_mutual and not self.authenticated:
                raise Unauthorized(
                    f"the bookie asks for no login, so it has not proved itself, as {self._plugin_name!r} demands: let"
                    " it demand the login (bookieAuthProviderFactoryClass), or let this client go on without"
                    " (clientAuthOptional)"
                )
            self.authenticated = True
            return None
        if self._exchange is None or message.plugin_name != self._plugin_name:
            raise Unauthorized(f"bookie authenticates by {message.shown_name}, this client by {self._plugin_name!r}")
        return self._take(await _guarded(self._exchange.process, message.payload))

    async def tls_established(self, peer: Peer) -> None:
        """The connection was upgraded to TLS. Raises Unauthorized when the plug-in refuses the
        certificate."""
        if self._exchange is not None and await self._exchange.tls_established(peer):
            self.authenticated = True

    def _take(self, step: AuthStep) -> AuthMessage | None:
        self.authenticated = self.authenticated or step.complete
        return None if step.token is None else AuthMessage(self._plugin_name, step.token)


async def _guarded(process: Callable[[bytes], Awaitable[AuthStep]], token: bytes) -> AuthStep:
    try:
        return await process(token)
    except (Unauthorized, InvalidConfiguration):
        raise
    except Exception as error:
        raise Unauthorized(f"authentication plug-in failed: {error}") from error
