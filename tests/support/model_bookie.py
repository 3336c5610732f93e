"""A model bookie: the semantics that the client protocol relies on, in memory, and faults on demand.

`ModelBookie` is the bookie itself (reference client protocol, section 19); `ModelBookieServer` speaks v2 and
v3 over TCP for it. Simulations use the first without the second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from bookie_protocol.entry import LAST_ENTRY, read_lac_packet, read_prefix
from bookie_protocol.errors import (
    BadRequest,
    BookieReadOnly,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    PodkeeperError,
    ProtocolViolation,
    StorageFault,
    Unauthorized,
    V2Code,
)
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v2, v3
from bookie_protocol.wire.framing import FrameReader
from bookie_protocol.wire.v2 import Flag, OpCode
from tests.support.model_bookie_v3 import is_long_poll, serve_v3


@dataclass
class ModelLedger:
    key: bytes
    fenced: bool = False
    entries: dict[int, bytes] = field(default_factory=dict)
    lac: int = -1
    explicit_lac: bytes | None = None
    """The packet of WRITE_LAC."""
    unsynced: set[int] = field(default_factory=set)
    """Entries that were acknowledged before their sync; a crash loses them."""


class ModelBookie:
    """What one bookie stores. Every call either takes effect as a whole or raises."""

    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.ledgers: dict[int, ModelLedger] = {}
        self.read_only = False
        self.fail_adds: type[PodkeeperError] | None = None
        self.fail_reads: type[PodkeeperError] | None = None
        self.fail_forces: type[PodkeeperError] | None = None
        self.fail_lac_writes: type[PodkeeperError] | None = None
        self.verifies = False
        """Damaged entries are refused as an I/O error, as our own bookies do, and not served as they are."""
        self.rotten: set[tuple[int, int]] = set()
        """Ledger and entry of each damaged copy."""
        self.lists = True
        """Entries are listed, as our own bookies do. Java's with DbLedgerStorage do not."""
        self.knows_batch_reads = True
        self.knows_steps = True
        self.total_bytes = self.free_bytes = 1 << 40
        self.adds = 0
        self.reads = 0
        self.batch_reads = 0
        self.forces = 0
        self.lac_writes = 0
        self.long_polls = 0
        self.lac_waiters: dict[int, set[Callable[[], None]]] = {}
        """Long polls that wait, by ledger."""

    def add(self, key: bytes, entry: bytes, *, recovery: bool = False, deferred: bool = False) -> None:
        self.adds += 1
        if self.fail_adds is not None:
            raise self.fail_adds("model fault")
        if self.read_only and not recovery:
            raise BookieReadOnly("model bookie is read-only")
        ledger_id, entry_id, lac = read_prefix(entry)
        ledger = self._ledger(ledger_id, key)
        if ledger.fenced and not recovery:
            raise LedgerFenced(f"ledger {ledger_id} is fenced")
        ledger.entries[entry_id] = entry
        self.rotten.discard((ledger_id, entry_id))
        if lac > ledger.lac:
            ledger.lac = lac
            self._wake(ledger_id)
        if deferred:
            ledger.unsynced.add(entry_id)
        else:
            ledger.unsynced.discard(entry_id)

    def force(self, ledger_id: int) -> None:
        """Make durable what was acknowledged before."""
        self.forces += 1
        if self.fail_forces is not None:
            raise self.fail_forces("model fault")
        if ledger_id in self.ledgers:
            self.ledgers[ledger_id].unsynced.clear()

    def crash(self) -> None:
        """Lose what was not synced."""
        for ledger in self.ledgers.values():
            for entry_id in ledger.unsynced:
                del ledger.entries[entry_id]
            ledger.unsynced.clear()

    def write_lac(self, key: bytes, ledger_id: int, packet: bytes) -> None:
        """Also into a fenced ledger."""
        self.lac_writes += 1
        if self.fail_lac_writes is not None:
            raise self.fail_lac_writes("model fault")
        ledger = self._ledger(ledger_id, key)
        ledger.explicit_lac = packet
        ledger.lac = max(ledger.lac, read_lac_packet(packet).lac)
        self._wake(ledger_id)

    def read_lac(self, ledger_id: int) -> tuple[bytes | None, bytes | None]:
        """The explicit LAC's packet, and the last entry."""
        self.reads += 1
        if self.fail_reads is not None:
            raise self.fail_reads("model fault")
        ledger = self.ledgers.get(ledger_id, ModelLedger(b""))
        last = ledger.entries[max(ledger.entries)] if ledger.entries else None
        if last is None and ledger.explicit_lac is None:
            raise NoSuchEntry(f"ledger {ledger_id}")
        return ledger.explicit_lac, last

    def read(self, ledger_id: int, entry_id: int, fence_key: bytes | None = None) -> tuple[bytes, int]:
        """The entry and the highest LAC known."""
        self.reads += 1
        if fence_key is not None:
            if not fence_key:
                raise Unauthorized("a fencing read needs the master key")
            self._ledger(ledger_id, fence_key).fenced = True
            self._wake(ledger_id)
        if self.fail_reads is not None:
            raise self.fail_reads("model fault")
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            raise NoSuchLedger(f"ledger {ledger_id}")
        if entry_id == LAST_ENTRY:
            entry_id = max(ledger.entries, default=LAST_ENTRY)
        entry = ledger.entries.get(entry_id)
        if entry is None:
            raise NoSuchEntry(f"entry {entry_id} of ledger {ledger_id}")
        self._check(ledger_id, entry_id)
        return entry, ledger.lac

    def read_batch(self, ledger_id: int, first: int, max_count: int, max_size: int, step: int = 1) -> list[bytes]:
        """Entries one step apart, at least one, as many as count and size of the answer's frame allow."""
        self.batch_reads += 1
        if self.fail_reads is not None:
            raise self.fail_reads("model fault")
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            raise NoSuchLedger(f"ledger {ledger_id}")
        if first not in ledger.entries:
            raise NoSuchEntry(f"entry {first} of ledger {ledger_id}")
        self._check(ledger_id, first)
        entries: list[bytes] = []
        size = 36
        while (entry := ledger.entries.get(first + len(entries) * step)) is not None:
            size += len(entry) + 4
            if entries and (size > max_size or (0 < max_count <= len(entries))):
                break
            if self.verifies and (ledger_id, first + len(entries) * step) in self.rotten:
                break
            entries.append(entry)
        return entries

    def list_entries(self, ledger_id: int) -> list[int]:
        """What the index says, which knows nothing of damage."""
        if not self.lists:
            raise BadRequest("the model bookie does not list its entries")
        if self.fail_reads is not None:
            raise self.fail_reads("model fault")
        if ledger_id not in self.ledgers:
            raise NoSuchLedger(f"ledger {ledger_id}")
        return sorted(self.ledgers[ledger_id].entries)

    def must_wait(self, ledger_id: int, previous_lac: int) -> bool:
        """Whether a long poll has nothing to tell yet."""
        ledger = self.ledgers.get(ledger_id)
        return self.fail_reads is None and ledger is not None and ledger.lac <= previous_lac

    def long_poll(self, ledger_id: int, previous_lac: int) -> tuple[bytes | None, int]:
        """The entry behind `previous_lac`, if it is confirmed and stored here, and the LAC."""
        if self.fail_reads is not None:
            raise self.fail_reads("model fault")
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            raise NoSuchLedger(f"ledger {ledger_id}")
        entry = ledger.entries.get(previous_lac + 1) if ledger.lac > previous_lac else None
        return entry, ledger.lac

    def _wake(self, ledger_id: int) -> None:
        for waiter in list(self.lac_waiters.get(ledger_id, ())):
            waiter()

    def damage(self, ledger_id: int, entry_id: int) -> None:
        """Flip one bit of the stored payload."""
        entry = bytearray(self.ledgers[ledger_id].entries[entry_id])
        entry[-1] ^= 1
        self.ledgers[ledger_id].entries[entry_id] = bytes(entry)
        self.rotten.add((ledger_id, entry_id))

    def _check(self, ledger_id: int, entry_id: int) -> None:
        if self.verifies and (ledger_id, entry_id) in self.rotten:
            raise StorageFault(f"entry {entry_id} of ledger {ledger_id} is damaged")

    def _ledger(self, ledger_id: int, key: bytes) -> ModelLedger:
        ledger = self.ledgers.setdefault(ledger_id, ModelLedger(key))
        if ledger.key != key:
            raise Unauthorized(f"ledger {ledger_id} has another key")
        return ledger


