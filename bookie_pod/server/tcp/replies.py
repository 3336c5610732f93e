"""What the replies of both wire versions share: their connection, error codes, and the budget of reads in flight.

Threads: event loop only.

Source: reference wire protocol, section 9.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import structlog

from bookie_pod.server.tcp.requests import Reply
from bookie_protocol.errors import NoSuchEntry, PodkeeperError, TooManyRequests, Unauthorized, V2Code, V3Status

if TYPE_CHECKING:
    from bookie_pod.server.tcp.connection import Connection

_log = structlog.get_logger(__name__)


def code_of(error: BaseException, conn: Connection | None = None) -> V2Code:
    """The v2 code of any error; one that is not of the taxonomy is a fault of ours: logged, EIO. `conn`: whose request
    it was, if that may have had a wrong password.

    A ledger in limbo is EIO too: clients of the reference implementation have no name for 107 in version 2, and would
    leave the request to its time-out.
    """
    if conn is not None and isinstance(error, Unauthorized):
        conn.security.wrong_key(error)
    if isinstance(error, PodkeeperError):
        return V2Code.EIO if error.v2 == V2Code.EUNKNOWNLEDGERSTATE else error.v2
    _log.error("unexpected error in a request", error=repr(error), exc_info=error)
    return V2Code.EIO


def status_of(error: BaseException, conn: Connection | None = None) -> V3Status:
    """The v3 status of any error, likewise."""
    if conn is not None and isinstance(error, Unauthorized):
        conn.security.wrong_key(error)
    if isinstance(error, PodkeeperError):
        return error.v3
    _log.error("unexpected error in a request", error=repr(error), exc_info=error)
    return V3Status.EIO


class ConnectionReply(Reply):
    """Of a request that came over a connection, which knows how much its client may still be sent."""

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


class ReadBudget:
    """Counts one read against its connection until it is answered. A long poll that waits counts nothing: it holds no
    answer, and a connection may have any number of them."""

    __slots__ = ("_conn", "_kind", "_last_entry", "_phase_since", "_reserved", "_since")

    def __init__(self, conn: Connection, kind: str, *, last_entry: bool = False, most: int = 0) -> None:
        """`last_entry`: it is the last entry that is asked for, whichever that is. `most`: bytes that the request
        itself allows for its answer; 0: it does not say."""
        self._conn = conn
        self._kind = kind
        self._last_entry = last_entry
        self._since = self._phase_since = time.perf_counter()
        self._reserved = conn.read_started(most)
        conn.request_began()

    def pause(self) -> None:
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

    def done(
        self, nbytes: int, *, success: bool, error: BaseException | None = None, entries: Sequence[bytes] = ()
    ) -> None:
        """Answered with `nbytes`, headers included, and with these entries."""
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
