"""The state that the requests of all connections of a bookie share.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from bookie_pod.audit import Audit
from bookie_pod.client_memory import UNGOVERNED_BYTES, MemoryGovernor
from bookie_pod.config.model import BookieConfig
from bookie_pod.ledgers.operations import LedgerOperations
from bookie_pod.ledgers.state import LedgerState
from bookie_pod.logs import FewLines
from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.requests import RequestMetrics
from bookie_pod.server.tcp.admission import WriteAdmission
from bookie_pod.server.tcp.connection_stalls import LoopTurns
from bookie_pod.server.tcp.frame_rooms import FrameRooms
from bookie_pod.server.tcp.request_log import RequestLog

if TYPE_CHECKING:
    from bookie_pod.telemetry.otlp import Tracer

V2_HEAD_BYTES: Final = 28
"""Bytes of an add of version 2 before its entry: no entry is longer than what fits behind them into a frame."""
V3_HEAD_BYTES: Final = 128
"""Bytes that hold the head of any add of version 3: an entry that version 2 let in can be copied over version 3."""
TOLD_AFTER_S: Final = 0.02
"""Seconds after which the metrics know of a read that memory answered."""
REQUEST_BYTES: Final = 3 * 1024
"""Bytes of a request under way, about: itself, its reply, its place in a queue."""
REQUESTS_SHARE: Final = 8
"""They may take such a part of what clients may hold."""
FEW_REQUESTS: Final = 16
"""The number of requests that each connection may have under way in any case."""
_log = structlog.get_logger(__name__)


class ServerContext:
    """The state that the requests of all connections share."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        operations: LedgerOperations,
        admission: WriteAdmission,
        config: BookieConfig,
        *,
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
        self.metrics = metrics or RequestMetrics(Registry())
        self.memory = memory or MemoryGovernor(UNGOVERNED_BYTES)
        self.audit = audit or Audit("bookie", Registry())
        self.reads_in_progress = ReadsInProgress(
            config.network.max_reads_in_progress, lambda seconds: self.metrics.reads_blocked(seconds)
        )
        self.requests = RequestsUnderWay(self.memory.limit // REQUESTS_SHARE // REQUEST_BYTES)
        self.specials_in_progress = 0
        """Explicit LACs and forces that wait for their journal."""
        self._answered = self._answered_bytes = 0
        """Plain reads that memory answered, of which the metrics do not know yet."""
        self.turns = LoopTurns(loop)
        self.frame_rooms = FrameRooms(loop, self.memory, lambda: admission.parked_bytes >= admission.parked_bytes_max)
        self.connection_errors = 0
        self.complaints = FewLines(_log)
        """The log of clients' faults."""
        self.request_log = RequestLog(config.network.slow_request_ms)
        self.tracer: Tracer | None = None
        """Traces requests, if telemetry is on."""
        self.cold_state = LedgerState(-1, b"", 0)
        """Stands for "no state": its `hot_key` is None for ever."""

    @property
    def max_entry_bytes(self) -> int:
        """The longest entry, whatever the version of its add."""
        return self.options.max_frame_size_bytes - V2_HEAD_BYTES

    @property
    def busy(self) -> bool:
        """True while something is under way that will be answered."""
        return self.admission.adds_in_progress > 0 or self.reads_in_progress.count > 0 or self.specials_in_progress > 0

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

    def __init__(self, limit: int, blocked: Callable[[float], None]) -> None:
        """`blocked` is called with the seconds for which one of them waited."""
        self._limit = limit
        self._blocked = blocked
        self._waiting: dict[Callable[[], None], float] = {}
        """The calls by which those that wait go on, and since when they wait (`time.monotonic`)."""
        self.count = 0

    def started(self) -> bool:
        """Count one more, and return whether who asked for it has to `wait`."""
        self.count += 1
        return 0 < self._limit <= self.count

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` when there are fewer."""
        self._waiting.setdefault(go_on, time.monotonic())

    def finished(self) -> None:
        self.count -= 1
        if self._waiting and self.count < self._limit:
            waiting, self._waiting = self._waiting, {}
            now = time.monotonic()
            for go_on, since in waiting.items():
                self._blocked(now - since)
                go_on()

    def forget(self, go_on: Callable[[], None]) -> None:
        self._waiting.pop(go_on, None)
