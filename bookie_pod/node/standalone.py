"""A cluster on one machine: an embedded metadata service in this process, each bookie in a process of its
own.

Invariants
- Children inherit no pipe and no terminal: input is /dev/null, output a file in the bookie's directory. They
  have sessions of their own, and on Linux they end when this process does, however it ends.
- "Ready" is what clients see: registered as writable, and answering requests. A bookie that ends before is an
  error with the last lines of its output.
- Only processes started here are ever signalled, by their handle.
- A bookie's identity is its name, not its port: the same directory can be started again on other ports.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from bookie_client.connection.pool import ChannelPool, Resolver
from bookie_client.connection.request import Request
from bookie_client.options import ClientOptions
from bookie_pod.config.memory import SMALLEST_DEFAULT_MB, default_memory_budget_mb
from bookie_protocol.errors import (
    BookieUnavailable,
    MetadataDamaged,
    PodkeeperError,
    ServerStartFailed,
)
from bookie_protocol.metadata_service.embedded.local import connect_local
from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner
from bookie_protocol.metadata_service.embedded.server import EmbeddedMetadataServer
from bookie_protocol.metadata_service.interface import BookieGroup, MetadataService
from bookie_protocol.metadata_service.uri import open_metadata_service

LOOPBACK: Final = "127.0.0.1"
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 20.0
SESSION_SECONDS: Final = 4.0
"""Time-out of metadata sessions: so long a killed bookie counts as registered, and its successor waits."""
_RETRY_SECONDS: Final = 0.02
_TAIL_BYTES: Final = 3000

_CHILD: Final = """\
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the process that started this bookie has ended")
from bookie_pod.cli.main import main
main(sys.argv[2:])
"""


@dataclass(slots=True)
class BookieProcess:
    """One bookie and its process."""

    bookie_id: str
    directory: Path
    port: int
    process: asyncio.subprocess.Process
    grpc_port: int | None = None
    """None: it serves no gRPC."""
    http_port: int | None = None
    """None: it serves no HTTP."""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.returncode is None

    def output(self) -> str:
        """The last lines of what it printed."""
        with (self.directory / "bookie.log").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read().decode(errors="replace").strip()

    async def kill(self) -> None:
        """End it as a crash would (SIGKILL) and wait for its end."""
        if self.is_running:
            self.process.kill()
        await self.process.wait()

    async def stop(self) -> int:
        """Ask it to end (SIGTERM), and kill it when it has not after 20 seconds; returns its exit code."""
        if self.is_running:
            self.process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                return await self.process.wait()
        except TimeoutError:
            await self.kill()
            return await self.process.wait()


class StandaloneCluster:
    """Metadata service and bookies in `directory`; an async context manager.

    `keys` are added to every bookie's configuration (keys of bk_server.conf). `metadata_uri`: a metadata service that
    runs already; by default an embedded one at `metadata_port`. `grpc_port`, `http_port`: those of the first bookie,
    the others have the next ones; None: it serves none. A port that is 0 is any free one.
    """

    def __init__(
        self,
        directory: Path,
        bookies: int = 3,
        keys: Mapping[str, str] | None = None,
        *,
        metadata_uri: str | None = None,
        metadata_port: int = 0,
        grpc_port: int | None = None,
        http_port: int | None = None,
    ) -> None:
        self.directory = directory
        self.bookies: dict[str, BookieProcess] = {}
        self.metadata: MetadataService
        self._count = bookies
        self._keys = dict(keys or {})
        self._uri = metadata_uri or ""
        self._metadata_port = metadata_port
        self._given_ports: set[int] = set()
        self._first_ports = {"grpc": grpc_port, "http": http_port}
        self._undo = AsyncExitStack()

    @property
    def metadata_service_uri(self) -> str:
        """What other processes on this machine set as `metadataServiceUri`."""
        return self._uri

    async def start(self, timeout: float = START_SECONDS) -> None:
        """Start everything and wait until it is ready.

        Raises `ServerStartFailed` when a bookie ends or is not ready within `timeout` seconds; nothing is
        left running.
        """
        try:
            await self._start_metadata()
            names = [f"bookie-{number}" for number in range(1, self._count + 1)]
            await asyncio.gather(*map(self._spawn, names))
            await asyncio.gather(*(self._wait_ready(self.bookies[name], timeout) for name in names))
        except BaseException:
            await self.stop()
            raise

    async def start_bookie(self, bookie_id: str, timeout: float = START_SECONDS) -> BookieProcess:
        """Start one bookie, new or with the directory of one that ended, and wait until it is ready."""
        bookie = await self._spawn(bookie_id)
        try:
            await self._wait_ready(bookie, timeout)
        except BaseException:
            await bookie.kill()
            raise
        return bookie

    async def stop(self) -> None:
        """Stop all bookies, then the metadata service. Calling it again is fine."""
        await asyncio.gather(*(bookie.stop() for bookie in self.bookies.values()))
        await self._undo.aclose()

    async def __aenter__(self) -> StandaloneCluster:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # --- inside ---------------------------------------------------------------------------------------------

    async def _start_metadata(self) -> None:
        if self._uri:
            self.metadata = await open_metadata_service(self._uri, timeout=SESSION_SECONDS)
            self._undo.push_async_callback(self.metadata.close)
        else:
            await self._start_embedded()
        if not await self.metadata.cluster.exists():
            await self.metadata.cluster.initialize()

    async def _start_embedded(self) -> None:
        folder = self.directory / "metadata"
        folder.mkdir(parents=True, exist_ok=True)
        owner = await EmbeddedOwner.open(str(folder))
        self._undo.push_async_callback(owner.close)
        server = EmbeddedMetadataServer(owner, LOOPBACK, self._metadata_port)
        await server.start()
        self._undo.push_async_callback(server.stop)
        self.metadata = await connect_local(owner, SESSION_SECONDS)
        self._undo.push_async_callback(self.metadata.close)
        self._uri = server.uri()
        self._undo.callback(self._forget_uri)

    def _forget_uri(self) -> None:
        self._uri = ""

    async def _spawn(self, bookie_id: str) -> BookieProcess:
        directory = self.directory / bookie_id
        directory.mkdir(parents=True, exist_ok=True)
        port, grpc, http = self._free_port(), self._port("grpc", bookie_id), self._port("http", bookie_id)
        configuration = directory / "bookie.conf"
        keys = self._configuration(bookie_id, port) | _server_keys(grpc, http) | self._keys
        configuration.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        command = (sys.executable, "-c", _CHILD, str(os.getpid()), "serve", "--config", str(configuration))
        with (directory / "bookie.log").open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=_child_environment(),
            )
        bookie = self.bookies[bookie_id] = BookieProcess(bookie_id, directory, port, process, grpc, http)
        return bookie

    def _configuration(self, bookie_id: str, port: int) -> dict[str, str]:
        directory = self.directory / bookie_id
        interfaces = [name for _, name in socket.if_nameindex()]
        return {
            "bookieId": bookie_id,
            "bookiePort": str(port),
            "advertisedAddress": LOOPBACK,
            "allowLoopback": "true",
            "listeningInterface": "lo" if "lo" in interfaces else "lo0",
            "metadataServiceUri": self._uri,
            "zkTimeout": str(round(SESSION_SECONDS * 1000)),
            "journalDirectories": str(directory / "journal"),
            "ledgerDirectories": str(directory / "ledgers"),
            "memoryBudgetMb": str(max(SMALLEST_DEFAULT_MB, default_memory_budget_mb() // self._count)),
        }

    def _port(self, kind: str, bookie_id: str) -> int | None:
        """The port of a bookie's gRPC or HTTP server: the same for as long as this cluster lives, because people
        know it."""
        first = self._first_ports[kind]
        if first is None:
            return None
        if first:
            return first + int(bookie_id.rpartition("-")[2]) - 1
        before = self.bookies.get(bookie_id)
        known = None if before is None else before.grpc_port if kind == "grpc" else before.http_port
        return known or self._free_port()

    def _free_port(self) -> int:
        """A port that nobody listens on now, and that was not given before."""
        while True:
            with socket.socket() as probe:
                probe.bind((LOOPBACK, 0))
                port: int = probe.getsockname()[1]
            if port not in self._given_ports:
                self._given_ports.add(port)
                return port

    async def _wait_ready(self, bookie: BookieProcess, timeout: float) -> None:
        ready = asyncio.ensure_future(self._serves(bookie))
        ended = asyncio.ensure_future(bookie.process.wait())
        try:
            await asyncio.wait({ready, ended}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                ready.result()
            elif ended.done():
                raise ServerStartFailed(
                    f"{bookie.bookie_id} ended with exit code {ended.result()} at start: {bookie.output()}"
                )
            else:
                raise ServerStartFailed(f"{bookie.bookie_id} is not ready after {timeout:g} s: {bookie.output()}")
        finally:
            for task in (ready, ended):
                task.cancel()
            await asyncio.wait({ready, ended})

    async def _serves(self, bookie: BookieProcess) -> None:
        """Return once the bookie is registered at its new address and answers a request."""
        async with self.metadata.bookies.watch(BookieGroup.WRITABLE) as snapshots:
            async for snapshot in snapshots:
                if bookie.bookie_id in snapshot.bookies and await self._address(bookie.bookie_id) == bookie.port:
                    break
        pool = ChannelPool(_resolver(bookie.port), ClientOptions(reconnect_delay=_RETRY_SECONDS, read_timeout=1.0))
        try:
            # It drops connections until its start is over, and tells nobody when that is.
            while isinstance(await _ask(pool, bookie.bookie_id), BookieUnavailable):  # noqa: ASYNC110
                await asyncio.sleep(_RETRY_SECONDS)
        finally:
            await pool.close()
        if bookie.grpc_port is not None:
            await _listens(bookie.grpc_port)

    async def _address(self, bookie_id: str) -> int | None:
        try:
            address = (await self.metadata.bookies.service_info(bookie_id)).bookie_address()
        except PodkeeperError:
            return None  # gone again, or not readable yet: the watch tells more
        if address is None:
            raise MetadataDamaged(f"{bookie_id} is registered without an address")
        return address[1]


def _child_environment() -> dict[str, str]:
    """Without keys of the configuration: what a user sets for clients would win over the bookies' own files."""
    return {name: value for name, value in os.environ.items() if not name.startswith("BK_") and name != "BOOKIE_CONF"}


