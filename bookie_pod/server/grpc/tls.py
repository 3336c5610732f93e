"""TLS of the gRPC server.

Invariants
- Files that are no good at start-up end the start; files that become so later leave the last good ones in use.
- A change of the files counts for connections from `CHECK_S` later on: certificates are renewed without a restart.

Threads: `server_credentials` anywhere, once; the look for changes on threads of gRPC, one at a time.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from pathlib import Path
from typing import Final, NamedTuple

import grpc
import structlog

from bookie_pod.config.sections.service import GrpcConfig
from bookie_protocol.errors import InvalidConfiguration

CHECK_S: Final = 5.0
_ENCRYPTED: Final = b"ENCRYPTED"
_log = structlog.get_logger(__name__)


class TlsFiles(NamedTuple):
    """PEM files of a server. `trusted`: of the authorities of clients, from whom a certificate is demanded then."""

    certificate: str
    key: str
    trusted: str | None
    named: tuple[str, str, str] = ("grpcServerCertificatePath", "grpcServerKeyPath", "grpcServerTrustStorePath")
    """The names of the three in messages."""

    @property
    def identity(self) -> tuple[tuple[int, int, int], ...]:
        """Another one when a file was exchanged. Raises OSError."""
        found = [os.stat(path) for path in self[:3] if path is not None]
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)


def server_credentials(config: GrpcConfig) -> grpc.ServerCredentials | None:
    """Return the credentials of the configuration, None without TLS. `InvalidConfiguration` names a bad file."""
    if not config.tls_enable:
        return None
    trusted = config.trust_store_path if config.client_authentication else None
    return renewed_credentials(TlsFiles(config.certificate_path or "", config.key_path or "", trusted))


def renewed_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Raises `InvalidConfiguration`."""
    renewal = _Renewal(files)
    return grpc.dynamic_ssl_server_credentials(
        renewal.first, renewal.newer, require_client_authentication=files.trusted is not None
    )


class _Renewal:
    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._looked_at = time.monotonic()
        self._seen, self.first = self._load()

    def newer(self) -> grpc.ServerCertificateConfiguration | None:
        """The files as they are now if they were exchanged; called at every handshake."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked_at < CHECK_S:
                return None
            self._looked_at = now
            try:
                if self._files.identity == self._seen:
                    return None
                self._seen, loaded = self._load()
            except (OSError, InvalidConfiguration) as error:
                _log.error("new TLS files of gRPC cannot be used: the last ones stay in use", reason=str(error))
                return None
            _log.info("new TLS files of gRPC", certificate=self._files.certificate)
            return loaded

    def _load(self) -> tuple[tuple[tuple[int, int, int], ...], grpc.ServerCertificateConfiguration]:
        files = self._files
        identity = _checked(files)
        chain, key = Path(files.certificate).read_bytes(), Path(files.key).read_bytes()
        roots = None if files.trusted is None else Path(files.trusted).read_bytes()
        return identity, grpc.ssl_server_certificate_configuration([(key, chain)], roots)


def _checked(files: TlsFiles) -> tuple[tuple[int, int, int], ...]:
    """gRPC itself tells of bad files only at handshakes, and by silence. Raises `InvalidConfiguration`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate, key, trusted = files.named
    try:
        identity = files.identity
        if _ENCRYPTED in Path(files.key).read_bytes():
            raise InvalidConfiguration(f"{key}={files.key}: gRPC takes no encrypted key; decrypt it with openssl pkey")
        context.load_cert_chain(files.certificate, files.key, "")
    except OSError as error:
        raise InvalidConfiguration(
            f"{certificate}={files.certificate} and {key}={files.key}: {_reason(error)}"
        ) from error
    if files.trusted is not None:
        try:
            context.load_verify_locations(files.trusted)
        except OSError as error:
            raise InvalidConfiguration(f"{trusted}={files.trusted}: {_reason(error)}") from error
    return identity


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return "no PEM files that belong together; convert a Java key store to PEM first"
    return error.strerror or str(error)
