"""The bearer tokens that administration and gRPC demand, from a file.

Invariants
- The file is read again when it has changed, at most once in `CHECK_S` seconds, so that a mounted Kubernetes secret
  can be rotated without a restart. It may hold several tokens, one a line: the old one and the new one meanwhile.
- A file that cannot be read any more lets nobody in.
- Comparing takes the same time whatever a token is.

Threads: event loop; the file is read on a thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from typing import Final

import structlog

from bookie_protocol.errors import InvalidConfiguration

_log = structlog.get_logger(__name__)
CHECK_S: Final = 5.0
MAX_BYTES: Final = 64 * 1024
_SCHEME: Final = "bearer "


class Tokens:
    """Made by `load`."""

    def __init__(self, key: str, path: str) -> None:
        self._key = key
        self._path = path
        self._digests: tuple[bytes, ...] = ()
        self._seen: tuple[int, int, int] | None = None
        self._looked_at = 0.0
        self._lock = asyncio.Lock()

    @classmethod
    async def load(cls, key: str, path: str | None) -> Tokens | None:
        """The tokens of the file that configuration `key` names, None without one. `InvalidConfiguration` if it cannot
        be read or holds none."""
        if path is None:
            return None
        tokens = cls(key, path)
        try:
            await asyncio.to_thread(tokens._read)
        except (OSError, ValueError) as error:
            raise InvalidConfiguration(f"{key}={path}: {_reason(error)}") from error
        return tokens

    async def admits(self, authorization: str | None) -> bool:
        """Whether this `Authorization` header (of HTTP, or of a gRPC call's metadata) carries one of the tokens."""
        await self._refresh()
        if authorization is None or not authorization.lower().startswith(_SCHEME):
            return False
        shown = _digest(authorization[len(_SCHEME) :].strip().encode("utf-8", "surrogateescape"))
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(shown, known)
        return found

    async def _refresh(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._looked_at < CHECK_S or self._lock.locked():
            return
        async with self._lock:
            self._looked_at = now
            try:
                await asyncio.to_thread(self._read)
            except (OSError, ValueError) as error:
                self._digests, self._seen = (), None
                _log.error(
                    "tokens cannot be read: nobody is let in", path=self._path, key=self._key, reason=_reason(error)
                )

    def _read(self) -> None:
        found = os.stat(self._path)
        identity = (found.st_ino, found.st_mtime_ns, found.st_size)
        if identity == self._seen:
            return
        with open(self._path, "rb") as file:
            lines = file.read(MAX_BYTES).splitlines()
        digests = tuple(_digest(line.strip()) for line in lines if line.strip())
        if not digests:
            raise ValueError("it holds no token; write one a line")
        self._digests, self._seen = digests, identity


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
