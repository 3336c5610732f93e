"""Which versions and cipher suites of TLS are used, under the names that Java gives them.

The cipher suites of TLS 1.3 cannot be chosen singly: naming one of them lets TLS 1.3 be used with all three, all of
which are sound, and naming none turns TLS 1.3 off, as it would in Java. Names of OpenSSL are taken too.

Pure; any thread.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from typing import Final

from bookie_protocol.errors import InvalidConfiguration

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
OLD_VERSIONS: Final = frozenset({"SSLv2Hello", "SSLv3", "TLSv1", "TLSv1.1"})
"""What Java knows besides. Configurations that name them beside newer ones are many; nobody is served with them."""
_NEWEST: Final = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})
"""The cipher suites of TLS 1.3."""
_SUITE: Final = re.compile(r"TLS_([A-Z0-9_]+)_WITH_([A-Z0-9_]+)")


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
        raise InvalidConfiguration(f"tlsEnabledProtocols: {name} is none of {', '.join(_VERSIONS)}")
    return _VERSIONS[name]


def _choose(context: ssl.SSLContext, suite: str, name: str) -> None:
    try:
        context.set_ciphers(name)
    except ssl.SSLError:
        raise InvalidConfiguration(f"tlsEnabledCipherSuites: {suite} is not a cipher suite that OpenSSL has") from None
