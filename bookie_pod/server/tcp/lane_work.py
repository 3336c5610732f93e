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
    wanted = most if most >= WORTH_BYTES else 0
    counted = 0

    def on_lane() -> Any:
        """If the work raises, what was taken for it goes back on the loop."""
        nonlocal wanted, counted
        if reply.gone:
            raise BookieUnavailable("the connection that asked is closed")
        if not counted:
            if reply.must_wait or not reply.take(wanted):
                return _LATER
            counted = wanted
        result = work()
        nbytes = _size(result)
        if nbytes < WORTH_BYTES:
            nbytes = 0
        if nbytes > counted and not reply.take(nbytes - counted):
            wanted = nbytes
            return _LATER
        if nbytes < counted:
            reply.making(nbytes - counted)
        counted = nbytes
        return result

    def on_loop(result: Any, error: BaseException | None) -> None:
        if result is _LATER:
            give_back()
            reply.postpone(again, wanted)
            return
        try:
            done(result, error)
        finally:
            give_back()

    def again() -> None:
        nonlocal counted
        counted = wanted
        try:
            lanes.run(ledger_id, on_lane, on_loop)
        except TooManyRequests as refused:
            on_loop(None, refused)

    def give_back() -> None:
        nonlocal counted
        if counted:
            counted, given = 0, counted
            reply.made(given)

    lanes.run(ledger_id, on_lane, on_loop)


def _size(result: Any) -> int:
    """Bytes of the answer with what it holds: one entry with what else is told of it, several, or one."""
    if isinstance(result, tuple):
        result = result[0]
    if isinstance(result, bytes):
        return HEADER_BYTES + len(result)
    return HEADER_BYTES + sum(map(len, result)) + LENGTH_BYTES * len(result) if isinstance(result, list) else 0
