"""TLS of the HTTP server: with `httpServerTlsEnable` clients must show a certificate, as in the reference."""

from __future__ import annotations

import ssl

from bookie_pod.config.sections.service import HttpConfig
from bookie_protocol.errors import InvalidConfiguration


def server_context(config: HttpConfig) -> ssl.SSLContext | None:
    """The context that the configuration describes, None without TLS; `InvalidConfiguration` names a bad
    file."""
    if not config.tls_enable:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    key_store, trust_store = config.key_store_path or "", config.trust_store_path or ""
    try:
        # Without a password OpenSSL would ask on the terminal.
        context.load_cert_chain(key_store, password=config.key_store_password or "")
    except OSError as error:
        raise InvalidConfiguration(f"httpServerKeyStorePath={key_store}: {_reason(error)}") from error
    try:
        context.load_verify_locations(trust_store)
    except OSError as error:
        raise InvalidConfiguration(f"httpServerTrustStorePath={trust_store}: {_reason(error)}") from error
    return context


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return "not a PEM file with what is needed, or a wrong password; convert a Java key store to PEM first"
    return error.strerror or str(error)
