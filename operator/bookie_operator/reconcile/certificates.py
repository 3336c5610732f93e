"""Certificates for servers, made and judged in this process.

Keys are of the curve P-256 and stay in memory, except while `fault_of` loads one from a directory that only this user
may read. `fault_of` lets Python's TLS judge a certificate, in a handshake between two ends in memory, so it says what a
client would say.

Pure, except for that directory and the clock; any thread. Each call takes some milliseconds.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Uses = frozenset[x509.ObjectIdentifier]
SERVER: Final[Uses] = frozenset({ExtendedKeyUsageOID.SERVER_AUTH})
CLIENT: Final[Uses] = frozenset({ExtendedKeyUsageOID.CLIENT_AUTH})
SKEW: Final = timedelta(minutes=5)
"""A certificate is valid so much earlier, for nodes whose clocks are behind."""
_ROUNDS: Final = 10
"""Turns of both ends after which a handshake is given up; a sound one takes three."""
_LONGEST_NAME: Final = 64
"""Characters of a common name; X.509 allows no more."""
_REASONS: Final = {
    9: "it is not valid yet: look at the clocks",
    10: "it has expired: renew it",
    62: "it does not name {host}: make one that does",
}
"""Remedies by OpenSSL's number of the fault."""
_STRANGER: Final = "ca.crt has not the authority that signed it ({reason}): correct it"
_USAGES: Final = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


class CertificateError(Exception):
    """A certificate could not be made; the text says why."""


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, as PEM text."""

    certificate: str
    key: str


def make_authority(name: str, days: int, key: str = "") -> Pair:
    """Make an authority that signs certificates of servers, valid for `days`.

    `key` is the key of the authority that it follows, so that certificates of that one stay valid. Raises
    CertificateError.
    """
    own = _key(key) if key else ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    request = _builder(subject, subject, own, days)
    request = request.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    request = request.add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    return _pair(request.sign(own, hashes.SHA256()), own)


def make_certificate(authority: Pair, name: str, hosts: Sequence[str], days: int, uses: Uses = SERVER) -> Pair:
    """Make the certificate of a server or client that any of `hosts` names. Raises CertificateError."""
    try:
        issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
        identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise CertificateError(f"the certificate of the authority cannot be used: {error}") from error
    own = ec.generate_private_key(ec.SECP256R1())
    request = _builder(_name(name), issuer.subject, own, days)
    request = request.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    request = request.add_extension(_usage("digital_signature"), critical=True)
    request = request.add_extension(x509.ExtendedKeyUsage(sorted(uses, key=str)), critical=False)
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    request = request.add_extension(signed_by, critical=False)
    names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
    request = request.add_extension(names, critical=False)
    return _pair(request.sign(_key(authority.key), hashes.SHA256()), own)


def fault_of(pair: Pair, authorities: str, host: str) -> str:
    """Return why a client that trusts `authorities` refuses this certificate for `host`; empty: it accepts it.

    Raises CertificateError if that cannot be found out.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        with tempfile.TemporaryDirectory() as name:
            certificate, key = Path(name, "tls.crt"), Path(name, "tls.key")
            certificate.write_text(pair.certificate)
            key.write_text(pair.key)
            server.load_cert_chain(certificate, key, "")
    except ssl.SSLError:
        return "tls.crt and tls.key are no PEM files that belong together, or the key has a password: correct them"
    except OSError as error:
        raise CertificateError(f"the certificate cannot be looked at: {error}") from error
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        client.load_verify_locations(cadata=authorities)
    except (ssl.SSLError, ValueError):
        return _STRANGER.format(reason="it cannot be read")
    return _refusal(server, client, host)


def _refusal(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> str:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(to_client, to_server, server_hostname=host), server.wrap_bio(to_server, to_client, True))
    done = [False, False]
    for _ in range(_ROUNDS):
        for index, end in enumerate(ends):
            try:
                end.do_handshake()
                done[index] = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError as error:
                known = _REASONS.get(error.verify_code)
                return known.format(host=host) if known else _STRANGER.format(reason=error.verify_message)
            except ssl.SSLError as error:
                raise CertificateError(f"the certificate cannot be looked at: {error}") from error
        if all(done):
            return ""
    raise CertificateError("the certificate cannot be looked at: the handshake does not end")


def _builder(subject: x509.Name, issuer: x509.Name, own: Any, days: int) -> x509.CertificateBuilder:
    now = _now()
    identifier = x509.SubjectKeyIdentifier.from_public_key(own.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(identifier, critical=False)
    )


def _now() -> datetime:
    return datetime.now(UTC)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:_LONGEST_NAME])])


def _usage(*wanted: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in wanted for usage in _USAGES})


def _key(text: str) -> Any:
    try:
        return serialization.load_pem_private_key(text.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CertificateError(f"the key of the authority cannot be used: {error}") from error


def _pair(made: x509.Certificate, own: Any) -> Pair:
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    key = own.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)
    return Pair(made.public_bytes(encoding).decode(), key.decode())
