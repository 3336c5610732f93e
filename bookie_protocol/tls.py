"""TLS as Java's programs configure it: keys and certificates of key stores, versions and cipher suites.

Stores are PKCS12 and JKS.

Versions and suites have the names that Java gives them.

The cipher suites of TLS 1.3 cannot be chosen singly: naming one of them lets TLS 1.3 be used with all three, all of
which are sound, and naming none turns TLS 1.3 off, as it would in Java. Names of OpenSSL are taken too.

Which of the two a file is its first bytes tell, as Java goes by them too: what `keytool` of a Java above 8 makes is
PKCS12, whatever the configuration calls it.

A file of JKS (all integers big-endian)::

    u32 0xFEEDFEED, u32 version (1, 2), u32 entries, then each entry, then 20 bytes of SHA-1
    entry        u32 1: private key, u32 2: trusted certificate; text alias, i64 ms since 1970, then
    private key  u32 length, EncryptedPrivateKeyInfo in DER; u32 certificates, then each, the key's own first
    certificate  (version 2: text type,) u32 length, X.509 in DER
    text         u16 length, UTF-8

The SHA-1 is over the password in UTF-16, "Mighty Aphrodite" and all that is before it. A key is encrypted by Sun's own
scheme (1.3.6.1.4.1.42.2.17.1.1): 20 bytes of salt, the PKCS8 XORed with a chain of SHA-1 (of the password and the salt,
then of the password and the digest before), and SHA-1 of the password and the PKCS8.

Pure functions but for the files they read; any thread. Source: the JDK's `keytool`, whose stores are read in tests.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import ssl
import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.extras import needed

PEM: Final = "PEM"
LARGEST: Final = 16 * 1024 * 1024
"""Bytes of a store that is read."""
_OPEN_FILES: Final = "/proc/self/fd"
_JKS: Final = b"\xfe\xed\xfe\xed"
_SALT: Final = 20
_PRIVATE, _TRUSTED = 1, 2
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
OLD_VERSIONS: Final = frozenset({"SSLv2Hello", "SSLv3", "TLSv1", "TLSv1.1"})
"""Further versions that Java knows. Many configurations name them beside newer ones; they are never used."""
_NEWEST: Final = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})
"""The cipher suites of TLS 1.3."""
_SUITE: Final = re.compile(r"TLS_([A-Z0-9_]+)_WITH_([A-Z0-9_]+)")


class BadStore(ValueError):
    """The store cannot be read: damaged, of another form, or the password is another one."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The content of a store, as PEM."""

    key: bytes
    """PKCS8, not encrypted; empty if the store has none."""
    chain: bytes
    """The certificates of the key, its own first."""
    trusted: bytes
    """The certificates that stand by themselves, and those that keys are for, which Java trusts as well; of PKCS12 also
    the authorities of its key, which nothing there tells apart from them."""


