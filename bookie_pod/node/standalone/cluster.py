"""A cluster on one machine: an embedded metadata service in this process, each bookie in its own.

A bookie that ends can be started again (`keep_running`).

Invariants
- "Ready" is what clients see (`wait_ready`); a cluster of which a part does not get there leaves nothing running.
- Only processes started here are ever signalled (`bookie_process`).
- No other process gets the ports that this cluster chooses until it is stopped (`ReservedPorts`).
- A bookie's identity is its name, not its port: the same directory can be started again on other ports.
- A bookie that was decommissioned is left out for as long as its directory is there: it would refuse to start, and
  nothing needs it. The others start without it. Once the directory is removed, its name is a new bookie's.
- `keep_running` starts one bookie `FIRST_PAUSE` to `LONGEST_PAUSE` seconds apart: twice as long after each start that
  failed, and after each bookie that came back and ended within `HEALTHY_SECONDS`. After a bookie that ran for longer
  the pauses start again. Each end is reported with its exit code and the last line printed, and so is each failed
  start. Nothing ends the supervision but its cancellation, or the end of the cluster's own metadata service, without
  which nothing can be done.

A reserved port is bound here without a listener: no other process gets it, neither one that looks for a free port nor
an outgoing connection, and connecting to it is refused. On Linux a process that gets its number can listen there all
the same, because both sides set SO_REUSEADDR; so it stays reserved for as long as this process wants, restarts of the
other included. Elsewhere that does not hold, and the port is given up at once: what remains is that the system does not
give a port that it gave a moment ago to another process for a while.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final

from bookie_pod.config.derive import SMALLEST_DEFAULT_MB, default_memory_budget_mb
from bookie_pod.config.sections.journal import CURRENT_FOLDER
from bookie_pod.node.identity.cookies import COOKIE_FILE
from bookie_pod.node.identity.leaving import has_left
from bookie_pod.node.processes.metadata_service import opened_store
from bookie_pod.node.standalone.bookie_process import LOOPBACK, BookieProcess, log_of, start_child, wait_ready
from bookie_protocol.errors import PodkeeperError, ServerStartFailed
from bookie_protocol.metadata_service.embedded.local import connect_local
from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner, OwnerLimits
from bookie_protocol.metadata_service.embedded.server import EmbeddedMetadataServer
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri import open_metadata_service
from bookie_protocol.shown import one_line

START_SECONDS: Final = 60.0
SESSION_SECONDS: Final = 4.0
"""Time-out of metadata sessions: so long a killed bookie counts as registered, and its successor waits."""
_CAN_BE_SHARED = sys.platform == "linux"
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
HEALTHY_SECONDS: Final = 60.0
"""Seconds of running after which a bookie's end has another cause than its end before."""
_LONGEST_LINE: Final = 300


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
        self.left_out: tuple[str, ...] = ()
        """Names of the bookies that `start` did not start, because they were decommissioned."""
        self.metadata: MetadataService
        self._count = bookies
        self._keys = dict(keys or {})
        self._uri = metadata_uri or ""
        self._metadata_port = metadata_port
        self._ports = ReservedPorts(LOOPBACK)
        self._first_ports = {"grpc": grpc_port, "http": http_port}
        self._undo = AsyncExitStack()
        self._owner: EmbeddedOwner | None = None

    @property
    def metadata_service_uri(self) -> str:
        """Return the value of `metadataServiceUri` for other processes on this machine."""
        return self._uri

    async def start(self, timeout: float = START_SECONDS) -> None:
        """Start everything and wait until it is ready.

        Bookies that were decommissioned are left out. Raises `ServerStartFailed` when a bookie ends or is not ready
        within `timeout` seconds, or none is left to start; nothing is left running.
        """
        try:
            await self._start_metadata()
            names = await self._names()
            await asyncio.gather(*map(self._spawn, names))
            await asyncio.gather(*(wait_ready(self.metadata, self.bookies[name], timeout) for name in names))
        except BaseException:
            await self.stop()
            raise

    async def start_bookie(self, bookie_id: str) -> BookieProcess:
        """Start one bookie, new or with the directory of one that ended, and wait until it is ready."""
        bookie = await self._spawn(bookie_id)
        try:
            await wait_ready(self.metadata, bookie, START_SECONDS)
        except BaseException:
            await bookie.kill()
            raise
        return bookie

    async def was_decommissioned(self, bookie_id: str) -> bool:
        """Return whether this bookie left the cluster for good and its directory is still there.

        False also if that cannot be determined.
        """
        cookies = list((self.directory / bookie_id).glob(f"*/{CURRENT_FOLDER}/{COOKIE_FILE}"))
        if not cookies:
            return False
        stamped_at = datetime.fromtimestamp(min(cookie.stat().st_mtime for cookie in cookies), UTC)
        return await has_left(self.metadata, bookie_id, stamped_at)

    async def wait_broken(self) -> str:
        """Wait until the metadata service of this cluster has failed for good, which may be never, and return the
        reason.
        """
        if self._owner is None:
            never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            return await never
        return await self._owner.wait_broken()

    async def stop(self) -> None:
        """Stop all bookies, then the metadata service. Calling it again is fine."""
        await asyncio.gather(*(bookie.stop() for bookie in self.bookies.values()))
        await self._undo.aclose()
        self._ports.close()

    async def __aenter__(self) -> StandaloneCluster:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # --- inside ---------------------------------------------------------------------------------------------

    async def _names(self) -> list[str]:
        """Return the bookies to be started; sets `left_out`."""
        names = [f"bookie-{number}" for number in range(1, self._count + 1)]
        self.left_out = tuple([name for name in names if await self.was_decommissioned(name)])
        if len(self.left_out) == self._count:
            raise ServerStartFailed(
                f"all bookies in {self.directory} were decommissioned: ask for more bookies than {self._count}, or"
                " remove the directories of those that are to be new ones"
            )
        return [name for name in names if name not in self.left_out]

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
        owner = self._owner = await self._undo.enter_async_context(opened_store(folder, OwnerLimits()))
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
        if (before := self.bookies.get(bookie_id)) is not None:
            self._ports.give_back(before.port)
        port, grpc, http = self._ports.take(), self._port("grpc", bookie_id), self._port("http", bookie_id)
        configuration = directory / "bookie.conf"
        keys = self._configuration(bookie_id, port) | _server_keys(grpc, http) | self._keys
        configuration.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        process = await start_child(configuration, log_of(directory))
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
        return known or self._ports.take()


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


