"""The servers that may see a token: those that an installation's own configuration names as its own.

Anybody who can write metadata can register any address, so a registration alone proves nothing.

Invariants
- `is_trusted_at` alone decides. A `Place` without a `Trust` is a stranger's: to forget one shows no token.

Pure; any thread.
"""

from __future__ import annotations

import ssl
import urllib.parse
from collections.abc import Collection
from dataclasses import dataclass

from bookie_protocol.addresses import is_loopback


@dataclass(frozen=True, slots=True)
class Trust:
    """The servers that the configuration of this process, or its user, names."""

    urls: Collection[str] = ()
    """Addresses that an option, a configuration or Kubernetes gives: never those of a registration."""
    authorities: ssl.SSLContext | None = None
    """A context that trusts only the authorities that a configuration names: a server with a certificate of
    theirs is trusted at any address. Without it a certificate proves the name alone, which a registration chooses."""
    own_machine: bool = False
    """The servers listen on this machine alone, so its ports are trusted."""
    in_plain: bool = False
    """Show a token to `urls` without TLS too, although a listener on the way can read it."""
    remedy: str = "set httpServerTlsEnable=true here and there, and httpServerTrustStorePath here"
    """It says in messages how to name a server that is not trusted."""


def named(url: str, *, in_plain: bool = False) -> Trust:
    """Return trust in the one address that an option or Kubernetes gives."""
    return Trust((url,), in_plain=in_plain)


def is_known_at(url: str, tls: ssl.SSLContext | None, trust: Trust | None) -> bool:
    """Return True if a server that answers at this URL over this context is one that the configuration names."""
    if trust is None:
        return False
    if url in trust.urls:
        return True
    parts = _parts(url)
    if parts is None:
        return False
    if parts.scheme == "https" and tls is not None and tls is trust.authorities and _verifies(tls):
        return True
    return trust.own_machine and is_loopback(parts.hostname or "")


def is_trusted_at(url: str, tls: ssl.SSLContext | None, trust: Trust | None) -> bool:
    """Return True if the server at this URL may see a token: it is known, and no third party reads on the way."""
    parts = _parts(url)
    if parts is None or not is_known_at(url, tls, trust):
        return False
    if parts.scheme == "https":
        return tls is None or _verifies(tls)
    in_plain = trust is not None and trust.in_plain and url in trust.urls
    return in_plain or is_loopback(parts.hostname or "")


def _parts(url: str) -> urllib.parse.SplitResult | None:
    try:
        return urllib.parse.urlsplit(url)
    except ValueError:
        return None  # nor can it be asked


def _verifies(tls: ssl.SSLContext) -> bool:
    return tls.verify_mode is ssl.CERT_REQUIRED
