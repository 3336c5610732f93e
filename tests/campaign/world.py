"""The cluster of a campaign: bookies, a metadata service, two auto-recovery processes and a gateway, each in a network
namespace of its own, and the supervisor that starts again what has ended, as a kubelet does.

Invariants
- Every process, namespace and folder of a world is gone after `close`.
- A bookie is touched by one fault at a time (`Bookie.hold`); while it is held the supervisor leaves it alone.
- A bookie that ends by itself, or does not come up, needs an excuse: something that was done to it. Whatever it had
  none for is a breach. One whose disks were damaged may refuse to start; then it gets empty disks, as an operator would
  give it.

Event loop only; what blocks for long runs on threads.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import aiohttp

from bookie_protocol.errors import CouldNotTell, NotThere
from tests.campaign.connecting import connected
from tests.campaign.history import History
from tests.campaign.kinds import COMMAND, OURS, Kind
from tests.campaign.network import Cut, Host, Network
from tests.campaign.programs import Program
from tests.campaign.shim.control import Shim
from tests.campaign.shim.power import Lost, lose_power
from tests.support.auto_recovery import QUICK
from tests.support.bookie_process import DB_STORAGE, INTERLEAVED_STORAGE, SORTED_STORAGE
from tests.support.serve_process import ServeProcess
from tests.support.small_bookie import SMALL_BOOKIE
from tests.support.zookeeper import ZooKeeperServer

BUDGET_MB: Final = 96
BOOKIES: Final = 5
PORT: Final = 3181
HTTP: Final = 8000
GRPC: Final = 3182
_METADATA_PORT: Final = 3180
_ROOT: Final = Path(__file__).parents[2]
_START_S: Final = 90.0
_METADATA_S: Final = 8.0
_TRIES: Final = 6
_TRIES_DAMAGED: Final = 2
_DAMAGE: Final = ("damaged", "corrupt", "missing")
"""Words of a bookie that refuses its files."""
_LOOK_S: Final = 0.25

SETTINGS: Final = {
    **SMALL_BOOKIE,
    "memoryBudgetMb": str(BUDGET_MB),
    "dbStorage_writeCacheMaxSizeMb": "4",
    "dbStorage_readAheadCacheMaxSizeMb": "4",
    "zkTimeout": "6000",
    "flushInterval": "1500",
    "logSizeLimit": str(2 << 20),
    "journalMaxSizeMB": "1",
    "journalMaxBackups": "0",
    "gcWaitTime": "4000",
    "minorCompactionInterval": "9",
    "majorCompactionInterval": "20",
    "gcOverreplicatedLedgerWaitTime": "-1",
    "httpServerEnabled": "true",
    "prometheusStatsHttpEnable": "true",
    "httpServerHost": "0.0.0.0",
    "allowInsecureAccess": "true",
    "listeningInterface": "eth0",
}
"""Everything happens often: journals and logs roll over, marks move, logs are compacted."""

LIMBO: Final = {"dataIntegrityChecking": "true", "dataIntegrityStampMissingCookies": "true"}
"""Of the one engine that can tell what it has lost: empty disks are taken for what they are."""

AUTO_RECOVERY: Final = {
    **QUICK,
    "zkTimeout": "6000",
    "lostBookieRecoveryDelay": "60",
    "auditorPeriodicCheckInterval": "12",
    "auditorPeriodicBookieCheckInterval": "15",
    "auditorLedgerVerificationPercentage": "100",
    "auditorReadsPerSecond": "0",
}


@dataclass
class Bookie:
    """One bookie: its disks, its process, and what was done to them."""

    name: str
    host: Host
    folder: Path
    shim: Shim
    program: Program
    kind: Kind
    engine: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    excuse: str = ""
    """Why its process may end by itself; empty: it may not."""
    damaged: str = ""
    """What was done to its files since they were last seen to be sound."""
    must_tell: bool = False
    """That is nothing but damage which it can see: what it was sure of before it does not deny."""
    failed_starts: int = 0
    most_kb: int = 0
    """The largest resident set that was seen."""
    is_unreachable: bool = False
    """It is held up or cut off: what it says of itself cannot be compared with what it does."""

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    @property
    def ledgers(self) -> Path:
        return self.folder / "ledgers"

    @property
    def knows_its_losses(self) -> bool:
        """Empty disks are taken for what they are; of others' they would be a new bookie's under an old name."""
        return self.kind.is_ours and self.engine == DB_STORAGE

    @property
    def url(self) -> str:
        return f"http://{self.host.address}:{HTTP}"

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Nobody else touches it meanwhile."""
        async with self.lock:
            yield

    @contextmanager
    def out_of_reach(self) -> Iterator[None]:
        """Nobody may conclude anything from its silence meanwhile, and its session may end."""
        self.excuse = "it was out of reach"
        self.is_unreachable = True
        try:
            yield
        finally:
            self.is_unreachable = False