class ReservedPorts:
    """`close` it."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._held: dict[int, socket.socket] = {}
        self._given: set[int] = set()

    def take(self) -> int:
        """Return a free port that was not given before. Raises `OSError` when there is none."""
        while True:
            holder = socket.socket()
            try:
                holder.bind((self._host, 0))
                # After the bind, so that this bind itself does not share a port with another process.
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                port: int = holder.getsockname()[1]
            except OSError:
                holder.close()
                raise
            if not _CAN_BE_SHARED or port in self._given:
                holder.close()
            else:
                self._held[port] = holder
            if port not in self._given:
                self._given.add(port)
                return port

    def give_back(self, port: int) -> None:
        """Free the port for other processes; it is not given again here."""
        if (holder := self._held.pop(port, None)) is not None:
            holder.close()

    def close(self) -> None:
        """Give all of them back. Calling it again is fine."""
        for port in list(self._held):
            self.give_back(port)


async def keep_running(cluster: StandaloneCluster, tell: Callable[[str], None]) -> None:
    """Keep the bookies running until cancelled.

    `tell` gets one line for each bookie that ended, came back or could not be started. Raises `ServerStartFailed` when
    the metadata service of the cluster failed.
    """
    async with asyncio.TaskGroup() as group:
        keepers = [group.create_task(_keep_one(cluster, bookie_id, tell)) for bookie_id in cluster.bookies]
        reason = await cluster.wait_broken()
        for keeper in keepers:
            keeper.cancel()
    raise ServerStartFailed(reason)


async def _keep_one(cluster: StandaloneCluster, bookie_id: str, tell: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    pause = 0.0
    while True:
        began = loop.time()
        bookie = cluster.bookies[bookie_id]
        ended = f"{bookie_id} ended with {_exit(await bookie.process.wait())}"
        if await cluster.was_decommissioned(bookie_id):
            tell(f"{ended}: it was decommissioned, so it is not started again")
            return
        short = loop.time() - began < HEALTHY_SECONDS
        pause = min(max(2 * pause, FIRST_PAUSE), LONGEST_PAUSE) if short else FIRST_PAUSE
        tell(f"{ended}{_last_line(bookie)}: starting it again in {pause:g} s")
        await asyncio.sleep(pause)
        try:
            await cluster.start_bookie(bookie_id)
        except (PodkeeperError, OSError) as error:
            tell(one_line(error))
        else:
            tell(f"{bookie_id} is back")


def _exit(code: int) -> str:
    """The exit code, with the name of the signal that it stands for."""
    if code < 0:
        with suppress(ValueError):
            return f"exit code {code} ({signal.Signals(-code).name})"
    return f"exit code {code}"


def _last_line(bookie: BookieProcess) -> str:
    """Return the last line that it printed; nothing if that cannot be read."""
    try:
        lines = bookie.output().splitlines()
    except OSError:
        return ""
    return f", its last line is {lines[-1].strip()[:_LONGEST_LINE]!r}" if lines else ""
