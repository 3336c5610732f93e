"""The certificates of a bookie: how long they are valid, and whether a client that verifies them connects.

The second is tried by a handshake in memory, between the bookie's own context and that of a client which trusts what
the configuration trusts and asks for the host that the bookie publishes.

Reads files; opens no connection. `node.dry_start` reports files that cannot be used.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509

from bookie_pod.cli.doctor.findings import Finding, State
from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.security import TlsConfig
from bookie_pod.node.identity.bookie_id import derive_host
from bookie_pod.server.http.tls import client_context, server_context
from bookie_pod.server.tcp.tls import server_tls
from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.shown import one_line
from bookie_protocol.tls import LARGEST, PEM, BadStore, load_own, load_trusted, read_store

SOON: Final = timedelta(days=14)
"""Remaining time of a certificate that ought to have been renewed."""
_OTHER_HOST: Final = frozenset({62, 64})
"""OpenSSL's codes for a certificate of another host name or IP address."""
_TURNS: Final = 10


def certificate_findings(config: BookieConfig) -> Iterator[Finding]:
    """Check each certificate that this bookie shows."""
    yield from _validity(config)
    tls, http = config.tls, config.http
    if tls.provider_factory_class is not None and tls.trust_store:
        yield from _handshake("tlsKeyStore", config, lambda: (_bookie_context(tls), _bookie_client(tls)))
    if http.listener is not None and http.tls_enable and http.trust_store_path:
        yield from _handshake("httpServerKeyStorePath", config, lambda: (server_context(http), client_context(http)))


def _validity(config: BookieConfig) -> Iterator[Finding]:
    tls, http, grpc, metadata = config.tls, config.http, config.grpc, config.metadata
    paths: dict[str, str | None] = {}
    if tls.provider_factory_class is not None:
        if tls.key_store_type == PEM:
            paths["tlsCertificatePath"] = tls.certificate_path
        elif tls.key_store is not None:
            yield from _stored("tlsKeyStore", tls.key_store, tls.key_store_password_path)
    if http.listener is not None and http.tls_enable:
        key = "httpServerCertificatePath" if http.certificate_path else "httpServerKeyStorePath"
        paths[key] = http.certificate_path or http.key_store_path
    if grpc.server_enabled and grpc.tls_enable:
        paths["grpcServerCertificatePath"] = grpc.certificate_path
    if metadata.tls_enable:
        paths["metadataServiceCertificatePath"] = metadata.certificate_path
    for key, path in paths.items():
        if path is not None:
            try:
                with open(path, "rb") as file:
                    yield from _valid(f"{key}={path}", file.read(LARGEST))
            except OSError:
                continue


def _stored(key: str, path: str, password_file: str | None) -> Iterator[Finding]:
    try:
        chain = read_store(path, password_file).chain
    except (OSError, BadStore):
        return
    yield from _valid(f"{key}={path}", chain)


def _valid(part: str, pem: bytes) -> Iterator[Finding]:
    """The first certificate of a chain to end counts."""
    begin = pem.find(b"-----BEGIN CERTIFICATE")
    try:
        chain = x509.load_pem_x509_certificates(pem[begin:]) if begin >= 0 else []
    except ValueError:
        return
    if chain:
        begins, ends = max(each.not_valid_before_utc for each in chain), min(each.not_valid_after_utc for each in chain)
        yield _within_time(part, begins, ends)


def _within_time(part: str, begins: datetime, ends: datetime) -> Finding:
    now, remedy = datetime.now(UTC), "renew it: it is read again when it changes"
    if begins > now:
        text = f"is valid from {begins:%Y-%m-%d %H:%M} UTC on"
        return Finding(part, State.PROBLEM, text, "check the clock, or renew it")
    if ends <= now:
        return Finding(part, State.PROBLEM, f"has ended on {ends:%Y-%m-%d %H:%M} UTC", remedy)
    text = f"is valid for {(ends - now).days} days"
    return Finding(part, State.WARNING, text, remedy) if ends - now < SOON else Finding(part, State.OK, text)


def _bookie_context(tls: TlsConfig) -> ssl.SSLContext | None:
    renewed = server_tls(tls)
    return None if renewed is None else renewed.context()


def _bookie_client(tls: TlsConfig) -> ssl.SSLContext:
    """Return the context of another bookie of the cluster, which is configured alike."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    load_trusted(context, tls.trust_store_type, tls.trust_store or "", tls.trust_store_password_path)
    if tls.client_authentication and tls.key_store:
        load_own(context, tls.key_store_type, tls.key_store, tls.key_store_password_path, tls.certificate_path)
    return context


def _handshake(
    key: str, config: BookieConfig, contexts: Callable[[], tuple[ssl.SSLContext | None, ssl.SSLContext | None]]
) -> Iterator[Finding]:
    part = f"handshake ({key})"
    try:
        host = derive_host(config.network)
        server, client = contexts()
    except (InvalidConfiguration, BadStore, OSError):
        return  # a refusal of the configuration
    if server is None or client is None:
        return
    try:
        _shake(server, client, host)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _OTHER_HOST:
            text = f"the certificate does not name {host}: clients that verify host names are refused"
            yield Finding(part, State.WARNING, text, f"issue it with {host} as a subject alternative name")
        else:
            text = f"a client that trusts the trust store refuses the certificate: {one_line(error.verify_message)}"
            remedy = "put its whole chain into the file, and its authority into the trust store"
            yield Finding(part, State.PROBLEM, text, remedy)
    except OSError as error:
        text = f"a client of the same configuration cannot connect: {one_line(error)}"
        yield Finding(part, State.PROBLEM, text, "correct versions, cipher suites and certificates")
    else:
        yield Finding(part, State.OK, f"clients that trust the trust store connect to {host}")


def _shake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """Raise what a handshake between both raises: `ssl.SSLError`."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asks = client.wrap_bio(to_client, to_server, server_hostname=host)
    answers = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_TURNS):
        for side in (asks, answers):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
