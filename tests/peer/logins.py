"""Logins by a provider of a Java test: a bookie that is started here asks it, by the provider `peer`.

The provider's file has the port where the JVM listens, and the plug-in's name on the wire. One connection for each
exchange; `tls CERTIFICATE` and `token TOKEN` are answered by `complete|more|refused TOKEN`, all in base64, or by
nothing at all, as the plug-in pleases. Used from the bookie's event loop.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from bookie_pod.cli.main import main as bookie
from bookie_protocol.auth.entry_points import BOOKIE, CLIENT
from bookie_protocol.errors import Unauthorized
from bookie_protocol.wire.auth import AuthStep, Peer

_DECLARED = f"""
[{BOOKIE}]
peer = tests.peer.logins:JavaLogins
[{CLIENT}]
peer = tests.peer.logins:NoLogins
"""


class JavaLogins:
    def __init__(self, config_file: str | None) -> None:
        port, self.plugin_name = Path(str(config_file)).read_text().splitlines()
        self.port = int(port)

    def new_exchange(self, peer: Peer) -> JavaLogin:
        return JavaLogin(self.port, peer)


class NoLogins:
    """Bookies here ask nothing of each other."""

    plugin_name = "none"

    def __init__(self, config_file: str | None) -> None:
        """The file is the other side's."""

    def new_exchange(self, peer: Peer) -> NoReturn:
        raise Unauthorized("the test's plug-in is for clients of the test")


class JavaLogin:
    def __init__(self, port: int, peer: Peer) -> None:
        self._port = port
        self._peer = peer
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def process(self, token: bytes) -> AuthStep:
        return await self._ask(f"token {base64.b64encode(token).decode()}")

    async def tls_established(self, peer: Peer) -> bool:
        step = await self._ask(f"tls {base64.b64encode(peer.certificate or b'').decode()}")
        return step.complete

    async def _ask(self, line: str) -> AuthStep:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            self._streams[1].write(f"{self._peer.address}\n".encode())
        reader, writer = self._streams
        writer.write(f"{line}\n".encode())
        state, _, token = (await reader.readline()).decode().rstrip("\n").partition(" ")
        if state == "refused" and not token:
            raise Unauthorized("the test's plug-in refuses")
        return AuthStep(base64.b64decode(token) if token else None, state == "complete")

    def __del__(self) -> None:
        if self._streams is not None:
            self._streams[1].close()  # the plug-in is told that the connection has ended


def declare(folder: Path) -> None:
    """Makes the provider known to bookies whose configuration lies in the folder."""
    information = folder / "peer-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: peer\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(_DECLARED)


def main(arguments: Sequence[str]) -> None:
    """As `bookie`, with the provider."""
    sys.path.insert(0, str(Path(arguments[-1]).parent))
    bookie(arguments)
