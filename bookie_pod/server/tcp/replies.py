"""What the replies of both wire versions share: error codes, and the budget of reads in flight.

Threads: event loop only.

Source: reference wire protocol, section 9.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from bookie_protocol.errors import PodkeeperError, TooManyRequests, V2Code, V3Status

if TYPE_CHECKING:
    from bookie_pod.server.tcp.connection import Connection

_log = structlog.get_logger(__name__)


def code_of(error: BaseException) -> V2Code:
    """The v2 code of any error; one that is not of the taxonomy is a fault of ours: logged, EIO."""
    if isinstance(error, PodkeeperError):
        return error.v2
    _log.error("unexpected error in a request", error=repr(error), exc_info=error)
    return V2Code.EIO


def status_of(error: BaseException) -> V3Status:
    """The v3 status of any error, likewise."""
    if isinstance(error, PodkeeperError):
        return error.v3
    _log.error("unexpected error in a request", error=repr(error), exc_info=error)
    return V3Status.EIO


class ReadBudget:
    """Counts one read against its connection until it is answered. A long poll that waits counts nothing: it holds no
    answer, and a connection may have any number of them."""

    __slots__ = ("_conn", "_kind", "_reserved", "_since")

    def __init__(self, conn: Connection, kind: str) -> None:
        self._conn = conn
        self._kind = kind
        self._since = time.perf_counter()
        self._reserved = conn.read_started()

    def pause(self) -> None:
        self._conn.read_paused(self._reserved)

    def go_on(self) -> None:
        self._reserved = self._conn.read_started()

    def done(
        self, nbytes: int, *, success: bool, error: BaseException | None = None, entries: Sequence[bytes] = ()
    ) -> None:
        """Answered with `nbytes`, headers included, and with these entries."""
        self._conn.read_finished(self._reserved, nbytes)
        metrics = self._conn.context.metrics
        elapsed_ms = (time.perf_counter() - self._since) * 1000
        metrics.read_done(self._kind, elapsed_ms, success)
        if entries:
            metrics.entries_read(len(entries), sum(map(len, entries)), elapsed_ms)
        if isinstance(error, TooManyRequests):
            metrics.read_rejected()
