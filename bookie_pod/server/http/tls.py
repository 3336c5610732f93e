"""TLS of the HTTP server, and of those on this machine and in this cluster who ask it.

With `httpServerTlsEnable` clients must show a certificate, as in the reference, unless
`httpServerTlsClientAuthentication=false`. Files that are exchanged count for connections that begin `LOOK_S` later.

Threads: anywhere; the context's callback on the event loop.
"""

from __future__ import annotations

import ssl
import time
from typing import Final

from bookie_pod.config.sections.service import HttpConfig
from bookie_pod.server.tls import RenewedTls
from bookie_protocol.errors import InvalidConfiguration

LOOK_S: Final = 5.0


def server_context(config: HttpConfig) -> ssl.SSLContext | None:
    """The context that the configuration describes, None without TLS. Each handshake has the files as they are then.

    `InvalidConfiguration` names a bad file.
    """
    if not config.tls_enable:
        return None
    files = (config.certificate_path, config.key_store_path, config.trust_store_path)
    renewed = RenewedTls("http", files, lambda: _load(config), LOOK_S, time.monotonic)

    def use_newest(connection: ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
        connection.context = renewed.context()

    context = renewed.context()
    context.sni_callback = use_newest  # called for clients that name no server too
    return context


def client_context(config: HttpConfig) -> ssl.SSLContext | None:
    """Return the context of those who ask a server that is configured alike, None without TLS.

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
