"""An authentication plug-in, both sides, with the exchange of the golden recordings: hello, welcome?, secret, ok."""

from __future__ import annotations

from bookie_protocol.errors import Unauthorized
from bookie_protocol.wire.auth import AuthStep, Peer


class TwoTokens:
    """Plug-in `TestAuth`."""

    plugin_name = "TestAuth"

    def new_exchange(self, peer: Peer) -> _Exchange:
        return _Exchange()


class _Exchange:
    def __init__(self) -> None:
        self._welcomed = False

    async def process(self, token: bytes) -> AuthStep:
        if not self._welcomed and token == b"hello":
            self._welcomed = True
            return AuthStep(b"welcome?", False)
        if self._welcomed and token == b"secret":
            return AuthStep(b"ok", True)
        raise Unauthorized("token refused")

    async def tls_established(self, peer: Peer) -> bool:
        return False


class TwoTokensClient:
    """The client's side of `TwoTokens`, with the secret that it knows."""

    def __init__(self, secret: bytes = b"secret", plugin_name: str = "TestAuth") -> None:
        self.plugin_name = plugin_name
        self.secret = secret
        self.peers: list[Peer] = []

    def new_exchange(self, peer: Peer) -> _ClientExchange:
        self.peers.append(peer)
        return _ClientExchange(self.secret)


class _ClientExchange:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    async def start(self) -> AuthStep:
        return AuthStep(b"hello", False)

    async def process(self, token: bytes) -> AuthStep:
        if token == b"welcome?":
            return AuthStep(self._secret, False)
        if token == b"ok":
            return AuthStep(None, True)
        raise Unauthorized(f"the bookie said {token!r}")

    async def tls_established(self, peer: Peer) -> bool:
        return False
