"""The embedded metadata service as a process of its own: killed, paused and started again on the same folder and
port, as a machine would be.

One thread uses a `MetadataProcess`. Whoever starts one stops it.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner
from bookie_protocol.metadata_service.embedded.server import EmbeddedMetadataServer
from tests.support.bookie_process import free_port
from tests.support.hanging import hang
from tests.support.until import until_true
from tests.support.warm import WarmProcess

_HOST = "127.0.0.1"
_START_S = 30.0


class MetadataProcess:
    """`start` returns when it listens."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process: WarmProcess | None = None

    def uri(self, root: str = "/ledgers") -> str:
        return f"embedded://{_HOST}:{self._port}{root}"

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "output").open("ab") as output:
            self._process = WarmProcess(
                f"{__name__}:main", [str(self._folder / "store"), str(self._port)], stdout=output, stderr=output
            )
        until_true(self._listens, _START_S)

    def kill(self) -> None:
        """As a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    stop = kill

    def pause(self) -> None:
        """Connections stay, nobody answers."""
        hang(self._running().pid)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    @property
    def pid(self) -> int:
        return self._running().pid

    def _running(self) -> WarmProcess:
        assert self._process is not None, "the metadata service is not running"
        return self._process

    def _listens(self) -> bool:
        assert self._running().poll() is None, (self._folder / "output").read_text()
        try:
            with socket.create_connection((_HOST, self._port), timeout=1):
                return True
        except OSError:
            return False


async def _serve(folder: str, port: int) -> None:
    owner = await EmbeddedOwner.open(folder, keep_notices=True)
    server = EmbeddedMetadataServer(owner, _HOST, port)
    await server.start()
    await asyncio.get_running_loop().create_future()


def main(arguments: Sequence[str]) -> None:
    folder, port = arguments
    asyncio.run(_serve(folder, int(port)))
