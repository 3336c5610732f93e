"""Work on a read lane whose result is sent to a client: not before there is room for what it brings.

Invariants
- A read whose client has no room, because it does not take its answers or holds its share of the memory already, is not
  begun: it is put aside, and given to its lane again when there is room.
- What is being read counts from before it is read until its answer has been handed to the connection. If it turns out
  to be larger than was known, and there is no room for that, it is let go, and read again when there is.
- A read that waited until its connection was closed is not made.

Threads: `run` belongs to the event loop, the work to the lane.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bookie_pod.server.tcp.read_lanes import ReadLanes
from bookie_pod.server.tcp.requests import Reply
from bookie_protocol.errors import BookieUnavailable, TooManyRequests

WORTH_BYTES: Final = 4096
"""Smaller answers are not worth counting: a connection has a bounded number of reads under way."""

HEADER_BYTES: Final = 128
"""Of an answer, about."""
LENGTH_BYTES: Final = 8
"""Before each of several entries, about."""
_LATER: Final = object()


def run(
    lanes: ReadLanes,
    ledger_id: int,
    work: Callable[[], Any],
    done: Callable[[Any, BaseException | None], None],
    reply: Reply,
    most: int = 0,
) -> None:
    """Run `work` on the ledger's lane, then `done(result, error)` on the event loop. `most`: bytes that the result may
    have, if that is known before. Raises TooManyRequests."""
    _LaneWork(lanes, ledger_id, work, done, reply, most if most >= WORTH_BYTES else 0).give()


class _LaneWork:
    """Holds nothing that holds it: what is done is gone at once, without the collector of cycles."""

    __slots__ = ("_counted", "_done", "_lanes", "_ledger_id", "_reply", "_wanted", "_work")

    def __init__(
        self,
        lanes: ReadLanes,
        ledger_id: int,
        work: Callable[[], Any],
        done: Callable[[Any, BaseException | None], None],
        reply: Reply,
        wanted: int,
    ) -> None:
        self._lanes = lanes
        self._ledger_id = ledger_id
        self._work = work
        self._done = done
        self._reply = reply
        self._wanted = wanted
        self._counted = 0

    def give(self) -> None:
        """Give it to its lane. Raises TooManyRequests."""
        self._lanes.run(self._ledger_id, self._on_lane, self._on_loop)

    def _on_lane(self) -> Any:
        """If the work raises, what was taken for it goes back on the loop."""
        reply = self._reply
        if reply.gone:
            raise BookieUnavailable("the connection that asked is closed")
        if not self._counted:
            if reply.must_wait or not reply.take(self._wanted):
                return _LATER
            self._counted = self._wanted
        result = self._work()
        nbytes = _size(result)
        if nbytes < WORTH_BYTES:
            nbytes = 0
        if nbytes > self._counted and not reply.take(nbytes - self._counted):
            self._wanted = nbytes
            return _LATER
        if nbytes < self._counted:
            reply.making(nbytes - self._counted)
        self._counted = nbytes
        return result

    def _on_loop(self, result: Any, error: BaseException | None) -> None:
        if result is _LATER:
            self._give_back()
            self._reply.postpone(self._again, self._wanted)
            return
        try:
            self._done(result, error)
        finally:
            self._give_back()

    def _again(self) -> None:
        self._counted = self._wanted
        try:
            self.give()
        except TooManyRequests as refused:
            self._on_loop(None, refused)

    def _give_back(self) -> None:
        if self._counted:
            counted, self._counted = self._counted, 0
            self._reply.made(counted)


def _size(result: Any) -> int:
    """Bytes of the answer with what it holds: one entry with what else is told of it, several, or one."""
    if isinstance(result, tuple):
        result = result[0]
    if isinstance(result, bytes):
        return HEADER_BYTES + len(result)
    return HEADER_BYTES + sum(map(len, result)) + LENGTH_BYTES * len(result) if isinstance(result, list) else 0
