"""One life of a virtual bookie: the real request handling, put together over virtual parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from bookie_pod.config.model import BookieConfig
from bookie_pod.ledgers.operations import LedgerOperations, WriteLane
from bookie_pod.ledgers.registry import Ledgers
from bookie_pod.ledgers.state import LedgerState
from bookie_pod.node.identity.earlier_life import metadata_questions
from bookie_pod.node.recovery import ReplayIntoStorage
from bookie_pod.node.registration import RegistrationManager
from bookie_pod.server.tcp.admission import WriteAdmission
from bookie_pod.server.tcp.clients import Clients
from bookie_pod.server.tcp.connection import Connection
from bookie_pod.server.tcp.context import ServerContext
from bookie_pod.server.tcp.handlers import RequestHandlers
from bookie_pod.server.tcp.lane_reads import PlainRead, ReadDialect
from bookie_pod.server.tcp.long_poll import LongPolls
from bookie_pod.server.tcp.reads import Reads
from bookie_pod.server.tcp.requests import ReadRequest, Reply
from bookie_pod.server.tcp.wire import Wire
from bookie_pod.storage.gc.fenced_deleted import FencedAndDeleted
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_protocol.errors import MetadataUnavailable
from bookie_protocol.keys import NO_LIFE
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import Versioned
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.simulation.disk import VirtualJournal, VirtualLanes
from tests.support.simulation.storage import VirtualStorage

if TYPE_CHECKING:
    from tests.support.simulation.bookie import VirtualBookie

_CONFIG: Final = BookieConfig()


class BookieProcess:
    """One life of a bookie."""

    def __init__(self, bookie: VirtualBookie) -> None:
        self.storage = VirtualStorage()
        replay = ReplayIntoStorage(self.storage)
        bookie.disk.replay(replay)
        for ledger_id in bookie.doubtful:
            self._doubt(ledger_id)
        loop, host = bookie.loop, bookie.host
        self.journal = VirtualJournal(loop, bookie.disk, bookie.random, bookie.disk_options, bookie.slowness)
        self.journal.on_sync = lambda: bookie.on_event("sync", host)
        self.lanes = VirtualLanes(loop, bookie.random, bookie.disk_options)
        fenced = FencedAndDeleted(clock=loop.time)
        ledgers = Ledgers(self.storage, 1, journaled_keys=replay.journaled_keys, fenced_and_deleted=fenced)
        operations = _ObservedOperations(ledgers, [self.journal])
        self.storage.on_ledger_deleted(operations.forget)
        self.admission = WriteAdmission(self.storage, [self.journal])
        operations.on_full = self.admission.filled
        operations.on_acknowledged = self.admission.acknowledged
        lanes: Any = self.lanes
        reads = _ObservedReads(operations, lanes, lanes, _CONFIG.network.max_batch_read_size_bytes)
        reads.observe = lambda request, reply: _ObservedReply(reply, request, bookie)
        reads.answered_read = bookie.answered_read
        polls = LongPolls(ledgers, reads, lanes, loop)
        context = ServerContext(loop, operations, self.admission, _CONFIG)
        self.handlers = RequestHandlers(context, reads, polls, lanes, lambda: (1 << 30, 1 << 29))
        self.clients = Clients(context, self.handlers)
        self.served: list[Connection] = []
        store: Any = _Store(self)
        self.handlers.questions = metadata_questions(ledgers, -1, store, bookie.bookie_id, no_check)
        self.clients.accepting = True
        self.storage.swap()  # what was replayed is not in memory
        self.storage.on_put = lambda ledger_id, entry_id, entry: bookie.put(
            ledger_id, entry_id, entry, recovery=operations.is_recovery
        )
        self.storage.on_read = bookie.read_from_disk
        self.tree: MetadataService | None = None
        self.registration: RegistrationManager | None = None
        self.announces_mode = False
        """It is registered for the first time; changes of its mode before that are announced then."""
        self.tasks: dict[asyncio.Task[None], None] = {}

    def _doubt(self, ledger_id: int) -> None:
        """The bookie may have held entries of this ledger, and may have fenced it."""
        record = self.storage.ledger(ledger_id) or LedgerRecord(b"")
        self.storage.set_ledger(ledger_id, replace(record, fenced=True, limbo=True))

    def collect(self, ledger_id: int) -> None:
        """As garbage collection does."""
        self.storage.delete_ledger(ledger_id)

    def accept(self) -> Connection:
        """Return the server's end of a new connection."""
        self.served.append(Connection(self.clients))
        return self.served[-1]

    def stop(self) -> None:
        """Nothing of this process has any effect any more."""
        self.lanes.dead = True
        self.journal.crash()
        self.clients.accepting = False
        for task in self.tasks:
            task.cancel()


