"""Requests as the handlers see them, independent of the wire version, and their replies.

The replies of both wire versions share their connection, error codes, and how reads are counted.

Threads: event loop only.

Source: docs/internals/wire-protocol.md, section 9.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from bookie_pod.server.tcp.request_log import RequestId
from bookie_pod.telemetry.tracing import JoinedRequest
from bookie_protocol.errors import (
    NoSuchEntry,
    PodkeeperError,
    StorageFault,
    TooManyRequests,
    Unauthorized,
    V2Code,
    V3Status,
)
from bookie_protocol.keys import NO_LIFE

if TYPE_CHECKING:
    from bookie_pod.server.tcp.connection import Connection

_log = structlog.get_logger(__name__)


class Reply:
    """Encodes the answer of one request in the version it came in, and sends it. Exactly one call per request.

    Each operation's reply overrides `error` and the one method that is its success.
    """

    __slots__ = ()

    @property
    def joined(self) -> JoinedRequest | None:
        """Return the request of an add that is traced because its client traces it."""
        return None

    @property
    def gone(self) -> bool:
        """True if the client is gone: work that has not begun need not be done."""
        return False

    @property
    def must_wait(self) -> bool:
        """True while there is no room for what the answer may bring. Any thread."""
        return False

    def making(self, nbytes: int) -> None:
        """Count so many bytes more, or less, of answers to this client that are being made. Any thread."""

    def made(self, nbytes: int) -> None:
        """Count so many bytes that are made as what waits for the client."""

    def take(self, nbytes: int) -> bool:
        """Have so many bytes made if there is room for them, see `making`. Any thread."""
        return True

    def postpone(self, again: Callable[[], None], nbytes: int) -> None:
        """Call `again` when so many bytes were taken."""
        again()

    def wait(self) -> None:
        """A long poll begins to wait: until `go_on` no answer is being made."""

    def go_on(self, *, newer: bool) -> None:
        """The wait is over, the answer follows. `newer`: because of a newer LAC, not of the time."""

    def entry_read(self, *, success: bool) -> None:
        """A fencing read has its entry, or cannot have it; what is left is that the fence becomes durable."""

    def fenced(self, *, success: bool) -> None:
        """The fence is durable, or cannot be; the answer follows."""

    def error(self, error: BaseException) -> None:
        raise self._foreign()

    def added(self) -> bytes:
        """The encoded answer of an add, which waits in a lane instead of being sent at once."""
        raise self._foreign()

    def entry(
        self,
        body: bytes | None,
        *,
        entry_id: int | None = None,
        max_lac: int | None = None,
        lac_time_ms: int | None = None,
    ) -> None:
        """A read succeeded; no body when a long poll ended without an entry."""
        raise self._foreign()

    def batch(self, entries: Sequence[bytes]) -> None:
        raise self._foreign()

    def lac_written(self) -> None:
        raise self._foreign()

    def lac_read(self, status: BaseException | None, packet: bytes | None, last_entry: bytes | None) -> None:
        raise self._foreign()

    def forced(self) -> None:
        raise self._foreign()

    def bookie_info(self, total: int | None, free: int | None) -> None:
        raise self._foreign()

    def entry_list(self, availability: bytes) -> None:
        raise self._foreign()

    def _foreign(self) -> TypeError:
        return TypeError(f"{type(self).__name__} does not answer this operation")


@dataclass(slots=True)
class AddRequest:
    """An add of either version."""

    ledger_id: int
    """The ledger id of the entry itself; the answer echoes what the envelope said."""
    entry_id: int
    lac: int
    key: bytes
    entry: bytes
    recovery: bool = False
    high_priority: bool = False
    deferred_sync: bool = False
    life: bytes = NO_LIFE
    """The life of the ledger that is meant, see `bookie_protocol.keys`. Of a recovery's add it does not count."""


@dataclass(slots=True)
class ReadRequest:
    """A read of one entry: ordinary, fencing, or a long poll."""

    ledger_id: int
    entry_id: int
    """-1 asks for the last entry."""
    fence_key: bytes | None = None
    """The master key of a fencing read; b"" if it is fencing without a key. None: an ordinary read."""
    high_priority: bool = False
    previous_lac: int | None = None
    """Set: a long poll."""
    timeout_ms: int | None = None
    piggyback: bool = False
    """Answer a long poll with the entry after `previous_lac`."""
    wants_lac: bool = False
    """The answer carries the LAC known here (version 3)."""
    batch_class: bool = False
    """True if the read is of the traffic class `batch`. Counts for an ordinary read alone."""


