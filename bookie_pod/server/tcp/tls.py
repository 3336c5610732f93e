"""The TLS context of the BookKeeper port: what START_TLS upgrades to.

It follows its files (`server.tls`), which are looked at once in `tlsCertFilesRefreshDurationSeconds`.

Threads: anywhere, once at start-up.

Source: docs/internals/wire-protocol.md, section 6; docs/internals/bookie-behaviour.md, section 1.1.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable

import structlog

from bookie_pod.config.sections.security import TlsConfig
from bookie_pod.server.tls import RenewedTls
from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.tls import OLD_VERSIONS, PEM, BadStore, limit_tls, load_own, load_trusted

_log = structlog.get_logger(__name__)


def server_tls(config: TlsConfig, clock: Callable[[], float] = time.monotonic) -> RenewedTls | None:
    """TLS as configured; None if `tlsProviderFactoryClass` is not set. `clock` in seconds.

    Raises InvalidConfiguration for stores that cannot be read, and unknown versions.
    """
    if config.provider_factory_class is None:
        return None
    if old := [name for name in config.protocols if name in OLD_VERSIONS]:
        _log.warning("versions of TLS that are no longer supported were left out", tlsEnabledProtocols=old)
    files = (
        config.key_store,
        config.key_store_password_path,
        config.certificate_path,
        config.trust_store,
        config.trust_store_password_path,
    )
    return RenewedTls("bookie", files, lambda: _load(config), config.refresh_seconds, clock)


def _load(config: TlsConfig) -> ssl.SSLContext:
    if not config.key_store or (config.key_store_type == PEM and not config.certificate_path):
        raise InvalidConfiguration(
            "TLS needs tlsKeyStore (private key) and, if that is PEM, tlsCertificatePath (certificate chain)"
        )
    if config.client_authentication and not config.trust_store:
        raise InvalidConfiguration(
            "tlsClientAuthentication=true: tlsTrustStore is needed, a file with the certificates to trust"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    limit_tls(context, config.protocols, config.cipher_suites)
    try:
        load_own(
            context, config.key_store_type, config.key_store, config.key_store_password_path, config.certificate_path
        )
        if config.client_authentication:
            context.verify_mode = ssl.CERT_REQUIRED
        if config.trust_store:
            load_trusted(context, config.trust_store_type, config.trust_store, config.trust_store_password_path)
    except (OSError, BadStore) as error:
        raise InvalidConfiguration(
            f"TLS files (tlsKeyStore, tlsCertificatePath, tlsTrustStore) cannot be used: {error}"
        ) from error
    return context
