"""Whom the operator takes for a pod's admin API: who shows a certificate that the pod's own Secret vouches for.

A pod says in its spec which Secret it serves with, and the API server vouches for the spec. So bookies that have not
been restarted since a change of `spec.tls.adminApi` are reached too, and no caller falls back from HTTPS to HTTP.

Invariants
- A Secret is read once in the life of a `Trust`: a pass, and the rest after it while the operator only asks whether
  the metadata service answers. Contexts are kept by content, so connections last.

Threads: one event loop.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from bookie_operator.api.errors import KubernetesError
from bookie_operator.api.kinds import SECRET
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.builders.secrets import secret_texts

AUTHORITIES: Final = "ca.crt"
_KEPT: Final = 256


class Untrusted(Exception):
    """It is unknown whom to trust; the text says why, and the remedy."""


@dataclass(frozen=True)
class Tls:
    """The encryption of a connection to a pod."""

    context: ssl.SSLContext
    server_name: str
    """The name that the certificate has to have; pods are reached by address."""


class Trust:
    """The authorities by which the pods of one cluster are trusted."""

    def __init__(self, kubernetes: Kubernetes, namespace: str, server_name: str) -> None:
        self._kubernetes = kubernetes
        self._namespace = namespace
        self._server_name = server_name
        self._lock = asyncio.Lock()
        self._known: dict[str, Tls | Untrusted] = {}

    async def of(self, secret: str) -> Tls:
        """Return the encryption for pods that serve with this Secret. Raises Untrusted."""
        async with self._lock:
            if secret not in self._known:
                try:
                    self._known[secret] = await self._read(secret)
                except Untrusted as exc:
                    self._known[secret] = exc
        known = self._known[secret]
        if isinstance(known, Untrusted):
            raise Untrusted(str(known))
        return known

    async def _read(self, secret: str) -> Tls:
        try:
            found = await self._kubernetes.find(SECRET, self._namespace, secret)
        except KubernetesError as exc:
            raise Untrusted(f"Secret {secret} cannot be read: {exc}") from exc
        authorities = (secret_texts(found) or {}).get(AUTHORITIES, "")
        if not authorities:
            what = f"no Secret {secret}" if found is None else f"no {AUTHORITIES} in Secret {secret}"
            raise Untrusted(f"there is {what}, so its pods cannot be verified; bring it back")
        try:
            return Tls(_context(authorities), self._server_name)
        except ssl.SSLError as exc:
            raise Untrusted(f"{AUTHORITIES} of Secret {secret} holds no PEM certificates; correct it") from exc


@lru_cache(maxsize=_KEPT)
def _context(authorities: str) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authorities)