def read_store(path: str, password_file: str | None) -> Stored:
    """Raises `BadStore`, `OSError` for a file that cannot be read, and InvalidConfiguration without the extra."""
    with open(path, "rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise BadStore(f"{path} is larger than {LARGEST} bytes, so no key store")
    if content.lstrip().startswith(b"-----BEGIN"):
        raise BadStore(f"{path} is PEM, and no key store of Java: its type is PEM")
    secret = password(password_file)
    try:
        return _jks(content, secret) if content.startswith(_JKS) else _pkcs12(content, secret)
    except BadStore as error:
        raise BadStore(f"{path}: {error}") from None


def password(path: str | None) -> str:
    """Return the first line of the file; without one the empty one, which keeps OpenSSL from asking on the terminal.

    Raises `OSError`, and `BadStore` for what is no text.
    """
    if path is None:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise BadStore(f"{path} has a password that is not UTF-8") from error


def load_own(
    context: ssl.SSLContext, kind: str, store: str, password_file: str | None, certificate: str | None = None
) -> None:
    """The key and certificate that this side shows. `certificate`: with PEM, the file of the chain.

    Raises `BadStore`, and `OSError` (of which `ssl.SSLError` is one) for files that cannot be used.
    """
    if kind == PEM:
        context.load_cert_chain(certificate or store, store, password(password_file))
        return
    found = read_store(store, password_file)
    if not found.key:
        raise BadStore(f"{store} has no private key")
    with _file_of(found.key + found.chain) as path:
        context.load_cert_chain(path, password="")


def load_trusted(context: ssl.SSLContext, kind: str, store: str, password_file: str | None) -> None:
    """Load the certificates that this side trusts, also those that another certificate has signed, as in Java.
    Raises as `load_own`."""
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if kind == PEM:
        context.load_verify_locations(store)
        return
    found = read_store(store, password_file)
    if not found.trusted:
        raise BadStore(f"{store} has no certificate to trust")
    context.load_verify_locations(cadata=found.trusted.decode())


class _file_of:  # noqa: N801 - used like a function
    """A path at which OpenSSL finds these bytes; they are on no disk where the system has files in memory."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._descriptor, self._path = -1, ""

    def __enter__(self) -> str:
        if hasattr(os, "memfd_create") and os.path.isdir(_OPEN_FILES):
            self._descriptor = os.memfd_create("podkeeper-tls")
            path = f"{_OPEN_FILES}/{self._descriptor}"
        else:
            self._descriptor, self._path = tempfile.mkstemp()
            path = self._path
        with open(self._descriptor, "wb", closefd=False) as file:
            file.write(self._content)
        return path

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        if self._path:
            os.unlink(self._path)


def _pem(what: str, der: bytes) -> bytes:
    body = base64.encodebytes(der).decode().replace("\n", "")
    lines = [body[at : at + 64] for at in range(0, len(body), 64)]
    return "\n".join([f"-----BEGIN {what}-----", *lines, f"-----END {what}-----", ""]).encode()


def _pkcs12(content: bytes, secret: str) -> Stored:
    needed("cryptography", "pkcs12", "a PKCS12 key store")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import pkcs12

    try:
        found = pkcs12.load_pkcs12(content, secret.encode() or None)
        key = b""
        if found.key is not None:
            key = found.key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        others = [each.certificate.public_bytes(serialization.Encoding.PEM) for each in found.additional_certs]
        own = [] if found.cert is None else [found.cert.certificate.public_bytes(serialization.Encoding.PEM)]
    except UnsupportedAlgorithm as error:
        raise BadStore(f"a PKCS12 store of a kind that is not supported ({error})") from error
    except (ValueError, TypeError) as error:
        raise BadStore(f"no PKCS12 store of this password ({error})") from error
    return Stored(key, b"".join([*own, *others]) if key else b"", b"".join([*own, *others]))


def _jks(content: bytes, secret: str) -> Stored:
    utf16 = secret.encode("utf-16-be")
    if len(content) < 32 or hashlib.sha1(utf16 + b"Mighty Aphrodite" + content[:-20]).digest() != content[-20:]:
        raise BadStore("no JKS store of this password, or it is damaged")
    key, chain, trusted = b"", b"", b""
    try:
        for tag, protected, certificates in _entries(memoryview(content)[:-20]):
            trusted += b"".join(certificates[:1])
            if tag == _PRIVATE and not key:
                key, chain = _pem("PRIVATE KEY", _unprotected(protected, utf16)), b"".join(certificates)
    except (struct.error, IndexError) as error:
        raise BadStore(f"a JKS store that ends too early ({error})") from error
    return Stored(key, chain, trusted)


def _entries(content: memoryview) -> Iterator[tuple[int, bytes, list[bytes]]]:
    """Tag, protected key, certificates as PEM."""
    version, count = struct.unpack_from(">II", content, 4)
    if version not in (1, 2):
        raise BadStore(f"a JKS store of version {version}, which is unknown")
    at = 12

    def block(head: str) -> bytes:
        nonlocal at
        (length,) = struct.unpack_from(head, content, at)
        at += struct.calcsize(head)
        if length > len(content) - at:
            raise BadStore("a JKS store with a length beyond its end")
        at += length
        return bytes(content[at - length : at])

    def certificate() -> bytes:
        if version == 2:
            block(">H")
        return _pem("CERTIFICATE", block(">I"))

    for _ in range(count):
        (tag,) = struct.unpack_from(">I", content, at)
        at += 4
        block(">H")
        at += 8
        if tag == _TRUSTED:
            yield tag, b"", [certificate()]
        elif tag == _PRIVATE:
            protected = block(">I")
            (certificates,) = struct.unpack_from(">I", content, at)
            at += 4
            if certificates > len(content):
                raise BadStore("a JKS store with more certificates than bytes")
            yield tag, protected, [certificate() for _ in range(certificates)]
        else:
            raise BadStore(f"a JKS store with an entry of kind {tag}, which is unknown")


def _unprotected(der: bytes, utf16: bytes) -> bytes:
    """The PKCS8 in an EncryptedPrivateKeyInfo: a sequence of an algorithm and the encrypted bytes, which end it."""
    at = _inside(der, 0)
    at = _inside(der, at) + _length(der, at)
    at = _inside(der, at)
    salt, encrypted, check = der[at : at + _SALT], der[at + _SALT : -20], der[-20:]
    stream, digest = bytearray(), salt
    while len(stream) < len(encrypted):
        digest = hashlib.sha1(utf16 + digest).digest()
        stream += digest
    plain = bytes(one ^ other for one, other in zip(encrypted, stream, strict=False))
    if hashlib.sha1(utf16 + plain).digest() != check:
        raise BadStore("the key has another password than the store; give both the same one with keytool -keypasswd")
    return plain


def _length(der: bytes, at: int) -> int:
    """Return the bytes of the content of the element at `at`."""
    first = der[at + 1]
    return first if first < 0x80 else int.from_bytes(der[at + 2 : at + 2 + (first & 0x7F)], "big")


def _inside(der: bytes, at: int) -> int:
    """Return the start of the content of the element at `at`."""
    first = der[at + 1]
    return at + 2 + (0 if first < 0x80 else first & 0x7F)


def limit_tls(context: ssl.SSLContext, protocols: Sequence[str], suites: Sequence[str]) -> None:
    """Empty lists: at least TLS 1.2, and OpenSSL's choice. Raises InvalidConfiguration."""
    versions = [_version(name) for name in protocols if name not in OLD_VERSIONS]
    if protocols and not versions:
        raise InvalidConfiguration(f"tlsEnabledProtocols={','.join(protocols)}: none is {' or '.join(_VERSIONS)}")
    versions = versions or list(_VERSIONS.values())
    older = [suite for suite in suites if suite not in _NEWEST]
    if suites and not older:
        versions = [version for version in versions if version == ssl.TLSVersion.TLSv1_3]
    if suites and len(older) == len(suites):
        versions = [version for version in versions if version == ssl.TLSVersion.TLSv1_2]
    if not versions:
        raise InvalidConfiguration(
            f"tlsEnabledCipherSuites={','.join(suites)}: none of them is of tlsEnabledProtocols={','.join(protocols)}"
        )
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    for suite in older:
        _choose(context, suite, openssl_name(suite))  # each by itself: of a list unknown names are left out silently
    if older:
        context.set_ciphers(":".join(map(openssl_name, older)))


def openssl_name(suite: str) -> str:
    """OpenSSL's name of a cipher suite: ECDHE-RSA-AES128-GCM-SHA256 for TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256."""
    found = _SUITE.fullmatch(suite)
    if found is None:
        return suite
    exchange, cipher = (part.replace("_", "-") for part in found.groups())
    cipher = re.sub(r"^AES-([0-9]+)", r"AES\1", cipher).replace("-CBC", "").replace("POLY1305-SHA256", "POLY1305")
    return cipher if exchange == "RSA" else f"{exchange}-{cipher}"


def _version(name: str) -> ssl.TLSVersion:
    if name not in _VERSIONS:
        raise InvalidConfiguration(f"tlsEnabledProtocols: {name} is not supported; use {' or '.join(_VERSIONS)}")
    return _VERSIONS[name]


def _choose(context: ssl.SSLContext, suite: str, name: str) -> None:
    try:
        context.set_ciphers(name)
    except ssl.SSLError:
        raise InvalidConfiguration(f"tlsEnabledCipherSuites: {suite} is not a cipher suite that OpenSSL has") from None
