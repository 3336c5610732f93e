"""A token that bookies and clients share, for clusters whose clients are all Podkeeper's.

The token never goes over the wire: each side proves that it knows it by HMAC-SHA256 over both sides' nonces, the client
first, so that a stranger gets nothing to guess by. Tokens are the lines of a file, 16 characters at least. A bookie
takes any of its file, a client shows the first of its own: to rotate, put the new one behind the old one at the
bookies, then first at the clients, then take the old one away. Both files are read again when they change.

    client  nonce (32 bytes)
    bookie  nonce (32 bytes)
    client  HMAC(token, "client" + the client's nonce + the bookie's)
    bookie  HMAC(token, "bookie" + the client's nonce + the bookie's)

Event loop only.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from typing import Final

from bookie_protocol.auth.watched_file import WatchedFile
from bookie_protocol.bearer_tokens import SHORTEST, too_short
from bookie_protocol.errors import Unauthorized
from bookie_protocol.wire.auth import AuthStep, Peer

PLUGIN_NAME: Final = "podkeeper-token"
NONCE: Final = 32
MOST: Final = 16
"""Tokens of a file: each costs an HMAC at every login."""


class SharedTokens:
    """A `ServerAuthProvider`."""

    plugin_name = PLUGIN_NAME

    def __init__(self, key: str, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`key`: the configuration key that names the file. Raises InvalidConfiguration."""
        self.tokens = WatchedFile(key, path, _tokens, clock)
        self.tokens.value()

    def new_exchange(self, peer: Peer) -> _ServerExchange:
        return _ServerExchange(self.tokens)


class _ServerExchange:
    def __init__(self, tokens: WatchedFile[tuple[bytes, ...]]) -> None:
        self._tokens = tokens
        self._nonces = b""

    async def process(self, token: bytes) -> AuthStep:
        """Raises Unauthorized, and InvalidConfiguration while the file cannot be used."""
        if not self._nonces:
            if len(token) != NONCE:
                raise Unauthorized(f"a login by token that does not begin with a nonce of {NONCE} bytes")
            nonce = secrets.token_bytes(NONCE)
            self._nonces = token + nonce
            return AuthStep(nonce, False)
        found = b""
        for each in self._tokens.value():  # all of them, whichever it is
            if hmac.compare_digest(token, _proof(each, b"client", self._nonces)):
                found = each
        if not found:
            raise Unauthorized("the client's token does not match any token of this bookie")
        return AuthStep(_proof(found, b"bookie", self._nonces), True)

    async def tls_established(self, peer: Peer) -> bool:
        """A certificate is no token."""
        return False


class TokenAuth:
    """Log in to bookies by the token in a file: `ClientOptions.auth`."""

    plugin_name = PLUGIN_NAME
    is_mutual = True

    def __init__(self, path: str, *, key: str = "token file", clock: Callable[[], float] = time.monotonic) -> None:
        """Raises InvalidConfiguration."""
        self._path = path
        self._tokens = WatchedFile(key, path, _tokens, clock)
        self._tokens.value()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenAuth) and other._path == self._path

    def __hash__(self) -> int:
        return hash(self._path)

    def new_exchange(self, peer: Peer) -> _ClientExchange:
        return _ClientExchange(self._tokens.value()[0])


class _ClientExchange:
    def __init__(self, token: bytes) -> None:
        self._token = token
        self._nonce = secrets.token_bytes(NONCE)
        self._nonces = b""

    async def start(self) -> AuthStep:
        """Return the nonce."""
        return AuthStep(self._nonce, False)

    async def process(self, token: bytes) -> AuthStep:
        """Raises Unauthorized for a bookie that does not know the token."""
        if not self._nonces:
            if len(token) != NONCE:
                raise Unauthorized(f"the bookie answered with {len(token)} bytes, not with a nonce")
            self._nonces = self._nonce + token
            return AuthStep(_proof(self._token, b"client", self._nonces), False)
        if not hmac.compare_digest(token, _proof(self._token, b"bookie", self._nonces)):
            raise Unauthorized("the bookie does not know this client's token")
        return AuthStep(None, True)

    async def tls_established(self, peer: Peer) -> bool:
        """A certificate is no token."""
        return False


def _proof(token: bytes, who: bytes, nonces: bytes) -> bytes:
    return hmac.digest(token, who + nonces, "sha256")


def _tokens(content: bytes) -> tuple[bytes, ...]:
    lines = [(number, line.strip()) for number, line in enumerate(content.splitlines(), start=1)]
    tokens = tuple(line for _, line in lines if line)
    if not tokens:
        raise ValueError("it holds no token; write one a line")
    if len(tokens) > MOST:
        raise ValueError(f"it holds {len(tokens)} tokens; {MOST} at most")
    for number, line in lines:
        if line and len(line) < SHORTEST:
            raise ValueError(f"line {number}: {too_short(len(line))}")
    return tokens
