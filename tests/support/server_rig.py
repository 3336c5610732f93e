"""The TCP server over a storage in memory, journals that acknowledge when a test says so, and transports of paper."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.model import BookieConfig
from bookie_pod.ledgers.operations import LedgerOperations
from bookie_pod.ledgers.registry import Ledgers
from bookie_pod.server.tcp.admission import PARKED_BYTES_MAX, WriteAdmission
from bookie_pod.server.tcp.clients import Clients
from bookie_pod.server.tcp.connection import Connection
from bookie_pod.server.tcp.context import ServerContext
from bookie_pod.server.tcp.handlers import RequestHandlers
from bookie_pod.server.tcp.long_poll import LongPolls
from bookie_pod.server.tcp.read_lanes import ReadLanes
from bookie_pod.server.tcp.reads import Reads
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.journal.batch_queue import JournalBatch
from bookie_pod.storage.journal.format import RecordKind, kind_of
from bookie_protocol.errors import StorageFault
from tests.support.frames import cut
from tests.support.storage_engine import MemoryBookie, small_options


class HeldJournal:
    """Takes batches, acknowledges them when told to."""

    def __init__(self) -> None:
        self.batches: list[JournalBatch] = []
        self.waiting: list[JournalBatch] = []
        self.full = False
        self.error: StorageFault | None = None

    def append(self, batch: JournalBatch) -> None:
        if self.error is not None:
            raise self.error
        self.batches.append(batch)
        self.waiting.append(batch)

    def has_room(self) -> bool:
        return not self.full

    def acknowledge(self, count: int | None = None) -> None:
        """Tell the oldest `count` batches (None: all) that they are durable."""
        count = len(self.waiting) if count is None else count
        done, self.waiting = self.waiting[:count], self.waiting[count:]
        for batch in done:
            if batch.on_done is not None:
                batch.on_done(None)

    @property
    def records(self) -> list[tuple[RecordKind, int]]:
        """(kind, ledger id) of every record, in order."""
        found = []
        for batch in self.batches:
            for body in batch.pieces[1::2]:
                ledger_id = int.from_bytes(body[:8], signed=True)
                found.append((kind_of(int.from_bytes(body[8:16], signed=True)), ledger_id))
        return found


class PaperTls:
    """The protocol of TLS, which decrypts nothing."""

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(bytearray(sizehint))

    def buffer_updated(self, nbytes: int) -> None:
        pass


class PaperTransport:
    """What a connection does to its transport, written down. It may be one with TLS, or below that."""

    def __init__(self) -> None:
        self.protocol: Any = PaperTls()
        self.read_limit: int | None = None
        self.writes: list[bytes] = []
        self.reading = True
        self.closing = False
        self.aborted = False
        self.limits: dict[str, int] = {}
        self.unsent = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 40000) if name == "peername" else None

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self.limits = {"high": high, "low": low}

    def set_read_buffer_limits(self, high: int) -> None:
        self.read_limit = high

    def get_read_buffer_size(self) -> int:
        return 0

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def writelines(self, pieces: list[bytes]) -> None:
        self.writes.append(b"".join(pieces))

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    @property
    def frames(self) -> list[bytes]:
        """Everything written, cut into frames with their length words."""
        return cut(b"".join(self.writes))


class SlowTransport(PaperTransport):
    """Takes nothing until it is told to."""

    conn: Connection
    taken = 0

    def write(self, data: bytes) -> None:
        self._keep(len(data))

    def writelines(self, pieces: list[bytes]) -> None:
        self._keep(sum(map(len, pieces)))

    def _keep(self, nbytes: int) -> None:
        above = self.unsent > self.limits["high"]
        self.unsent += nbytes
        if self.unsent > self.limits["high"] and not above:
            self.conn.pause_writing()

    def abort(self) -> None:
        super().abort()
        self.conn.wire.context.loop.call_soon(self.conn.connection_lost, None)

    def take(self) -> None:
        self.taken += self.unsent
        above, self.unsent = self.unsent > self.limits["high"], 0
        if above:
            self.conn.resume_writing()


@dataclass
class ServerRig:
    """Make it inside a running loop; `close` stops its threads."""

    config: BookieConfig = field(default_factory=BookieConfig)
    journals: list[HeldJournal] = field(default_factory=lambda: [HeldJournal()])
    half_bytes: int = 1 << 20
    read_cache_bytes: int = 1 << 20
    directories: int = 1
    write_data: bool = True
    polls_max: int = 1000
    reads_pending_max: int = 1000
    memory_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.bookie = MemoryBookie(
            tuple(f"/ledgers{index}" for index in range(self.directories)),
            small_options(
                half_bytes=self.half_bytes, directories=self.directories, read_cache_bytes=self.read_cache_bytes
            ),
        )
        self.storage: LedgerStorage = self.bookie.open()
        self.flush_requests: list[int] = []
        self.storage.request_flush = self.flush_requests.append  # type: ignore[method-assign]
        self.ledgers = Ledgers(self.storage, len(self.journals))
        self.storage.on_ledger_deleted(self.ledgers.forget)
        self.operations = LedgerOperations(self.ledgers, self.journals, write_data=self.write_data)
        self.admission = WriteAdmission(
            self.storage,
            self.journals,
            adds_in_progress_max=self.config.network.max_adds_in_progress,
            parked_bytes_max=min(PARKED_BYTES_MAX, self.memory_bytes // 2),
        )
        self.operations.on_full = self.admission.filled
        self.operations.on_acknowledged = self.admission.acknowledged
        self.lanes = ReadLanes("read", 1, self.reads_pending_max, loop)
        self.reads = Reads(self.operations, self.lanes, self.lanes, self.config.network.max_batch_read_size_bytes)
        self.polls = LongPolls(self.ledgers, self.reads, self.lanes, loop, self.polls_max)
        self.context = ServerContext(
            loop, self.operations, self.admission, self.config, memory=MemoryGovernor(self.memory_bytes)
        )
        self.handlers = RequestHandlers(self.context, self.reads, self.polls, self.lanes, lambda: (100, 50))
        self.clients = Clients(self.context, self.handlers)
        self.clients.accepting = True

    @property
    def journal(self) -> HeldJournal:
        return self.journals[0]

    def connect(self) -> tuple[Connection, PaperTransport]:
        conn, transport = Connection(self.clients), PaperTransport()
        conn.connection_made(transport)  # type: ignore[arg-type]
        return conn, transport

    async def settle(self, condition: Callable[[], object] = lambda: True) -> None:
        """Let the loop and the lanes do what they have to do, then wait for `condition`."""
        async with asyncio.timeout(10):
            for _ in range(3):
                await asyncio.sleep(0)
            while self.lanes.pending or not condition():  # noqa: ASYNC110 - threads finish when they finish
                await asyncio.sleep(0.001)
            for _ in range(3):
                await asyncio.sleep(0)

    def close(self) -> None:
        self.lanes.stop()
        self.storage.close()


async def answers(rig: ServerRig, transport: PaperTransport, count: int) -> list[bytes]:
    """The first so many answers, as the journal acknowledges."""
    async with asyncio.timeout(10):
        while len(transport.frames) < count:
            rig.journal.acknowledge()
            await rig.settle()
    return transport.frames


def slow(rig: ServerRig, transport: SlowTransport | None = None) -> tuple[Connection, SlowTransport]:
    conn, transport = Connection(rig.clients), transport or SlowTransport()
    transport.conn = conn
    conn.connection_made(transport)  # type: ignore[arg-type]
    return conn, transport