class World:
    """An async context manager. `plant`: the defect that every bookie is started with. `kind`: of all bookies."""

    def __init__(
        self,
        folder: Path,
        random: Random,
        history: History,
        *,
        zookeeper: bool = False,
        plant: str | None = None,
        kind: Kind = OURS,
    ) -> None:
        self.folder = folder
        self.history = history
        self.random = random
        self.bookies: dict[str, Bookie] = {}
        self.http: aiohttp.ClientSession
        self.uri: str
        self.metadata: Program | ZooKeeperServer
        self.auto_recovery: list[tuple[Program, Host]] = []
        self.gateway: tuple[Program, Host] | None = None
        self._plant = plant
        self._kind = kind
        self._zookeeper = zookeeper
        self._stack = AsyncExitStack()
        self._network: Network
        self._metadata_host: Host | None = None

    async def __aenter__(self) -> World:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    @property
    def here(self) -> str:
        """The address of the clients in this process."""
        return self._network.here

    @property
    def gateway_address(self) -> str:
        assert self.gateway is not None
        return f"{self.gateway[1].address}:{GRPC}"

    @property
    def metadata_address(self) -> str:
        return self.here if self._metadata_host is None else self._metadata_host.address

    async def _start(self) -> None:
        self._network = Network(f"pk{os.getpid() % 1_000_000:x}")
        self._stack.callback(self._network.close)
        self._stack.callback(self._kill_all)
        self.http = await self._stack.enter_async_context(
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=4), connector=aiohttp.TCPConnector(force_close=True)
            )
        )
        await asyncio.to_thread(self._start_metadata)
        for number in range(1, BOOKIES + 1):
            bookie = self._make_bookie(f"bookie-{number}")
            self.bookies[bookie.name] = bookie
            bookie.program.start()
        for number in (1, 2):
            self._make_auto_recovery(number)
        self._make_gateway()
        for bookie in self.bookies.values():
            await self.serving(bookie)
        supervisor = asyncio.create_task(self._supervise(), name="supervisor")
        self._stack.push_async_callback(self._end, supervisor)

    @staticmethod
    async def _end(task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.wait([task])

    # --- making ---------------------------------------------------------------------------------------------------

    def _start_metadata(self) -> None:
        folder = self.folder / "metadata"
        folder.mkdir(parents=True)
        if self._zookeeper:
            server = ZooKeeperServer(str(folder), host=self.here)
            server.start()
            self.metadata, self.uri = server, server.uri("/ledgers")
            self._make_cluster()
            return
        self._metadata_host = host = self._network.add()
        command = [
            COMMAND,
            "metadata-service",
            "--data",
            str(folder / "store"),
            "--port",
            str(_METADATA_PORT),
            "--no-http",
        ]
        self.metadata = Program("metadata", [*host.enter, *command], folder / "log")
        self.metadata.start()
        self.uri = f"embedded://{host.address}:{_METADATA_PORT}/ledgers"
        self._make_cluster()

    def _make_cluster(self) -> None:
        deadline = time.monotonic() + _START_S
        while (made := ServeProcess.command("cluster", "init", self.uri)).returncode != 0:
            assert time.monotonic() < deadline, made.stderr
            time.sleep(_LOOK_S)

    def _make_bookie(self, name: str) -> Bookie:
        host = self._network.add()
        folder = self.folder / name
        shim = Shim(folder / "shim", folder / "disks")
        (folder / "disks").mkdir()
        (engine,) = self.random.choices((DB_STORAGE, SORTED_STORAGE, INTERLEAVED_STORAGE), (6, 2, 1))
        settings = {
            **SETTINGS,
            **self._kind.settings,
            "bookieId": name,
            "bookiePort": str(PORT),
            "httpServerPort": str(HTTP),
            "advertisedAddress": host.address,
            "metadataServiceUri": self.uri,
            "journalDirectories": str(folder / "disks" / "journal"),
            "ledgerDirectories": str(folder / "disks" / "ledgers"),
            "ledgerStorageClass": engine,
            **(LIMBO if self._kind.is_ours and engine == DB_STORAGE else {}),
        }
        file = folder / "bookie.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        environment = {**shim.environment, **self._planting()}
        program = Program(name, [*host.enter, *self._kind.command, str(file)], folder / "log", environment)
        return Bookie(name, host, folder / "disks", shim, program, self._kind, engine)

    def _planting(self) -> Mapping[str, str]:
        if self._plant is None:
            return {}
        folder = Path(__file__).with_name("planting")
        return {"PYTHONPATH": f"{folder}{os.pathsep}{_ROOT}", "CAMPAIGN_PLANTED": self._plant}

    def _make_auto_recovery(self, number: int) -> None:
        host = self._network.add()
        settings = {
            **AUTO_RECOVERY,
            "metadataServiceUri": self.uri,
            "httpServerPort": str(HTTP),
            "httpServerHost": "0.0.0.0",
            "allowInsecureAccess": "true",
            "advertisedAddress": host.address,
        }
        folder = self.folder / f"auto-recovery-{number}"
        folder.mkdir()
        file = folder / "autorecovery.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = [*host.enter, COMMAND, "autorecovery", "--config", str(file)]
        program = Program(f"auto-recovery-{number}", command, folder / "log", dict(self._planting()))
        program.start()
        self.auto_recovery.append((program, host))

    def _make_gateway(self) -> None:
        host = self._network.add()
        settings = {
            "metadataServiceUri": self.uri,
            "grpcServerHost": "0.0.0.0",
            "allowInsecureAccess": "true",
            "grpcServerPort": str(GRPC),
            "httpServerHost": "0.0.0.0",
            "httpServerPort": str(HTTP),
        }
        command = [*host.enter, COMMAND, "gateway", *(f"--set={key}={value}" for key, value in settings.items())]
        program = Program("gateway", command, self.folder / "gateway" / "log", dict(self._planting()))
        program.start()
        self.gateway = program, host

    def _kill_all(self) -> None:
        others = [program for program, _ in self.auto_recovery]
        if self.gateway is not None:
            others.append(self.gateway[0])
        for program in (*others, *(bookie.program for bookie in self.bookies.values())):
            program.kill()
        if hasattr(self, "metadata"):
            self.metadata.kill() if isinstance(self.metadata, Program) else self.metadata.stop()

    # --- the metadata service -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def without_metadata(self, *, hang: bool) -> AsyncIterator[None]:
        """Nobody answers there meanwhile; everybody's session may end."""
        self.excuse_all("the metadata service was away")
        if hang:
            self.metadata.pause()
        elif isinstance(self.metadata, Program):
            self.metadata.kill()
        else:
            await asyncio.to_thread(self.metadata.stop)
        try:
            yield
        finally:
            if hang:
                self.metadata.resume()
            else:
                await asyncio.to_thread(self.metadata.start)

    @asynccontextmanager
    async def older_metadata(self, *, made_before: float) -> AsyncIterator[None]:
        """The embedded service has the state of `made_before` seconds ago meanwhile, and only bookies reach it; then it
        has the newest again. ZooKeeper has everybody's address, so there it is only away."""
        if self._metadata_host is None or not isinstance(self.metadata, Program):
            async with self.without_metadata(hang=False):
                yield
            return
        store, backup, newest = (self.folder / "metadata" / name for name in ("store", "backup", "newest"))
        async with self.without_metadata(hang=False):
            await asyncio.to_thread(shutil.copytree, store, backup)
        await asyncio.sleep(made_before)
        hosts = [host for _, host in self.auto_recovery]
        if self.gateway is not None:
            hosts.append(self.gateway[1])
        others = [self.here, *(host.address for host in hosts)]
        with ExitStack() as cuts:
            async with self.without_metadata(hang=False):
                for address in others:
                    cuts.enter_context(self._metadata_host.cut(Cut.BOTH, peer=address))
                store.rename(newest)
                backup.rename(store)
            try:
                yield
            finally:
                self.metadata.kill()
                await asyncio.to_thread(shutil.rmtree, store)
                newest.rename(store)
                await asyncio.to_thread(self.metadata.start)

    def excuse_all(self, why: str) -> None:
        for bookie in self.bookies.values():
            bookie.excuse = why

    # --- bookies --------------------------------------------------------------------------------------------------

    async def serving(self, bookie: Bookie, seconds: float = _START_S) -> bool:
        """Wait until it says that it is ready; False: it ended, or not in time."""
        deadline = time.monotonic() + bookie.kind.patience * seconds
        while time.monotonic() < deadline:
            if not bookie.program.is_running:
                return False
            if await self.says_ready(bookie):
                return True
            await asyncio.sleep(_LOOK_S)
        return False

    async def says_ready(self, bookie: Bookie) -> bool:
        try:
            async with self.http.get(f"{bookie.url}{bookie.kind.probe}") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def metrics(self, bookie: Bookie) -> str:
        async with self.http.get(f"{bookie.url}/metrics") as answer:
            return await answer.text()

    async def start_bookie(self, bookie: Bookie) -> None:
        """Held by the caller. It comes up, or the supervisor sees to it."""
        bookie.shim.clear()
        if not bookie.program.is_running:
            bookie.program.start()
        await self.serving(bookie)

    async def lose_power(self, *bookies: Bookie, random: Random) -> Lost:
        """Killed, with all that they had not synced; held by the caller."""
        for bookie in bookies:
            bookie.program.kill()
        total = Lost()
        for bookie in bookies:
            lost = await asyncio.to_thread(lose_power, bookie.folder, bookie.shim.undo, random)
            total = Lost(total.files + lost.files, total.writes + lost.writes, total.torn + lost.torn)
        self.history.counts["unsynced writes lost"] += total.writes
        self.history.counts["unsynced writes torn"] += total.torn
        return total

    async def destroys(self, bookie: Bookie, what: str, *, is_seen: bool = False) -> None:
        """Before something is done to a bookie that is not running, which may destroy any of its copies: note which
        ledgers have copies there. Where that cannot be told for sure, as of those that are being written, they have.
        `is_seen`: it is damage that no bookie takes for anything else."""
        bookie.must_tell = is_seen and (bookie.must_tell or not bookie.damaged)
        bookie.damaged = what
        unsure = {each.ledger_id: each for each in self.history.live()}
        try:
            async with asyncio.timeout(_METADATA_S), connected(self.uri) as client:
                for ledger in [each for each in unsure.values() if each.end is not None and not each.is_written]:
                    if bookie.name not in (await client.metadata(ledger.ledger_id)).all_bookies():
                        del unsure[ledger.ledger_id]
        except (TimeoutError, CouldNotTell, NotThere):
            pass
        for ledger in unsure.values():
            ledger.destroyed.add(bookie.name)

    async def empty_disks(self, bookie: Bookie, *folders: Path) -> None:
        """Of a bookie that is not running: there are new ones in their place. Where the engine has no way to tell what
        was lost, it has to be a new bookie under the old name."""
        if not bookie.knows_its_losses:
            await self.forget_cookie(bookie)
            folders = ()
        for folder in folders or (bookie.journal, bookie.ledgers):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        for part in bookie.shim.undo.iterdir():
            part.unlink()

    async def forget_cookie(self, bookie: Bookie) -> None:
        """It is a new bookie from now on. Waits for the metadata service."""
        async with connected(self.uri) as client:
            while True:
                try:
                    await client.metadata_service.cookies.delete(bookie.name)
                    return
                except NotThere:
                    return
                except CouldNotTell:
                    await asyncio.sleep(_LOOK_S)

    # --- the supervisor -------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            for bookie in self.bookies.values():
                if not bookie.lock.locked() and not bookie.program.is_running:
                    await self._restart(bookie)
            if isinstance(self.metadata, Program) and self.metadata.exit_code is not None:
                self.history.breach("alive", f"the metadata service ended: {self.metadata.said()}")
                self.metadata.start()
            for program, _ in self.auto_recovery:
                if not program.is_running:
                    self._restart_other(program)
            if self.gateway is not None and not self.gateway[0].is_running:
                self._restart_other(self.gateway[0])

    def _restart_other(self, program: Program) -> None:
        code = program.exit_code
        if code is not None and (code < 0 or "Traceback" in program.said()):
            self.history.breach("alive", f"{program.name} ended with {code}: {program.said()[-1500:]}")
        self.history.counts[f"{program.name.rstrip('-12')} started again"] += 1
        program.start()

    async def _restart(self, bookie: Bookie) -> None:
        code, said = bookie.program.exit_code, bookie.program.said()
        if code is not None:
            self._judge_end(bookie, code, said)
        if bookie.failed_starts >= (_TRIES_DAMAGED if bookie.damaged else _TRIES):
            await self._give_up(bookie, said)
        bookie.program.start()
        bookie.failed_starts += 1
        self.history.counts["bookies started again"] += 1

    def _judge_end(self, bookie: Bookie, code: int, said: str) -> None:
        history = self.history
        history.note(f"{bookie.name} ended with {code}: {last_line(said)}")
        if code < 0:
            history.breach("alive", f"{bookie.name} died of signal {-code}: {said[-1500:]}")
        elif "unexpected fault" in last_line(said):
            history.breach("alive", f"{bookie.name} ended of what it calls a bug: {said[-1500:]}")
        elif bookie.kind.is_ours and not bookie.damaged and any(word in last_line(said).lower() for word in _DAMAGE):
            history.breach("alive", f"{bookie.name} tells of damage, and its files were not damaged: {said[-1500:]}")
            bookie.damaged = "it says so itself"
        elif not bookie.excuse and not bookie.damaged:
            history.breach("alive", f"{bookie.name} ended with {code}, and nothing was done to it: {said[-1500:]}")
            if not bookie.kind.is_ours:
                bookie.damaged = "it does not start any more"  # which need not be told of each attempt
        elif "Traceback (most recent call last)" in said and '"event"' not in said.splitlines()[-1]:
            history.breach("alive", f"{bookie.name} ended with a traceback: {said[-1500:]}")

    async def _give_up(self, bookie: Bookie, said: str) -> None:
        """It does not come up."""
        if not bookie.damaged:
            self.history.breach(
                "alive", f"{bookie.name} does not start, and its files were not damaged: {said[-1500:]}"
            )
        self.history.counts["bookies that refused damaged files"] += 1
        await self.destroys(bookie, bookie.damaged or "it had to be emptied")
        await self.empty_disks(bookie)
        bookie.failed_starts = 0


def last_line(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
