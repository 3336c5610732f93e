"""The state that all connections of a bookie share.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from bookie_pod.audit import Audit
from bookie_pod.client_memory import UNGOVERNED_BYTES, MemoryGovernor
from bookie_pod.config.model import BookieConfig
from bookie_pod.descriptors import bookie_connections
from bookie_pod.ledgers.operations import LedgerOperations, WriteLane
from bookie_pod.ledgers.state import LedgerState
from bookie_pod.logs import FewLines
from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.requests import RequestMetrics
from bookie_pod.server.tcp.admission import WriteAdmission
from bookie_pod.server.tcp.connection_stalls import LoopTurns, Stall
from bookie_pod.server.tcp.frame_rooms import FrameRooms
from bookie_pod.server.tcp.joined import add_ended
from bookie_pod.server.tcp.request_log import RequestLog, traced_adds
from bookie_pod.server.tcp.strangers import ENCRYPTED_SHARE, IDLE_BYTES, EncryptedConnections, Strangers
from bookie_pod.server.tls import HandshakeTurns
from bookie_pod.telemetry.tracing import RequestTracer
from bookie_protocol.wire.auth import ServerAuthProvider

V2_HEAD_BYTES: Final = 28
"""Bytes of an add of version 2 before its entry: no entry is longer than what fits behind them into a frame."""
V3_HEAD_BYTES: Final = 128
"""Bytes that hold the head of any add of version 3: an entry that version 2 let in can be copied over version 3."""
ASLEEP_S: Final = 5.0
"""Seconds between two looks at the connections, at which the time counts for no client: see `look_at_connections`."""
TOLD_AFTER_S: Final = 0.02
"""Seconds after which the metrics know of a read that memory answered."""
REQUEST_BYTES: Final = 3 * 1024
"""Bytes of a request under way, about: itself, its reply, its place in a queue."""
REQUESTS_SHARE: Final = 8
"""They may take such a part of what clients may hold."""
FEW_REQUESTS: Final = 16
"""The number of requests that each connection may have under way in any case."""
LENGTH_BYTES: Final = 4
"""Bytes of the length prefix of a journal record."""

if TYPE_CHECKING:
    from bookie_pod.server.tcp.connection import Connection
    from bookie_pod.server.tcp.handlers import RequestHandlers
    from bookie_pod.server.tcp.metadata_questions import MetadataQuestions
    from bookie_pod.server.tls import RenewedTls


_log = structlog.get_logger(__name__)


class ServerContext:
    """Shared by the listener and its connections."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        operations: LedgerOperations,
        admission: WriteAdmission,
        config: BookieConfig,
        make_handlers: Callable[[ServerContext], RequestHandlers],
        *,
        auth: ServerAuthProvider | None = None,
        tls: RenewedTls | None = None,
        metrics: RequestMetrics | None = None,
        memory: MemoryGovernor | None = None,
        audit: Audit | None = None,
    ) -> None:
        self.loop = loop
        self.operations = operations
        self.storage = operations.storage
        self.admission = admission
        self.config = config
        self.options = config.network
        self.max_connections = config.network.max_connections or bookie_connections()
        self.auth = auth
        self.tls = tls
        self.metrics = metrics or RequestMetrics(Registry())
        self.memory = memory or MemoryGovernor(UNGOVERNED_BYTES)
        self.audit = audit or Audit("bookie", Registry())
        self.questions: MetadataQuestions | None = None
        """None: there is no metadata service to ask."""
        self.reads_in_progress = ReadsInProgress(config.network.max_reads_in_progress)
        self.requests = RequestsUnderWay(self.memory.limit // REQUESTS_SHARE // REQUEST_BYTES)
        self.specials_in_progress = 0
        """Explicit LACs and forces that wait for their journal."""
        self.accepting = False
        """False until the bookie has replayed its journals, and again while it stops."""
        self._answered = self._answered_bytes = 0
        """Plain reads that memory answered, of which the metrics do not know yet."""
        self.connections: set[Connection] = set()
        self.encrypted = EncryptedConnections(self.memory.limit // ENCRYPTED_SHARE)
        self.strangers = Strangers(self.encrypted.limit // IDLE_BYTES // 2)
        self.handshakes = HandshakeTurns(self.strangers.most_encrypted)
        self.turns = LoopTurns(loop)
        self.frame_rooms = FrameRooms(loop, self.memory, lambda: admission.parked_bytes >= admission.parked_bytes_max)
        self.connection_errors = 0
        self._looked_at = time.perf_counter()
        self.complaints = FewLines(_log)
        """The log of clients' faults."""
        self.request_log = RequestLog(config.network.slow_request_ms)
        self.tracer: RequestTracer | None = None
        """Traces requests, if telemetry is on."""
        self.connections_refused = 0
        """The connections refused beyond `max_connections`."""
        self.refusals = 0
        """Requests of clients that had to authenticate first."""
        self.cold_state = LedgerState(-1, b"", 0)
        """Stands for "no state": its `hot_key` is None for ever."""
        self.handlers = make_handlers(self)

    @property
    def max_entry_bytes(self) -> int:
        """The longest entry, whatever the version of its add."""
        return self.options.max_frame_size_bytes - V2_HEAD_BYTES

    @property
    def busy(self) -> bool:
        """True while something is under way that will be answered."""
        return self.admission.adds_in_progress > 0 or self.reads_in_progress.count > 0 or self.specials_in_progress > 0

    def look_at_connections(self) -> None:
        """Look at each connection; called every now and then: see `Connection.look`."""
        now = time.perf_counter()
        passed, self._looked_at = now - self._looked_at, now
        # A process that was stopped, or a machine that was: what clients sent meanwhile has still to be received.
        asleep = passed if passed > ASLEEP_S else 0.0
        for conn in tuple(self.connections):
            conn.look(now, asleep)
        self.strangers.look(now, asleep)
        self.frame_rooms.look(now, asleep)
        self.memory.relieve(now)
        self.complaints.look()
        self.request_log.look()

    def account(self, ledger_id: int, nbytes: int, count: int) -> None:
        """Tell the storage what was put into its active half."""
        if self.storage.account(ledger_id, nbytes, count):
            self.admission.filled(ledger_id)

    def read_from_memory(self, entries: int, nbytes: int) -> None:
        """Count plain reads that were answered at once.

        The metrics get all of them together a moment later: that costs as much as the answer to a single one.
        """
        if not self._answered:
            self.loop.call_later(TOLD_AFTER_S, self._tell_reads)
        self._answered += entries
        self._answered_bytes += nbytes

    def _tell_reads(self) -> None:
        entries, nbytes = self._answered, self._answered_bytes
        self._answered = self._answered_bytes = 0
        self.metrics.reads_done(entries, nbytes, 0.0)

    def submit_lanes(self, conn: Connection, *, sync: bool = True) -> None:
        """Hand what a read of the socket gathered to the journals."""
        for lane in conn.lanes:
            if lane.answers:
                entries = len(lane.data) // 2
                acknowledge = _Acknowledge(self, conn, lane, entries)
                self.admission.started(entries - lane.counted)
                nbytes = self.operations.submit(lane, entries, acknowledge, sync=sync) - entries * LENGTH_BYTES
                self.metrics.adds_admitted(entries, nbytes, (time.perf_counter() - conn.received_at) * 1000)


class RequestsUnderWay:
    """Requests over all connections that are answered later, but for adds and many plain reads at once, which have
    bounds of their own. A connection that has as many as are left for the others sends no more for now."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.count = 0

    @property
    def most_of_one(self) -> int:
        """Return how many requests one connection may have at present."""
        return max(FEW_REQUESTS, self._most - self.count)


class ReadsInProgress:
    """Reads under way over all connections; at the limit, those that ask for more stop reading their sockets."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._stalled: dict[Connection, float] = {}
        """Connections, and since when (`time.monotonic`)."""
        self.count = 0

    def started(self, conn: Connection) -> None:
        self.count += 1
        if 0 < self._limit <= self.count:
            self._stalled.setdefault(conn, time.monotonic())
            conn.stall(Stall.READS_LIMIT)

    def finished(self) -> None:
        self.count -= 1
        if self._stalled and self.count < self._limit:
            stalled, self._stalled = self._stalled, {}
            now = time.monotonic()
            for conn, since in stalled.items():
                conn.context.metrics.reads_blocked(now - since)
                conn.unstall(Stall.READS_LIMIT)

    def forget(self, conn: Connection) -> None:
        self._stalled.pop(conn, None)


class _Acknowledge:
    """Sends the answers of one lane when its journal has acknowledged it."""

    __slots__ = ("_admitted", "_answers", "_conn", "_context", "_entries", "_joined", "_since")

    def __init__(self, context: ServerContext, conn: Connection, lane: WriteLane, entries: int) -> None:
        self._context = context
        self._conn = conn
        self._answers = b"".join(lane.answers)
        self._entries = entries
        self._since = conn.received_at
        self._joined = lane.joined
        tracer = context.tracer
        is_traced = tracer is not None and (bool(lane.joined) or random.random() < tracer.ratio)
        self._admitted = time.perf_counter() if is_traced else 0.0
        """The time at which adds that are traced were handed to the journal; 0 for all others."""

    def __call__(self, error: BaseException | None) -> None:
        # With an error nothing is answered: the journal has failed, and the bookie is about to stop.
        # Sent before `finished`, which may admit adds of this connection that waited: answers keep the adds' order.
        if error is None:
            self._conn.send(self._answers)
        self._context.admission.finished(self._entries)
        elapsed_ms = (time.perf_counter() - self._since) * 1000
        self._context.metrics.adds_done(self._entries, elapsed_ms, error is None)
        if elapsed_ms >= self._context.request_log.slow_ms:
            self._context.request_log.adds_were_slow(self._conn.peer, self._answers, elapsed_ms)
        if self._admitted:
            self._trace(elapsed_ms, failed=error is not None)

    def _trace(self, elapsed_ms: float, *, failed: bool) -> None:
        for request in self._joined:
            add_ended(self._conn, request, self._admitted, elapsed_ms, failed=failed)
        tracer = self._context.tracer
        if not self._joined and tracer is not None:
            attributes = traced_adds(self._conn.peer, self._answers, self._entries)
            trace_id = tracer.adds(attributes, self._since, self._admitted, failed=failed)
            self._context.metrics.add_traced(elapsed_ms, trace_id, success=not failed)