async def no_check() -> None:
    """Do nothing: nobody puts the service back to an older state."""


class _Store:
    """The metadata of ledgers, as far as a process reads them. It has a session only a while after it has started."""

    def __init__(self, process: BookieProcess) -> None:
        self._process = process

    async def read(self, ledger_id: int, *, fresh: bool = False) -> Versioned[LedgerMetadata]:
        if self._process.tree is None:
            raise MetadataUnavailable("this bookie has no session yet")
        return await self._process.tree.ledgers.read(ledger_id, fresh=fresh)


class _ObservedOperations(LedgerOperations):
    """Knows whose add is under way."""

    is_recovery = False
    """A recovery's, or a copy. A hot add, which does not come this way, counts as a writer's: where one is taken, so
    would be the writer's."""

    def add(
        self,
        lanes: Sequence[WriteLane],
        ledger_id: int,
        entry_id: int,
        lac: int,
        key: bytes,
        entry: bytes,
        *,
        recovery: bool,
        life: bytes = NO_LIFE,
    ) -> WriteLane:
        self.is_recovery = recovery
        try:
            return super().add(lanes, ledger_id, entry_id, lac, key, entry, recovery=recovery, life=life)
        finally:
            self.is_recovery = False


class _ObservedReads(Reads):
    """Tells how each read that does not come from memory on the hot path was answered."""

    observe: Callable[[ReadRequest, Reply], Reply]
    answered_read: Callable[[ReadRequest, BaseException | None], None]

    def read(self, request: ReadRequest, reply: Reply) -> None:
        super().read(request, self.observe(request, reply))

    def read_run(
        self, wire: Wire, dialect: ReadDialect, state: LedgerState, reads: Sequence[PlainRead], **options: bool
    ) -> None:
        def answer(echo: Any, entry: bytes, its_state: LedgerState) -> Sequence[bytes]:
            self.answered_read(ReadRequest(state.ledger_id, echo[0]), None)
            return dialect.answer(echo[1], entry, its_state)

        def refuse(echo: Any, error: BaseException) -> bytes:
            self.answered_read(ReadRequest(state.ledger_id, echo[0]), error)
            return dialect.refuse(echo[1], error)

        observed = dialect._replace(answer=answer, refuse=refuse, txn_of=lambda echo: dialect.txn_of(echo[1]))
        with_ids = [(entry_id, (entry_id, echo), reserved) for entry_id, echo, reserved in reads]
        super().read_run(wire, observed, state, with_ids, **options)


class _ObservedReply(Reply):
    """Passes everything on."""

    __slots__ = ("_bookie", "_ledger", "_reply", "_request")

    def __init__(self, reply: Reply, request: ReadRequest, bookie: VirtualBookie) -> None:
        self._reply = reply
        self._request = replace(request)
        self._bookie = bookie
        self._ledger = bookie.history_of(request.ledger_id)

    @property
    def gone(self) -> bool:
        return self._reply.gone

    def wait(self) -> None:
        self._reply.wait()

    def go_on(self, *, newer: bool) -> None:
        self._reply.go_on(newer=newer)

    def error(self, error: BaseException) -> None:
        self._bookie.answered_read(self._request, error, self._ledger)
        self._reply.error(error)

    def entry(
        self,
        body: bytes | None,
        *,
        entry_id: int | None = None,
        max_lac: int | None = None,
        lac_time_ms: int | None = None,
    ) -> None:
        self._bookie.answered_read(self._request, None, self._ledger)
        self._reply.entry(body, entry_id=entry_id, max_lac=max_lac, lac_time_ms=lac_time_ms)
