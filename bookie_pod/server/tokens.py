"""The bearer tokens of a port, from a file: one a line, with what it allows.

    TOKEN                            everything: the role `admin`
    TOKEN viewer                     one role
    TOKEN reader,operator drains     several, and a name for the audit trail
    # a comment

Invariants
- The file is read again when it has changed, at most once in `CHECK_S` seconds, so that a mounted Kubernetes secret can
  be rotated without a restart. It may hold several tokens: the old one and the new one meanwhile.
- A file that cannot be read any more, is too long, or in which a line is wrong, lets no caller in. A line is wrong,
  too, if its token is shorter than `SHORTEST`, or is a role's name: the token is missing, and its roles are in its
  place.
- Callers wait for a read that is under way. One that lasts longer than `GRACE_S`, as on a dead mount, lets no caller in
  until it ends: what it would find may have revoked any token.
- Comparing takes the same time whatever a token is. No token is kept, only its digest.

Threads: event loop; the file is read on a thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from typing import Final, NamedTuple

import structlog

from bookie_pod.roles import ROLE_NAMES, Role, roles_named
from bookie_protocol.bearer_tokens import MAX_BYTES, SHORTEST, token_lines, too_short
from bookie_protocol.errors import InvalidConfiguration

_log = structlog.get_logger(__name__)
CHECK_S: Final = 5.0
GRACE_S: Final = 2.0
MAX_NAME: Final = 64
_SCHEME: Final = "bearer "


class Holder(NamedTuple):
    """A client identified by its token."""

    name: str
    roles: frozenset[Role]


class _Line(NamedTuple):
    digest: bytes
    holder: Holder


class Tokens:
    """Made by `load`."""

    def __init__(self, key: str, path: str) -> None:
        self._key = key
        self._path = path
        self._lines: tuple[_Line, ...] = ()
        self._seen: tuple[int, int, int] | None = None
        self._looked_at = 0.0
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def load(cls, key: str, path: str | None) -> Tokens | None:
        """The tokens of the file that configuration `key` names, None without one. `InvalidConfiguration` if it cannot
        be read or holds none."""
        if path is None:
            return None
        tokens = cls(key, path)
        await asyncio.to_thread(tokens._begin)
        return tokens

    @classmethod
    def holders(cls, key: str, path: str) -> tuple[Holder, ...]:
        """Return the holders of the tokens in a file, line by line. Any thread. Raises as `load`."""
        tokens = cls(key, path)
        tokens._begin()
        return tuple(line.holder for line in tokens._lines)

    async def holder(self, authorization: str | None) -> Holder | None:
        """Return the holder of the token in this `Authorization` header (of HTTP, or of a gRPC call's metadata), or
        None.
        """
        await self._refresh()
        if authorization is None or not authorization.lower().startswith(_SCHEME):
            return None
        shown = _digest(authorization[len(_SCHEME) :].strip().encode("utf-8", "surrogateescape"))
        found = None
        for line in self._lines:
            if hmac.compare_digest(shown, line.digest):
                found = line.holder
        return found

    async def _refresh(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._reading is None:
            if now - self._looked_at < CHECK_S:
                return
            self._looked_at = now
            self._reading = asyncio.create_task(self._read_again(), name="tokens")
        _, hung = await asyncio.wait((self._reading,), timeout=max(0.0, self._looked_at + GRACE_S - now))
        if hung and self._lines:
            self._forget(f"a read has taken longer than {GRACE_S:g} seconds")

    async def _read_again(self) -> None:
        """Read the file, in a task of its own: a caller that goes meanwhile must not take the outcome with it, or a
        token would be good for as long as such callers come."""
        try:
            await asyncio.to_thread(self._read)
        except (OSError, ValueError, RuntimeError) as error:  # the last: no thread can be started
            self._forget(_reason(error))
        finally:
            self._reading = None

    def _forget(self, reason: str) -> None:
        self._lines, self._seen = (), None
        _log.error("tokens cannot be read: all callers are refused", path=self._path, key=self._key, reason=reason)

    def _begin(self) -> None:
        try:
            self._read()
        except (OSError, ValueError) as error:
            raise InvalidConfiguration(f"{self._key}={self._path}: {_reason(error)}") from error

    def _read(self) -> None:
        found = os.stat(self._path)
        identity = (found.st_ino, found.st_mtime_ns, found.st_size)
        if identity == self._seen:
            return
        with open(self._path, "rb") as file:
            written = file.read(MAX_BYTES + 1)
        lines = tuple(_line(number, words) for number, words in token_lines(written))
        if not lines:
            raise ValueError("it holds no token; write one a line")
        self._lines, self._seen = lines, identity


def _line(number: int, words: list[bytes]) -> _Line:
    """Parse one line. The text of its ValueError contains no token."""
    token, *rest = words
    if _is_roles(token):
        raise ValueError(f"line {number}: the token is missing; the line begins with a list of roles")
    if len(token) < SHORTEST:
        raise ValueError(f"line {number}: {too_short(len(token))}")
    if len(rest) > 2:
        raise ValueError(f"line {number} has more than a token, its roles with commas between them, and a name")
    texts = [word.decode("utf-8", "replace") for word in rest]
    try:
        roles = roles_named(texts[0] if texts else Role.ADMIN.value)
    except ValueError:
        raise ValueError(f"line {number}: what follows the token is not a list of roles") from None
    return _Line(_digest(token), Holder(texts[1][:MAX_NAME] if len(texts) > 1 else f"token of line {number}", roles))


def _is_roles(word: bytes) -> bool:
    return any(name in ROLE_NAMES for name in word.decode("utf-8", "replace").lower().split(","))


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
