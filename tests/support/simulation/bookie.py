"""A bookie of the virtual cluster: the real request handling and registration, on a virtual disk and network.

A `VirtualBookie` outlives its processes. `start` begins one from what the disk holds; `kill`, `power_off`,
`lose_disk`, `replace_disk` and `be_another` end it in their ways.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from bookie_pod.node.identity.membership import NotAMember
from bookie_pod.node.registration import RegistrationManager
from bookie_pod.server.tcp.requests import ReadRequest
from bookie_protocol.entry import ENTRY_IDS, ENTRY_PREFIX_SIZE
from bookie_protocol.errors import (
    MetadataError,
    MetadataExists,
    MetadataNotFound,
    NotThere,
    StartupError,
    StorageFault,
)
from bookie_protocol.metadata_service.service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.simulation.disk import Disk, DiskOptions
from tests.support.simulation.metadata import MetadataServer
from tests.support.simulation.network import Network
from tests.support.simulation.process import BookieProcess
from tests.support.simulation.trace import Trace

if TYPE_CHECKING:
    from tests.support.simulation.history import History, LedgerHistory

PORT: Final = 3181
ROOT: Final = "/ledgers"
_RESTART_SECONDS: Final = 0.2
_LAC_AT: Final = ENTRY_IDS.size
_LAC_BYTES: Final = ENTRY_PREFIX_SIZE - ENTRY_IDS.size


class VirtualBookie:
    """`on_event` is told ("put" | "sync" | "fence" | "negative", host) as things happen."""

    def __init__(
        self,
        name: str,
        network: Network,
        metadata: MetadataServer,
        history: History,
        random: Random,
        trace: Trace,
        disk_options: DiskOptions,
    ) -> None:
        self.bookie_id = f"{name}:{PORT}"
        self.host = name
        self.loop = network.loop
        self.network = network
        self.random = random
        self.trace = trace
        self.disk = Disk()
        self.disk_options = disk_options
        self.slowness = disk_options.spread ** random.random()
        self.on_event: Callable[[str, str], None] = lambda event, host: None
        self.read_only = False
        self.doubtful: dict[int, None] = {}
        """Ledgers in limbo: the disk that may have held entries of them is lost."""
        self.bad_reads_until = 0.0
        self.bad_reads = ""
        """What happens to reads until then: "error" or "damage"."""
        self.writes_cookie = False
        """Whether its first process writes a cookie."""
        self._has_cookie = False
        self.is_retired = False
        """It was decommissioned: once it has ended it does not start any more."""
        self.is_held_back = False
        """It is not to start yet."""
        self.held_read_only = False
        """Read-only by an operator's word, until the process ends."""
        self.rotten: dict[tuple[int, int], None] = {}
        """Ledger and entry of copies that a disk damaged, and that nobody stored again since."""
        self._lost: list[Disk] = []
        self._metadata = metadata
        self._history = history
        self._process: BookieProcess | None = None
        self._restart: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def process(self) -> BookieProcess:
        assert self._process is not None
        return self._process

    # --- life -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Replay, listen, register. A bookie without its disk does not start."""
        if self._process is not None or self.disk.lost or self.is_retired or self.is_held_back:
            return
        self.trace(self.host, "starts")
        self.read_only = self.held_read_only = False
        if self.network.is_dark(self.host):
            self.network.power_on(self.host)
        process = self._process = BookieProcess(self)
        self.network.listen(self.host, PORT, process.accept)
        self._spawn(process, self._register(process), "register")

    def kill(self) -> None:
        """The process is killed; its kernel tells the peers."""
        process = self._end("is killed")
        if process is not None:
            for connection in self.network.of(self.host):
                connection.die(self.host)

    def power_off(self) -> None:
        """The host is gone, without a word."""
        if self._end("loses its power") is not None:
            self.network.power_off(self.host)

    def end(self) -> None:
        """The run is over."""
        if self._restart is not None:
            self._restart.cancel()
        self.kill()

    def lose_disk(self) -> None:
        """The bookie ends and never comes back."""
        self.kill()
        self.disk.lost = True

    def replace_disk(self) -> None:
        """The bookie ends, and comes back with an empty disk. It knows that: every ledger that names it is in limbo,
        in which it takes no adds of writers and never says that an entry does not exist."""
        self.kill()
        self._lost.append(self.disk)
        self.disk = Disk()
        for ledger in self._history.ledgers.values():
            if any(self.bookie_id in version.metadata.all_bookies() for version in ledger.versions):
                self.doubtful[ledger.ledger_id] = None

    def be_another(self) -> None:
        """The bookie ends, and another one comes under its id that was healed since and does not know what this one had
        fenced, as one of the reference's."""
        self.kill()
        self.disk = self.disk.without_fences()
        self._history.emptied(self.bookie_id)

    def empty_disk(self) -> None:
        """The bookie ends, and is held back until it may come back with an empty disk, of which it knows nothing: it
        denies what it had."""
        self.is_held_back = True
        self.kill()
        self._lost.append(self.disk)
        self.disk = Disk()
        self._history.emptied(self.bookie_id)

    def begin_anew(self) -> None:
        """Another bookie begins under the id of one that was decommissioned."""
        self.trace(self.host, "is another bookie from now on")
        self._history.emptied(self.bookie_id)
        self.disk, self._lost, self.doubtful = Disk(), [], {}
        self.is_retired, self.writes_cookie = False, True
        self.start()

    def rot(self, ledger_id: int, entry_id: int) -> None:
        """A bit of an entry flips on the disk. The bookie, which knows no digests, does not notice."""
        self.trace(self.host, f"ledger {ledger_id}: entry {entry_id} rots")
        self.rotten[ledger_id, entry_id] = None
        entry = self.disk.rot(ledger_id, entry_id)
        if self._process is not None:
            self._process.storage.rot(ledger_id, entry_id, entry)

    def drop(self, ledger_id: int) -> None:
        """Collect a ledger's entries as garbage."""
        self.trace(self.host, f"ledger {ledger_id}: its entries are collected")
        self.disk.drop(ledger_id)
        if self._process is not None:
            self._process.storage.drop_entries(ledger_id)

    def collect(self, ledger_id: int) -> None:
        """The ledger was deleted: nothing of it stays, but that it was fenced."""
        self.trace(self.host, f"ledger {ledger_id}: it is collected")
        self.disk.forget(ledger_id)
        if self._process is not None:
            self._process.collect(ledger_id)

    def had(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a disk that was lost held the entry."""
        return any((ledger_id, entry_id) in disk.entries for disk in self._lost)

    def has(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the entry can be read, undamaged, from the disk of now."""
        key = ledger_id, entry_id
        return not self.disk.lost and key in self.disk.entries and key not in self.rotten

    @property
    def has_lost_data(self) -> bool:
        return self.disk.lost or bool(self._lost)

    def set_read_only(self, read_only: bool) -> None:
        process = self._process
        if process is None or self.read_only == read_only or (self.held_read_only and not read_only):
            return
        self.trace(self.host, "turns read-only" if read_only else "turns writable")
        self.read_only = read_only
        process.admission.set_mode(read_only=read_only, high_priority_writes=True)
        self._spawn(process, self._announce_mode(process), "mode")

    def _end(self, why: str) -> BookieProcess | None:
        process, self._process = self._process, None
        if process is None:
            return None
        self.trace(self.host, why)
        self.network.stop_listening(self.host, PORT)
        process.stop()
        self._metadata.forget(self.host)
        for connection in sorted(process.served, key=lambda connection: connection.wire.peer):
            connection.connection_lost(None)
        if process.registration is not None:
            # Its session is gone: this only ends what runs in the background.
            self._spawn(process, process.registration.deregister(), "end")
        return process

    # --- registration ---------------------------------------------------------------------------------------

    async def _register(self, process: BookieProcess) -> None:
        tree = await self._metadata.connect(self.host)
        process.tree = MetadataService(tree, ROOT, None)
        await process.tree.prepare()
        if self.writes_cookie:
            with suppress(MetadataExists):
                await process.tree.cookies.create(self.bookie_id, b"a cookie")
            self.writes_cookie = False
            self._has_cookie = True
        info = BookieServiceInfo((Endpoint("bookie", self.host, PORT, BOOKIE_RPC),), {})
        registration = process.registration = RegistrationManager(
            process.tree,
            self.bookie_id,
            info,
            lambda failure: self._give_up(process),
            partial(self._admit, process.tree),
            retry_seconds=0.5,
        )
        await registration.register(read_only=self.read_only)
        process.announces_mode = True
        await self._announce_mode(process)  # it may have changed meanwhile

    async def _admit(self, tree: MetadataService) -> bool:
        """As `Membership`: a bookie without its cookie ends."""
        if self._has_cookie:
            try:
                await tree.cookies.read(self.bookie_id)
            except MetadataNotFound:
                raise NotAMember(f"the cookie of {self.bookie_id} is gone") from None
        return self.read_only

    async def _announce_mode(self, process: BookieProcess) -> None:
        registration = process.registration
        if registration is not None and process.announces_mode:
            await (registration.to_read_only() if self.read_only else registration.to_writable())

    def _spawn(self, process: BookieProcess, work: Any, name: str) -> None:
        async def run() -> None:
            try:
                await work
            except (MetadataError, StartupError, TimeoutError) as error:
                self.trace(self.host, f"{name} failed: {error}")
                self._give_up(process)

        task = self.loop.create_task(run(), name=f"{self.host} {name}")
        process.tasks[task] = None
        task.add_done_callback(lambda done: process.tasks.pop(done, None))

    def _give_up(self, process: BookieProcess) -> None:
        """As a real one: the process ends, and Kubernetes starts it again."""
        if self._process is process:
            self.kill()
            self._restart = self.loop.call_later(_RESTART_SECONDS, self.start)

    # --- what happens here ----------------------------------------------------------------------------------

    def put(self, ledger_id: int, entry_id: int, entry: bytes, *, recovery: bool) -> None:
        """An entry was admitted. `recovery`: although the ledger may be fenced."""
        if self.trace.on:
            self.trace(self.host, f"ledger {ledger_id}: stores entry {entry_id}")
        self.rotten.pop((ledger_id, entry_id), None)
        self._history.stored(self.bookie_id, ledger_id, entry_id, entry, recovery=recovery)
        self.on_event("put", self.host)

    def history_of(self, ledger_id: int) -> LedgerHistory | None:
        """Return the ledger that has this id now."""
        return self._history.ledgers.get(ledger_id)

    def answered_read(
        self, request: ReadRequest, error: BaseException | None, ledger: LedgerHistory | None = None
    ) -> None:
        """A read is answered now. It was asked of this `ledger`, which may be gone, and its id another one's."""
        fencing = request.fence_key is not None
        is_of_this_one = self.history_of(request.ledger_id) is ledger
        if self.trace.on:
            kind = "fencing read" if fencing else "read"
            outcome = "" if error is None else f": {type(error).__name__}"
            self.trace(self.host, f"ledger {request.ledger_id}: {kind} of entry {request.entry_id}{outcome}")
        if fencing and is_of_this_one and self.is_running and (error is None or isinstance(error, NotThere)):
            self._history.fenced(self.bookie_id, request.ledger_id)
        if fencing and isinstance(error, NotThere):
            if is_of_this_one:
                self._history.denied(self.bookie_id, request.ledger_id, request.entry_id)
            self.on_event("negative", self.host)
        elif fencing:
            self.on_event("fence", self.host)

    def holds(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The entry, if it is durable and undamaged here (or was, when the disk was lost)."""
        if (ledger_id, entry_id) in self.rotten:
            return None
        for disk in (self.disk, *self._lost):
            entry = disk.entries.get((ledger_id, entry_id))
            if entry is not None:
                return entry
        return None

    def read_from_disk(self, entry: bytes) -> bytes:
        """What becomes of a read. The LAC in an entry's header stays: a bookie, which knows no digests, passes it on as
        it is, and no client can tell."""
        if self.loop.time() >= self.bad_reads_until or self.random.random() < 0.3:
            return entry
        if self.bad_reads == "error":
            raise StorageFault("the virtual disk cannot read this")
        at = int(self.random.random() * (len(entry) - _LAC_BYTES))
        if at >= _LAC_AT:
            at += _LAC_BYTES
        return entry[:at] + bytes((entry[at] ^ 1 << int(self.random.random() * 8),)) + entry[at + 1 :]

    def forget_memory(self) -> None:
        """A flush: reads go to the disk."""
        if self._process is not None:
            self._process.storage.swap()
