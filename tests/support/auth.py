"""An authentication plug-in with the exchange of the golden recordings: hello, welcome?, secret, ok."""

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