@dataclass(slots=True)
class BatchReadRequest:
    """A read of consecutive entries, or of every `step`-th."""

    ledger_id: int
    first_entry_id: int
    max_count: int
    """Entries at most; 0 or less: as many as `max_size` allows."""
    max_size: int
    """Bytes of the answer's frame."""
    fence_key: bytes | None = None
    high_priority: bool = False
    batch_class: bool = False
    """True if the read is of the traffic class `batch`, as in `ReadRequest`."""
    step: int = 1


def code_of(error: BaseException, conn: Connection | None = None) -> V2Code:
    """The v2 code of any error. `conn`: whose request it was, if that may have had a wrong password.

    A ledger in limbo is EIO too: clients of the reference implementation have no name for 107 in version 2, and would
    leave the request to its time-out.
    """
    code = _known(error, conn).v2
    return V2Code.EIO if code == V2Code.EUNKNOWNLEDGERSTATE else code


def status_of(error: BaseException, conn: Connection | None = None) -> V3Status:
    """The v3 status of any error, likewise."""
    return _known(error, conn).v3


def _known(error: BaseException, conn: Connection | None) -> PodkeeperError:
    """The error; one that is not of the taxonomy is a fault of ours, and logged."""
    if conn is not None and isinstance(error, Unauthorized):
        conn.security.wrong_key(error)
    if isinstance(error, PodkeeperError):
        return error
    _log.error("unexpected error in a request", error=repr(error), exc_info=error)
    return StorageFault("unexpected error")


class ConnectionReply(Reply):
    """The reply to a request of a connection, which knows how much its client may still be sent."""

    __slots__ = ("_conn",)
    _conn: Connection

    @property
    def gone(self) -> bool:
        return self._conn.closed

    @property
    def must_wait(self) -> bool:
        return self._conn.must_wait

    def making(self, nbytes: int) -> None:
        self._conn.share.make(nbytes)

    def made(self, nbytes: int) -> None:
        self._conn.made(nbytes)

    def take(self, nbytes: int) -> bool:
        return self._conn.share.take(nbytes)

    def postpone(self, again: Callable[[], None], nbytes: int) -> None:
        self._conn.postpone(again, nbytes)


class CountedRead(ConnectionReply):
    """The reply to a read, which counts against its connection until it is answered.

    A long poll that waits counts nothing: it holds no answer, and a connection may have any number of them.
    """

    __slots__ = ("_kind", "_last_entry", "_phase_since", "_reserved", "_since")

    def __init__(self, conn: Connection, kind: str, *, last_entry: bool, most: int = 0) -> None:
        """`last_entry`: it is the last entry that is asked for, whichever that is. `most`: bytes that the request
        itself allows for its answer; 0: it does not say.

        A subclass calls this last: the read counts from here on, and if anything raised before there is a reply, it
        would count for ever."""
        self._conn = conn
        self._kind = kind
        self._last_entry = last_entry
        self._since = self._phase_since = time.perf_counter()
        self._reserved = conn.read_started(most)
        conn.request_began()

    def wait(self) -> None:
        self._phase("long_poll_pre_wait")
        self._conn.request_ended()
        self._conn.read_paused(self._reserved)

    def go_on(self, *, newer: bool) -> None:
        self._phase("long_poll_wait", success=newer)
        self._reserved = self._conn.read_started()
        self._conn.request_began()

    def entry_read(self, *, success: bool) -> None:
        self._phase("fence_read", success=success)

    def fenced(self, *, success: bool) -> None:
        self._phase("fence_wait", success=success)

    def _phase(self, name: str, *, success: bool = True) -> None:
        now = time.perf_counter()
        self._conn.context.metrics.read_phase(name, (now - self._phase_since) * 1000, success)
        self._phase_since = now

    def _done(
        self, nbytes: int, *, success: bool, error: BaseException | None = None, entries: Sequence[bytes] = ()
    ) -> float:
        """Answered with `nbytes`, headers included, and with these entries. Returns the ms that it took."""
        self._conn.read_finished(self._reserved, nbytes)
        self._conn.request_ended()
        metrics = self._conn.context.metrics
        elapsed_ms = (time.perf_counter() - self._since) * 1000
        metrics.read_done(self._kind, elapsed_ms, success)
        if self._kind == "long_poll":
            self._phase("long_poll_read", success=success)
        if entries:
            metrics.entries_read(len(entries), sum(map(len, entries)), elapsed_ms)
        if isinstance(error, TooManyRequests):
            metrics.read_rejected()
        elif self._last_entry and isinstance(error, NoSuchEntry):
            metrics.no_last_entry()
        log = self._conn.context.request_log
        if error is not None and not self._conn.closed:
            log.read_failed(self._conn.peer, self._identity(), error)
        elif elapsed_ms >= log.slow_ms and self._kind != "long_poll":
            log.read_was_slow(self._conn.peer, self._identity(), elapsed_ms)
        return elapsed_ms

    def _identity(self) -> RequestId:
        raise NotImplementedError
