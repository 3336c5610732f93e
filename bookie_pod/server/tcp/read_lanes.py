"""Threads for what may touch a disk: one lane per thread, chosen by ledger id.

Invariants
- Work of one ledger runs in the order in which it was given, because a ledger always has the same lane.
- Each lane's queue is bounded by `pending_max`; beyond it `run` raises TooManyRequests and nothing is queued.
- Results go back to the event loop in batches: one hop for everything that a lane finished within a short slice.
- A lane never dies: whatever the work raises is a result.

Threads: `run` and the call-backs belong to the event loop, the work to `<name>-<n>`.

Source: reference wire protocol, section 10.1; bookie behaviour, section 1.2.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from bookie_protocol.errors import TooManyRequests

Work = Callable[[], Any]
Done = Callable[[Any, BaseException | None], None]
_Item = tuple[Work, Done]
_Result = tuple[Done, Any, BaseException | None]

SLICE_S: Final = 0.001
"""A lane hands its results over at least this often while it has more to do, in seconds."""


class ReadLanes:
    """A fixed number of single-thread lanes."""

    def __init__(self, name: str, threads: int, pending_max: int, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending_max = pending_max
        self._pending = [0] * threads
        self._queues: list[queue.SimpleQueue[_Item | None]] = [queue.SimpleQueue() for _ in range(threads)]
        self._threads = [
            threading.Thread(target=self._work, args=(index,), name=f"{name}-{index}", daemon=True)
            for index in range(threads)
        ]
        self.rejected = 0
        for thread in self._threads:
            thread.start()

    @property
    def pending(self) -> int:
        """Pieces of work queued or running."""
        return sum(self._pending)

    def run(self, ledger_id: int, work: Work, done: Done) -> None:
        """Run `work` on the ledger's lane, then `done(result, error)` on the event loop."""
        lane = ledger_id % len(self._queues)
        if self._pending[lane] >= self._pending_max:
            self.rejected += 1
            raise TooManyRequests(f"ledger {ledger_id}: {self._pending_max} reads are waiting already")
        self._pending[lane] += 1
        self._queues[lane].put((work, done))

    def stop(self) -> None:
        """Let each lane finish what it has and end. Blocks for as long as that takes."""
        for lane in self._queues:
            lane.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, index: int) -> None:
        lane = self._queues[index]
        running = True
        while running:
            item: _Item | None = lane.get()
            results: list[_Result] = []
            deadline = time.monotonic() + SLICE_S
            while True:
                if item is None:
                    running = False
                    break
                results.append(_attempt(*item))
                if time.monotonic() >= deadline:
                    break
                try:
                    item = lane.get_nowait()
                except queue.Empty:
                    break
            if results:
                self._hand_over(index, results)

    def _hand_over(self, index: int, results: list[_Result]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._deliver, index, results)
        except RuntimeError:
            # The loop is closed: the bookie is gone and so are those who asked.
            return

    def _deliver(self, index: int, results: list[_Result]) -> None:
        self._pending[index] -= len(results)
        for done, result, error in results:
            done(result, error)


def _attempt(work: Work, done: Done) -> _Result:
    try:
        return done, work(), None
    except BaseException as error:
        return done, None, error
