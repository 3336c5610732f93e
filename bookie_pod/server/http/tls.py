"""TLS of the HTTP server, and of those on this machine and in this cluster who ask it.

With `httpServerTlsEnable` clients must show a certificate, as in the reference, unless
`httpServerTlsClientAuthentication=false`. Files that are exchanged count for connections that begin `LOOK_S` later.

Handshakes are made beside the server: one that has not ended is no connection of it. There are `MAX_HANDSHAKES` of them
at most; for one more that makes way which began first.

Threads: anywhere; the context's callback, and handshakes, on the event loop.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Final, cast

from bookie_pod.config.sections.service import HttpConfig
from bookie_pod.server.renewed_tls import RenewedTls
from bookie_protocol.errors import InvalidConfiguration

LOOK_S: Final = 5.0
MAX_HANDSHAKES: Final = 64
HANDSHAKE_S: Final = 10.0


def server_context(config: HttpConfig, clock: Callable[[], float] = time.monotonic) -> ssl.SSLContext | None:
    """The context that the configuration describes, None without TLS. Each handshake has the files as they are then.

    `InvalidConfiguration` names a bad file.
    """
    if not config.tls_enable:
        return None
    files = (config.certificate_path, config.key_store_path, config.trust_store_path)
    renewed = RenewedTls("http", files, lambda: _load(config), LOOK_S, clock)

    def use_newest(connection: ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
        connection.context = renewed.context()

    context = renewed.context()
    context.sni_callback = use_newest  # called for clients that name no server too
    return context


class Handshakes:
    """Those under way on one server. `protocol` makes that of a connection whose handshake has ended."""

    def __init__(self, context: ssl.SSLContext, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        self.context = context
        self.protocol = protocol
        self._under_way: dict[Handshake, None] = {}

    def __call__(self) -> Handshake:
        """For a connection that was accepted."""
        return Handshake(self)

    def began(self, handshake: Handshake) -> None:
        self._under_way[handshake] = None
        if len(self._under_way) > MAX_HANDSHAKES:
            next(iter(self._under_way)).give_up()

    def ended(self, handshake: Handshake) -> None:
        self._under_way.pop(handshake, None)

    def stop(self) -> None:
        """Give up all of them."""
        for handshake in list(self._under_way):
            handshake.give_up()


class Handshake(asyncio.Protocol):
    """One of them. What the client sends right behind it waits for the protocol that will take it."""

    def __init__(self, among: Handshakes) -> None:
        self._among = among
        self._early: list[bytes] = []
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not derive from it
        self._transport.pause_reading()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="TLS handshake")
        self._among.began(self)

    def data_received(self, data: bytes) -> None:
        self._early.append(data)

    def give_up(self) -> None:
        self._among.ended(self)
        self._transport.abort()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            secure = await loop.start_tls(
                self._transport, self, self._among.context, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
            )
        except OSError:  # TLS and time-outs too; nobody has to know that a stranger does not speak it
            self._transport.abort()
            return
        finally:
            self._among.ended(self)
        if secure is None or secure.is_closing():
            return
        protocol = cast("asyncio.Protocol", self._among.protocol())
        secure.set_protocol(protocol)
        protocol.connection_made(secure)
        for data in self._early:
            protocol.data_received(data)


def client_context(config: HttpConfig) -> ssl.SSLContext | None:
    """For those who ask a server that is configured alike, None without TLS.

    `InvalidConfiguration` for a file that cannot be used.
    """
    if not config.tls_enable:
        return None
    try:
        context = ssl.create_default_context(cafile=config.trust_store_path)
    except OSError as error:
        raise InvalidConfiguration(f"httpServerTrustStorePath={config.trust_store_path}: {_reason(error)}") from error
    if config.tls_client_authentication:
        _load_identity(context, config)
    return context


def _load(config: HttpConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_identity(context, config)
    if config.tls_client_authentication:
        context.verify_mode = ssl.CERT_REQUIRED
        trust_store = config.trust_store_path or ""
        try:
            context.load_verify_locations(trust_store)
        except OSError as error:
            raise InvalidConfiguration(f"httpServerTrustStorePath={trust_store}: {_reason(error)}") from error
    return context


def _load_identity(context: ssl.SSLContext, config: HttpConfig) -> None:
    key, chain = config.key_store_path or "", config.certificate_path
    try:
        # Without a password OpenSSL would ask on the terminal.
        context.load_cert_chain(chain or key, key if chain else None, password=config.key_store_password or "")
    except OSError as error:
        named = f"httpServerKeyStorePath={key}"
        if chain:
            named = f"httpServerCertificatePath={chain} and {named}"
        raise InvalidConfiguration(f"{named}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return "not a PEM file with what is needed, or a wrong password; convert a Java key store to PEM first"
    return error.strerror or str(error)