def _server_keys(grpc_port: int | None, http_port: int | None) -> dict[str, str]:
    keys = {
        "grpcServerEnabled": str(grpc_port is not None).lower(),
        "httpServerEnabled": str(http_port is not None).lower(),
        "prometheusStatsHttpEnable": "false",
    }
    if grpc_port is not None:
        keys |= {"grpcServerPort": str(grpc_port), "grpcServerHost": LOOPBACK}
    if http_port is not None:
        keys |= {"httpServerPort": str(http_port), "httpServerHost": LOOPBACK}
    return keys


class _Answer(Request):
    """Resolves with None or the error, whatever the bookie answered."""

    __slots__ = ("outcome",)

    def __init__(self) -> None:
        self.outcome: asyncio.Future[PodkeeperError | None] = asyncio.get_running_loop().create_future()

    def answered(self, entry: bytes, max_lac: int | None) -> None:
        self.outcome.set_result(None)

    def failed(self, error: PodkeeperError) -> None:
        self.outcome.set_result(error)

    def describe(self) -> str:
        return "the first request"


async def _ask(pool: ChannelPool, bookie_id: str) -> PodkeeperError | None:
    answer = _Answer()
    key, frame = pool.dialect.read(1, 0, 0)
    pool.channel(bookie_id).send_read(frame, key, answer)
    return await answer.outcome


async def _listens(port: int) -> None:
    """Return once somebody listens there; gRPC is loaded when the bookie serves already."""
    while True:
        try:
            _, writer = await asyncio.open_connection(LOOPBACK, port)
        except OSError:
            await asyncio.sleep(_RETRY_SECONDS)
        else:
            writer.close()
            return


def _resolver(port: int) -> Resolver:
    async def resolve(bookie_id: str) -> tuple[str, int]:
        return LOOPBACK, port

    return resolve