class ModelBookieServer:
    """Serves a model bookie. `silent`: requests take effect and no answer is sent; `hold`: nothing takes
    effect until `release`."""

    def __init__(self, bookie: ModelBookie, *, port: int = 0) -> None:
        self.bookie = bookie
        self.port = port
        self.silent = False
        self.hold = False
        self.shuffle_answers = False
        self.connections: set[_Connection] = set()
        self.accepted = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As a killed process: no answer to anything that is under way."""
        if self._server is not None:
            self._server.close()
            for connection in list(self.connections):
                connection.abort()
            await self._server.wait_closed()
            self._server = None

    def release(self) -> None:
        self.hold = False
        for connection in list(self.connections):
            connection.serve_held()

    @property
    def held(self) -> int:
        return sum(len(connection.held) for connection in self.connections)


class _Connection(asyncio.Protocol):
    def __init__(self, server: ModelBookieServer) -> None:
        self._server = server
        self._frames = FrameReader()
        self._speaks_v2 = False
        self.held: list[bytes] = []
        self._timers: list[tuple[asyncio.TimerHandle, set[Callable[[], None]], Callable[[], None]]] = []
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.connections.add(self)
        self._server.accepted += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        for timer, waiters, answer in self._timers:
            timer.cancel()
            waiters.discard(answer)

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            self.held += self._frames.feed(data)
            if not self._server.hold:
                self.serve_held()
        except ProtocolViolation:
            self._transport.abort()

    def serve_held(self) -> None:
        bodies, self.held = self.held, []
        answers = [self._serve(body) for body in bodies]
        if self._server.shuffle_answers:
            answers.reverse()
        if not self._server.silent:
            self._transport.write(b"".join(answers))

    def _serve(self, body: bytes) -> bytes:
        request = None if self._speaks_v2 else v3.parse_request(body)
        if request is not None:
            if is_long_poll(request) and self._waits(request):
                return b""
            return v3.encode_frame(serve_v3(self._server.bookie, request))
        self._speaks_v2 = True
        v2_request = v2.decode_request(body)
        if isinstance(v2_request, v2.BatchReadRequest):
            return self._serve_batch(v2_request)
        return self._serve_v2(v2_request)

    def _waits(self, request: pb.Request) -> bool:
        """Answer a long poll later, if there is nothing to tell yet."""
        bookie, read = self._server.bookie, request.readRequest
        bookie.long_polls += 1
        if not bookie.must_wait(read.ledgerId, read.previousLAC):
            return False
        waiters = bookie.lac_waiters.setdefault(read.ledgerId, set())

        def answer() -> None:
            waiters.discard(answer)
            timer.cancel()
            if not self._transport.is_closing() and not self._server.silent:
                self._transport.write(v3.encode_frame(serve_v3(bookie, request)))

        timer = asyncio.get_running_loop().call_later(read.timeOut / 1000, answer)
        waiters.add(answer)
        self._timers.append((timer, waiters, answer))
        return True

    def _serve_batch(self, request: v2.BatchReadRequest) -> bytes:
        bookie = self._server.bookie
        if not bookie.knows_batch_reads:
            raise ProtocolViolation("this model bookie is older than batch reads")
        code, entries = V2Code.EOK, list[bytes]()
        step, flags = (request.step, request.flags) if bookie.knows_steps else (1, Flag.NONE)
        try:
            entries = bookie.read_batch(request.ledger_id, request.entry_id, request.max_count, request.max_size, step)
        except PodkeeperError as error:
            code = error.v2
        ids = request.ledger_id, request.entry_id, request.request_id
        return b"".join(v2.encode_batch_read_response(request.version, code, *ids, entries, flags))

    def _serve_v2(self, request: v2.Request) -> bytes:
        bookie = self._server.bookie
        code, entry = V2Code.EOK, b""
        assert isinstance(request, v2.AddRequest | v2.ReadRequest)
        opcode = OpCode.ADDENTRY if isinstance(request, v2.AddRequest) else OpCode.READENTRY
        try:
            if isinstance(request, v2.AddRequest):
                recovery = bool(request.flags & Flag.RECOVERY_ADD)
                bookie.add(request.master_key, request.entry, recovery=recovery)
            else:
                entry, _ = bookie.read(request.ledger_id, request.entry_id, request.master_key)
        except PodkeeperError as error:
            code = error.v2
        if opcode is OpCode.READENTRY and code == V2Code.EOK:
            pieces = v2.encode_read_response(request.version, request.ledger_id, request.entry_id, entry)
            return b"".join(pieces)
        return v2.encode_response(request.version, opcode, code, request.ledger_id, request.entry_id)
