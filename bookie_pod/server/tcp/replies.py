"""What the replies of both wire versions share: their wire, error codes, and how reads are counted.

Threads: event loop only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import structlog

from bookie_pod.server.tcp.request_log import RequestId
from bookie_pod.server.tcp.requests import Reply
from bookie_pod.server.tcp.wire import Wire
from bookie_protocol.errors import (
    NoSuchEntry,
    PodkeeperError,
    StorageFault,
    TooManyRequests,
    Unauthorized,
    V2Code,
    V3Status,
)

_log = structlog.get_logger(__name__)


def code_of(error: BaseException, wire: Wire | None = None) -> V2Code:
    """The v2 code of any error. `wire`: whose request it was, if that may have had a wrong password.

    A ledger in limbo is EIO too: clients of the reference implementation have no name for 107 in version 2, and would
    leave the request to its time-out.
    """
    code = _known(error, wire).v2
    return V2Code.EIO if code == V2Code.EUNKNOWNLEDGERSTATE else code


def status_of(error: BaseException, wire: Wire | None = None) -> V3Status:
    """Return the v3 status of any error, likewise."""
    return _known(error, wire).v3


def _known(error: BaseException, wire: Wire | None) -> PodkeeperError:
    """The error; one that is not of the taxonomy is a fault of ours, and logged."""
    if wire is not None and isinstance(error, Unauthorized):
        wire.keep_out("a ledger's password", str(error))
        wire.context.complaints.warning("a request had a wrong password", peer=wire.peer, reason=str(error))
    if isinstance(error, PodkeeperError):
        return error
    _log.error("unexpected error in a request", error=repr(error), exc_info=error)
    return StorageFault("unexpected error")


class WireReply(Reply):
    """The reply to a request that came over a wire, which knows how much its client may still be sent."""

    __slots__ = ("_wire",)
    _wire: Wire

    @property
    def gone(self) -> bool:
        return self._wire.closed

    @property
    def must_wait(self) -> bool:
        return self._wire.must_wait

    def making(self, nbytes: int) -> None:
        self._wire.share.make(nbytes)

    def made(self, nbytes: int) -> None:
        self._wire.made(nbytes)

    def take(self, nbytes: int) -> bool:
        return self._wire.share.take(nbytes)

    def postpone(self, again: Callable[[], None], nbytes: int) -> None:
        self._wire.postpone(again, nbytes)


class CountedRead(WireReply):
    """The reply to a read, which counts against its connection until it is answered.

    A long poll that waits counts nothing: it holds no answer, and a connection may have any number of them.
    """

    __slots__ = ("_kind", "_last_entry", "_phase_since", "_reserved", "_since")

    def __init__(self, wire: Wire, kind: str, *, last_entry: bool, most: int = 0) -> None:
        """`last_entry`: it is the last entry that is asked for, whichever that is. `most`: bytes that the request
        itself allows for its answer; 0: it does not say.

        A subclass calls this last: the read counts from here on, and if anything raised before there is a reply, it
        would count for ever."""
        self._wire = wire
        self._kind = kind
        self._last_entry = last_entry
        self._since = self._phase_since = time.perf_counter()
        self._reserved = wire.read_started(most)
        wire.request_began()

    def wait(self) -> None:
        self._phase("long_poll_pre_wait")
        self._wire.request_ended()
        self._wire.read_paused(self._reserved)

    def go_on(self, *, newer: bool) -> None:
        self._phase("long_poll_wait", success=newer)
        self._reserved = self._wire.read_started()
        self._wire.request_began()

    def entry_read(self, *, success: bool) -> None:
        self._phase("fence_read", success=success)

    def fenced(self, *, success: bool) -> None:
        self._phase("fence_wait", success=success)

    def _phase(self, name: str, *, success: bool = True) -> None:
        now = time.perf_counter()
        self._wire.context.metrics.read_phase(name, (now - self._phase_since) * 1000, success)
        self._phase_since = now

    def _done(
        self, nbytes: int, *, success: bool, error: BaseException | None = None, entries: Sequence[bytes] = ()
    ) -> float:
        """Answered with `nbytes`, headers included, and with these entries. Returns the ms that it took."""
        self._wire.read_finished(self._reserved, nbytes)
        self._wire.request_ended()
        metrics = self._wire.context.metrics
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
        log = self._wire.context.request_log
        if error is not None and not self._wire.closed:
            log.read_failed(self._wire.peer, self._identity(), error)
        elif elapsed_ms >= log.slow_ms and self._kind != "long_poll":
            log.read_was_slow(self._wire.peer, self._identity(), elapsed_ms)
        return elapsed_ms

    def _identity(self) -> RequestId:
        raise NotImplementedError
