"""The TLS context of the BookKeeper port.

Invariants
- Files that are no good at start-up end the start; files that become so later leave the last good ones in use.
- Connections keep the certificate that they began with; a new one counts from the next handshake on.

Threads: `server_tls` anywhere, once at start-up; `ServerTls.context` on the event loop: the files are small, and looked
at only once in `tlsCertFilesRefreshDurationSeconds`.

Source: reference wire protocol, section 6; bookie behaviour, section 1.1.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from typing import Final

import structlog

from bookie_pod.config.sections.security import TlsConfig
from bookie_protocol.errors import InvalidConfiguration

_VERSIONS: Final = {
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}


_log = structlog.get_logger(__name__)
_Identity = tuple[tuple[int, int, int], ...]


class ServerTls:
    """What START_TLS upgrades to."""

    def __init__(self, config: TlsConfig, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` in seconds. Raises InvalidConfiguration as `server_tls` does."""
        self._config = config
        self._clock = clock
        self._looked_at = clock()
        # Before the files are read: one that changes meanwhile is read again.
        self._seen = _identity(config)
        self._context = _load(config)

    def context(self) -> ssl.SSLContext:
        """For the next handshake, with the files as they were at the last look at them."""
        interval, now = self._config.refresh_seconds, self._clock()
        if interval and now - self._looked_at >= interval:
            self._looked_at = now
            self._refresh()
        return self._context

    def _refresh(self) -> None:
        found = _identity(self._config)
        if found == self._seen:
            return
        try:
            self._context = _load(self._config)
        except InvalidConfiguration as error:
            _log.error("new TLS files cannot be used: the last ones stay in use", reason=str(error))
            return
        self._seen = found
        _log.info("new TLS files", certificate=self._config.certificate_path)


def server_tls(config: TlsConfig) -> ServerTls | None:
    """TLS as configured; None if `tlsProviderFactoryClass` is not set.

    Raises InvalidConfiguration for stores that are not PEM, files that cannot be read, unknown versions.
    """
    return None if config.provider_factory_class is None else ServerTls(config)


def _identity(config: TlsConfig) -> _Identity:
    """Another one when a file was exchanged."""
    found = []
    for path in (config.key_store, config.key_store_password_path, config.certificate_path, config.trust_store):
        try:
            status = os.stat(path) if path else None
        except OSError:
            status = None
        found.append((status.st_ino, status.st_mtime_ns, status.st_size) if status else (0, 0, 0))
    return tuple(found)


def _load(config: TlsConfig) -> ssl.SSLContext:
    for key, kind in (("tlsKeyStoreType", config.key_store_type), ("tlsTrustStoreType", config.trust_store_type)):
        if kind != "PEM":
            raise InvalidConfiguration(f"{key}={kind}: only PEM is read; convert the store with keytool and openssl")
    if not config.key_store or not config.certificate_path:
        raise InvalidConfiguration("TLS needs tlsKeyStore (private key) and tlsCertificatePath (certificate chain)")
    if config.client_authentication and not config.trust_store:
        raise InvalidConfiguration(
            "tlsClientAuthentication=true: tlsTrustStore is needed, a PEM file with the certificates to trust"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_versions(context, config.protocols)
    try:
        context.load_cert_chain(config.certificate_path, config.key_store, _password(config.key_store_password_path))
        if config.cipher_suites:
            context.set_ciphers(":".join(config.cipher_suites))
        if config.client_authentication:
            context.verify_mode = ssl.CERT_REQUIRED
        if config.trust_store:
            context.load_verify_locations(config.trust_store)
    except (OSError, ssl.SSLError) as error:
        raise InvalidConfiguration(
            f"TLS files (tlsKeyStore, tlsCertificatePath, tlsTrustStore) cannot be used: {error}"
        ) from error
    return context


def _set_versions(context: ssl.SSLContext, wanted: tuple[str, ...]) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not wanted:
        return
    unknown = [name for name in wanted if name not in _VERSIONS]
    if unknown:
        raise InvalidConfiguration(f"tlsEnabledProtocols: {', '.join(unknown)} is none of {', '.join(_VERSIONS)}")
    versions = sorted(_VERSIONS[name] for name in wanted)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]


def _password(path: str | None) -> str:
    """The key's password; an empty one keeps OpenSSL from asking on the terminal."""
    if path is None:
        return ""
    with open(path, encoding="utf-8") as file:
        return file.read().strip()
